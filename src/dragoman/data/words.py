"""The words of lines as numbers, without case, digits and punctuation: what lines are compared by.

Every word of a chunk gets a 64-bit hash, computed for all of them at once from the characters. From the hashes of
its words come that of a line and those of its runs of so many words. No string is made on the way.
"""

import unicodedata
from dataclasses import dataclass
from functools import cache

import numpy as np

from dragoman.data.letters import kinds_of_characters, kinds_of_letters
from dragoman.data.shards import Array

WITHOUT_SPACES = (
    "CJK",
    "HIRAGANA",
    "KATAKANA",
    "THAI",
    "LAO",
    "KHMER",
    "MYANMAR",
)  # every letter is a word here

_CHARACTER_BASE, _WORD_BASE = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)  # any odd numbers


@dataclass(frozen=True)
class Words:
    """The words of some lines: those of line ``i`` are ``hashes[starts[i]:starts[i + 1]]``."""

    hashes: Array  # uint64, one a word
    starts: Array  # int64, one a line and one more

    @classmethod
    def of(cls, lines: list[str]) -> "Words":
        """Return the words of lines, which contain no line ends."""
        codes = np.frombuffer("\n".join(lines).encode("utf-32-le"), np.uint32)
        values = _values()[codes]
        is_letter = values != 0
        begins = is_letter.copy()
        begins[1:] &= ~is_letter[:-1] | _alone()[codes[1:]]
        word_of = np.cumsum(begins)[is_letter] - 1
        values = values[is_letter]
        first = np.flatnonzero(np.diff(word_of, prepend=-1))
        places = np.arange(len(values)) - first[word_of]
        hashes = _sums(values * _powers(_CHARACTER_BASE, places), first)
        line_ends = np.flatnonzero(codes == ord("\n"))
        starts = np.searchsorted(np.flatnonzero(begins), line_ends)
        return cls(_mixed(hashes), np.concatenate(([0], starts, [len(hashes)])).astype(np.int64))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def counts(self) -> Array:
        """The number of words of each line."""
        return np.diff(self.starts)

    def line(self, index: int) -> list[int]:
        """Return the words of one line."""
        words: list[int] = self.hashes[self.starts[index] : self.starts[index + 1]].tolist()
        return words

    def line_hashes(self) -> Array:
        """Return a hash of each line: lines of the same words in the same order have the same, and 0 has no words."""
        counts = self.counts
        places = np.arange(len(self.hashes)) - np.repeat(self.starts[:-1], counts)
        full = counts > 0
        result = np.zeros(len(self), np.uint64)
        result[full] = _mixed(_sums(self.hashes * _powers(_WORD_BASE, places), self.starts[:-1][full]))
        return result

    def runs(self, length: int) -> tuple[Array, Array]:
        """Return a hash of each run of ``length`` words inside a line, and the line it is in."""
        number = max(0, len(self.hashes) - length + 1)
        runs = np.zeros(number, np.uint64)
        for place, power in enumerate(_powers(_WORD_BASE, np.arange(length))):
            runs += self.hashes[place : place + number] * power
        lines = np.repeat(np.arange(len(self)), self.counts)
        inside = lines[:number] == lines[length - 1 :]
        return _mixed(runs[inside]), lines[:number][inside]


def paired(src: Array, tgt: Array) -> Array:
    """Return a hash of each pair from those of its sides, which are no longer equal when the sides are swapped."""
    return _mixed(src * _CHARACTER_BASE + tgt * _WORD_BASE)


def _sums(values: Array, first: Array) -> Array:
    return np.add.reduceat(values, first) if len(first) else np.zeros(0, np.uint64)


def _powers(base: np.uint64, places: Array) -> Array:
    """Return the base to the power of each place, and one: modulo 2 to the power of 64, as all sums here."""
    if not len(places):
        return np.zeros(0, np.uint64)
    return np.cumprod(np.full(int(places.max()) + 1, base))[places]


def _mixed(values: Array) -> Array:
    """Let every bit depend on every other (the end of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(values ^ (values >> np.uint64(31)))


@cache
def _alone() -> Array:
    """Return whether a character begins a word wherever it stands."""
    return np.isin(kinds_of_characters(), kinds_of_letters(WITHOUT_SPACES))


@cache
def _values() -> Array:
    """Return a random number for every letter, the same for its capital, and 0 for all that is no part of a word.

    Marks are parts: Indic vowels are some. So is what lies beyond the basic plane: rare Chinese, and emoji.
    """
    lower = np.arange(0x110000, dtype=np.uint64)
    for code in range(0x10000):
        character = chr(code)
        is_part = unicodedata.category(character)[0] in "LM"
        lower[code] = ord(character.lower()[0]) if is_part else 0
    return np.where(lower == 0, np.uint64(0), _mixed(lower * _CHARACTER_BASE) | np.uint64(1))
