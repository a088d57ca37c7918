"""Which pairs are dropped, and which are not."""

import numpy as np
import pytest

from dragoman.config import Filter
from dragoman.data.builtin import sentences
from dragoman.data.rules import FILTER_NAMES, FILTERS, Pairs, first_to_drop, is_off, notes


def words(number):
    return " ".join(["word"] * number)


def drops(name, src, tgt, languages=("en", "de"), **settings):
    """Whether a rule drops a pair, which must not depend on its neighbours."""
    alone = FILTERS[name](Pairs([src], [tgt], languages), Filter(**settings))
    between = FILTERS[name](Pairs(["", src, "a"], ["", tgt, "b"], languages), Filter(**settings))
    assert alone.dtype == bool
    assert alone.tolist() == between[1:2].tolist()
    return bool(alone[0])


SENTENCE = "The committee has not yet decided about the new building."
SATZ = "Der Ausschuss hat noch nicht über das neue Gebäude entschieden."
NAMES = "Seagate Personal Cloud, Western Digital and Buffalo Linkstation Mini"


@pytest.mark.parametrize(
    ("name", "src", "tgt", "expected"),
    [
        ("empty", "", "a", True),
        ("empty", "a", "", True),
        ("empty", "a", "b", False),
        ("ratio", words(41), words(10), True),
        ("ratio", words(10), words(41), True),
        ("ratio", words(40), words(10), False),
        ("ratio", words(9), words(1), False),  # both short
        ("ratio", words(10), words(1), True),
        ("identical", "a", "a", True),
        ("identical", "a", "A", False),
        ("near_copy", SENTENCE, SENTENCE.upper() + "!", True),
        ("near_copy", SENTENCE, SATZ, False),
        ("near_copy", NAMES, NAMES.replace("and", "und"), False),  # a translation after all
        ("near_copy", "SNTP client", "SNTP-Client", False),  # short
        ("near_copy", "a b c d e", "a a a a a", False),
        ("html", "Read <a href='x'>more</a>.", "Mehr lesen.", True),
        ("html", "Price:&nbsp;5", "Preis: 5", True),
        ("html", "a", "Gr&ouml;&szlig;e", True),
        ("html", "a<br/>b", "a b", True),
        ("html", "a", ".menu { color: red; }", True),
        ("html", "document.write(x)", "b", True),
        ("html", "a &#8211; b", "a - b", True),
        ("html", "Smith &amp; Sons don &apos;t", "Smith &amp; Söhne", False),  # escaped, not debris
        ("html", "run smbpasswd -d <username>", "smbpasswd -d <username> aufrufen", False),
        ("html", "as &root; in &debian;", "als &root;", False),  # entities of nobody's HTML
        ("html", "3 < 4 & 5 > 4", "{a} und {b}", False),
        ("nonletters", "@@", "Ein Mann.", True),
        ("nonletters", "Total", "12.50 | 13.75 | 99 %", True),
        ("nonletters", "In 2003 and 2004.", "In den Jahren 2003 und 2004.", False),
        ("nonletters", "नमस्ते दुनिया", "Hallo Welt", False),  # marks are parts of letters
        ("script", "Length of salt", "Длина соли", True),
        ("script", "Это предложение", "Das ist ein Satz", True),
        ("script", "The letter Ж", "Der Buchstabe Ж", False),
        ("script", "α", "Ω", False),  # too short to tell
        ("script", "µm ª", "µm", False),  # signs that are letters of no script
        ("numbers", "since 1977", "seit 1997", True),
        ("numbers", "Regulation 377/2004", "Verordnung 337/2004", True),
        ("numbers", "the report", "der Bericht (2002/2258) zu 4711", True),
        ("numbers", "1,000.5 and 12,345", "1.000,5 und 12 345", False),
        ("numbers", "the 1960s and 1980s", "die sechziger und achtziger Jahre", False),
        ("numbers", "in the 1980s", "in den 80er Jahren", False),
        ("numbers", "at 5.30 p.m. on 22 December 2002", "um 17.30 Uhr am 22.12.2002", False),
        ("numbers", "EUR 1 250 million", "1,25 Milliarden Euro", False),
        ("numbers", "222, I repeat 222", "zweihundertzweiundzwanzig", False),
        ("numbers", "strace(1)", "strace", False),
        ("numbers", "from 1989-90", "1989-1990", False),
        ("language", SENTENCE, SENTENCE + " ", True),  # the German side is English
        ("language", SATZ, SENTENCE, True),
        ("language", SENTENCE, SATZ, False),
        ("language", SENTENCE, "Le comité n'a pas encore décidé de la construction.", True),
        ("language", "Tom!", "Tom!", False),  # too short to tell
        ("language", "maximum aperture value", "Maximal-Blendenwert", False),
        ("language", "The umbrella costs 14 euros.", "Der Regenschirm kostet 14 Euro.", False),
        ("language", SENTENCE.upper(), SATZ.upper(), False),
    ],
)
def test_rules(name, src, tgt, expected):
    assert drops(name, src, tgt) is expected


