"""The contamination gate: which training pairs overlap with dev or test, and how.

A score on a sentence that was trained on says nothing about sentences that were not. A training pair overlaps with
a held-out pair when

    exact       both sides are the same, to the letter
    normalised  both are, without case and punctuation; or one is, also without digits, and has six words or more
    ngram       one side shares a run of thirteen words with the held-out side, which is most of that

docs/decisions/0008-what-counts-as-overlap.md says why so and not otherwise.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.data.rules import Pairs
from dragoman.data.shards import Array
from dragoman.data.tally import EXAMPLE_CHARS

HOWS = ("exact", "normalised", "ngram")  # the strongest first
EXACT, NORMALISED, NGRAM = range(len(HOWS))
# Of Europarl's sentences of so many words fewer than one in a hundred is said twice; of three words, four are.
SIDE_WORDS = 6
RUN_WORDS = 13
RUN_SHARE = 0.6  # of the held-out side. Names of committees have thirteen words: half a sentence at most
MAX_EXAMPLES = 4  # of each kind


@dataclass(frozen=True)
class Match:
    """A training pair of a chunk that overlaps with a held-out pair."""

    row: int
    line: int  # of the held-out text, counted over all sets from 0
    how: int
    side: int | None  # of the held-out pair, the one that is the same, where it is not both


@dataclass(frozen=True)
class HeldOut:
    """What dev and test are recognised by: sorted hashes of several kinds, and the line of each."""

    arrays: dict[str, Array]

    @classmethod
    def of(cls, src: list[str], tgt: list[str], *, both_ways: bool = False) -> "HeldOut":
        """Return what these normalised lines are recognised by; ``both_ways`` also where train has them reversed."""
        arrays: dict[str, Array] = {"size": np.array(len(src))}
        if both_ways:
            src, tgt = src + tgt, tgt + src
        pairs, lines = Pairs(src, tgt, ("", "")), np.arange(len(src))
        has_words = pairs.near_hashes != 0
        tables = {
            "exact": (pairs.exact_hashes, lines),
            "near": (pairs.near_hashes[has_words], lines[has_words]),
        }
        for side, each in enumerate(pairs.words):
            is_long = each.counts >= SIDE_WORDS
            tables[f"side{side}"] = each.line_hashes()[is_long], lines[is_long]
            tables[f"runs{side}"] = each.runs(RUN_WORDS)
            arrays[f"words{side}"] = each.counts
        for name, (hashes, of_lines) in tables.items():
            order = np.argsort(hashes, kind="stable")
            arrays |= {name: hashes[order], f"{name}.lines": of_lines[order]}
        return cls(arrays)

    def save(self, path: Path) -> None:
        """Write it to a file, from which all workers load it."""
        with open(path, "wb") as file:
            np.savez(file, **self.arrays)  # type: ignore[arg-type]

    @staticmethod
    @lru_cache(maxsize=1)
    def load(path: Path) -> "HeldOut":
        """Read what ``save`` wrote."""
        with np.load(path) as arrays:
            return HeldOut(dict(arrays))

    def matches(self, pairs: Pairs) -> Iterator[Match]:
        """Yield all overlaps of some pairs, the strongest first."""
        yield from self._equal("exact", pairs.exact_hashes, EXACT)
        yield from self._equal("near", pairs.near_hashes, NORMALISED)
        for side, words in enumerate(pairs.words):
            yield from self._equal(f"side{side}", words.line_hashes(), NORMALISED, side)
        for side, words in enumerate(pairs.words):
            runs, rows = words.runs(RUN_WORDS)
            lines, places = self._find(f"runs{side}", runs)
            if len(lines):
                yield from self._shared(side, np.stack((rows[places], lines), axis=1))

    def _shared(self, side: int, together: Array) -> Iterator[Match]:
        """Yield the pairs of a row and a line that have enough runs in common."""
        for (row, line), number in zip(*np.unique(together, axis=0, return_counts=True), strict=True):
            shared_words = number + RUN_WORDS - 1  # if the runs are one after another
            if shared_words >= RUN_SHARE * self.arrays[f"words{side}"][line]:
                yield self._match(row, line, NGRAM, side)

    def _equal(self, name: str, hashes: Array, how: int, side: int | None = None) -> Iterator[Match]:
        for line, row in zip(*self._find(name, hashes), strict=True):
            yield self._match(row, line, how, side)

    def _match(self, row: int, line: int, how: int, side: int | None) -> Match:
        turned, line = divmod(int(line), int(self.arrays["size"]))
        return Match(int(row), line, how, 1 - side if turned and side is not None else side)

    def _find(self, name: str, hashes: Array) -> tuple[Array, Array]:
        """Return the held-out lines of those of the hashes that are known, and their places."""
        known = self.arrays[name]
        first, last = np.searchsorted(known, hashes), np.searchsorted(known, hashes, side="right")
        places = np.flatnonzero(last > first)
        numbers = (last - first)[places]
        offsets = np.arange(numbers.sum()) - np.repeat(np.cumsum(numbers) - numbers, numbers)
        lines = self.arrays[f"{name}.lines"][np.repeat(first[places], numbers) + offsets]
        return lines, np.repeat(places, numbers)


@dataclass
class Found:
    """The overlaps of a part of the training text: those of parts add up to that of the whole."""

    lines: dict[int, int] = field(default_factory=dict)  # held out, and the strongest way train has each
    examples: list[dict[str, Any]] = field(default_factory=list)

    def note(self, match: Match) -> None:
        """Remember the held-out line."""
        self.lines[match.line] = min(match.how, self.lines.get(match.line, match.how))

    def show(self, match: Match, place: str, src: str, tgt: str) -> None:
        """Keep a training pair as an example, if it is among the first."""
        example = {"where": place, "src": src[:EXAMPLE_CHARS], "tgt": tgt[:EXAMPLE_CHARS]}
        self._keep({**example, "line": match.line, "side": match.side, "how": HOWS[match.how]})

    def add(self, other: "Found") -> None:
        """Add what comes after in the training text."""
        for line, how in other.lines.items():
            self.lines[line] = min(how, self.lines.get(line, how))
        for example in other.examples:
            self._keep(example)

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return {"lines": list(self.lines.items()), "examples": self.examples}

    @classmethod
    def from_dict(cls, facts: dict[str, Any]) -> "Found":
        """Return what ``as_dict`` made these facts of."""
        return cls(dict(facts["lines"]), facts["examples"])

    def _keep(self, example: dict[str, Any]) -> None:
        if sum(each["how"] == example["how"] for each in self.examples) < MAX_EXAMPLES:
            self.examples.append(example)


def facts(
    found: Found, sets: dict[str, tuple[list[str], list[str]]], *, gate: bool, pairs: int
) -> dict[str, Any]:
    """Return what the manifest says: ``pairs`` of train overlap with these sets, and the gate removed them or not."""
    places = [(name, index) for name, (src, _) in sets.items() for index in range(len(src))]
    counts = {name: {"pairs": len(src), **dict.fromkeys(HOWS, 0)} for name, (src, _) in sets.items()}
    for line, how in found.lines.items():
        counts[places[line][0]][HOWS[how]] += 1
    examples = []
    for example in found.examples:
        name, index = places[example["line"]]
        text = sets[name][example["side"] or 0][index]
        shown = {key: example[key] for key in ("where", "src", "tgt", "how")}
        examples.append({**shown, "held_out": f"{name}:{index + 1} {text[:EXAMPLE_CHARS]}"})
    return {
        "gate": gate,
        "removed": pairs if gate else 0,
        **({} if gate else {"kept": pairs}),
        "sets": counts,
        "examples": examples,
    }


def of_set(overlap: dict[str, Any] | None, name: str) -> dict[str, Any] | None:
    """Return what a score on a set says of its overlap with train; None if the dataset does not know."""
    known = (overlap or {}).get("sets", {}).get(name)
    if overlap is None or known is None:
        return None
    return {**known, **{key: overlap[key] for key in ("gate", "removed", "kept") if key in overlap}}


def in_words(overlap: dict[str, Any] | None, name: str) -> str | None:
    """Return a sentence about what train had of a set, for people; None where it had nothing."""
    return describe(of_set(overlap, name), name)


def describe(known: dict[str, Any] | None, name: str) -> str | None:
    """Return the same of what ``of_set`` returned."""
    if known is None or not (lines := sum(known[how] for how in HOWS)):
        return None
    parts = ", ".join(f"{known[how]:,} {how}" for how in HOWS if known[how])
    told = f"{lines:,} of {known['pairs']:,} pairs of {name} were in train too ({parts})"
    if known["gate"]:
        return f"{told} and were removed from train"
    return f"{told} and were left there: scores on {name} are too good"
