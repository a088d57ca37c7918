"""Runs of other toolkits: what can be read of them becomes the same ``History``, the rest stays not recorded.

Two kinds are known: a directory of TensorBoard event files, and a training log that says

    *** Global step 61700: ***     Train loss: 1.6348
    time per step = 0:00:1.946
    ***     Validation loss: 1.5905
    ***     Eval BLUE score: 0.3685

as OpenSeq2Seq writes it, in this spelling too.
"""

import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.errors import UserError
from dragoman.observe.history import (
    PHASES,
    STEP_COLUMNS,
    Column,
    Evaluation,
    History,
    Track,
)
from dragoman.observe.reading import is_run, read_run

EVENT_FILES = "*tfevents*"
KEEP_ALL = {"scalars": 0, "tensors": 0, "images": 1, "audio": 1, "histograms": 1, "compressedHistograms": 1}
# What each curve may be called, in lower case; the last part of a tag counts, the first name found wins.
TAGS = {
    "loss": ("train_loss", "loss", "training_loss", "total_loss", "cross_entropy", "nll_loss"),
    "lr": ("learning_rate", "lr", "learning_rate_1"),
    "gradient_norm": ("gradient_norm", "grad_norm", "gnorm", "global_gradient_norm"),
    "tokens_per_second": ("tokens_per_second", "wps", "tgt_tokens_per_second"),
}
DEV_LOSS = ("eval_loss", "dev_loss", "valid_loss", "validation_loss", "val_loss", "xent")
DEV_BLEU = ("eval_bleu_score", "bleu", "bleu_score", "eval_bleu", "valid_bleu", "validation_bleu", "dev_bleu")
TRAIN_SAMPLE = ("train_sample_loss",)
DEV_RUNS = ("eval", "valid", "validation", "dev")  # a nested run or prefix whose plain "loss" is dev loss

STEP_LINE = re.compile(r"global step\s+(\d+)\s*:", re.IGNORECASE)
LOSS_TEXT = re.compile(r"(?:train(?:ing)?\s+loss\s*:|\bloss\s*=)\s*([-+.\deE]+|nan|inf)", re.IGNORECASE)
TIME_TEXT = re.compile(r"time per step\s*=\s*(?:(\d+):)?(\d+):([\d.]+)", re.IGNORECASE)
DEV_TEXT = re.compile(r"(?:validation|eval|dev)\s+loss\s*[:=]\s*([-+.\deE]+)", re.IGNORECASE)
BLEU_TEXT = re.compile(
    r"(?:validation|eval|dev)\s+(?:BLEU|BLUE)(?:\s+score)?\s*[:=]\s*([-+.\deE]+)", re.IGNORECASE
)
RATE_TEXT = re.compile(r"learning[ _]rate\s*[:=]\s*([-+.\deE]+)", re.IGNORECASE)
DONE_TEXT = re.compile(r"finished training", re.IGNORECASE)
LOG_HEAD = 200_000  # bytes in which a log has to show what it is


def read_history(path: Path) -> History:
    """Read whatever is at ``path``: a run of ours, TensorBoard curves, or a training log."""
    if is_run(path):
        return read_run(path)
    if path.is_dir() and any(path.rglob(EVENT_FILES)):
        return read_tensorboard(path)
    if path.is_file() and "tfevents" in path.name:
        return read_tensorboard(path)
    if path.is_dir():
        logs = [file for file in sorted(path.iterdir()) if file.is_file() and _looks_like_log(file)]
        if logs:
            return read_log(max(logs, key=lambda file: file.stat().st_size))
    elif path.is_file() and _looks_like_log(path):
        return read_log(path)
    raise UserError(
        "this is neither a run, nor TensorBoard event files, nor a training log"
        if path.exists()
        else "there is no such file or directory",
        where=str(path),
        fix="give a run such as runs/NAME, a TensorBoard directory, or a log with "
        "lines like “Global step 100: loss = 2.5”",
    )


def read_tensorboard(path: Path) -> History:
    """Read the curves of a TensorBoard directory with all runs nested in it, or of one event file."""
    history = History(path, kind="tensorboard", ending="unknown")
    curves: dict[str, dict[int, tuple[float, float]]] = {}
    directories = sorted({file.parent for file in path.rglob(EVENT_FILES)}) if path.is_dir() else [path]
    for directory in directories:
        inner = "" if directory == path else directory.relative_to(path).as_posix()
        for tag, points in _scalars(directory, history.problems).items():
            name = _curve_of(tag, inner)
            if name and name not in curves:
                curves[name] = points
    rows: dict[int, dict[str, float]] = {}
    for name in TAGS:
        for step, (moment, value) in curves.get(name, {}).items():
            rows.setdefault(step, {"time": moment})[name] = value
    dev, sample = curves.get("dev_loss", {}), curves.get("train_sample", {})
    history.evaluations = [
        Evaluation(step, moment, loss, sample.get(step, (0.0, math.nan))[1], math.nan)
        for step, (moment, loss) in sorted(dev.items())
    ]
    ours = bool(sample)  # only we draw that curve, and count BLEU to 100
    scores = {step: value for step, (_, value) in curves.get("dev_bleu", {}).items()}
    history.scores = _bleu_scores(scores, up_to_one=not ours)
    _seconds_from_clock(rows)
    _put_track(history, rows)
    if not curves:
        history.problems.append("none of the curves has a name that is known")
    return history


