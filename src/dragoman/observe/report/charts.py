"""The charts of a report: plain plotly figures as JSON, made from a history.

Numbers only, no drawing: the page adds fonts, grid and colours, and so a figure follows the reader's light or dark
theme. A colour is the name of a variable in ``page.css``. Text of the run is escaped, since plotly reads some HTML.
A chart without evidence has no figure and says why.
"""

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dragoman.observe import events
from dragoman.observe.attribution import PARTS, attribute
from dragoman.observe.history import Column, History, Samples, number
from dragoman.rundir import best_first
from dragoman.train.schedules import learning_rate

NUM_POINTS = 2000  # of a curve, at most: more than a screen can show
NUM_WINDOWS = 300  # of the split of step time: means of so many stretches
NUM_TICKS = 300  # marks of evaluations
NUM_ROWS = 8  # ranks or hosts that are drawn one below the other
MEGABIT = 125_000
SERIES = ("--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7", "--c8")
PART_COLOURS = dict(zip(PARTS, ("--c4", "--c1", "--c2", "--c5", "--c3", "--c8"), strict=True))

Trace = dict[str, Any]


@dataclass(frozen=True)
class Chart:
    """A figure and what is said of it; ``axis`` tells which charts are zoomed together."""

    title: str
    note: str = ""
    absent: str = ""  # why there is no figure
    axis: str = "step"  # step or time
    traces: list[Trace] = field(default_factory=list)
    layout: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "note": self.note,
            "absent": self.absent,
            "axis": self.axis,
            "data": self.traces,
            "layout": self.layout,
        }


@dataclass(frozen=True)
class Clock:
    """Time on an axis: since the first start, in a unit that suits the length of the run."""

    start: float
    unit: str
    seconds: float

    def __call__(self, moments: Any) -> Column:
        return (np.asarray(moments, np.float64) - self.start) / self.seconds

    @property
    def title(self) -> str:
        return f"{self.unit} since the start"


def clock_of(history: History) -> Clock:
    moments = [
        float(moment)
        for group in (history.tracks.values(), history.telemetry.values())
        for each in group
        if len(each)
        for moment in (each["time"][0], each["time"][-1])
    ] + [note["time"] for note in history.notes]
    start = min(moments, default=0.0)
    span = max(moments, default=0.0) - start
    for unit, seconds, enough in (("seconds", 1, 180), ("minutes", 60, 3 * 3600), ("hours", 3600, 4 * 86400)):
        if span < enough:
            return Clock(start, unit, seconds)
    return Clock(start, "days", 86400)


def charts_of(history: History) -> dict[str, Chart]:
    """Return every chart of a run by its name, in the order of the page."""
    clock = clock_of(history)
    return {name: make(history, clock) for name, make in CHARTS.items()}


def losses(history: History, clock: Clock) -> Chart:
    """Train, the fixed clean training sample, and dev: nats a token, so that they can be compared."""
    traces, leader = [], history.leader
    if leader is not None:
        known = leader["nll"] if np.isfinite(leader["nll"]).any() else leader["loss"]
        traces.append(_curve("train", leader["step"], known, "--c8", width=1))
    steps = [each.step for each in history.evaluations]
    for name, values, colour in (
        ("clean train", [each.train_loss for each in history.evaluations], "--c1"),
        ("dev", [each.dev_loss for each in history.evaluations], "--c2"),
    ):
        if np.isfinite(values).any():
            traces.append(_curve(name, np.array(steps, float), np.array(values), colour, dots=True))
    return _chart(
        history,
        clock,
        "Losses",
        traces,
        "nats a token",
        note="Train is each step's own, with dropout. Clean train is a fixed sample, measured as dev is.",
        absent="No step and no evaluation is recorded.",
    )


