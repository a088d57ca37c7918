"""The charts of a report, made from a history: what each of them shows."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from dragoman.observe import events
from dragoman.observe.attribution import PARTS, attribute
from dragoman.observe.history import Column, History, Samples, number
from dragoman.observe.report.figures import (
    NUM_POINTS,
    Chart,
    Clock,
    Trace,
    axis_name,
    chart_of,
    clock_of,
    curve,
    finish,
    plain,
    safe,
    trace,
    windows,
)
from dragoman.rundir import best_first
from dragoman.train.schedules import learning_rate

NUM_ROWS = 8  # ranks or hosts that are drawn one below the other
MEGABIT = 125_000
SERIES = ("--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7", "--c8")
PART_COLOURS = dict(zip(PARTS, ("--c4", "--c1", "--c2", "--c5", "--c3", "--c8"), strict=True))


def charts_of(history: History) -> dict[str, Chart]:
    """Return every chart of a run by its name, in the order of the page."""
    clock = clock_of(history)
    return {name: make(history, clock) for name, make in CHARTS.items()}


def losses(history: History, clock: Clock) -> Chart:
    """Train, the fixed clean training sample, and dev: nats a token, so that they can be compared."""
    traces, leader = [], history.leader
    if leader is not None:
        known = leader["nll"] if np.isfinite(leader["nll"]).any() else leader["loss"]
        traces.append(curve("train", leader["step"], known, "--c8", width=1))
    steps = [each.step for each in history.evaluations]
    for name, values, colour in (
        ("clean train", [each.train_loss for each in history.evaluations], "--c1"),
        ("dev", [each.dev_loss for each in history.evaluations], "--c2"),
    ):
        if np.isfinite(values).any():
            traces.append(curve(name, np.array(steps, float), np.array(values), colour, dots=True))
    return chart_of(
        history,
        clock,
        "Losses",
        traces,
        "nats a token",
        note="Train is each step's own, with dropout. Clean train is a fixed sample, measured as dev is.",
        absent="No step and no evaluation is recorded.",
    )


def bleu(history: History, clock: Clock) -> Chart:
    """BLEU on dev with its 95 % intervals, the best marked, and the test set's."""
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
            trace(label, steps, values, colour, mode=mode, error_y=error)
            | {"marker": {"color": colour, **shape}}
        )
    best = best_first({"model": line["step"], **line} for line in history.scored("dev"))
    if best:
        star = {"symbol": "star", "size": 15, "color": "--c3", "line": {"color": "--paper", "width": 1}}
        traces.append(
            trace("best", [best[0]["step"]], [number(best[0]["bleu"])], "--c3", mode="markers")
            | {"marker": star}
        )
    return chart_of(
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
        traces.append(curve("measured", leader["step"], leader["lr"], "--c1", width=4, opacity=0.45))
    if history.recipe is not None:
        last = max(history.recipe.train.steps, int(leader["step"][-1]) if leader else 1)
        steps = np.unique(np.linspace(1, last, NUM_POINTS, dtype=int))
        formula = np.array([learning_rate(int(step), history.recipe) for step in steps])
        traces.append(curve("formula", steps.astype(float), formula, "--c2", dash="dot"))
    return chart_of(
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
        moments, parts = windows(share.time, [share.parts[part] for part in PARTS])
        if not any(np.isfinite(part).any() for part in parts):
            continue
        rows.append(f"rank {rank}" + (f"<br>{safe(share.host)}" if share.host else ""))
        for part, values in zip(PARTS, parts, strict=True):
            traces.append(
                trace(part, clock(moments), np.nan_to_num(values) * 1000, PART_COLOURS[part])
                | {"yaxis": axis_name("y", len(rows)), "stackgroup": f"rank{rank}", "legendgroup": part}
                | {"showlegend": len(rows) == 1, "fillcolor": PART_COLOURS[part]}
                | {"line": {"width": 0, "color": PART_COLOURS[part]}}
                | {"hovertemplate": f"{part} %{{y:.4~g}} ms<extra></extra>"}
            )
    left_out = (
        f" Of {len(shares)} ranks, the {len(ranks)} with the most work are shown."
        if len(shares) > len(ranks)
        else ""
    )
    return chart_of(
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
            label, colour = f"{safe(host)} {direction}", SERIES[place]
            rate = curve(
                label, clock(samples["time"]), samples.rate(name) / MEGABIT, colour, dash=dash, width=1.4
            )
            grown = _grown(samples[name]) / 1e9
            total = curve(label, clock(samples["time"]), grown, colour, dash=dash, width=1.4)
            traces.append(rate | {"legendgroup": label})
            traces.append(total | {"legendgroup": label, "showlegend": False, "yaxis": "y2"})
    links = [number(note.get("bytes_per_second")) for note in history.noted(events.LINK)]
    capacity = max((each for each in links if each > 0), default=math.nan)
    if traces and math.isfinite(capacity):
        ends = [min(each["x"][0] for each in traces), max(each["x"][-1] for each in traces)]
        line = trace("link, measured at the start", ends, [capacity / MEGABIT] * 2, "--muted", mode="lines")
        traces.append(line | {"line": {"color": "--muted", "dash": "dash", "width": 1}})
    return chart_of(
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
                    curve(f"{safe(host)}: {label}", moments, samples[name], colour, dash=dash, width=1.4)
                )
        for number_, gpu in enumerate(samples.gpus):
            traces.append(
                curve(
                    f"{safe(host)}: GPU {number_}",
                    moments,
                    gpu["utilisation"],
                    SERIES[(place + number_ + 1) % 8],
                )
                | {"yaxis": "y2"}
            )
    return chart_of(
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
        traces.append(curve("each step", clock(leader["time"]), pace, "--c8", width=1))
        moments, (tokens, seconds) = windows(leader["time"], [leader["tokens"], leader["seconds"]], num=60)
        if len(leader) >= 120:
            traces.append(curve("mean", clock(moments), tokens / seconds, "--c1"))
    return chart_of(
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
        label, colour = safe(name), SERIES[place % len(SERIES)]
        evaluations = history.evaluations
        if evaluations:
            steps = np.array([each.step for each in evaluations], float)
            dev.append(
                curve(label, steps, np.array([each.dev_loss for each in evaluations]), colour, dots=True)
            )
        lines = history.scored("dev")
        if lines:
            steps = np.array([line["step"] for line in lines], float)
            score.append(
                curve(label, steps, np.array([number(line["bleu"]) for line in lines]), colour, dots=True)
            )
        leader = history.leader
        if leader is not None:
            _moments, (tokens, seconds, steps) = windows(
                leader["time"], [leader["tokens"], leader["seconds"], leader["step"]], num=200
            )
            with np.errstate(divide="ignore", invalid="ignore"):
                pace.append(curve(label, steps, tokens / seconds, colour))
    return {
        "losses": finish("Dev loss", dev, "nats a token", absent="No run was evaluated."),
        "bleu": finish("BLEU on dev", score, "BLEU", absent="No run was scored."),
        "speed": finish("Tokens a second", pace, "tokens/s", absent="No run has steps."),
    }


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
