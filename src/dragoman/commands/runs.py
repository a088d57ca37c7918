"""Commands for runs: plan and start them, watch them, ask what happened."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from dragoman.commands.options import (
    HostsOption,
    JsonOption,
    RecipeArgument,
    SetOption,
    SshPortOption,
    print_json,
)
from dragoman.errors import ExitCode, UserError


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