def bleu(history: History, clock: Clock) -> Chart:
    """BLEU on dev with its 95 % intervals, the best marked; chrF on demand; the test set's score."""
    traces: list[Trace] = []
    for name, label, colour in (("dev", "dev", "--c1"), ("test", "test", "--c5")):
        lines = [line for line in history.scored(name) if math.isfinite(number(line["bleu"]))]
        if not lines:
            continue
        steps, values = [line["step"] for line in lines], [number(line["bleu"]) for line in lines]
        low, high = zip(*(_interval(line) for line in lines), strict=True)
        error = {
            "type": "data",
            "symmetric": False,
            "array": plain(np.array(high) - values),
            "arrayminus": plain(np.array(values) - low),
            "thickness": 1,
            "width": 3,
        }
        shape = {"symbol": "square", "size": 9} if name == "test" else {"size": 6}
        mode = "markers" if name == "test" else "lines+markers"
        traces.append(
            _trace(label, steps, values, colour, mode=mode, error_y=error)
            | {"marker": {"color": colour, **shape}}
        )
    best = best_first({"model": line["step"], **line} for line in history.scored("dev"))
    if best:
        star = {"symbol": "star", "size": 15, "color": "--c3", "line": {"color": "--paper", "width": 1}}
        traces.append(
            _trace("best", [best[0]["step"]], [number(best[0]["bleu"])], "--c3", mode="markers")
            | {"marker": star}
        )
    return _chart(
        history,
        clock,
        "BLEU",
        traces,
        "BLEU",
        note="Scores of the exported model, with 95 % bootstrap intervals.",
        absent="Nothing was scored.",
    )


def rates(history: History, clock: Clock) -> Chart:
    """The learning rate of every step against the recipe's formula."""
    traces, leader = [], history.leader
    if leader is not None and np.isfinite(leader["lr"]).any():
        traces.append(_curve("measured", leader["step"], leader["lr"], "--c1", width=4, opacity=0.45))
    if history.recipe is not None:
        last = max(history.recipe.train.steps, int(leader["step"][-1]) if leader else 1)
        steps = np.unique(np.linspace(1, last, NUM_POINTS, dtype=int))
        formula = np.array([learning_rate(int(step), history.recipe) for step in steps])
        traces.append(_curve("formula", steps.astype(float), formula, "--c2", dash="dot"))
    return _chart(
        history,
        clock,
        "Learning rate",
        traces,
        "learning rate",
        note="Measured values lie on the formula, unless a rollback lowered them.",
        absent="Neither a step nor a recipe can be read.",
    )


def split(history: History, clock: Clock) -> Chart:
    """Where the time of a step goes, a row a rank, stacked over time."""
    shares = {rank: share for rank, share in attribute(history).items() if len(share.step)}
    ranks = sorted(shares)
    if len(ranks) > NUM_ROWS:  # those with the most time of their own: they decide how long a step is
        own = {rank: np.nansum(shares[rank].parts["compute"] + shares[rank].parts["data"]) for rank in ranks}
        ranks = sorted(sorted(ranks, key=lambda rank: -own[rank])[:NUM_ROWS])
    traces: list[Trace] = []
    rows = []
    for rank in ranks:
        share = shares[rank]
        moments, parts = _windows(share.time, [share.parts[part] for part in PARTS])
        if not any(np.isfinite(part).any() for part in parts):
            continue
        rows.append(f"rank {rank}" + (f"<br>{_safe(share.host)}" if share.host else ""))
        for part, values in zip(PARTS, parts, strict=True):
            traces.append(
                _trace(part, clock(moments), np.nan_to_num(values) * 1000, PART_COLOURS[part])
                | {"yaxis": _axis("y", len(rows)), "stackgroup": f"rank{rank}", "legendgroup": part}
                | {"showlegend": len(rows) == 1, "fillcolor": PART_COLOURS[part]}
                | {"line": {"width": 0, "color": PART_COLOURS[part]}}
                | {"hovertemplate": f"{part} %{{y:.4~g}} ms<extra></extra>"}
            )
    left_out = (
        f" Of {len(shares)} ranks, the {len(ranks)} with the most work are shown."
        if len(shares) > len(ranks)
        else ""
    )
    return _chart(
        history,
        clock,
        "Where the time of a step goes",
        traces,
        "ms a step",
        axis="time",
        rows=rows,
        note="Transfer is what the network costs; straggler is waiting for the slowest rank." + left_out,
        absent="The phases of steps were not recorded.",
    )


