"""The history of a run that goes on: every look reads only what was appended since the one before.

``Follower.read`` returns what ``read_run`` would, so all that explains and draws a history works on a living one.
Steps and samples are kept as growing columns. A history that was returned is good until the next look.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.errors import UserError
from dragoman.observe import events, history
from dragoman.observe.history import PHASES, STEP_COLUMNS, Column, History, Samples, Track, number, whole
from dragoman.recipe import load_recipe
from dragoman.rundir import RunDir, step_directories

PIECE_BYTES = 1 << 20
NEW_ROWS = 4096  # as lists of Python's numbers they take ten times the room
ROWS = (*STEP_COLUMNS, *PHASES)


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
        found.facts = history._read_object(run.facts, problems) or {}
        found.outcome = history._read_object(run.outcome, problems)
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
        history._forget_undone(found)
        found.notes.sort(key=lambda note: note["time"])
        found.launches = history._launches(found.noted(events.START, events.RESUME))
        found.evaluations = history._evaluations(found)
        found.scores = history._scores(run.scores, problems)
        for line in self._new(run.sentence_losses):
            losses = history._sentence_losses(line)
            if losses is not None:
                self._losses[losses.step] = losses
        found.sentence_losses = dict(self._losses)
        for file in sorted((self.path / "telemetry").glob("*.jsonl")):
            piece = history._samples(file.stem, list(self._new(file)))
            if len(piece):
                before = self._samples.get(file.stem)
                self._samples[file.stem] = piece if before is None else _joined(before, piece)
        found.telemetry = {samples.host: samples for samples in self._samples.values()}
        found.checkpoints = {
            step: history._files(directory) for step, directory in step_directories(run.checkpoints).items()
        }
        found.model_files = history._files(run.best)
        problems += [text for tail in self._tails.values() for text in tail.problems()]
        found.ending = history._ending(found)
        return found

    def _forget(self) -> None:
        self._tails: dict[Path, Tail] = {}
        self._ranks: dict[int, Rank] = {}
        self._losses: dict[int, history.SentenceLosses] = {}
        self._samples: dict[str, Samples] = {}

    def _new(self, file: Path) -> Iterator[dict[str, Any]]:
        return self._tails.setdefault(file, Tail(file)).read()


class Tail:
    """The end of a JSON Lines file that grows."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._good, self._bad = path, 0, 0, 0

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
            while lines := file.readlines(PIECE_BYTES):
                for line in lines:
                    if not line.endswith(b"\n"):
                        return  # somebody is writing it
                    self._offset += len(line)
                    try:
                        entry = json.loads(line)
                    except (ValueError, RecursionError):
                        entry = None
                    if isinstance(entry, dict):
                        self._good += 1
                        yield entry
                    elif line.strip():
                        self._bad += 1

    def problems(self) -> list[str]:
        total = self._bad + self._good
        return [f"{self._path.name}: {self._bad:,} of {total:,} lines cannot be read and are left out"] * (
            self._bad > 0
        )


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
        if (back_to := history._goes_back_to(entry)) is not None:
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
    empty: dict[str, Column] = {name: np.empty(0) for name in history.GPU_COLUMNS}
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