def read_log(path: Path) -> History:
    """Read a training log: losses, seconds per step, validation loss and BLEU, as far as it has them."""
    history = History(path, kind="log", ending="unknown")
    rows: dict[int, dict[str, float]] = {}
    dev: dict[int, float] = {}
    bleu: dict[int, float] = {}
    step = 0
    for line in path.read_bytes().decode("utf-8", "replace").splitlines():
        if found := STEP_LINE.search(line):
            step = int(found[1][:15])
            for each in (rows, dev, bleu):  # a run that was started again from before does them once more
                for undone in [at for at in each if at >= step]:
                    del each[undone]
            rows[step] = {}
        if step and (found := LOSS_TEXT.search(line)):
            rows[step].setdefault("loss", _float(found[1]))
        if step and (found := TIME_TEXT.search(line)):
            hours, minutes, seconds = (_float(part or "0") for part in found.groups())
            rows[step]["seconds"] = hours * 3600 + minutes * 60 + seconds
        if step and (found := RATE_TEXT.search(line)):
            rows[step]["lr"] = _float(found[1])
        if found := DEV_TEXT.search(line):
            dev[step] = _float(found[1])
        if found := BLEU_TEXT.search(line):
            bleu[step] = _float(found[1])
        if DONE_TEXT.search(line):
            history.ending = "finished"
    _put_track(history, {at: row for at, row in rows.items() if at > 0})
    history.evaluations = [
        Evaluation(at, math.nan, loss, math.nan, math.nan) for at, loss in sorted(dev.items())
    ]
    history.scores = _bleu_scores(bleu, up_to_one=True)
    return history


def _scalars(directory: Path, problems: list[str]) -> dict[str, dict[int, tuple[float, float]]]:
    """Return (time, value) by step of every scalar curve, also of those that are stored as tensors."""
    # Takes a second, and our own runs do not need it.
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    accumulator = EventAccumulator(str(directory), size_guidance=KEEP_ALL)
    try:
        accumulator.Reload()
        tags = accumulator.Tags()
        found = {
            tag: {each.step: (each.wall_time, float(each.value)) for each in accumulator.Scalars(tag)}
            for tag in tags["scalars"]
        }
        for tag in tags["tensors"]:
            values = [(each, make_ndarray(each.tensor_proto)) for each in accumulator.Tensors(tag)]
            points = {
                each.step: (each.wall_time, float(value))
                for each, value in values
                if value.ndim == 0 and value.dtype.kind in "fiu"
            }
            found.update({tag: points} if points else {})
    except Exception as error:  # whatever a damaged file makes the reader do
        problems.append(f"{directory.name}: cannot be read as TensorBoard events: {error}")
        return {}
    return found


def _curve_of(tag: str, inner: str) -> str | None:
    """Return which of our curves a tag is, in a nested run or at the top; None if it is none of them."""
    parts = [part.lower() for part in f"{inner}/{tag}".split("/") if part]
    name, before = parts[-1].replace("-", "_").replace(" ", "_"), parts[:-1]
    is_dev = any(part.startswith(DEV_RUNS) for part in before)
    if name in TRAIN_SAMPLE:
        return "train_sample"
    if name in DEV_LOSS or (is_dev and name in TAGS["loss"]):
        return "dev_loss"
    if name in DEV_BLEU:
        return "dev_bleu"
    return next((curve for curve, names in TAGS.items() if name in names and not is_dev), None)


def _seconds_from_clock(rows: dict[int, dict[str, float]]) -> None:
    """Derive seconds per step from the time between points; pauses and evaluations are in it."""
    steps = sorted(rows)
    for before, step in pairwise(steps):
        passed = rows[step]["time"] - rows[before]["time"]
        if passed > 0:
            rows[step]["seconds"] = passed / (step - before)
            if (speed := rows[step].get("tokens_per_second", math.nan)) > 0:
                rows[step]["tokens"] = speed * rows[step]["seconds"]


def _put_track(history: History, rows: dict[int, dict[str, float]]) -> None:
    """Give the history one rank whose columns hold these steps."""
    if not rows:
        return
    steps = sorted(rows)
    columns: dict[str, Column] = {
        name: np.array([rows[step].get(name, math.nan) for step in steps], np.float64)
        for name in (*STEP_COLUMNS, *PHASES)
    }
    columns["step"] = np.array(steps, np.float64)
    history.tracks[0] = Track(0, "", columns)


def _bleu_scores(points: dict[int, float], *, up_to_one: bool) -> list[dict[str, Any]]:
    """Return scores on dev, from 0 to 100; ``up_to_one``: values that are all below 1 were counted to 1."""
    known = {step: value for step, value in sorted(points.items()) if math.isfinite(value)}
    scale = 100.0 if up_to_one and max(known.values(), default=0.0) <= 1.0 else 1.0
    return [{"set": "dev", "step": step, "bleu": value * scale} for step, value in known.items()]


def _looks_like_log(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            return STEP_LINE.search(file.read(LOG_HEAD).decode("utf-8", "replace")) is not None
    except OSError:
        return False


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