def network(history: History, clock: Clock) -> Chart:
    """What every host sent and received: the rate above, the sum below."""
    traces: list[Trace] = []
    for place, (host, samples) in enumerate(_hosts(history)):
        for direction, name, dash in (("sent", "sent", "solid"), ("received", "received", "dot")):
            if not np.isfinite(samples[name]).any():
                continue
            label, colour = f"{_safe(host)} {direction}", SERIES[place]
            rate = _curve(
                label, clock(samples["time"]), samples.rate(name) / MEGABIT, colour, dash=dash, width=1.4
            )
            grown = _grown(samples[name]) / 1e9
            total = _curve(label, clock(samples["time"]), grown, colour, dash=dash, width=1.4)
            traces.append(rate | {"legendgroup": label})
            traces.append(total | {"legendgroup": label, "showlegend": False, "yaxis": "y2"})
    links = [number(note.get("bytes_per_second")) for note in history.noted(events.LINK)]
    capacity = max((each for each in links if each > 0), default=math.nan)
    if traces and math.isfinite(capacity):
        ends = [min(trace["x"][0] for trace in traces), max(trace["x"][-1] for trace in traces)]
        line = _trace("link, measured at the start", ends, [capacity / MEGABIT] * 2, "--muted", mode="lines")
        traces.append(line | {"line": {"color": "--muted", "dash": "dash", "width": 1}})
    return _chart(
        history,
        clock,
        "Network of each host",
        traces,
        "",
        axis="time",
        rows=["Mbit/s", "GB in all"],
        note="All traffic of the run's interface. A low average does not acquit the network: see question 5.",
        absent="The network was not sampled.",
    )


def devices(history: History, clock: Clock) -> Chart:
    """How busy each host's cores and GPUs are, in cores and percent."""
    traces: list[Trace] = []
    gpus = any(samples.gpus for _, samples in _hosts(history))
    rows = ["CPU cores", "GPU %"] if gpus else ["CPU cores"]
    for place, (host, samples) in enumerate(_hosts(history)):
        moments, colour = clock(samples["time"]), SERIES[place]
        for name, label, dash in (
            ("cpu_run", "this run", "solid"),
            ("cpu", f"all, of {samples.cores}", "dot"),
        ):
            if np.isfinite(samples[name]).any():
                traces.append(
                    _curve(f"{_safe(host)}: {label}", moments, samples[name], colour, dash=dash, width=1.4)
                )
        for number_, gpu in enumerate(samples.gpus):
            traces.append(
                _curve(
                    f"{_safe(host)}: GPU {number_}",
                    moments,
                    gpu["utilisation"],
                    SERIES[(place + number_ + 1) % 8],
                )
                | {"yaxis": "y2"}
            )
    return _chart(
        history,
        clock,
        "Device use",
        traces,
        "",
        axis="time",
        rows=rows,
        note="A busy device is not yet a useful one: question 4 compares the work done with the measured peak.",
        absent="The machines were not sampled.",
    )


def speed(history: History, clock: Clock) -> Chart:
    """Target tokens a second of the whole world."""
    traces, leader = [], history.leader
    if leader is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            pace = leader["tokens"] / leader["seconds"]
        pace[~np.isfinite(pace)] = math.nan
        traces.append(_curve("each step", clock(leader["time"]), pace, "--c8", width=1))
        moments, (tokens, seconds) = _windows(leader["time"], [leader["tokens"], leader["seconds"]], num=60)
        if len(leader) >= 120:
            traces.append(_curve("mean", clock(moments), tokens / seconds, "--c1"))
    return _chart(
        history,
        clock,
        "Tokens a second",
        traces,
        "tokens/s",
        axis="time",
        note="Of all workers together; evaluations and checkpoints are not counted.",
        absent="No step is recorded.",
    )


CHARTS: dict[str, Callable[[History, Clock], Chart]] = {
    "losses": losses,
    "bleu": bleu,
    "rate": rates,
    "speed": speed,
    "split": split,
    "network": network,
    "devices": devices,
}


