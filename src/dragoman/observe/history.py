"""The history of a run, read from its directory: what happened, each step once, in order. Imports without torch.

Any run can be read: finished, running, killed, broken, or a copy on another machine. What cannot be read is listed in
``problems`` and left out; what was never recorded is NaN in a column, and None or empty elsewhere.
"""

import json
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.config import Recipe
from dragoman.errors import UserError
from dragoman.observe import events
from dragoman.recipe import load_recipe
from dragoman.rundir import RunDir, step_directories

Column = np.ndarray[Any, np.dtype[np.float64]]

# Where the seconds of a step go; they add up to ``seconds``. ``events.py`` says what each is.
PHASES = ("data", "compute", "exchange", "agree", "optimizer", "logging")
STEP_COLUMNS = (
    "step", "time", "seconds", "tokens", "loss", "nll", "lr", "gradient_norm", "world", "micro_batches", "epoch",
    "bytes_sent", "exposed_seconds", "flops",
)  # fmt: skip
SAMPLE_COLUMNS = (
    "time", "cpu", "cpu_run", "memory_used", "memory_total", "memory_run", "received", "sent", "read", "written",
)  # fmt: skip
GPU_COLUMNS = ("utilisation", "memory_used", "memory_total", "power_watts", "clock_mhz")
START_SECONDS = 60  # within which the ranks of a world start
RUNNING_SECONDS = 120  # a run that told nothing for so long, and did not say that it ended, was killed


@dataclass(frozen=True)
class Track:
    """One rank's steps as columns of equal length, ascending by step: ``track["seconds"]``, ``track["data"]``."""

    rank: int
    host: str
    columns: dict[str, Column]

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def __len__(self) -> int:
        return len(self.columns["step"])


@dataclass(frozen=True)
class Samples:
    """One host's telemetry as columns of equal length; ``cpu`` is in cores, counters only ever grow within a boot."""

    host: str
    interface: str
    cores: int
    columns: dict[str, Column]
    gpus: list[dict[str, Column]]

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def __len__(self) -> int:
        return len(self.columns["time"])

    def rate(self, name: str) -> Column:
        """Return the growth of a counter per second, between each sample and the one before; NaN after a gap."""
        moments, counter = self["time"], self[name]
        with np.errstate(invalid="ignore", divide="ignore"):
            rates = np.diff(counter) / np.diff(moments)
        rates[(np.diff(moments) > 10) | (rates < 0)] = math.nan
        return np.concatenate([[math.nan], rates]) if len(moments) else rates


@dataclass(frozen=True)
class Evaluation:
    step: int
    time: float
    dev_loss: float
    train_loss: float  # of the fixed clean training sample
    seconds: float


@dataclass(frozen=True)
class SentenceLosses:
    """What an evaluation found for each dev sentence: sums of nats, and tokens."""

    step: int
    nll: Column
    tokens: Column


@dataclass(frozen=True)
class Launch:
    """A start of the workers, new or from a checkpoint."""

    time: float
    step: int
    resumed: bool
    world: int
    ranks: list[dict[str, Any]]  # the start or resume event of every rank that is known


@dataclass(frozen=True)
class File:
    name: str
    bytes: int


@dataclass
class History:
    """What is known of a run."""

    path: Path
    kind: str = "dragoman"  # whose run: dragoman, tensorboard, log
    recipe: Recipe | None = None
    facts: dict[str, Any] = field(default_factory=dict)  # run.json: versions, machine, passport, …
    outcome: dict[str, Any] | None = None
    ending: str = "killed"  # finished, stopped, running, failed, killed
    tracks: dict[int, Track] = field(default_factory=dict)  # by rank; 0 is the leader's
    launches: list[Launch] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    sentence_losses: dict[int, SentenceLosses] = field(default_factory=dict)  # of dev, by step
    scores: list[dict[str, Any]] = field(default_factory=list)  # scores.jsonl, of each model and set the last
    notes: list[dict[str, Any]] = field(default_factory=list)  # all other events of all ranks, by time
    telemetry: dict[str, Samples] = field(default_factory=dict)  # by host
    checkpoints: dict[int, list[File]] = field(default_factory=dict)  # those on disk, by step
    model_files: list[File] = field(default_factory=list)  # of the best exported model
    repeated_steps: int = 0  # that the leader had done, and did again after going back
    repeated_seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    @property
    def leader(self) -> Track | None:
        return self.tracks.get(0)

    @property
    def passport(self) -> dict[str, Any] | None:
        found = self.facts.get("passport")
        return found if isinstance(found, dict) else None

    def noted(self, *names: str) -> list[dict[str, Any]]:
        """Return the events of these names, by time."""
        return [note for note in self.notes if note["event"] in names]

    def scored(self, name: str) -> list[dict[str, Any]]:
        """Return the scores on ``dev`` or ``test``, by step."""
        return sorted((line for line in self.scores if line["set"] == name), key=lambda line: line["step"])


