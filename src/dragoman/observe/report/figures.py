"""Figures for plotly, as JSON: curves, axes and marks, whatever they show.

Numbers only, no drawing: the page adds fonts, grid and colours, and so a figure follows the reader's light or dark
theme. A colour is the name of a variable in ``page.css``. Text of the run is escaped, since plotly reads some HTML.
A chart without evidence has no figure and says why.
"""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dragoman.observe.history import Column, History

NUM_POINTS = 2000  # of a curve, at most: more than a screen can show
NUM_WINDOWS = 300  # of the split of step time: means of so many stretches
NUM_TICKS = 300  # marks of evaluations

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


def chart_of(
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
    chart = finish(title, traces, unit, axis=axis, rows=rows, note=note, absent=absent)
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


def finish(
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
        layout[axis_name("yaxis", row + 1)] = {
            "title": {"text": text},
            "domain": [round(max(0.0, top - height), 4), round(top, 4)],
            "rangemode": "tozero" if axis == "time" else "normal",
        }
    if len(titles) > 1:
        layout["height"] = 140 + 130 * len(titles)
        layout["xaxis"]["anchor"] = axis_name("y", len(titles))
    return Chart(title, note, "", axis, traces, layout)


def axis_name(letter: str, row: int) -> str:
    return letter if row == 1 else f"{letter}{row}"


def trace(name: str, x: Any, y: Any, colour: str, mode: str = "lines", **more: Any) -> Trace:
    return {
        "type": "scatter",
        "name": name,
        "mode": mode,
        "x": plain(x),
        "y": plain(y),
        "line": {"color": colour, "width": 2},
        **more,
    }


def curve(
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
    line = trace(name, *thin(x, y), colour, mode="lines+markers" if dots and len(x) <= 200 else "lines")
    marker = {"marker": {"color": colour, "size": 5}} if dots else {}
    return line | {"line": {"color": colour, "width": width, "dash": dash}, "opacity": opacity, **marker}


def windows(time: Column, columns: Sequence[Column], num: int = NUM_WINDOWS) -> tuple[Column, list[Column]]:
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


def safe(text: str) -> str:
    return html.escape(text, quote=False)