def compare(histories: dict[str, History]) -> dict[str, Chart]:
    """Return charts that lay the runs over each other, by step."""
    dev: list[Trace] = []
    score: list[Trace] = []
    pace: list[Trace] = []
    for place, (name, history) in enumerate(histories.items()):
        label, colour = _safe(name), SERIES[place % len(SERIES)]
        evaluations = history.evaluations
        if evaluations:
            steps = np.array([each.step for each in evaluations], float)
            dev.append(
                _curve(label, steps, np.array([each.dev_loss for each in evaluations]), colour, dots=True)
            )
        lines = history.scored("dev")
        if lines:
            steps = np.array([line["step"] for line in lines], float)
            score.append(
                _curve(label, steps, np.array([number(line["bleu"]) for line in lines]), colour, dots=True)
            )
        leader = history.leader
        if leader is not None:
            _moments, (tokens, seconds, steps) = _windows(
                leader["time"], [leader["tokens"], leader["seconds"], leader["step"]], num=200
            )
            with np.errstate(divide="ignore", invalid="ignore"):
                pace.append(_curve(label, steps, tokens / seconds, colour))
    return {
        "losses": _finish("Dev loss", dev, "nats a token", absent="No run was evaluated."),
        "bleu": _finish("BLEU on dev", score, "BLEU", absent="No run was scored."),
        "speed": _finish("Tokens a second", pace, "tokens/s", absent="No run has steps."),
    }


