"""Text as sentences and the white space between them, so that a translation can be put back where its source stood.

Models learn from sentences; a line that holds several is translated one by one. A sentence that is cut in two is
worse than two that stay together, so a full stop ends a sentence only where little speaks against it: not after
abbreviations, initials and ordinals, not inside brackets, not before a small letter. The rules are made for English
and German and do no harm elsewhere.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

# A stop, what closes after it, and white space; wide stops need none. Possessive, and never from the middle of a
# run of stops: linear in the text, whatever it is.
_STOP = re.compile(
    r"""(?<![.!?…])(?P<stop>[.!?…؟۔।॥።]++)(?P<close>["'”’“»«)\]}]*+)(?P<space>\s++)"""
    r"""|(?<![。！？｡])(?P<wide>[。！？｡]++)(?P<wide_close>[」』”’）】]*+)(?P<wide_space>\s*+)"""
)
# Most lines hold one sentence; to see that must cost next to nothing.
_PERHAPS = re.compile(r"""[.!?…؟۔।॥።"'”’“»«)\]}]\s|[。！？｡]""")
_OPENING = "\"'“„”«»‚‘([{¿¡"
LONGEST = 1000  # characters of a sentence in a text of many lines
_LINE = re.compile(r"[^\r\n]*[\r\n]+|[^\r\n]+")
_BEFORE = 40  # characters before a stop in which its word is looked for


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Never the end of a sentence. Those that may be end one where the next word has a capital: etc., usw., Jh.
_ABBREVIATIONS = _words(
    "mr mrs ms dr prof rev hon gen maj col capt lt sgt sen rep gov pres st ft mt vs cf al approx dept inc ltd corp eds "
    "bzw ca evtl ggf vgl inkl exkl zzgl bspw sog hr hrn fr dipl ing med phil jur rer nat habil tel str geb gest "
    "mio mrd vol mlle mme sra dra ud uds"
)
# Never before a number: "no. 5", "Abb. 3", but "He said no. Then he left."
_BEFORE_NUMBERS = _words(
    "no nos nr fig figs eq sec ch p pp vol art abs abb bd kap tab ziff rn s min max jan feb mar apr jun jul aug sep "
    "sept oct nov dec mär okt dez"
)
_LINE_ENDS = re.compile("[\n\r\x0b\x0c\x1c-\x1f\x85\u2028\u2029]+")
_ROMAN = re.compile("[IVXLCDM]+")


class Parts(NamedTuple):
    """A line taken apart: ``spaces[0]``, then each sentence followed by its own of the other ``spaces``."""

    sentences: list[str]
    spaces: list[str]  # one more than sentences


def sentences(text: str) -> list[tuple[str, str]]:
    """Return the sentences of ``text``, each with the white space after it; put together they are the text.

    The white space that a text begins with follows an empty sentence.
    """
    begin = len(text) - len(text.lstrip())
    end = len(text.rstrip())
    found = [("", text[:begin])] if begin else []
    seen, depth, has_words = begin, 0, False  # of the sentence that begins at ``begin``
    matches = _STOP.finditer(text, begin, end) if _PERHAPS.search(text, begin, end) else ()
    for match in matches:
        depth = max(0, depth + sum((c in "([「『（") - (c in ")]」』）") for c in text[seen : match.end()]))
        has_words = has_words or any(map(str.isalnum, text[seen : match.start()]))
        seen = match.end()
        if has_words and depth == 0 and _ends_sentence(text, begin, match):
            space = match["space"] or match["wide_space"] or ""
            found.append((text[begin : match.end() - len(space)], space))
            begin, has_words = match.end(), False
    if begin < len(text):
        found.append((text[begin:end], text[end:]))
    return found


def sentences_of_text(text: str) -> list[tuple[str, str]]:
    """Return what ``sentences`` does of a text of many lines: none reaches over a line end, nor is endless."""
    found: list[tuple[str, str]] = []
    for line in _LINE.findall(text):
        for sentence, space in sentences(line):
            if sentence or not found:
                found += _cut(sentence, space)
            else:
                last, before = found[-1]
                found[-1] = (last, before + space)
    return found


def _cut(sentence: str, space: str) -> list[tuple[str, str]]:
    """Cut a sentence that is too long between words, or, where there are none, anywhere."""
    pieces = []
    while len(sentence) > LONGEST:
        at = max(sentence.rfind(" ", LONGEST // 2, LONGEST), 0) or LONGEST
        head, rest = sentence[:at].rstrip(), sentence[at:].lstrip()
        pieces.append((head, sentence[len(head) : len(sentence) - len(rest)]))
        sentence = rest
    return [*pieces, (sentence, space)]


def split_line(line: str, *, into_sentences: bool = True) -> Parts:
    """Take a line apart, into its sentences or just from the white space around it."""
    if into_sentences:
        found = sentences(line)
    else:
        stripped = line.strip()
        begin = line.find(stripped)
        found = [("", line[:begin]), (stripped, line[begin + len(stripped) :])]
    spaces, texts = [""], []
    for sentence, space in found:
        if sentence:
            texts.append(sentence)
            spaces.append(space)
        else:
            spaces[-1] += space
    return Parts(texts, spaces)


def put_back(texts: Sequence[str], spaces: Sequence[str], *, spaced: bool) -> str:
    """Return a line of these ``texts`` with the ``spaces`` of the line they translate.

    Sentences get a space where the source language puts none but the target does (``spaced``), and the other way
    round. White space that would end the line is never put into it.
    """
    if not texts:
        return _LINE_ENDS.sub("", "".join(spaces))
    between = [_LINE_ENDS.sub(" ", space) for space in spaces[1:-1]]
    between = (
        [space or " " for space in between]
        if spaced
        else ["" if space == " " else space for space in between]
    )
    line = [_LINE_ENDS.sub("", spaces[0])]
    for text, space in zip(texts, [*between, _LINE_ENDS.sub("", spaces[-1])], strict=True):
        line += [text, space]
    return "".join(line)


def _ends_sentence(text: str, begin: int, match: re.Match[str]) -> bool:
    if match["wide"]:
        return not match["wide_close"] and match.end() < len(text)
    rest = text[match.end() : match.end() + _BEFORE].lstrip(_OPENING)
    following = rest[:1]
    if following.islower() or not following.isalnum():
        return False
    if match["stop"] != ".":
        if match["stop"].startswith(("..", "…")):  # "Well ... I think": goes on
            is_apart = text[match.start() - 1].isspace()
            return not (is_apart or following.isdigit() or rest.split(None, 1)[0] == "I")
        return not match["close"].strip(")]}")  # "Really?" John asked.
    if match["close"]:
        return not following.isdigit()
    before = text[max(begin, match.start() - _BEFORE) : match.start()].split()
    word = before[-1].lstrip(_OPENING) if before else ""
    if following.isdigit():
        return len(word) > 2 and not (
            word.lower() in _BEFORE_NUMBERS or word.isdigit() or _is_abbreviated(word)
        )
    return not _is_abbreviated(word)


def _is_abbreviated(word: str) -> bool:
    """Whether the full stop after ``word`` is likely to belong to it: Dr., J., z.B., 3., XIV."""
    return (
        len(word) < 2
        or "." in word
        or word.lower() in _ABBREVIATIONS
        or (word.isdigit() and len(word) <= 2)
        or _ROMAN.fullmatch(word) is not None
    )
