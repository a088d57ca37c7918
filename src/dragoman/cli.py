"""The command line: one dict of name → function, which live in ``commands/``. Heavy imports stay inside the
functions, so --help is instant."""

import os
import sys
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer
from typer.exceptions import TyperException

from dragoman import __version__
from dragoman.commands import data, lab, models, runs
from dragoman.errors import ExitCode, UserError
from dragoman.machine import end_process

COMMANDS: dict[str, Callable[..., None]] = {
    "demo": runs.demo,
    "recipes": runs.recipes,
    "train": runs.train,
    "evaluate": models.evaluate,
    "translate": models.translate,
    "export": models.export,
    "serve": models.serve,
    "watch": runs.watch,
    "explain": runs.explain,
    "doctor": runs.doctor,
    "plan": runs.plan,
}

# What the base installation does without, by the extra of pyproject.toml that brings it.
EXTRAS = {
    "train": ("torch", "safetensors", "psutil", "pynvml", "tensorboard", "plotly"),
    "serve": (
        "fastapi",
        "orjson",
        "uvicorn",
        "httptools",
        "uvloop",
        "prometheus_client",
        "py3langid",
        "python_multipart",
    ),
}

LAB_HELP = """Rehearse a cluster on one Linux machine.

Its hosts are network namespaces with links that can be slowed, cut and restored.

Start a lab with "dragoman lab --hosts 2 --network 100mbit -- COMMAND" (see "dragoman lab run --help"), and do the rest
from inside COMMAND or from another terminal."""


def print_version(wanted: bool) -> None:
    if wanted:
        print(f"dragoman {__version__}")
        raise typer.Exit


def global_options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=print_version)
    ] = False,
) -> None:
    """Options of ``dragoman`` itself."""


def build_app() -> typer.Typer:
    settings: dict[str, Any] = {
        "rich_markup_mode": None,
        "add_completion": False,
        "pretty_exceptions_enable": False,
    }
    app = typer.Typer(
        name="dragoman",
        help="Train translation models on one machine or many, and understand what happened.",
        **settings,
    )
    app.callback()(global_options)
    data_app = typer.Typer(
        help="Get text, prepare it for training, and look at what was prepared.", **settings
    )
    for name, command in COMMANDS.items():
        app.command(name)(command)
    for name, command in data.COMMANDS.items():
        data_app.command(name)(command)
    app.add_typer(data_app, name="data")
    lab_app = typer.Typer(help=LAB_HELP, **settings)
    for name, command in lab.COMMANDS.items():
        # What follows the first argument belongs to the COMMAND, its options and its -- too.
        lab_app.command(name, context_settings={"allow_interspersed_args": name not in ("run", "exec")})(
            command
        )
    app.add_typer(lab_app, name="lab")
    return app


def main() -> NoReturn:
    """Run a command; turn every error the user can fix into what, where and fix, and an exit code of 2."""
    arguments = sys.argv[1:] or ["--help"]
    if arguments[0] == "lab" and arguments[1:2] not in ([], ["--help"]) and arguments[1].startswith("-"):
        arguments.insert(1, "run")  # dragoman lab --hosts 2 -- COMMAND
    names = arguments[: 2 if arguments[0] in ("data", "lab") else 1]
    try:
        code = build_app()(arguments, prog_name="dragoman", standalone_mode=False)
    except UserError as error:
        print(error, file=sys.stderr)
        code = ExitCode.USER
    except TyperException as error:
        known = arguments[0] in (*COMMANDS, "data", "lab")
        fix = f"see dragoman {' '.join(names) + ' ' if known else ''}--help"
        where = " ".join(["dragoman", *arguments])
        print(UserError(error.format_message(), where=where, fix=fix), file=sys.stderr)
        code = ExitCode.USER
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        extra = next((extra for extra, modules in EXTRAS.items() if module in modules), None)
        if extra is None:
            raise
        where = f"dragoman {names[0]}"
        fix = f"pip install 'dragoman[{extra}]'"
        print(
            UserError(f"this needs {module}, which is not installed", where=where, fix=fix), file=sys.stderr
        )
        code = ExitCode.USER
    except (KeyboardInterrupt, typer.Abort):
        code = ExitCode.INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has had enough. The null device keeps the interpreter from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = ExitCode.DONE
    if "torch" in sys.modules:
        end_process(code or ExitCode.DONE)
    sys.exit(code)
