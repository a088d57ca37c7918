"""Which words of a text became which words of its translation, from the attention of the model.

Attention is a hint and no proof, so nothing here fails: what is not known is taken to stand in the same order as in
the source.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Before = Callable[[float], Floats]  # from a share of a sentence: how much of each unit comes from before it

_CJK = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"  # each character stands for itself
_MARKS = r"\s!-/:-@\[-`{-~¡¿«»\u2000-\u206f\u3000-\u303f\uff00-\uff0f"
UNIT = re.compile(rf"\d+|[^\d{_MARKS}{_CJK}]+(?:['’-][^\d{_MARKS}{_CJK}]+)*|\S")
_BYTE = re.compile("<0x([0-9A-F]{2})>")


class Attention(NamedTuple):
    """How much each piece of a translation looked at each piece of the source."""

    source: list[str]  # texts of the pieces
    target: list[str]
    weights: npt.NDArray[np.float32]  # a row for each piece of the target


class Aligned:
    """Sentences beside their translations, as one text: ``units`` are the words and marks of the translation."""

    def __init__(self, sentences: Iterable[tuple[str, str, str, Attention | None]]) -> None:
        """``sentences`` are source, white space after it, translation and attention."""
        self.text = ""
        self.units: list[tuple[int, int]] = []
        self._begins: list[int] = []  # of each sentence: where it begins,
        self._parts: list[
            tuple[int, int, Before]
        ] = []  # its length, its first unit, where its units come from
        begin = 0
        for source, space, target, attention in sentences:
            units = [match.span() for match in UNIT.finditer(target)]
            if units:
                before = _from_attention(attention, units, len(target)) or _in_order(units, len(target))
                self._begins.append(begin)
                self._parts.append((len(source), len(self.units), before))
                self.units += [(len(self.text) + start, len(self.text) + end) for start, end in units]
            self.text += target + space
            begin += len(source) + len(space)

    def before(self, position: int) -> Floats:
        """Return of each unit how much of it (0 to 1) comes from what stands before ``position`` of the source."""
        whole = np.zeros(len(self.units))
        number = bisect_right(self._begins, position) - 1
        if number >= 0:
            length, first, before = self._parts[number]
            mass = before(min((position - self._begins[number]) / length, 1.0) if length else 1.0)
            whole[:first] = 1.0
            whole[first : first + len(mass)] = mass
        return whole


def texts_of(pieces: Sequence[str], skipped: int = 0) -> list[str]:
    """Return what each piece of a vocabulary stands for in a text, of which the first ``skipped`` have no part."""
    texts: list[str] = []
    run = b""  # bytes that together spell characters; the first of them gets all
    for number, piece in enumerate(pieces):
        byte = _BYTE.fullmatch(piece)
        if not byte:
            run = b""
            texts.append("" if number < skipped else piece.replace("▁", " "))
            continue
        run += bytes.fromhex(byte[1])
        texts.append("")
        first = len(texts) - len(run)
        texts[first] = run.decode("utf-8", "replace")
    if len(texts) > skipped:
        texts[skipped] = texts[skipped].removeprefix(" ")
    return texts


def _from_attention(
    attention: Attention | None, units: Sequence[tuple[int, int]], length: int
) -> Before | None:
    """Return where units come from, if attention tells."""
    if attention is None or not any(attention.source):
        return None
    weights = attention.weights.astype(float)
    weights[:, [not text for text in attention.source]] = 0.0
    # The space before a word is a part of its piece, but nothing comes from it.
    spaced = [number for number, text in enumerate(attention.source) if len(_without_space(text)) > 1]
    weights = np.insert(weights, spaced, 0.0, axis=1)
    cuts = _cuts([part for text in attention.source for part in _without_space(text)])
    ends = _cuts(attention.target)[1:] * length
    # A piece belongs to the unit in which it ends: one that begins with a space ends in the word after it.
    owner = np.searchsorted([end for _, end in units], ends - 1e-6, "right")
    mass = np.zeros((len(units), weights.shape[1]))
    np.add.at(mass, np.minimum(owner, len(units) - 1), weights)
    totals = mass.sum(1)
    known = np.flatnonzero(totals > 1e-6)
    if not len(known):
        return None
    # A unit that no piece ends in, as in "2nd", is a part of the next one.
    rows = known[np.minimum(np.searchsorted(known, np.arange(len(units))), len(known) - 1)]
    sums = np.cumsum(mass[rows] / totals[rows, None], axis=1)
    sums = np.concatenate([np.zeros((len(units), 1)), sums], axis=1)

    def before(at: float) -> Floats:
        right = max(1, int(np.searchsorted(cuts, at)))
        width = cuts[right] - cuts[right - 1]
        share = (at - cuts[right - 1]) / width if width else 1.0
        return np.add((1 - share) * sums[:, right - 1], share * sums[:, right])

    return before


def _in_order(units: Sequence[tuple[int, int]], length: int) -> Before:
    """Return where the units of a translation come from that is its source word below word."""
    starts, ends = np.array(units, float).T / length
    return lambda at: np.clip((at - starts) / (ends - starts), 0.0, 1.0)


def _without_space(text: str) -> list[str]:
    return [" ", text[1:]] if text[:1] == " " and text != " " else [text]


def _cuts(texts: Sequence[str]) -> Floats:
    """Return where each of the texts ends, as shares of all."""
    ends: Floats = np.cumsum([0, *map(len, texts)], dtype=float)
    return np.divide(ends, max(ends[-1], 1.0))
