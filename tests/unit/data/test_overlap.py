"""What counts as overlap of train with dev and test, and what does not."""

import json

import pytest

from dragoman.data import overlap
from dragoman.data.overlap import HOWS, Found, HeldOut, Match, in_words, of_set
from dragoman.data.rules import Pairs

LONG = "we would like to thank the rapporteur for the work that she has done on this report today"
LANG = "wir danken der Berichterstatterin für die Arbeit, die sie heute für diesen Bericht geleistet hat"
HELD_OUT = [
    ("Thanks.", "Danke."),
    ("The cat sat on the mat.", "Die Katze saß auf der Matte."),
    (LONG, LANG),
    ("12:30", "12.30"),
    ("Article 7 of the treaty", "Artikel 7 des Vertrags"),
    (
        f"{LONG} in the committee on foreign affairs human rights common security and defence policy matters",
        "kurz",
    ),
]


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    src, tgt = map(list, zip(*HELD_OUT, strict=True))
    path = tmp_path_factory.mktemp("index") / "held-out.npz"
    HeldOut.of(src, tgt).save(path)
    return HeldOut.load(path)


def found(index, src, tgt):
    """Return the held-out lines that a pair overlaps with, each with the strongest way."""
    pairs = Pairs(["nothing", src], ["nichts", tgt], ("en", "de"))
    best = {}
    for match in index.matches(pairs):
        assert match.row == 1
        best[match.line] = min(match.how, best.get(match.line, match.how))
    return {line: HOWS[how] for line, how in best.items()}


@pytest.mark.parametrize(
    ("src", "tgt", "expected"),
    [
        ("Thanks.", "Danke.", {0: "exact"}),  # a whole pair always counts
        ("THANKS!", "danke", {0: "normalised"}),
        ("Thanks.", "Vielen Dank.", {}),  # one short side does not: everybody says it
        ("The cat sat on the mat.", "Auf der Matte saß die Katze.", {1: "normalised"}),
        ("On the mat sat the cat.", "„Die Katze saß auf der Matte“", {1: "normalised"}),
        ("The cat sat on a mat.", "Die Katze saß auf einer Matte.", {}),
        ("Article 7, of the Treaty", "Artikel 7 des Vertrags", {4: "normalised"}),
        (
            "Article 8 of the treaty",
            "Artikel 8 des Vertrags",
            {},
        ),  # a short pattern with another number is no copy
        ("The 4 cats sat on the mat 12 times.", "anders", {}),
        ("The cat sat on the 4 mat.", "anders", {1: "normalised"}),  # a long one is
        ("15:45", "15.45", {}),  # without words all numbers would be alike
        (f"Mr President, {LONG.upper()}!", "anders", {2: "ngram"}),
        ("other", f"Frau Präsidentin, {LANG}", {2: "ngram"}),
        (" ".join(LONG.split()[:12]), "anders", {}),  # twelve words
        ("in the committee on foreign affairs human rights common security and defence policy", "anders", {}),
        ("nothing at all", "gar nichts", {}),
    ],
)
def test_overlaps(index, src, tgt, expected):
    assert found(index, src, tgt) == expected


def test_a_run_must_be_most_of_the_held_out_side(index):
    """A name that is shared by many sentences makes no two of them the same."""
    assert found(index, LONG, "anders") == {2: "normalised"}  # and not 5, of which it is 18 words of 32
    assert found(index, HELD_OUT[5][0], "anders") == {5: "normalised", 2: "ngram"}


def test_equal_held_out_lines_are_all_found():
    held_out = HeldOut.of(["a b c d e f", "x", "A B c d e f"], ["1", "2", "3"])
    assert found(held_out, "a b c d e f", "neu") == {0: "normalised", 2: "normalised"}


def test_pairs_are_found_the_other_way_round_where_both_are_trained(index):
    src, tgt = map(list, zip(*HELD_OUT, strict=True))
    both = HeldOut.of(src, tgt, both_ways=True)
    assert found(index, LANG, LONG) == {}
    assert found(both, LANG, LONG)[2] == "exact"
    assert found(both, LONG, LANG) == found(index, LONG, LANG)
    (one_side,) = both.matches(Pairs(["Die Katze saß auf der Matte!"], ["Nothing."], ("de", "en")))
    assert one_side == Match(row=0, line=1, how=1, side=1)  # the German side of the held-out pair


def test_parts_add_up_and_survive_json():
    parts = []
    for part in range(3):
        each = Found()
        for row in range(4):
            match = Match(row, line=row % 2, how=2 - part if row == 0 else 2, side=1)
            each.note(match)
            each.show(match, f"a.en:{part}{row}", "src", "t" * 900)
        parts.append(Found.from_dict(json.loads(json.dumps(each.as_dict()))))
    total = Found()
    for each in parts:
        total.add(each)
    assert total.lines == {0: 0, 1: 2}
    assert [example["where"] for example in total.examples if example["how"] == "ngram"] == [
        "a.en:00", "a.en:01", "a.en:02", "a.en:03",
    ]  # fmt: skip
    assert [example["how"] for example in total.examples].count("exact") == 1


SETS = {"dev": (["a", "b"], ["x", "y"]), "test": (["c"], ["z"])}


def test_the_manifest_counts_lines_of_each_set():
    found = Found(
        {0: 0, 1: 2, 2: 1}, [{"where": "t:1", "src": "s", "tgt": "t", "line": 2, "side": 1, "how": "ngram"}]
    )
    facts = overlap.facts(found, SETS, gate=True, pairs=7)
    assert facts == {
        "gate": True,
        "removed": 7,
        "sets": {
            "dev": {"pairs": 2, "exact": 1, "normalised": 0, "ngram": 1},
            "test": {"pairs": 1, "exact": 0, "normalised": 1, "ngram": 0},
        },
        "examples": [{"where": "t:1", "src": "s", "tgt": "t", "how": "ngram", "held_out": "test:1 z"}],
    }
    assert of_set(facts, "dev") == {
        "pairs": 2,
        "exact": 1,
        "normalised": 0,
        "ngram": 1,
        "gate": True,
        "removed": 7,
    }
    assert in_words(facts, "dev") == (
        "2 of 2 pairs of dev were in train too (1 exact, 1 ngram) and were removed from train"
    )


def test_without_the_gate_they_are_kept_and_scores_are_too_good():
    facts = overlap.facts(Found({2: 1}), SETS, gate=False, pairs=7)
    assert (facts["removed"], facts["kept"]) == (0, 7)
    assert of_set(facts, "test")["kept"] == 7
    assert in_words(facts, "test") == (
        "1 of 1 pairs of test were in train too (1 normalised) and were left there: scores on test are too good"
    )
    assert in_words(facts, "dev") is None


def test_old_datasets_do_not_know():
    assert of_set(None, "dev") is None
    assert in_words(None, "dev") is None
    assert of_set({"sets": {}}, "dev") is None
