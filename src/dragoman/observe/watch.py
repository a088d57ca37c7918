"""``dragoman watch``: a run as it goes, on a terminal. Reads what is appended, and never touches the run.

Progress and the time to go, curves as sparklines, every host and rank with what it is doing, warnings, and the
verdicts so far. On a finished run, and where there is no terminal, it prints once.
"""

import math
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dragoman.errors import UserError
from dragoman.observe import events
from dragoman.observe.console import RECENT_STEPS, format_duration
from dragoman.observe.explain import Answer, explain
from dragoman.observe.history import Column, History
from dragoman.observe.reading import Follower, is_run
from dragoman.observe.report.sections import describe, tone

SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_BETWEEN_ANSWERS = 15.0
QUIET_SECONDS = 30.0  # after which a rank that tells nothing is said to be quiet
BARS = "▁▂▃▄▅▆▇█"
STYLES = {"good": "green", "bad": "red", "info": "cyan", "unclear": "yellow"}
NUM_WARNINGS = 4


class Watched:
    """A run that is followed, and the answers to its questions, which are asked again only now and then."""

    def __init__(self, path: Path) -> None:
        self._follower = Follower(path)
        self._next_answers = 0.0
        self._answered: object = None  # of what the answers tell
        self.answers: list[Answer] = []
        self.look()

    def look(self) -> None:
        """Read what is new, and ask the questions again where that may give other answers and is due."""
        history = self.history = self._follower.read()
        steps = history.leader["step"][-1] if history.leader else 0
        state = history.ending, steps, len(history.notes), len(history.scores)
        ended = history.ending != "running"
        if state != self._answered and (ended or time.monotonic() >= self._next_answers):
            began = time.monotonic()
            self.answers, self._answered = explain(history), state
            # Answering may take seconds on a long run: it shall take no more than a twentieth of the time.
            self._next_answers = began + max(SECONDS_BETWEEN_ANSWERS, 20 * (time.monotonic() - began))


def find_runs(path: Path) -> list[Path]:
    """Return the run at ``path``, or the runs in it, by name."""
    if is_run(path):
        return [path]
    runs = sorted(each for each in path.iterdir() if each.is_dir() and is_run(each)) if path.is_dir() else []
    if not runs:
        raise UserError(
            "there is no run here",
            where=str(path),
            fix="give the directory that `dragoman train` made, such as runs/NAME, or one that holds several",
        )
    return runs


def watch_terminal(path: Path, console: Console | None = None) -> None:
    """Show a run until it ends; once, if it has ended already or nobody can see it move."""
    runs = find_runs(path)
    console = console or Console(highlight=False)
    if len(runs) > 1 or runs[0] != path:
        console.print(several(runs))
        return
    watched = Watched(path)
    if not console.is_terminal or os.environ.get("TERM") == "dumb" or watched.history.ending != "running":
        console.print(screen(watched.history, watched.answers, time.time(), console.width))
        return
    with Live(console=console, auto_refresh=False, screen=False, vertical_overflow="crop") as live:
        while True:
            shown = screen(watched.history, watched.answers, time.time(), console.width)
            live.update(shown, refresh=True)
            if watched.history.ending != "running":
                return
            time.sleep(SECONDS_BETWEEN_LOOKS)
            watched.look()


def screen(history: History, answers: Sequence[Answer], now: float, width: int) -> RenderableType:
    """Return all that is shown of a run."""
    parts: list[RenderableType] = [_title(history), _progress(history, width)]
    parts += [_curves(history, width), *_workers(history, now)]
    warned = history.noted(events.SKIP, events.ROLLBACK, events.STALL, events.LOST)[-NUM_WARNINGS:]
    parts += [Text(f"warning: {text}", style="yellow") for text in history.problems[:NUM_WARNINGS]]
    parts += [Text(f"{_clock(note['time'])}  {describe(note)}", style="yellow") for note in warned]
    if answers:
        parts += [Text(), _verdicts(answers)]
    return Group(*parts)


def print_verdicts(path: Path, console: Console | None = None) -> None:
    """Print the short form of an explanation: a line a question."""
    (console or Console(highlight=False)).print(_verdicts(Watched(path).answers))


def sparkline(values: Column, width: int) -> str:
    """Return a curve in ``width`` characters: means of equal stretches, between its lowest and highest."""
    known = values[np.isfinite(values)]
    if not len(known):
        return ""
    means = np.array([piece.mean() for piece in np.array_split(known, min(width, len(known)))])
    low, high = means.min(), means.max()
    places = np.zeros(len(means)) if high == low else (means - low) / (high - low) * (len(BARS) - 1)
    return "".join(BARS[round(place)] for place in places)


def several(runs: Sequence[Path]) -> RenderableType:
    """Return a line for each of several runs."""
    table = Table("run", "", "step", "dev loss", "BLEU", "verdicts", box=None, pad_edge=False)
    for path in runs:
        watched = Watched(path)
        history = watched.history
        leader, scores = history.leader, history.scored("dev")
        table.add_row(
            Text(path.name),
            Text(history.ending),
            f"{leader['step'][-1]:,.0f}" if leader else "",
            f"{history.evaluations[-1].dev_loss:.3f}" if history.evaluations else "",
            f"{max(line['bleu'] for line in scores):.2f}" if scores else "",
            Text("  ").join(
                _verdict(each) for each in watched.answers if each.key[:3] in ("q02", "q03", "q05")
            ),
        )
    return table