def is_run(path: Path) -> bool:
    """Whether this is a run of ours, or what is left of one."""
    return RunDir(path).recipe.is_file() or (path / "events").is_dir()


def read_run(path: Path) -> History:
    """Read one of our runs. Whether it can be read at all is all that may fail."""
    run = RunDir(path)
    if not is_run(path):
        raise UserError(
            "this is not a run (it has neither recipe.toml nor events)",
            where=str(path),
            fix="give the directory that `dragoman train` made, such as runs/NAME",
        )
    history = History(path)
    problems = history.problems
    if run.recipe.exists():
        try:
            history.recipe = load_recipe(str(run.recipe))
        except (UserError, OSError, ValueError) as error:
            problems.append(f"{run.recipe.name} cannot be read: {error}")
    history.facts = _read_object(run.facts, problems) or {}
    history.outcome = _read_object(run.outcome, problems)
    for file in sorted((path / "events").glob("rank*.jsonl")):
        if (rank := whole(file.stem.removeprefix("rank"))) is not None:
            _read_rank(history, file, rank)
    _forget_undone(history)
    history.notes.sort(key=lambda note: note["time"])
    history.launches = _launches(history.noted(events.START, events.RESUME))
    history.evaluations = _evaluations(history)
    history.scores = _scores(run.scores, problems)
    for line in _read_lines(run.sentence_losses, problems):
        losses = _sentence_losses(line)
        if losses is not None:
            history.sentence_losses[losses.step] = losses
    for file in sorted((path / "telemetry").glob("*.jsonl")):
        samples = _samples(file.stem, _read_lines(file, problems))
        if len(samples):
            history.telemetry[samples.host] = samples
    history.checkpoints = {
        step: _files(directory) for step, directory in step_directories(run.checkpoints).items()
    }
    history.model_files = _files(run.best)
    history.ending = _ending(history)
    return history


def number(value: Any) -> float:
    """Return a value of an event as a float; NaN if it is none."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def whole(value: Any) -> int | None:
    """Return a value of an event as a count; None if it is none."""
    found = number(value)
    return int(found) if 0 <= found < 2**53 else None


def _read_lines(path: Path, problems: list[str]) -> list[dict[str, Any]]:
    """Return the objects of a JSON Lines file; lines that are none are counted as one problem."""
    try:
        data = path.read_bytes() if path.exists() else b""
    except OSError as error:
        problems.append(f"{path.name} cannot be read: {error.strerror}")
        return []
    whole, _, tail = data.rpartition(b"\n")
    found, bad = [], 0
    for line in whole.splitlines():
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            entry = None
        if isinstance(entry, dict):
            found.append(entry)
        else:
            bad += 1
    if bad:
        problems.append(f"{path.name}: {bad:,} of {bad + len(found):,} lines cannot be read and are left out")
    if tail.strip():
        problems.append(f"{path.name}: the last line is not complete and is left out")
    return found


def _read_object(path: Path, problems: list[str]) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        problems.append(f"{path.name} cannot be read: {error}")
        return None
    if not isinstance(value, dict):
        problems.append(f"{path.name} is no JSON object")
        return None
    return value


def _read_rank(history: History, file: Path, rank: int) -> None:
    """Take up one rank's events: steps as a track, of each step the last; the rest as notes."""
    host = ""
    rows: dict[int, dict[str, Any]] = {}
    undone: list[dict[str, Any]] = []
    for entry in _read_lines(file, history.problems):
        name, step = entry.get("event"), whole(entry.get("step"))
        entry["time"], entry["rank"] = number(entry.get("time")), rank
        if not isinstance(name, str) or not math.isfinite(entry["time"]):
            continue
        if name == events.STEP:
            if step:
                undone += [rows[step]] if step in rows else []
                rows[step] = entry
            continue
        if (back_to := _goes_back_to(entry)) is not None:
            undone += [rows.pop(done) for done in sorted(rows) if done > back_to]
            host = str(entry.get("host", host))
        history.notes.append(entry)
    if rank == 0:
        history.repeated_steps = len(undone)
        history.repeated_seconds = float(np.nansum([number(row.get("seconds")) for row in undone]))
    if rows:
        ordered = [rows[step] for step in sorted(rows)]
        phases = [row["phases"] if isinstance(row.get("phases"), dict) else {} for row in ordered]
        columns = {name: _column(row.get(name) for row in ordered) for name in STEP_COLUMNS}
        columns |= {name: _column(each.get(name) for each in phases) for name in PHASES}
        history.tracks[rank] = Track(rank, host, columns)


def _goes_back_to(note: dict[str, Any]) -> int | None:
    """Return the last step that stands, where an event makes later ones undone."""
    if note["event"] in (events.START, events.RESUME):
        return whole(note.get("step"))
    return whole(note.get("to_step")) if note["event"] == events.ROLLBACK else None


