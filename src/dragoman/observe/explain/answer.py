"""What a question is asked about, and what an answer is made of."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from dragoman.observe.attribution import PARTS, Share, attribute, steady
from dragoman.observe.history import Column, History, number, whole
from dragoman.observe.statistics import Interval

YES, NO, UNCLEAR = "yes", "no", "unclear"
NOT_RECORDED = "not recorded"
MEGABYTE = 1e6


@dataclass(frozen=True)
class Finding:
    """What one question found out."""

    verdict: str
    summary: str
    evidence: dict[str, Any] = field(default_factory=dict)
    confidence: float = 0.5
    advice: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Answer:
    """A question, what its verdict says yes or no to, and the finding."""

    key: str
    question: str
    claim: str
    verdict: str  # yes, no or unclear
    summary: str  # one line of why
    evidence: dict[str, Any]  # numbers as JSON holds them; None is not known
    confidence: float  # that the verdict is right, 0 to 1
    advice: list[str]


@dataclass(frozen=True)
class Question:
    text: str
    claim: str
    ask: Callable[["Case"], Finding]


def unclear(why: str, evidence: dict[str, Any] | None = None, advice: list[str] | None = None) -> Finding:
    """Say that the evidence decides nothing, and why."""
    return Finding(UNCLEAR, why, evidence or {}, 0.0 if NOT_RECORDED in why else 0.5, advice or [])


class Case:
    """A history, and what several questions want to know of it; each is found out once."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.found: dict[str, Finding] = {}  # answers so far, by key

    @cached_property
    def shares(self) -> dict[int, Share]:
        """Where the time of every rank's steps went, without the first steps after a start."""
        return {
            rank: share
            for rank, share in map(self._steady, attribute(self.history).items())
            if len(share.step)
        }

    def _steady(self, item: tuple[int, Share]) -> tuple[int, Share]:
        rank, share = item
        keep = steady(self.history, share.step)
        parts = {name: column[keep] for name, column in share.parts.items()}
        columns = (share.step[keep], share.time[keep], share.seconds[keep], parts, share.slowest[keep])
        return rank, Share(rank, share.host, *columns)

    @cached_property
    def parts(self) -> dict[str, float]:
        """Seconds of an average step of an average rank, by part; empty if not recorded."""
        steps = sum(len(share.step) for share in self.shares.values())
        if not steps:
            return {}
        return {
            name: float(sum(share.parts[name].sum() for share in self.shares.values())) / steps
            for name in PARTS
        }

    @property
    def step_seconds(self) -> float:
        return sum(self.parts.values()) if self.parts else math.nan

    def steady_column(self, name: str) -> Column:
        """Return a column of the leader's, without the first steps after a start and what is not known."""
        track = self.history.leader
        if track is None:
            return np.zeros(0)
        column = track[name][steady(self.history, track["step"])]
        return column[np.isfinite(column)]

    @property
    def last_step(self) -> int:
        track = self.history.leader
        return int(track["step"][-1]) if track is not None and len(track) else 0

    @property
    def starts(self) -> list[dict[str, Any]]:
        """What each rank said when the workers started last."""
        return self.history.launches[-1].ranks if self.history.launches else []

    @property
    def world(self) -> int:
        return self.history.launches[-1].world if self.history.launches else 1

    @property
    def hosts(self) -> list[str]:
        """The hosts of the last start that are known by name."""
        return sorted({str(note["host"]) for note in self.starts if note.get("host")})

    @property
    def parameters(self) -> int | None:
        told = [*self.starts, self.history.facts]
        return next((count for each in told if (count := whole(each.get("parameters")))), None)

    @property
    def link(self) -> tuple[float, float] | None:
        """Seconds of latency and bytes per second of the link between hosts, as measured last."""
        for note in reversed(self.history.noted("link")):
            latency, rate = number(note.get("latency_seconds")), number(note.get("bytes_per_second"))
            if latency >= 0 and rate > 0 and math.isfinite(latency + rate):
                return latency, rate
        return None


def share_of(parts: dict[str, float], name: str) -> float:
    return parts[name] / sum(parts.values())


def as_evidence(interval: Interval) -> dict[str, float]:
    return {"value": interval.value, "low": interval.low, "high": interval.high}


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it: numbers to six digits, None for those that are none."""
    match value:
        case bool() | str() | None:
            return value
        case int():
            return value
        case float() | np.floating():
            return float(f"{value:.6g}") if math.isfinite(value) else None
        case np.integer():
            return int(value)
        case dict():
            return {str(name): plain(item) for name, item in value.items()}
        case list() | tuple() | np.ndarray():
            return [plain(item) for item in value]
    return str(value)