def _title(history: History) -> Text:
    name = history.path.resolve().name
    return Text.assemble((name, "bold"), f"  {history.ending}", (f"  {history.path}", "dim"))


def _progress(history: History, width: int) -> RenderableType:
    leader, recipe = history.leader, history.recipe
    if leader is None:
        return Text("no step is finished yet", style="dim")
    step = int(leader["step"][-1])
    if recipe is None:
        return Text(f"step {step:,}")
    fields = f"{step:,}/{recipe.train.steps:,}  {step / recipe.train.steps:.1%}"
    seconds = seconds_to_go(history)
    if history.ending == "running" and seconds is not None:
        fields += f"  about {format_duration(seconds)} to go"
    row = Table.grid(padding=(0, 2, 0, 0))
    bar = ProgressBar(total=recipe.train.steps, completed=step, width=max(10, width - len(fields) - 4))
    row.add_row(bar, fields)
    return row


def seconds_to_go(history: History) -> float | None:
    """Judge by the wall clock of recent steps and all between them, since the last start; None before there are two."""
    leader, recipe = history.leader, history.recipe
    if leader is None or recipe is None:
        return None
    begin = history.launches[-1].step if history.launches else 0
    recent = leader["step"] > max(begin, leader["step"][-1] - RECENT_STEPS)
    steps, moments = leader["step"][recent], leader["time"][recent]
    if len(steps) < 2:
        return None
    return float((recipe.train.steps - steps[-1]) * (moments[-1] - moments[0]) / (steps[-1] - steps[0]))


def _curves(history: History, width: int) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    room = max(10, min(60, width - 40))
    for name, values, show in _series(history):
        known = values[np.isfinite(values)]
        if len(known):
            table.add_row(Text(name, style="dim"), sparkline(values, room), show.format(known[-1]))
    return table


def _series(history: History) -> Iterator[tuple[str, Column, str]]:
    leader = history.leader
    if leader is not None:
        yield "train loss", leader["nll"] if np.isfinite(leader["nll"]).any() else leader["loss"], "{:.3f}"
    yield "dev loss", np.array([each.dev_loss for each in history.evaluations]), "{:.3f}"
    yield "dev BLEU", np.array([line["bleu"] for line in history.scored("dev")]), "{:.2f}"
    if leader is not None:
        yield "learning rate", leader["lr"], "{:.2e}"
        with np.errstate(divide="ignore", invalid="ignore"):
            yield "tokens/s", leader["tokens"] / leader["seconds"], "{:,.0f}"
    for host, samples in sorted(history.telemetry.items()):
        yield f"{host}: Mbit/s sent", samples.rate("sent") / 125_000, "{:,.0f}"


def _workers(history: History, now: float) -> list[RenderableType]:
    """Return a line for each rank of the last launch: its host, its step, and where its time goes."""
    if not history.launches:
        return []
    table = Table.grid(padding=(0, 2, 0, 0))
    for rank in range(history.launches[-1].world):
        told = [note for note in history.launches[-1].ranks if note["rank"] == rank]
        track = history.tracks.get(rank)
        host = track.host if track else str(told[0].get("host", "")) if told else ""
        table.add_row(Text(f"rank {rank}", style="dim"), Text(host), _state(history, rank, now))
    return [table]


def _state(history: History, rank: int, now: float) -> Text:
    """Say what a rank is doing: its last word, and where the time of its recent steps went."""
    track = history.tracks.get(rank)
    notes = [note for note in history.notes if note["rank"] == rank]
    heard = max(
        [note["time"] for note in notes[-1:]] + ([float(track["time"][-1])] if track else []), default=0.0
    )
    if track is None:
        return Text("has started, no step yet" if notes else "not heard of")
    words = f"step {track['step'][-1]:,.0f}"
    recent = {
        name: float(np.nansum(track[name][-20:])) for name in ("data", "compute", "exchange", "optimizer")
    }
    total = float(np.nansum(track["seconds"][-20:]))
    if total > 0 and any(recent.values()):
        words += "  " + ", ".join(
            f"{name} {seconds / total:.0%}" for name, seconds in recent.items() if seconds
        )
    last = notes[-1]["event"] if notes and notes[-1]["time"] > track["time"][-1] else ""
    if last in (events.STALL, events.LOST):
        return Text(f"{words}  {last}", style="red")
    if history.ending == "running" and now - heard > QUIET_SECONDS:
        return Text(f"{words}  quiet for {format_duration(now - heard)}", style="yellow")
    return Text(f"{words}  {last}" if last else words)


def _verdicts(answers: Sequence[Answer]) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    for answer in answers:
        mark = Text(answer.verdict, style=f"bold {STYLES[tone(answer.key, answer.verdict)]}")
        table.add_row(
            mark,
            Text(answer.question, style="dim", no_wrap=True),
            Text(answer.summary, overflow="ellipsis", no_wrap=True),
        )
    return table


def _verdict(answer: Answer) -> Text:
    name = answer.key[4:].replace("_", " ")
    return Text(f"{name}: {answer.verdict}", style=STYLES[tone(answer.key, answer.verdict)])


def _clock(moment: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(moment)) if math.isfinite(moment) else ""
