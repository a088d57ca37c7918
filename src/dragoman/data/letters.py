"""What the characters of a line are: how many letters of which script, digits, marks, spaces and others.

All lines of a chunk are counted at once: every character is looked up in a table of kinds, and what is counted
is pairs of line and kind. That is a microsecond a line, where a loop over its characters takes ten.
"""

import unicodedata
from collections.abc import Sequence
from functools import cache

import numpy as np

from dragoman.data.shards import Array

# Codes of languages by the script they are written in, as the names of its letters begin in Unicode. A language that
# has two is in two lists; of one that is in none, nothing is expected.
LANGUAGES = {
    "LATIN": "af az bs ca cs cy da de en eo es et eu fi fr fy ga gl ha hr ht hu id ig is it jv la lb lt lv mg ms mt nl "
    "nn no oc pl pt ro rw sk sl so sq sr sv sw tl tr uz vi xh yo zu",
    "GREEK": "el grc",
    "CYRILLIC": "be bg kk ky mk mn ru sr tg tt uk uz",
    "ARMENIAN": "hy",
    "HEBREW": "he yi",
    "ARABIC": "ar ckb fa ps sd ug ur",
    "DEVANAGARI": "hi mr ne sa",
    "BENGALI": "as bn",
    "GURMUKHI": "pa",
    "GUJARATI": "gu",
    "ORIYA": "or",
    "TAMIL": "ta",
    "TELUGU": "te",
    "KANNADA": "kn",
    "MALAYALAM": "ml",
    "SINHALA": "si",
    "THAI": "th",
    "LAO": "lo",
    "TIBETAN": "bo dz",
    "MYANMAR": "my",
    "GEORGIAN": "ka",
    "HANGUL": "ko",
    "ETHIOPIC": "am ti",
    "KHMER": "km",
    "HIRAGANA": "ja",
    "KATAKANA": "ja",
    "CJK": "ja ko yue zh",
}
OTHER, SPACE, DIGIT, MARK, LETTER = range(
    5
)  # kinds; LETTER is one of no script above, such as the micro sign
KINDS = LETTER + 1 + len(LANGUAGES)
_LAST_NAMED = 0xFFFF  # beyond lie emoji, dead scripts, and rare Chinese characters:
_RARE_CJK = slice(0x20000, 0x32000)


def bare_code(language: str) -> str:
    """Return the language of a code that may also name a country or a script, such as pt-BR and zh_Hans."""
    return language.replace("_", "-").partition("-")[0].lower()


def scripts_of(language: str) -> list[int]:
    """Return the kinds of letters that a language is written with; none if we do not know the language."""
    code = bare_code(language)
    return kinds_of_letters([script for script, codes in LANGUAGES.items() if code in codes.split()])


def kinds_of_letters(scripts: Sequence[str]) -> list[int]:
    """Return the kinds that the letters of some scripts are."""
    return [LETTER + 1 + number for number, script in enumerate(LANGUAGES) if script in scripts]


def count_kinds(lines: list[str]) -> Array:
    """Return how many characters of each kind the lines have: int64 (lines, KINDS)."""
    if not lines:
        return np.zeros((0, KINDS), np.int64)
    codes = np.frombuffer("\n".join(lines).encode("utf-32-le"), np.uint32)
    line_of = np.cumsum(codes == ord("\n"))
    counts = np.bincount(line_of * KINDS + kinds_of_characters()[codes], minlength=len(lines) * KINDS)
    counts = counts.reshape(len(lines), KINDS)
    counts[1:, OTHER] -= 1  # the line ends before them
    return counts


def letters(counts: Array) -> Array:
    """Return the number of letters of each line."""
    return np.asarray(counts[:, LETTER:].sum(axis=1))


@cache
def kinds_of_characters() -> Array:
    """Return the kind of every character, by its code."""
    kinds = np.zeros(0x110000, np.uint8)
    numbers = {script: LETTER + 1 + number for number, script in enumerate(LANGUAGES)}
    for code in range(_LAST_NAMED + 1):
        character = chr(code)
        category = unicodedata.category(character)
        if category[0] == "L":
            # FULLWIDTH LATIN and HALFWIDTH KATAKANA are as good as LATIN and KATAKANA.
            words = unicodedata.name(character, "").replace("-", " ").split()[:2]
            kinds[code] = next((numbers[word] for word in words if word in numbers), LETTER)
        elif category[0] == "M":
            kinds[code] = MARK
        elif category == "Nd":
            kinds[code] = DIGIT
    kinds[ord(" ")] = SPACE
    kinds[_RARE_CJK] = numbers["CJK"]
    return kinds