def thin(x: Column, y: Column, limit: int = NUM_POINTS) -> tuple[Column, Column]:
    """Return at most ``limit`` points of a curve: of every stretch the lowest and the highest, and both ends."""
    if len(x) <= limit:
        return x, y
    size = math.ceil(len(x) / (limit // 2 - 1))
    padded = np.full(math.ceil(len(y) / size) * size, math.nan)
    padded[: len(y)] = y
    rows = padded.reshape(-1, size)
    starts = np.arange(len(rows)) * size
    lowest = starts + np.where(np.isnan(rows), math.inf, rows).argmin(axis=1)
    highest = starts + np.where(np.isnan(rows), -math.inf, rows).argmax(axis=1)
    kept = np.unique(np.concatenate([[0], lowest, highest, [len(x) - 1]]))
    return x[kept], y[kept]


def plain(values: Any) -> list[float | None]:
    """Return numbers as JSON can hold them: six digits are more than a chart shows, and no number is None."""
    return [
        float(f"{each:.6g}") if math.isfinite(each) else None for each in np.asarray(values, float).tolist()
    ]


def _chart(
    history: History,
    clock: Clock,
    title: str,
    traces: list[Trace],
    unit: str,
    *,
    axis: str = "step",
    rows: Sequence[str] = (),
    note: str = "",
    absent: str = "",
) -> Chart:
    chart = _finish(title, traces, unit, axis=axis, rows=rows, note=note, absent=absent)
    if not traces:
        return chart
    if axis == "time":
        chart.layout["xaxis"]["title"] = {"text": clock.title}
    place = (lambda time, step: float(clock(time))) if axis == "time" else (lambda time, step: step)
    restarts = [place(launch.time, launch.step) for launch in history.launches[1:]]
    ticks = [place(each.time, each.step) for each in history.evaluations]
    ticks = ticks[:: math.ceil(len(ticks) / NUM_TICKS) or 1]
    chart.layout["shapes"] = [
        *_marks("restart", restarts, 1.0, {"color": "--bad", "width": 1.2, "dash": "dash"}),
        *_marks("evaluation", ticks, 0.03, {"color": "--muted", "width": 1}),
    ]
    return chart


def _marks(name: str, places: Sequence[float], height: float, line: dict[str, Any]) -> list[dict[str, Any]]:
    """Return vertical lines from the bottom of the figure; the first stands for all in the legend."""
    return [
        {"type": "line", "name": name, "showlegend": not order, "legendgroup": name, "layer": "below"}
        | {"x0": x, "x1": x, "xref": "x", "y0": 0, "y1": height, "yref": "paper", "line": line}
        for order, x in enumerate(plain(places))
    ]


def _finish(
    title: str,
    traces: list[Trace],
    unit: str,
    *,
    axis: str = "step",
    rows: Sequence[str] = (),
    note: str = "",
    absent: str = "",
) -> Chart:
    """Put traces on axes: one below the other if there are ``rows``, all over the same x."""
    if not traces:
        return Chart(title, absent=absent or "Not recorded.", axis=axis)
    layout: dict[str, Any] = {"xaxis": {"title": {"text": "step"}}, "height": 340}
    titles = list(rows) or [unit]
    gap = 0.06 if len(titles) > 1 else 0.0
    height = (1 - gap * (len(titles) - 1)) / len(titles)
    for row, text in enumerate(titles):
        top = 1 - row * (height + gap)
        layout[_axis("yaxis", row + 1)] = {
            "title": {"text": text},
            "domain": [round(max(0.0, top - height), 4), round(top, 4)],
            "rangemode": "tozero" if axis == "time" else "normal",
        }
    if len(titles) > 1:
        layout["height"] = 140 + 130 * len(titles)
        layout["xaxis"]["anchor"] = _axis("y", len(titles))
    return Chart(title, note, "", axis, traces, layout)


def _axis(letter: str, row: int) -> str:
    return letter if row == 1 else f"{letter}{row}"


def _trace(name: str, x: Any, y: Any, colour: str, mode: str = "lines", **more: Any) -> Trace:
    return {
        "type": "scatter",
        "name": name,
        "mode": mode,
        "x": plain(x),
        "y": plain(y),
        "line": {"color": colour, "width": 2},
        **more,
    }


def _curve(
    name: str,
    x: Column,
    y: Column,
    colour: str,
    *,
    width: float = 2,
    dash: str = "solid",
    dots: bool = False,
    opacity: float = 1.0,
) -> Trace:
    """Return a curve of at most NUM_POINTS points."""
    trace = _trace(name, *thin(x, y), colour, mode="lines+markers" if dots and len(x) <= 200 else "lines")
    marker = {"marker": {"color": colour, "size": 5}} if dots else {}
    return trace | {"line": {"color": colour, "width": width, "dash": dash}, "opacity": opacity, **marker}


def _windows(time: Column, columns: Sequence[Column], num: int = NUM_WINDOWS) -> tuple[Column, list[Column]]:
    """Return the means of columns over stretches of equal numbers of steps; a pause between steps falls to zero."""
    if not len(time):
        return time, list(columns)
    edges = np.unique(np.linspace(0, len(time), min(num, len(time)) + 1, dtype=int)[:-1])
    moments, *means = (_mean_between(column, edges) for column in (time, *columns))
    gaps = np.diff(moments)
    pauses = np.flatnonzero(gaps > 8 * np.median(gaps)).tolist() if len(gaps) > 1 else []
    for place in reversed(pauses):
        around = moments[place : place + 2]
        inside = around + np.diff(around) * np.array([0.001, -0.001])
        moments = np.insert(moments, place + 1, inside)
        means = [np.insert(each, place + 1, [math.nan, math.nan]) for each in means]
    return moments, means


def _mean_between(column: Column, edges: Any) -> Column:
    """Return the mean of what is known in every stretch; NaN where nothing is."""
    known = np.isfinite(column)
    counts = np.add.reduceat(known.astype(float), edges)
    with np.errstate(divide="ignore", invalid="ignore"):
        means: Column = np.add.reduceat(np.where(known, column, 0.0), edges) / counts
    return means


def _grown(counter: Column) -> Column:
    """Return how much a counter grew since it was first read; one that starts again, after a boot, goes on."""
    known = np.isfinite(counter)
    growth = np.diff(counter[known], prepend=counter[known][0])
    result = np.full(len(counter), math.nan)
    result[known] = np.cumsum(np.where(growth < 0, counter[known], growth))
    return result


def _hosts(history: History) -> list[tuple[str, Samples]]:
    return sorted(history.telemetry.items())[: len(SERIES)]


def _interval(line: dict[str, Any]) -> tuple[float, float]:
    """Return a score's interval; the score itself if it has none."""
    value, interval = number(line["bleu"]), line.get("ci95")
    if isinstance(interval, list) and len(interval) == 2:
        low, high = map(number, interval)
        if math.isfinite(low) and math.isfinite(high):
            return low, high
    return value, value


def _safe(text: str) -> str:
    return html.escape(text, quote=False)