@pytest.mark.parametrize(
    ("name", "setting", "src", "tgt"),
    [
        ("ratio", {"max_ratio": 50.0}, words(41), words(10)),
        ("near_copy", {"max_copy": 1.0}, SENTENCE, SENTENCE + "!"),
        ("nonletters", {"max_nonletters": 1.0}, "@@", "b"),
        ("script", {"min_script": 0.0}, "Это предложение", "b"),
        ("language", {"max_other_language": 1.0}, SENTENCE, SENTENCE),
    ],
)
def test_limits_are_those_of_the_recipe(name, setting, src, tgt):
    assert drops(name, src, tgt)
    assert not drops(name, src, tgt, **setting)


def test_a_stricter_limit_drops_more():
    assert drops("near_copy", NAMES, NAMES.replace("and", "und"), max_copy=0.8)


@pytest.mark.parametrize(
    ("rule", "setting"),
    [
        ("identical", {"identical": False}),
        ("near_copy", {"max_copy": 1.0}),
        ("html", {"html": False}),
        ("nonletters", {"max_nonletters": 1.0}),
        ("script", {"min_script": 0.0}),
        ("numbers", {"numbers": False}),
        ("language", {"max_other_language": 1.0}),
        ("duplicate", {"duplicates": False}),
        ("near_duplicate", {"near_duplicates": False}),
        ("near_duplicate", {"duplicates": False}),
        ("overlap", {"overlap": False}),
    ],
)
def test_rules_can_be_switched_off(rule, setting):
    off = Filter(**setting)
    assert not is_off(rule, Filter())
    assert is_off(rule, off)
    assert rule in FILTER_NAMES
    if rule in FILTERS:
        pairs = Pairs(["<p>1977 а б в г", "", SENTENCE], ["<p>1978 а б в г", "", SENTENCE], ("en", "de"))
        assert rule not in first_to_drop(pairs, off).values()


def test_a_pair_is_dropped_by_the_first_rule_that_does():
    pairs = Pairs(["", SENTENCE, "<p>Hallo Welt", SENTENCE], ["", SENTENCE, "Привет мир", SATZ], ("en", "de"))
    assert first_to_drop(pairs, Filter()) == {0: "empty", 1: "identical", 2: "html"}


def test_every_rule_takes_a_chunk_without_pairs():
    for rule in FILTERS.values():
        assert rule(Pairs([], [], ("en", "de")), Filter()).tolist() == []


def test_languages_that_are_unknown_are_exempt_and_the_manifest_says_so():
    assert not drops("script", SENTENCE, "Это предложение", ("en", "xx"))
    assert not drops("language", SENTENCE, SENTENCE, ("en", "xx"))
    assert notes(["en", "xx"], Filter()) == {
        "script": "not applied to xx: its script is not known",
        "language": "not applied to xx: py3langid does not know it",
    }
    assert notes(["en", "xx"], Filter(min_script=0.0, max_other_language=1.0)) == {}
    assert notes(["en", "de-AT", "zh_Hans", "sr"], Filter()) == {}


def test_scripts_are_those_of_each_language():
    assert not drops("script", "Это предложение", "これは文です。漢字", ("ru", "ja"))
    assert not drops("script", "Ovo je rečenica", "这是一个句子", ("sr", "zh-CN"))
    assert not drops("script", "Ово је реченица", "문장입니다", ("sr", "ko"))
    assert drops("script", "This is a sentence", "这是一个句子", ("ru", "zh"))


def test_neighbours_are_no_other_language():
    danish = "Jeg har ikke set den nye bygning, men jeg vil gerne se den."
    assert not drops("language", SENTENCE, danish, ("en", "no"))
    assert drops("language", SENTENCE, danish, ("en", "de"))


def test_the_built_in_corpus_stays_whole():
    src, tgt = map(list, zip(*sentences("train", 3000), strict=True))
    assert first_to_drop(Pairs(src, tgt, ("en", "de")), Filter()) == {}


def test_masks_do_not_depend_on_the_chunk():
    pairs = [(SENTENCE, SATZ), ("since 1977", "seit 1997"), ("@@", "x"), (SENTENCE, SENTENCE)] * 30
    src, tgt = map(list, zip(*pairs, strict=True))
    for rule in FILTERS.values():
        whole = rule(Pairs(src, tgt, ("en", "de")), Filter())
        assert np.array_equal(whole, np.tile(whole[:4], 30))
