"""``dragoman doctor``: can these machines train together?

Every host is asked what it is like (``survey``), what lies between them is measured (``examine``), what is wrong is
named with its fix (``findings``), and here all of it becomes a page for people, or JSON.
"""

import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dragoman.cluster.examine import AllReduce, measure_hosts, start_here
from dragoman.cluster.findings import Examination, Finding, Need, counted, devices_of, diagnose
from dragoman.cluster.hosts import Host
from dragoman.cluster.survey import Answer, Question, facts, survey
from dragoman.data.prepare import find, fingerprint
from dragoman.errors import ExitCode, UserError
from dragoman.model.weights import checkpoint_bytes, count_parameters
from dragoman.recipe import load_recipe

PAGE_COLUMNS = 100
HOSTS_SIDE_BY_SIDE = 4
UNKNOWN = "–"


def consult(
    hosts: Sequence[Host], source: str | None = None, *, full: bool = False
) -> tuple[Examination, list[Finding]]:
    """Examine hosts, or this machine if none is named, for any run or for the one of a recipe."""
    need = None if source is None else need_of(source)
    examination = examine(hosts, need, full=full)
    return examination, diagnose(examination)


def need_of(source: str) -> Need:
    """Return what a recipe needs of hosts; its text is read, but nothing is prepared."""
    recipe = load_recipe(source)
    name, unread = "", None
    try:
        name = fingerprint(recipe)
    except UserError as error:  # the network can be judged all the same
        unread = error
    parameters = count_parameters(recipe.model, -(-recipe.vocab.size // 8) * 8)
    return Need(
        recipe=source,
        path=Path(recipe.data.directory) / name,
        fingerprint=name,
        dataset=find(Path(recipe.data.directory) / name) if name else None,
        unread=unread,
        parameters=parameters,
        disk_bytes=checkpoint_bytes(recipe, parameters),
        interface=recipe.cluster.interface,
        exchanges_gradients=recipe.cluster.sync == "every-step",
    )


def examine(hosts: Sequence[Host], need: Need | None, *, full: bool) -> Examination:
    """Ask and measure, and say on standard error what is being done."""
    run = Path("runs") if need is None else Path("runs") / Path(need.recipe).stem
    dataset = str(need.path) if need is not None and need.fingerprint else None
    question = Question(dataset, str(run), devices=True)
    interface = None if need is None else need.interface
    if hosts:
        say(f"asking {', '.join(host.name for host in hosts)} …")
        answers = survey(hosts, question)
        measured = measure_hosts(answers, interface=interface, full=full, say=say)
    else:
        say("looking at this machine …")
        answers = [Answer(Host(platform.node()), facts(question))]
        measured = measure_hosts(answers, interface=interface, full=full, say=say, start=start_here)
    return Examination(answers, measured, need, here=not hosts)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def exit_code(findings: Sequence[Finding]) -> ExitCode:
    return ExitCode.USER if any(each.severity == "problem" for each in findings) else ExitCode.DONE


def verdict(examination: Examination, findings: Sequence[Finding]) -> str:
    """Return the answer to the question, in a sentence."""
    number = len(examination.answers)
    problems = sum(each.severity == "problem" for each in findings)
    warnings = sum(each.severity == "warning" for each in findings)
    if number == 1:
        who = "this machine" if examination.here else f"host {examination.answers[0].host.name}"
        can, cannot = f"{who} can train", f"{who} cannot train yet"
    else:
        can, cannot = (
            f"these {number} hosts can train together",
            f"these {number} hosts cannot train together yet",
        )
    if problems:
        return f"{cannot}: {counted(problems, 'problem')} above"
    return f"{can}; {counted(warnings, 'warning')} above" if warnings else can


def as_json(examination: Examination, findings: Sequence[Finding]) -> dict[str, Any]:
    """Return everything, with the same keys every time; what is not known is None."""
    return {
        "hosts": [_host_as_json(answer) for answer in examination.answers],
        "links": [
            {key: None if link.error and not value else value for key, value in asdict(link).items()}
            for link in examination.measured.links
        ],
        "all_reduce": [
            {**asdict(each), "device": examination.measured.device or None}
            for each in examination.measured.all_reduce
        ],
        "findings": [asdict(each) for each in findings],
        "verdict": "no" if exit_code(findings) else "yes",
        "summary": verdict(examination, findings),
    }


def _host_as_json(answer: Answer) -> dict[str, Any]:
    found = answer.facts.get
    offset, doubt = found("clock_offset_seconds"), found("clock_doubt_seconds")
    return {
        "host": answer.host.name,
        "reachable": not answer.problem,
        "workers": answer.host.workers,
        **{name: found(name) for name in ("dragoman", "torch", "python", "devices", "cores")},
        **{name: found(name) for name in ("memory_bytes", "memory_free_bytes", "disk_free_bytes")},
        "clock_offset_ms": None if offset is None else offset * 1e3,
        "clock_doubt_ms": None if doubt is None else doubt * 1e3,
        "dataset": found("dataset"),
        "interfaces": found("interfaces"),
    }


def print_page(examination: Examination, findings: Sequence[Finding], console: Console | None = None) -> None:
    """Print everything for people."""
    console = console or Console(highlight=False)
    width = min(console.width, PAGE_COLUMNS)
    console.print(Group(*_page(examination, findings)), width=width)


def _page(examination: Examination, findings: Sequence[Finding]) -> Iterator[RenderableType]:
    answers, measured = examination.answers, examination.measured
    for first in range(0, len(answers), HOSTS_SIDE_BY_SIDE):
        yield _hosts(examination, answers[first : first + HOSTS_SIDE_BY_SIDE])
    if measured.links:
        yield _links(examination)
    if measured.all_reduce:
        yield _all_reduce(examination)
    for finding in findings:
        style = {"problem": "red", "warning": "yellow", "note": "cyan"}[finding.severity]
        yield Text.assemble((f"{finding.severity}: ", f"bold {style}"), finding.what)
        yield Padding(Text(f"fix: {finding.fix}"), (0, 0, 0, 2))
    if findings:
        yield Text()
    yield Text(
        f"verdict: {verdict(examination, findings)}",
        style="bold red" if exit_code(findings) else "bold green",
    )


def _hosts(examination: Examination, answers: Sequence[Answer]) -> Table:
    """Return a table with a column for each host."""
    table = _table("host")
    for answer in answers:
        table.add_column(Text(answer.host.name), overflow="fold")

    def add(label: str, cells: Iterator[str]) -> None:
        table.add_row(label, *map(Text, cells))

    known = [answer.facts for answer in answers]
    if not examination.here:
        add("reachable", ("no" if answer.problem else "yes" for answer in answers))
        add("workers", (str(answer.host.workers) for answer in answers))
    for name in ("dragoman", "torch", "python"):
        add(name, (found.get(name, UNKNOWN) for found in known))
    add("devices", (devices_of(found) if found else UNKNOWN for found in known))
    add("cores", (str(found["cores"]) if found else UNKNOWN for found in known))
    add("free memory", (_memory(found) if found else UNKNOWN for found in known))
    add("free disk", (_megabytes(found["disk_free_bytes"]) if found else UNKNOWN for found in known))
    if not examination.here:
        add("clock", (_clock(found) for found in known))
    if examination.need is not None and examination.need.fingerprint:
        add("dataset", (_dataset(found, examination.need) if found else UNKNOWN for found in known))
    return table


def _links(examination: Examination) -> Table:
    table = _table("from", "to", "address", "interface")
    for column in ("Mbit/s", "round trip ms"):
        table.add_column(column, justify="right", no_wrap=True)
    for link in examination.measured.links:
        rate, latency = f"{link.mbit_per_second:,.0f}", f"{link.latency_ms:,.2f}"
        numbers = (UNKNOWN, UNKNOWN) if link.error else (rate, latency)
        table.add_row(
            *map(
                Text, (link.source, link.target, link.address or UNKNOWN, link.interface or UNKNOWN, *numbers)
            )
        )
    return table


def _all_reduce(examination: Examination) -> Table:
    measured = examination.measured
    device = {"cpu": " (Gloo, CPU)", "cuda": " (NCCL, GPU)"}.get(measured.device, "")
    table = _table(f"all-reduce{device}")
    for column in ("ms", "Mbit/s each way"):
        table.add_column(column, justify="right")
    for each in measured.all_reduce:
        table.add_row(f"{each.megabytes} MB", *map(Text, _numbers(each)))
    return table


def _numbers(each: AllReduce) -> tuple[str, str]:
    if each.seconds is None or each.mbit_per_second is None:
        return each.skipped, UNKNOWN
    return f"{each.seconds * 1e3:,.1f}", f"{each.mbit_per_second:,.0f}"


def _table(*columns: str) -> Table:
    return Table(*columns, box=box.SIMPLE, pad_edge=False)


def _memory(found: dict[str, Any]) -> str:
    return f"{found['memory_free_bytes'] / 1e6:,.0f} of {_megabytes(found['memory_bytes'])}"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"


def _clock(found: dict[str, Any]) -> str:
    if "clock_offset_seconds" not in found:
        return UNKNOWN
    offset, doubt = (found[f"clock_{each}_seconds"] * 1e3 for each in ("offset", "doubt"))
    return f"{round(offset, 1) + 0.0:+,.1f} ± {doubt:,.1f} ms"  # + 0.0: there is no -0.0 for people


def _dataset(found: dict[str, Any], need: Need) -> str:
    data = found["dataset"]
    if data["fingerprint"] is None:
        return f"{need.fingerprint}: not there"
    state = (
        "damaged" if data["damage"] else "there" if data["fingerprint"] == need.fingerprint else "another one"
    )
    return f"{data['fingerprint']}: {state}"
