"""Reading a run's directory: at once, or again and again while it grows.

Any run can be read: finished, running, killed, broken, or a copy on another machine. A ``Follower`` reads only what was
appended since its last look; a history that it returned is good until the next.
"""

import json
import math
import platform
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import psutil

from dragoman.errors import UserError
from dragoman.observe import events
from dragoman.observe.history import (
    GPU_COLUMNS,
    PHASES,
    SAMPLE_COLUMNS,
    STEP_COLUMNS,
    Column,
    Evaluation,
    File,
    History,
    Launch,
    Samples,
    SentenceLosses,
    Track,
    number,
    whole,
)
from dragoman.recipe import load_recipe
from dragoman.rundir import RunDir, step_directories

PIECE_BYTES = 1 << 20
NEW_ROWS = 4096  # as lists of Python's numbers they take ten times the room
ROWS = (*STEP_COLUMNS, *PHASES)
START_SECONDS = 60  # within which the ranks of a world start
RUNNING_SECONDS = 120  # a run that told nothing for so long, and did not say that it ended, was killed


def is_run(path: Path) -> bool:
    """Whether this is a run of ours, or what is left of one."""
    return RunDir(path).recipe.is_file() or (path / "events").is_dir()


def read_run(path: Path) -> History:
    """Read one of our runs. Whether it is one is all that may fail."""
    if not is_run(path):
        raise UserError(
            "this is not a run (it has neither recipe.toml nor events)",
            where=str(path),
            fix="give the directory that `dragoman train` made, such as runs/NAME",
        )
    return Follower(path).read()


