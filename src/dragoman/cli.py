"""The command line: one dict of name → function. Heavy imports stay inside the functions, so --help is instant."""

import json as jsonlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.exceptions import TyperException

from dragoman import __version__
from dragoman.errors import ExitCode, UserError
from dragoman.machine import end_process

RecipeArgument = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A .toml file, or the name of a built-in recipe.")
]
ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="A run, or an exported model.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a setting of the recipe (TOML value); repeatable."
    ),
]
HostsOption = Annotated[
    str | None,
    typer.Option(
        metavar="A:2,B:2", help="Hosts and their workers, or a file with one a line; reached by ssh."
    ),
]
SshPortOption = Annotated[int | None, typer.Option(min=1, max=65535, help="Port of the hosts' sshd.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
BeamOption = Annotated[int | None, typer.Option(min=1, help="Beam width; the model's own if not given.")]


def demo(
    run: Annotated[Path, typer.Option(help="Where to put the run.")] = Path("runs/demo"),
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 2,
    json: JsonOption = False,
) -> None:
    """Train a small model in minutes and show what it says."""
    from dragoman.demo import run_demo

    raise typer.Exit(run_demo(run, workers, json=json))


def recipes(
    name: Annotated[str | None, typer.Argument(help="Print this recipe, to start from.")] = None,
    json: JsonOption = False,
) -> None:
    """List the built-in recipes, or print one."""
    from dragoman.recipe import built_in_recipes

    texts = built_in_recipes()
    if name is None:
        # The first line of every recipe says what it is for.
        purposes = {each: text.splitlines()[0].removeprefix("# ") for each, text in texts.items()}
        if json:
            print_json(purposes)
        else:
            for each, purpose in purposes.items():
                print(f"{each:20}{purpose}")
            print("\nPrint one to start from:  dragoman recipes tiny > my.toml")
    elif name in texts:
        print_json({name: texts[name]}) if json else print(texts[name], end="")
    else:
        raise UserError(
            f"there is no recipe {name}",
            where=f"dragoman recipes {name}",
            fix=f"choose one of: {', '.join(texts)}",
        )


def data_prepare(
    recipe: RecipeArgument,
    set_: SetOption = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; all cores if not given.")] = None,
    json: JsonOption = False,
) -> None:
    """Read, clean and tokenise the text of a recipe into a dataset; an existing one is used as it is."""
    from dragoman.data.passport import passport, print_passport
    from dragoman.data.prepare import prepare
    from dragoman.recipe import load_recipe

    dataset = prepare(load_recipe(recipe, set_ or ()), workers=workers)
    print_json(passport(dataset)) if json else print_passport(dataset)


def data_show(
    dataset: Annotated[Path, typer.Argument(help="A dataset directory.")],
    json: JsonOption = False,
    verify: Annotated[bool, typer.Option(help="Also check the checksum of every file.")] = False,
) -> None:
    """Show a dataset's passport: where it came from, how large it is, what was dropped and why."""
    from dragoman.data.passport import passport, print_passport
    from dragoman.data.shards import Dataset

    opened = Dataset.open(dataset)
    if verify:
        opened.verify()
    print_json(passport(opened)) if json else print_passport(opened)


def train(
    recipe: RecipeArgument,
    set_: SetOption = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Worker processes: one per GPU, or one on a machine without.")
    ] = None,
    hosts: HostsOption = None,
    ssh_port: SshPortOption = None,
    run: Annotated[
        Path | None, typer.Option(help="The run directory; runs/NAME of the recipe if not given.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Train a recipe, or go on with it if the run exists. Prepares the data first where needed."""
    from dragoman.cluster.hosts import choose_hosts
    from dragoman.train.command import train_recipe

    chosen = choose_hosts(hosts, ssh_port, workers)
    code, summary = train_recipe(recipe, set_ or (), workers=workers, hosts=chosen, run_path=run, quiet=json)
    if summary is None:
        pass  # another worker leads, and speaks
    elif json:
        print_json(summary)
    elif code is ExitCode.DONE:
        print(f"{summary['message']}. Translate with:  dragoman translate {summary['run']}/best < input.txt")
    else:
        print(summary["message"], file=sys.stderr)
    raise typer.Exit(code)


def evaluate(
    model: ModelArgument,
    src: Annotated[Path, typer.Option(help="Source text, a sentence a line.")],
    ref: Annotated[Path, typer.Option(help="Reference translation, line by line.")],
    beam: BeamOption = None,
    json: JsonOption = False,
) -> None:
    """Translate a text and score it: BLEU, chrF, signatures.

    Every score comes with its 95 % interval."""
    from dragoman.decode.score import evaluate_model

    result = evaluate_model(model, src, ref, beam=beam)
    if json:
        print_json(result)
        return
    for metric, name in (("bleu", "BLEU"), ("chrf", "chrF")):
        low, high = result["ci95" if metric == "bleu" else "chrf_ci95"]
        signature = result["signature" if metric == "bleu" else "chrf_signature"]
        print(f"{name} {result[metric]:.2f}  (95 % interval {low:.2f} to {high:.2f})  {signature}")
    print(f"{result['sentences']:,} sentences in {result['seconds']:.1f} s")


def translate(
    model: ModelArgument,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Text to translate; standard input if not given.")
    ] = None,
    beam: BeamOption = None,
    json: JsonOption = False,
) -> None:
    """Translate a text, line by line."""
    from dragoman.decode.translator import Translator, resolve_model

    translator = Translator(resolve_model(model))
    for translation in translator.translate(read_lines(file), beam=beam):
        if json:
            line = {"text": translation.text, "log_probability": translation.log_probability}
            print(jsonlib.dumps(line, ensure_ascii=False), flush=True)
        else:
            print(translation.text, flush=True)


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    to: Annotated[Path, typer.Option(help="The directory to write the model to.")],
    step: Annotated[int | None, typer.Option(help="Which checkpoint; the best if not given.")] = None,
    average: Annotated[int, typer.Option(min=1, metavar="K", help="Average the last K checkpoints.")] = 1,
    quantize: Annotated[
        str | None, typer.Option(help="int8, int8_float32, int16, float16 or bfloat16.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Export a run's model for CTranslate2."""
    from dragoman.decode.export import export_run
    from dragoman.rundir import RunDir

    path = export_run(RunDir.open(run), to, step=step, average=average, quantization=quantize)
    size = sum(file.stat().st_size for file in path.iterdir())
    if json:
        print_json({"model": str(path), "bytes": size})
    else:
        print(f"{path}: {size / 1e6:.1f} MB. Translate with:  dragoman translate {path} < input.txt")


def explain(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run; or another toolkit's TensorBoard directory or log.")
    ],
    json: JsonOption = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the report, a page that opens from disk.")
    ] = None,
) -> None:
    """What happened in a run? Twelve questions, each with a verdict, the numbers, and what to do next."""
    from dragoman.observe.explain import explain as answer_all
    from dragoman.observe.explain import to_json
    from dragoman.observe.explain.page import print_page
    from dragoman.observe.foreign import read_history

    history = read_history(run)
    answers = answer_all(history)
    print_json(to_json(history, answers)) if json else print_page(history, answers)
    if html is not None:
        from dragoman.observe.report import write_report

        write_report(history, answers, html)


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run, or a directory with several.")],
    web: Annotated[bool, typer.Option("--web", help="Serve a live page on this machine instead.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the page; 0 is any that is free.")] = 8765,
) -> None:
    """Show a run while it goes on: progress, curves, workers, verdicts so far."""
    if web:
        from dragoman.serve.live import serve_live

        serve_live(run, port, lambda address: print(f"{address}  (Ctrl-C ends)", flush=True))
    else:
        from dragoman.observe.watch import watch_terminal

        watch_terminal(run)


def doctor(
    hosts: HostsOption = None,
    ssh_port: SshPortOption = None,
    recipe: Annotated[
        str | None, typer.Option(metavar="RECIPE", help="Also see whether they can train this recipe.")
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Measure also what takes long on a slow link.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Can these machines train together? Without --hosts: can this one?

    Exits with 0 if they can, and with 2 if there is a problem to fix."""
    from dragoman.cluster.doctor import as_json, consult, exit_code, print_page
    from dragoman.cluster.hosts import choose_hosts

    examination, findings = consult(choose_hosts(hosts, ssh_port, None), recipe, full=full)
    print_json(as_json(examination, findings)) if json else print_page(examination, findings)
    raise typer.Exit(exit_code(findings))


def plan(
    recipe: RecipeArgument,
    set_: SetOption = None,
    gpus: Annotated[
        int | None, typer.Option(min=1, help="Devices of the whole cluster, a worker each.")
    ] = None,
    gpus_per_host: Annotated[int | None, typer.Option(min=1, help="All on one host if not given.")] = None,
    device: Annotated[
        str | None, typer.Option(help="v100, a100, h100, l4, t4, rtx3090, rtx4090 or cpu (a core).")
    ] = None,
    network: Annotated[str | None, typer.Option(metavar="RATE", help="Between hosts: 1Gbit, none.")] = None,
    hosts: HostsOption = None,
    ssh_port: SshPortOption = None,
    price: Annotated[
        str | None, typer.Option(help="Of a device: 3.06/h; or of a host: 12.24/host/h.")
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure the hosts, or this machine, for up to a minute.")
    ] = False,
    lengths: Annotated[
        str | None, typer.Option(metavar="S,T", help="Mean tokens of a sentence on both sides.")
    ] = None,
    tflops: Annotated[float | None, typer.Option(help="That a device achieves, in TFLOP/s.")] = None,
    within: Annotated[
        str | None, typer.Option(metavar="RATE", help="Between devices of a host: 80Gbit.")
    ] = None,
    latency_ms: Annotated[float | None, typer.Option(min=0, help="Of a message between hosts.")] = None,
    html: Annotated[Path | None, typer.Option(help="Also write a page with charts to this file.")] = None,
    json: JsonOption = False,
) -> None:
    """Predict memory, step time, hours and cost of a recipe on a cluster, before it is paid for."""
    from dragoman.cluster.hosts import choose_hosts
    from dragoman.files import disk_errors
    from dragoman.observe.plan_command import Wish, make_plan
    from dragoman.observe.plan_page import as_json, print_plan

    wish = Wish(gpus, gpus_per_host, device, network, price, measure, lengths, tflops, within, latency_ms)
    forecast = make_plan(recipe, set_ or (), wish, choose_hosts(hosts, ssh_port, None))
    if html is not None:
        from dragoman.observe.plan_html import write_html

        with disk_errors(html):
            write_html(forecast, html)
    print_json(as_json(forecast)) if json else print_plan(forecast)


HostArgument = Annotated[str, typer.Argument(metavar="HOST", help="A host of the lab, such as host1.")]
LabOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Which lab, if several are running: the number it said.")
]


def lab_run(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="What to run in the lab.")],
    hosts: Annotated[int, typer.Option(min=1, max=253, help="How many: host1, host2, …")] = 2,
    network: Annotated[
        str, typer.Option(metavar="RATE", help="Of each host's link, both ways: 20mbit, 1gbit, none.")
    ] = "none",
    cores_per_host: Annotated[
        int | None, typer.Option(min=1, help="Cores of each host; all of them if not given.")
    ] = None,
    workers_per_host: Annotated[
        int, typer.Option(min=1, help="Workers of each host, for DRAGOMAN_HOSTS.")
    ] = 1,
) -> None:
    """Make a lab, run COMMAND in it, and end with it. "dragoman lab --hosts 2 -- COMMAND" is the same."""
    from dragoman.cluster.lab.hosts import parse_rate
    from dragoman.cluster.lab.run import Settings, run_lab

    rate = parse_rate(network, where=f"--network {network}")
    raise typer.Exit(run_lab(Settings(command, hosts, rate, cores_per_host, workers_per_host)))


def lab_exec(
    host: HostArgument,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[--] COMMAND", help="After -- run as it is; else joined for a shell, as ssh does."
        ),
    ] = None,
    lab: LabOption = None,
) -> None:
    """Run a command on a host, as ssh would.

    Input, output and exit code are those of the command; 255 means that the host is cut or off."""
    from dragoman.cluster.lab.client import exec_on_host

    raise typer.Exit(exec_on_host(host, command or [], lab=lab))


def lab_cut(host: HostArgument, lab: LabOption = None) -> None:
    """Cut the link of a host. Its processes go on."""
    from dragoman.cluster.lab.client import ask

    print(ask("cut", host=host, lab=lab)["message"])


def lab_restore(host: HostArgument, lab: LabOption = None) -> None:
    """Repair a host that was cut or killed."""
    from dragoman.cluster.lab.client import ask

    print(ask("restore", host=host, lab=lab)["message"])


def lab_slow(
    host: HostArgument,
    rate: Annotated[str, typer.Argument(metavar="RATE", help="Such as 20mbit; none is no limit.")],
    lab: LabOption = None,
) -> None:
    """Give the link of a host another rate, slower or faster."""
    from dragoman.cluster.lab.client import ask

    print(ask("slow", host=host, rate=rate, lab=lab)["message"])


def lab_kill(host: HostArgument, lab: LabOption = None) -> None:
    """Power a host off. Its link is down, its processes are killed, nothing starts there until it is restored."""
    from dragoman.cluster.lab.client import ask

    print(ask("kill", host=host, lab=lab)["message"])


def lab_status(lab: LabOption = None, json: JsonOption = False) -> None:
    """Show the hosts, their links and how many processes they run."""
    from dragoman.cluster.lab.client import ask, format_status

    status = ask("status", lab=lab)["status"]
    print_json(status) if json else print(format_status(status))


COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo,
    "recipes": recipes,
    "train": train,
    "evaluate": evaluate,
    "translate": translate,
    "export": export,
    "watch": watch,
    "explain": explain,
    "doctor": doctor,
    "plan": plan,
}
DATA_COMMANDS: dict[str, Callable[..., None]] = {"prepare": data_prepare, "show": data_show}
LAB_COMMANDS: dict[str, Callable[..., None]] = {
    "run": lab_run,
    "exec": lab_exec,
    "cut": lab_cut,
    "restore": lab_restore,
    "slow": lab_slow,
    "kill": lab_kill,
    "status": lab_status,
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
    data = typer.Typer(help="Prepare text for training, and look at what was prepared.", **settings)
    for name, command in COMMANDS.items():
        app.command(name)(command)
    for name, command in DATA_COMMANDS.items():
        data.command(name)(command)
    app.add_typer(data, name="data")
    lab = typer.Typer(help=LAB_HELP, **settings)
    for name, command in LAB_COMMANDS.items():
        # What follows the first argument belongs to the COMMAND, its options and its -- too.
        lab.command(name, context_settings={"allow_interspersed_args": name not in ("run", "exec")})(command)
    app.add_typer(lab, name="lab")
    return app


def print_json(value: object) -> None:
    print(jsonlib.dumps(value, indent=2, ensure_ascii=False))


def read_lines(file: Path | None) -> Iterator[str]:
    """Yield the lines of a file or of standard input, without their ends."""
    from dragoman.data.text import open_lines

    yield from open_lines(file)


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
    except (KeyboardInterrupt, typer.Abort):
        code = ExitCode.INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has had enough. The null device keeps the interpreter from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = ExitCode.DONE
    if "torch" in sys.modules:
        end_process(code or ExitCode.DONE)
    sys.exit(code)
