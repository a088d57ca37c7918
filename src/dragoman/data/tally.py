"""Counting what became of the lines of a corpus."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dragoman.data.shards import Array

MAX_EXAMPLES = 5  # dropped pairs shown of each rule
EXAMPLE_CHARS = 200
LENGTH_STEP = 8  # subwords in a bin of the histogram of lengths


def _two() -> list[int]:
    return [0, 0]


@dataclass
class Tally:
    """What became of the lines of a corpus, or of a part: tallies of parts add up to that of the whole."""

    lines: int = 0
    pairs: int = 0  # kept
    chars: list[int] = field(default_factory=_two)  # of kept pairs, by side, as all below
    bytes: list[int] = field(default_factory=_two)
    words: list[int] = field(default_factory=_two)  # as spaces part them
    tokens: list[int] = field(default_factory=_two)
    unknown: list[int] = field(
        default_factory=_two
    )  # tokens that are unknown, or a byte of something unknown
    # How many sides have 1 to 8, 9 to 16, ... tokens with end-of-sentence; longer ones are in the last bin.
    lengths: list[list[int]] = field(default_factory=lambda: [[], []])
    overlapping: int = 0  # kept pairs that overlap with dev or test: of train, and where they are not dropped
    dropped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[dict[str, str]]] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, facts: dict[str, Any]) -> "Tally":
        """Return the tally that ``as_dict`` made these facts of."""
        return cls(**{**facts, "dropped": Counter(facts["dropped"])})

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as JSON can hold it."""
        return {**vars(self), "dropped": dict(self.dropped)}

    def keep(
        self, src: list[str], tgt: list[str], lengths: Array, unknown: Sequence[int], max_length: int
    ) -> None:
        """Count pairs that stay: their text, their tokens (n, 2), and how many of those are unknown by side."""
        self.pairs += len(src)
        last_bin = (max_length - 1) // LENGTH_STEP
        bins = np.minimum((lengths - 1) // LENGTH_STEP, last_bin)
        for side, lines in enumerate((src, tgt)):
            text = "".join(lines)
            self.chars[side] += len(text)
            self.bytes[side] += len(text.encode())
            self.words[side] += text.count(" ") + sum(map(bool, lines))
            self.tokens[side] += int(lengths[:, side].sum())
            self.unknown[side] += int(unknown[side])
            counts = np.bincount(bins[:, side], minlength=last_bin + 1).tolist()
            self.lengths[side] = _added(self.lengths[side], counts)

    def drop(self, name: str, place: str, src: str, tgt: str) -> None:
        """Count a pair that the rule ``name`` dropped, and keep it if it is among the first."""
        self.dropped[name] += 1
        self._keep_examples(name, [{"where": place, "src": src[:EXAMPLE_CHARS], "tgt": tgt[:EXAMPLE_CHARS]}])

    def add(self, other: "Tally") -> None:
        """Add what comes after in the corpus."""
        self.lines += other.lines
        self.pairs += other.pairs
        self.overlapping += other.overlapping
        for name in ("chars", "bytes", "words", "tokens", "unknown"):
            setattr(self, name, _added(getattr(self, name), getattr(other, name)))
        self.lengths = [_added(*sides) for sides in zip(self.lengths, other.lengths, strict=True)]
        self.dropped += other.dropped
        for name, examples in other.examples.items():
            self._keep_examples(name, examples)

    def counts(self) -> dict[str, Any]:
        """Return the numbers by name."""
        names = ("lines", "pairs", "chars", "bytes", "words", "tokens", "unknown", "lengths")
        return {**{name: getattr(self, name) for name in names}, "dropped": dict(self.dropped)}

    def _keep_examples(self, name: str, examples: list[dict[str, str]]) -> None:
        kept = self.examples.setdefault(name, [])
        kept += examples[: MAX_EXAMPLES - len(kept)]


def _added(first: list[int], second: list[int]) -> list[int]:
    """Return the sums of the members of two lists; one of them may be empty."""
    return [a + b for a, b in zip(first, second, strict=True)] if first and second else [*first, *second]
