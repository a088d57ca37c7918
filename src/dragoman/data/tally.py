"""Counting what became of the lines of a corpus."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_EXAMPLES = 5  # dropped pairs shown of each filter
EXAMPLE_CHARS = 200


@dataclass
class Tally:
    """What became of the lines of a corpus, or of a part: tallies of parts add up to that of the whole."""

    lines: int = 0
    pairs: int = 0  # kept
    chars: list[int] = field(default_factory=lambda: [0, 0])  # of kept pairs, by side, as the next two
    bytes: list[int] = field(default_factory=lambda: [0, 0])
    tokens: list[int] = field(default_factory=lambda: [0, 0])
    dropped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[dict[str, str]]] = field(default_factory=dict)

    def keep(self, src: list[str], tgt: list[str], tokens: Sequence[int]) -> None:
        """Count pairs that stay, with the sums of their tokens by side."""
        self.pairs += len(src)
        for side, lines in enumerate((src, tgt)):
            text = "".join(lines)
            self.chars[side] += len(text)
            self.bytes[side] += len(text.encode())
            self.tokens[side] += int(tokens[side])

    def drop(self, name: str, place: str, src: str, tgt: str) -> None:
        """Count a pair that the filter ``name`` dropped, and keep it if it is among the first."""
        self.dropped[name] += 1
        self._keep_examples(name, [{"where": place, "src": src[:EXAMPLE_CHARS], "tgt": tgt[:EXAMPLE_CHARS]}])

    def add(self, other: "Tally") -> None:
        """Add what comes after in the corpus."""
        self.lines += other.lines
        self.pairs += other.pairs
        for side in (0, 1):
            self.chars[side] += other.chars[side]
            self.bytes[side] += other.bytes[side]
            self.tokens[side] += other.tokens[side]
        self.dropped += other.dropped
        for name, examples in other.examples.items():
            self._keep_examples(name, examples)

    def counts(self) -> dict[str, Any]:
        """Return the numbers by name."""
        names = ("lines", "pairs", "chars", "bytes", "tokens")
        return {**{name: getattr(self, name) for name in names}, "dropped": dict(self.dropped)}

    def _keep_examples(self, name: str, examples: list[dict[str, str]]) -> None:
        kept = self.examples.setdefault(name, [])
        kept += examples[: MAX_EXAMPLES - len(kept)]