class Follower:
    """Reads one of our runs again and again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._forget()

    def read(self) -> History:
        """Return all that is known of the run by now."""
        run, found = RunDir(self.path), History(self.path)
        problems = found.problems
        if run.recipe.exists():
            try:
                found.recipe = load_recipe(str(run.recipe))
            except (UserError, OSError, ValueError) as error:
                problems.append(f"{run.recipe.name} cannot be read: {error}")
        found.facts = _read_object(run.facts, problems) or {}
        found.outcome = _read_object(run.outcome, problems)
        if any(tail.was_replaced() for tail in self._tails.values()):
            self._forget()  # the run was removed, and another one began
        for file in sorted((self.path / "events").glob("rank*.jsonl")):
            if (rank := whole(file.stem.removeprefix("rank"))) is not None:
                rows = self._ranks.setdefault(rank, Rank(rank))
                for entry in self._new(file):
                    rows.take(entry)
                found.notes += rows.notes
                if (track := rows.track()) is not None:
                    found.tracks[rank] = track
        if 0 in self._ranks:
            found.repeated_steps = self._ranks[0].repeated_steps
            found.repeated_seconds = self._ranks[0].repeated_seconds
        _forget_undone(found)
        found.notes.sort(key=lambda note: note["time"])
        found.launches = _launches(found.noted(events.START, events.RESUME))
        found.evaluations = _evaluations(found)
        self._scores += self._new(run.scores)
        found.scores = _scores(self._scores)
        for line in self._new(run.sentence_losses):
            losses = _sentence_losses(line)
            if losses is not None:
                self._losses[losses.step] = losses
        found.sentence_losses = dict(self._losses)
        for file in sorted((self.path / "telemetry").glob("*.jsonl")):
            piece = _samples(file.stem, list(self._new(file)))
            if len(piece):
                before = self._samples.get(file.stem)
                self._samples[file.stem] = piece if before is None else _joined(before, piece)
        found.telemetry = {samples.host: samples for samples in self._samples.values()}
        found.checkpoints = {
            step: _files(directory) for step, directory in step_directories(run.checkpoints).items()
        }
        found.model_files = _files(run.best)
        found.ending = _ending(found)
        growing = found.ending == "running"
        problems += [text for tail in self._tails.values() for text in tail.problems(growing=growing)]
        return found

    def _forget(self) -> None:
        self._tails: dict[Path, Tail] = {}
        self._ranks: dict[int, Rank] = {}
        self._losses: dict[int, SentenceLosses] = {}
        self._samples: dict[str, Samples] = {}
        self._scores: list[dict[str, Any]] = []

    def _new(self, file: Path) -> Iterator[dict[str, Any]]:
        return self._tails.setdefault(file, Tail(file)).read()


class Tail:
    """The end of a JSON Lines file that grows."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._good, self._bad = path, 0, 0, 0
        self._half = False  # whether the last line is not complete

    def was_replaced(self) -> bool:
        """Whether the file is shorter than what we have read of it, or gone."""
        try:
            return self._path.stat().st_size < self._offset
        except OSError:
            return self._offset > 0

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield the objects of the whole lines that were appended, a piece of the file at a time."""
        try:
            file = open(self._path, "rb")  # noqa: SIM115 - closed below; a file that is not there yet is empty
        except OSError:
            return
        with file:
            file.seek(self._offset)
            self._half = False
            while lines := file.readlines(PIECE_BYTES):
                for line in lines:
                    if not line.endswith(b"\n"):  # somebody is writing it, or died writing it
                        self._half = bool(line.strip())
                        return
                    self._offset += len(line)
                    try:  # parsing takes most of the time of a long run, with the standard library far more
                        entry = orjson.loads(line)
                    except orjson.JSONDecodeError:
                        entry = None
                    if isinstance(entry, dict):
                        self._good += 1
                        yield entry
                    elif line.strip():
                        self._bad += 1

    def problems(self, *, growing: bool) -> Iterator[str]:
        """Yield what could not be read; half a line is none where one is being written."""
        if self._bad:
            total = self._bad + self._good
            yield f"{self._path.name}: {self._bad:,} of {total:,} lines cannot be read and are left out"
        if self._half and not growing:
            yield f"{self._path.name}: the last line is not complete and is left out"


class Rank:
    """One rank's steps as columns with room to grow, and its other events."""

    def __init__(self, rank: int) -> None:
        self.rank, self.host = rank, ""
        self.notes: list[dict[str, Any]] = []
        self.repeated_steps, self.repeated_seconds = 0, 0.0
        self._columns = np.empty((len(ROWS), 1024))
        self._length = 0
        self._new: list[list[Any]] = []  # rows that are not in the columns yet
        self._last = 0  # the last step that counts

    def take(self, entry: dict[str, Any]) -> None:
        """Take up one event; a step that was told before, or that a later one made undone, no longer counts."""
        name, step = entry.get("event"), whole(entry.get("step"))
        entry["time"], entry["rank"] = number(entry.get("time")), self.rank
        if not isinstance(name, str) or not math.isfinite(entry["time"]):
            return
        if name == events.STEP:
            if step:
                if step <= self._last:
                    self._go_back(step - 1)
                phases = entry.get("phases")
                more = phases if isinstance(phases, dict) else {}
                self._new.append([*map(entry.get, STEP_COLUMNS), *map(more.get, PHASES)])
                self._last = step
                if len(self._new) == NEW_ROWS:
                    self._settle()
            return
        if (back_to := _goes_back_to(entry)) is not None:
            if back_to < self._last:
                self._go_back(back_to)
            self.host = str(entry.get("host", self.host))
        self.notes.append(entry)

    def track(self) -> Track | None:
        """Return the steps that count; None if there is none."""
        self._settle()
        columns = dict(zip(ROWS, self._columns[:, : self._length], strict=True))
        return Track(self.rank, self.host, columns) if self._length else None

    def _settle(self) -> None:
        """Put the new rows into the columns."""
        if not self._new:
            return
        try:
            rows = np.array(self._new, np.float64)  # None becomes NaN, "nan" too
        except (TypeError, ValueError, OverflowError):
            rows = np.array([[number(value) for value in row] for row in self._new])
        end = self._length + len(rows)
        if end > self._columns.shape[1]:
            room = np.empty((len(ROWS), 2 * end))
            room[:, : self._length] = self._columns[:, : self._length]
            self._columns = room
        self._columns[:, self._length : end] = rows.T
        self._length, self._new = end, []

    def _go_back(self, step: int) -> None:
        """Forget the steps after ``step``."""
        self._settle()
        kept = int(np.searchsorted(self._columns[0, : self._length], step, side="right"))
        self.repeated_steps += self._length - kept
        self.repeated_seconds += float(np.nansum(self._columns[ROWS.index("seconds"), kept : self._length]))
        self._length = kept
        self._last = int(self._columns[0, kept - 1]) if kept else 0


def _joined(before: Samples, after: Samples) -> Samples:
    """Return two stretches of a host's telemetry as one."""
    empty: dict[str, Column] = {name: np.empty(0) for name in GPU_COLUMNS}
    gpus = []
    for place in range(max(len(before.gpus), len(after.gpus))):
        pair = [
            (each.gpus[place] if place < len(each.gpus) else empty, len(each)) for each in (before, after)
        ]
        gpus.append(
            {name: np.concatenate([_filled(gpu[name], size) for gpu, size in pair]) for name in empty}
        )
    columns = {name: np.concatenate([column, after[name]]) for name, column in before.columns.items()}
    return Samples(after.host, after.interface, max(before.cores, after.cores), columns, gpus)


def _filled(column: Column, size: int) -> Column:
    return column if len(column) == size else np.full(size, np.nan)


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


def _scores(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the last score of each model on each set."""
    last: dict[tuple[str, str], dict[str, Any]] = {}
    for line in lines:
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
    lives = time.time() - newest < RUNNING_SECONDS and not _trainer_is_gone(history)
    return "running" if lives else "killed"


def _trainer_is_gone(history: History) -> bool:
    """Whether the process that trained the run on this very machine no longer exists."""
    machine = history.facts.get("machine")
    if not isinstance(machine, dict) or machine.get("host") != platform.node():
        return False
    try:
        return not psutil.pid_exists(int(RunDir(history.path).lock.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return False
