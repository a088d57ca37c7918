"""What characters are."""

from dragoman.data.letters import (
    DIGIT,
    LANGUAGES,
    LETTER,
    MARK,
    OTHER,
    SPACE,
    count_kinds,
    kinds_of_letters,
    letters,
    scripts_of,
)


def test_every_character_is_counted_once():
    lines = ["Größe 12 µm!", "", "Это 中文", "नि", "😀 𠀀", "ｆｕｌｌ ﾊ", "a\u0301٣"]
    counts = count_kinds(lines)
    assert counts.sum(axis=1).tolist() == list(map(len, lines))
    latin, cyrillic, cjk, katakana, devanagari = (
        kinds_of_letters([script])[0] for script in ("LATIN", "CYRILLIC", "CJK", "KATAKANA", "DEVANAGARI")
    )
    assert [counts[0, kind] for kind in (latin, LETTER, DIGIT, SPACE, OTHER)] == [6, 1, 2, 2, 1]
    assert [counts[2, kind] for kind in (cyrillic, cjk, SPACE)] == [3, 2, 1]
    assert [counts[3, kind] for kind in (devanagari, MARK)] == [1, 1]
    assert [counts[4, kind] for kind in (OTHER, cjk)] == [1, 1]
    assert [counts[5, kind] for kind in (latin, katakana)] == [4, 1]
    assert [counts[6, kind] for kind in (latin, MARK, DIGIT)] == [1, 1, 1]
    assert letters(counts).tolist() == [7, 0, 5, 1, 1, 5, 1]
    assert count_kinds([]).shape == (0, counts.shape[1])


def test_languages_have_scripts():
    assert scripts_of("de") == scripts_of("pt-BR") == kinds_of_letters(["LATIN"])
    assert scripts_of("zh_Hans") == kinds_of_letters(["CJK"])
    assert len(scripts_of("ja")) == 3
    assert len(scripts_of("sr")) == 2
    assert scripts_of("tlh") == []
    assert len({code for codes in LANGUAGES.values() for code in codes.split()}) > 60
