"""Which training pairs to drop: each rule is a function of the normalised pairs of a chunk, by name.

A rule answers for all pairs at once, since most have nothing that it looks for: what is counted is counted for
the whole chunk, and only the few pairs with a digit, or with a ``<``, are looked at one by one. Every rule is
lenient by default: it drops what is clearly useless, and what a reader would have to think about stays.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from html.entities import html5

import numpy as np
import xxhash

from dragoman.config import Filter
from dragoman.data import language
from dragoman.data.letters import DIGIT, LETTER, MARK, SPACE, count_kinds, letters, scripts_of
from dragoman.data.shards import Array
from dragoman.data.text import pair_hashes
from dragoman.data.words import Words, paired

RATIO_EXEMPT_WORDS = 10  # "Thanks." may well be "Vielen herzlichen Dank an Sie alle."
COPY_EXEMPT_WORDS = 5  # "SNTP client" is rightly "SNTP-Client"
SCRIPT_EXEMPT_LETTERS = 4  # "α" may stand alone
LANGUAGE_EXEMPT_LETTERS = 20  # "maximum aperture value" looks like Latin, and "Tom" like anything
LONG_DIGITS = 3  # from here a number is hardly written in words, nor is it an hour or a month


@dataclass
class Pairs:
    """The normalised pairs of a chunk, and what is known of them, each counted when first asked for."""

    src: list[str]
    tgt: list[str]
    languages: tuple[str, str]

    def __len__(self) -> int:
        return len(self.src)

    @property
    def sides(self) -> tuple[list[str], list[str]]:
        return self.src, self.tgt

    @cached_property
    def kinds(self) -> tuple[Array, Array]:
        """How many characters of each kind the lines of a side have."""
        return count_kinds(self.src), count_kinds(self.tgt)

    @cached_property
    def words(self) -> tuple[Words, Words]:
        """The words of a side, without case, digits and punctuation."""
        return Words.of(self.src), Words.of(self.tgt)

    @cached_property
    def exact_hashes(self) -> Array:
        """A hash of each pair to the letter: uint64."""
        return pair_hashes(self.src, self.tgt)

    @cached_property
    def near_hashes(self) -> Array:
        """A hash of the words and digits of each pair; 0 where a side has no word, for signs are not all alike."""
        src, tgt = (words.line_hashes() for words in self.words)
        hashes = np.where((src == 0) | (tgt == 0), np.uint64(0), paired(src, tgt))
        has_digits = np.logical_or(*(kinds[:, DIGIT] > 0 for kinds in self.kinds)) & (hashes != 0)
        for index in np.flatnonzero(has_digits).tolist():
            digits = "".join(filter(str.isdigit, f"{self.src[index]}{self.tgt[index]}"))
            hashes[index] ^= np.uint64(xxhash.xxh3_64_intdigest(digits.encode()))
        return hashes

    def where(self, indices: Iterable[int]) -> Array:
        """Return a mask that is True at these pairs."""
        mask = np.zeros(len(self), bool)
        mask[list(indices)] = True
        return mask


def is_empty(pairs: Pairs, settings: Filter) -> Array:
    """One side says nothing."""
    return np.array([not src or not tgt for src, tgt in zip(*pairs.sides, strict=True)], bool)


def is_lopsided(pairs: Pairs, settings: Filter) -> Array:
    """One side has many times the words of the other, and at least ten: a part is missing.

    Words are what spaces part: for a language written without them, raise ``max_ratio``.
    """
    src, tgt = (kinds[:, SPACE] + 1 for kinds in pairs.kinds)
    fewer, more = np.minimum(src, tgt), np.maximum(src, tgt)
    return np.asarray((more >= RATIO_EXEMPT_WORDS) & (more > settings.max_ratio * fewer))


def is_identical(pairs: Pairs, settings: Filter) -> Array:
    """The translation is the sentence itself."""
    return np.array([src == tgt for src, tgt in zip(*pairs.sides, strict=True)], bool)


def is_near_copy(pairs: Pairs, settings: Filter) -> Array:
    """Nearly all words of the longer side are in the other too: it was not translated."""
    src, tgt = (words.counts for words in pairs.words)
    fewer, more = np.minimum(src, tgt), np.maximum(src, tgt)
    candidates = np.flatnonzero((more >= COPY_EXEMPT_WORDS) & (fewer > settings.max_copy * more))
    return pairs.where(
        index for index in candidates.tolist() if _common(pairs, index) > settings.max_copy * more[index]
    )


def _common(pairs: Pairs, index: int) -> int:
    """Return how many words the sides of a pair have in common."""
    src, tgt = (words.line(index) for words in pairs.words)
    common = set(src).intersection(tgt)
    return sum(min(src.count(word), tgt.count(word)) for word in common)


_HTML_TAGS = (
    "a abbr article aside b big blockquote body br button center cite code dd del div dl dt em embed fieldset "
    "figure font footer form frame h1 h2 h3 h4 h5 h6 head header hr html i iframe img input ins label li link main "
    "meta nav noscript object ol option p pre s script section select small span strike strong style sub sup table "
    "tbody td textarea tfoot th thead title tr tt u ul video"
)
_HTML = re.compile(
    rf"</?(?:{_HTML_TAGS.replace(' ', '|')})(?:\s[^<>]*)?/?>"
    r"|<a\s+href|<!--|<!doctype|\bhref\s*=\s*[\"']"
    r"|&(?:\#\d{2,6}|\#x[0-9a-f]{2,5}|[a-z]{2,31}\d{0,2});"  # an entity
    r"|\bfunction\s*\(\w*\)\s*\{|\bdocument\.\w+\s*\("  # JavaScript
    r"|[.\#]?[\w-]+\s*\{\s*[a-z-]+\s*:[^{};]+;",  # CSS
    re.IGNORECASE,
)
# Signs that XML cannot write otherwise, and those that Moses' tokeniser does not: text that was escaped is fine text.
_ESCAPES = {
    "&amp;", "&lt;", "&gt;", "&quot;", "&apos;", "&#34;", "&#38;", "&#39;", "&#91;", "&#93;", "&#124;"
}  # fmt: skip


def has_html(pairs: Pairs, settings: Filter) -> Array:
    """There is HTML, CSS or JavaScript left, which a crawler did not take out."""
    found: set[int] = set()
    for side in pairs.sides:
        found.update(
            index
            for index, line in enumerate(side)
            if ("<" in line or "&" in line or "{" in line or "href" in line or "document." in line)
            and any(map(_is_debris, _HTML.findall(line)))
        )
    return pairs.where(found)


def _is_debris(match: str) -> bool:
    """Return whether a match has no place in a sentence: ``&aptitude;`` is an entity, but not one of HTML."""
    if not match.startswith("&"):
        return True
    return (match[1] == "#" or match[1:] in html5) and match.lower() not in _ESCAPES


def has_few_letters(pairs: Pairs, settings: Filter) -> Array:
    """One side is mostly digits, signs and symbols: a table or a list of codes, and no sentence."""
    drops = np.zeros(len(pairs), bool)
    for kinds in pairs.kinds:
        characters = kinds.sum(axis=1) - kinds[:, SPACE]
        drops |= characters - letters(kinds) - kinds[:, MARK] > settings.max_nonletters * characters
    return drops


def is_in_another_script(pairs: Pairs, settings: Filter) -> Array:
    """Too few letters of one side are of the script that its language is written in."""
    drops = np.zeros(len(pairs), bool)
    for kinds, code in zip(pairs.kinds, pairs.languages, strict=True):
        if scripts := scripts_of(code):
            known = kinds[:, LETTER + 1 :].sum(axis=1)
            expected = kinds[:, scripts].sum(axis=1)
            drops |= (known >= SCRIPT_EXEMPT_LETTERS) & (expected < settings.min_script * known)
    return drops


_NUMBER = re.compile(r"\d+")


def has_other_numbers(pairs: Pairs, settings: Filter) -> Array:
    """Each side has a long number that the other lacks, or one side has several: they say different things."""
    src, tgt = pairs.kinds
    candidates = np.flatnonzero((src[:, DIGIT] >= LONG_DIGITS) | (tgt[:, DIGIT] >= LONG_DIGITS))
    return pairs.where(
        index for index in candidates.tolist() if _numbers_differ(pairs.src[index], pairs.tgt[index])
    )


def _numbers_differ(src: str, tgt: str) -> bool:
    src_runs, tgt_runs = _NUMBER.findall(src), _NUMBER.findall(tgt)
    if src_runs == tgt_runs:
        return False
    missing = _missing(src_runs, tgt_runs), _missing(tgt_runs, src_runs)
    return min(missing) >= 1 or max(missing) >= 2


def _missing(runs: list[str], others: list[str]) -> int:
    """Count the long numbers of one side of which the other has no trace.

    Digits are compared without what parts them, so that 1,000.5 is 1.000,5 and 1 000,5; "1980s" may be "80er",
    and a round number may be written in words, or as so many millions.
    """
    joined = "".join(others)
    return len(
        {
            run
            for run in runs
            if len(run) >= LONG_DIGITS
            and run[-1] != "0"
            and run.lstrip("0") not in joined
            and not any(len(other) > 1 and run.endswith(other) for other in others)
        }
    )


def is_in_another_language(pairs: Pairs, settings: Filter) -> Array:
    """A side is long enough to tell its language, and it is another one."""
    drops = np.zeros(len(pairs), bool)
    for side, kinds, code in zip(pairs.sides, pairs.kinds, pairs.languages, strict=True):
        if language.is_known(code):
            long = np.flatnonzero(letters(kinds) >= LANGUAGE_EXEMPT_LETTERS)
            others = language.other_probabilities([side[index] for index in long.tolist()], code)
            drops[long[others > settings.max_other_language]] = True
    return drops


# Rules that look at the normalised text, in the order they are applied. Those below need other knowledge and come
# after: of dev and test, of all pairs before, and of the vocabulary.
FILTERS: dict[str, Callable[[Pairs, Filter], Array]] = {
    "empty": is_empty,
    "ratio": is_lopsided,
    "identical": is_identical,
    "near_copy": is_near_copy,
    "html": has_html,
    "nonletters": has_few_letters,
    "script": is_in_another_script,
    "numbers": has_other_numbers,
    "language": is_in_another_language,
}
OVERLAP, DUPLICATE, NEAR_DUPLICATE, TOO_LONG = "overlap", "duplicate", "near_duplicate", "too_long"
FILTER_NAMES = (*FILTERS, OVERLAP, DUPLICATE, NEAR_DUPLICATE, TOO_LONG)


def is_off(name: str, settings: Filter) -> bool:
    """Return whether the recipe has switched a rule off."""
    return {
        "identical": not settings.identical,
        "near_copy": settings.max_copy >= 1,
        "html": not settings.html,
        "nonletters": settings.max_nonletters >= 1,
        "script": settings.min_script == 0,
        "numbers": not settings.numbers,
        "language": settings.max_other_language >= 1,
        DUPLICATE: not settings.duplicates,
        # A copy is also nearly a copy: who wants those gets them.
        NEAR_DUPLICATE: not (settings.near_duplicates and settings.duplicates),
        OVERLAP: not settings.overlap,
    }.get(name, False)


def notes(languages: Sequence[str], settings: Filter) -> dict[str, str]:
    """Return what is to be said of rules that cannot be applied to some languages."""
    unknown = {
        "script": ("its script is not known", lambda code: not scripts_of(code)),
        "language": ("py3langid does not know it", lambda code: not language.is_known(code)),
    }
    told = {}
    for name, (reason, is_unknown) in unknown.items():
        if not is_off(name, settings) and (codes := sorted(filter(is_unknown, set(languages)))):
            told[name] = f"not applied to {', '.join(codes)}: {reason}"
    return told


def first_to_drop(pairs: Pairs, settings: Filter) -> dict[int, str]:
    """Return the pairs to drop by their index, each with the first rule that does."""
    dropped: dict[int, str] = {}
    for name, rule in FILTERS.items():
        if not is_off(name, settings):
            for index in np.flatnonzero(rule(pairs, settings)).tolist():
                dropped.setdefault(index, name)
    return dropped