def _forget_undone(history: History) -> None:
    """Drop what ranks told of steps that a smaller world, without them, did again."""
    if history.leader is None:
        return
    steps, worlds = history.leader["step"], history.leader["world"]
    for rank, track in list(history.tracks.items()):
        redone = np.isin(track["step"], steps[worlds <= rank])
        if redone.all():
            del history.tracks[rank]
        elif redone.any():
            columns = {name: column[~redone] for name, column in track.columns.items()}
            history.tracks[rank] = Track(rank, track.host, columns)


def _launches(notes: Iterable[dict[str, Any]]) -> list[Launch]:
    """Group the starts of ranks into starts of the world: a rank that starts again opens the next."""
    found: list[Launch] = []
    for note in notes:
        last = found[-1] if found else None
        if (
            last is not None
            and note["time"] - last.time < START_SECONDS
            and note["rank"] not in {each["rank"] for each in last.ranks}
        ):
            last.ranks.append(note)
        else:
            step, world = whole(note.get("step")) or 0, whole(note.get("world")) or 1
            found.append(Launch(note["time"], step, note["event"] == events.RESUME, world, [note]))
    return found


def _evaluations(history: History) -> list[Evaluation]:
    """Return what the leader measured, the last of each step, none that going back made undone."""
    found: dict[int, Evaluation] = {}
    for note in history.notes:
        if note["rank"] != 0:
            continue
        if (back_to := _goes_back_to(note)) is not None:
            found = {done: each for done, each in found.items() if done <= back_to}
        elif note["event"] == events.EVALUATION and (step := whole(note.get("step"))) is not None:
            values = [number(note.get(name)) for name in ("dev_loss", "train_loss", "seconds")]
            found[step] = Evaluation(step, note["time"], *values)
    return [found[step] for step in sorted(found)]


def _scores(path: Path, problems: list[str]) -> list[dict[str, Any]]:
    last: dict[tuple[str, str], dict[str, Any]] = {}
    for line in _read_lines(path, problems):
        step, bleu = whole(line.get("step")), number(line.get("bleu"))
        if step is not None and math.isfinite(bleu) and isinstance(line.get("set"), str):
            last[line["set"], str(line.get("model", step))] = line | {"step": step, "bleu": bleu}
    return list(last.values())


def _sentence_losses(line: dict[str, Any]) -> SentenceLosses | None:
    step = whole(line.get("step"))
    try:
        nll, tokens = (np.array(line.get(name), np.float64) for name in ("dev_nll", "dev_tokens"))
    except (TypeError, ValueError, OverflowError):
        return None
    known = step is not None and nll.ndim == 1 and nll.shape == tokens.shape
    return SentenceLosses(step, nll, tokens) if known and step is not None else None


def _samples(host: str, lines: list[dict[str, Any]]) -> Samples:
    lines = [line for line in lines if math.isfinite(number(line.get("time")))]
    lines.sort(key=lambda line: number(line["time"]))
    cores = [_list(line.get("cpu")) for line in lines]
    gpus = [[each for each in _list(line.get("gpus")) if isinstance(each, dict)] for line in lines]
    last = lines[-1] if lines else {}
    columns = {name: _column(line.get(name) for line in lines) for name in SAMPLE_COLUMNS}
    columns["cpu"] = _column(sum(map(number, each)) / 100 if each else None for each in cores)
    return Samples(
        host=str(last.get("host", host)),
        interface=str(last.get("interface", "")),
        cores=max(map(len, cores), default=0),
        columns=columns,
        gpus=[
            {
                name: _column(each[place].get(name) if place < len(each) else None for each in gpus)
                for name in GPU_COLUMNS
            }
            for place in range(max(map(len, gpus), default=0))
        ],
    )


def _column(values: Iterable[Any]) -> Column:
    return np.array([number(value) for value in values], np.float64)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _files(directory: Path) -> list[File]:
    """Return the files of a directory; none if it is not there, or goes while we look."""
    try:
        return [
            File(path.name, path.stat().st_size) for path in sorted(directory.iterdir()) if path.is_file()
        ]
    except OSError:
        return []


def _ending(history: History) -> str:
    """Say how the run ended, from the leader's last word and the launcher's."""
    last = [note for note in history.notes if note["rank"] == 0 and note["event"] in events.EDGES]
    if last and last[-1]["event"] == events.FINISH:
        return "finished"
    if last and last[-1]["event"] == events.STOP:
        return "stopped"
    code = number((history.outcome or {}).get("exit_code"))
    if code in (1, 2):
        return "failed"
    newest = max(
        [note["time"] for note in history.notes]
        + [float(track["time"][-1]) for track in history.tracks.values()]
        + [float(samples["time"][-1]) for samples in history.telemetry.values()]
        + [began for began in [number(history.facts.get("time"))] if math.isfinite(began)],
        default=0.0,
    )
    return "running" if time.time() - newest < RUNNING_SECONDS else "killed"
