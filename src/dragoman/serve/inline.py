"""Inline tags (``<b>``, ``<a>``, …) put back into a translation.

A sentence is translated without its tags; each element is then put around the words that came from its own. Every tag
is there again, once, unchanged and within its parent. Elements may change their order, as words do; an element whose
words went to several places gets the largest of them.
"""

from dataclasses import dataclass, field
from html import escape

import numpy as np

from dragoman.decode.alignment import Aligned, Floats

Span = tuple[int, int]  # of units of the translation: from, to


@dataclass
class Element:
    """A tag with what is in it, at a place of the text without tags."""

    opening: str
    start: int
    end: int
    closing: str = ""
    children: list["Element"] = field(default_factory=list)
    is_whole: bool = (
        False  # ``opening`` is all of it, and stands in the place of its translation, if it had text
    )


def put_in(elements: list[Element], text: str, aligned: Aligned) -> str:
    """Return the translation of ``text`` as HTML with ``elements``."""
    top = Element("", 0, len(text), children=elements)
    return _fill(top, (0, len(aligned.units)), (0, len(aligned.text)), text, aligned)


def _fill(parent: Element, units: Span, characters: Span, text: str, aligned: Aligned) -> str:
    """Return ``characters`` of the translation, which hold ``units``, with the elements in ``parent``."""
    html, at = [], characters[0]
    for (first, last), child in _places(parent, units, text, aligned):
        if first < last:
            begin, end = aligned.units[first][0], aligned.units[last - 1][1]
        else:
            begin = end = _between(first, units, characters, child, text, aligned)
        html.append(escape(aligned.text[at:begin], quote=False))
        inner = "" if child.is_whole else _fill(child, (first, last), (begin, end), text, aligned)
        html += [child.opening, inner, child.closing]
        at = end
        if (
            child.is_whole and child.start < child.end and begin == end
        ):  # a word more than the translation has
            html.insert(-3, " " if begin > characters[0] and not aligned.text[begin - 1].isspace() else "")
            html.append(" " if end < characters[1] and aligned.text[end] not in " .,;:!?" else "")
    return "".join(html) + escape(aligned.text[at : characters[1]], quote=False)


def _between(unit: int, units: Span, characters: Span, child: Element, text: str, aligned: Aligned) -> int:
    """Return the character where something stands that has no words: on the side on which it had no space."""
    glued = child.start > 0 and not text[child.start - 1].isspace()
    if glued and unit > units[0]:
        return aligned.units[unit - 1][1]
    return aligned.units[unit][0] if unit < units[1] else characters[1]


def _places(parent: Element, units: Span, text: str, aligned: Aligned) -> list[tuple[Span, Element]]:
    """Return where each child goes, in the order of the translation; no two overlap."""
    low, high = units
    free = np.ones(high - low, bool)
    places: list[tuple[Span, int, Element]] = []
    wordless = []
    for number, child in enumerate(parent.children):
        words = text[child.start : child.end].strip()
        span = None
        if words and not child.is_whole and text[parent.start : parent.end].strip() == words:
            span = units if high > low else None  # all that there is
        elif words:
            share = (aligned.before(child.end) - aligned.before(child.start))[low:high]
            span = _best_run(share - 0.5, free, gaps=not child.is_whole)
            if span is None and not child.is_whole and free.any():
                # Its words got lost on the way. An empty link would be of no use to anybody.
                middle = _cut(aligned, (child.start + child.end) // 2, parent, units, text) - low
                nearest = min(np.flatnonzero(free), key=lambda unit: abs(int(unit) - middle))
                span = (int(nearest), int(nearest) + 1)
            span = span and (low + span[0], low + span[1])
        if span is None:
            wordless.append((number, child))
        else:
            free[span[0] - low : span[1] - low] = False
            places.append((span, number, child))
    for number, child in wordless:
        at = _cut(aligned, child.start, parent, units, text)
        for (first, last), _, _ in places:
            if first < at < last:
                at = first if at - first < last - at else last
        places.append(((at, at), number, child))
    places.sort(key=lambda place: (place[0][0], place[0][1], place[1]))
    return [(span, child) for span, _, child in places]


def _best_run(gain: Floats, free: "np.ndarray[tuple[int], np.dtype[np.bool]]", *, gaps: bool) -> Span | None:
    """Return the run of free units with the largest sum, if it is above 0; without ``gaps``, of gains only."""
    gain = np.where(free if gaps else free & (gain > 0), gain, -1e6)
    if not len(gain) or gain.max() <= 0:
        return None
    sums = np.concatenate([[0.0], np.cumsum(gain)])
    lowest = np.minimum.accumulate(sums)[:-1]
    last = int(np.argmax(sums[1:] - lowest))
    first = int(np.argmin(sums[: last + 1]))
    return first, last + 1


def _cut(aligned: Aligned, position: int, parent: Element, units: Span, text: str) -> int:
    """Return before which unit ``position`` of the source falls: as few units as possible on the wrong side."""
    low, high = units
    if not text[parent.start : position].strip():
        return low
    if not text[position : parent.end].strip():
        return high
    before = aligned.before(position)[low:high]
    wrong = np.concatenate([[0.0], np.cumsum(1 - 2 * before)])  # less a constant
    return low + int(np.argmin(wrong))
