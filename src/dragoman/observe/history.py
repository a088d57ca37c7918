"""The history of a run: what happened, each step once, in order. Imports without torch.

``reading.py`` makes it of a run's directory, ``foreign.py`` of what other toolkits leave. What cannot be read is listed
in ``problems`` and left out; what was never recorded is NaN in a column, and None or empty elsewhere.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.config import Recipe

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
