"""Scores are sacreBLEU's own, and what cannot be scored is said to be so."""

import json
import subprocess
import sys

import pytest
import sacrebleu

from dragoman.decode.score import METRICS, interval, score, score_pairs
from dragoman.rundir import best_first

REFERENCES = [
    "The cat sees a house.",
    "My sister has never read the red book.",
    "Nobody buys three letters!",
] * 4
HYPOTHESES = ["The cat sees the house.", "My sister never has read the book.", "Nobody buys letters."] * 4


def test_the_scores_are_those_of_the_sacrebleu_command(tmp_path):
    (tmp_path / "ref").write_text("\n".join(REFERENCES) + "\n")
    (tmp_path / "hyp").write_text("\n".join(HYPOTHESES) + "\n")
    command = [
        sys.executable,
        "-m",
        "sacrebleu",
        "ref",
        "-i",
        "hyp",
        "-m",
        "bleu",
        "chrf",
        "-w",
        "4",
        "--confidence",
    ]
    printed = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    bleu, chrf = json.loads(printed)
    scores = score(HYPOTHESES, REFERENCES)
    assert (scores["bleu"], scores["signature"]) == (bleu["score"], bleu["signature"])
    assert (scores["chrf"], scores["chrf_signature"]) == (chrf["score"], chrf["signature"])
    for (low, high), printed_score in ((scores["ci95"], bleu), (scores["chrf_ci95"], chrf)):
        assert low == pytest.approx(
            printed_score["confidence_mean"] - printed_score["confidence_var"], abs=2e-4
        )
        assert high == pytest.approx(
            printed_score["confidence_mean"] + printed_score["confidence_var"], abs=2e-4
        )


def test_the_signature_tells_the_metric_the_resamples_and_the_version():
    scores = score(HYPOTHESES, REFERENCES)
    assert scores["signature"] == (
        f"nrefs:1|bs:1000|seed:12345|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
    )
    assert scores["sentences"] == 12
    assert scores["ci95"][0] < scores["bleu"] < scores["ci95"][1]


def test_a_perfect_translation_has_100_and_a_hopeless_one_0():
    assert score(REFERENCES, REFERENCES)["bleu"] == 100
    assert score([""] * 12, REFERENCES) | {"signature": "", "chrf_signature": ""} == {
        "bleu": 0,
        "chrf": 0,
        "ci95": [0, 0],
        "chrf_ci95": [0, 0],
        "sentences": 12,
        "signature": "",
        "chrf_signature": "",
    }


def test_a_text_of_which_hardly_anything_is_right_has_an_interval():
    scores = score(["x"] * 11 + REFERENCES[:1], ["y"] * 11 + REFERENCES[:1])
    assert 0 <= scores["chrf_ci95"][0] < scores["chrf"] < scores["chrf_ci95"][1]
    assert json.loads(json.dumps(scores)) == scores


def test_an_interval_stays_within_what_can_be():
    bleu, ter = METRICS["bleu"]("de"), METRICS["ter"]("de")
    assert interval(bleu, 95.0, 7.0) == [88.0, 100.0]
    assert interval(bleu, 2.0, 3.0) == [0.0, 5.0]
    assert interval(ter, 99.0, 7.0) == [92.0, 106.0]  # more may be wrong than there is


def test_languages_without_spaces_get_a_tokenizer_that_can_read_them_and_the_signature_says_so():
    hypotheses, references = ["猫看见一座小房子。"], ["猫看到一座小房子。"]
    assert score(hypotheses, references)["bleu"] == 0
    for language, tokenizer in (("zh", "zh"), ("zh-CN", "zh"), ("ja", "char")):
        scores = score(hypotheses, references, tgt_lang=language)
        assert scores["bleu"] > 30
        assert f"|tok:{tokenizer}|" in scores["signature"]


@pytest.mark.parametrize(("hypotheses", "references"), [(["a"], ["a", "b"]), ([], [])])
def test_hypotheses_without_their_references_are_a_bug(hypotheses, references):
    with pytest.raises(ValueError, match="hypotheses for"):
        score(hypotheses, references)


def test_the_best_come_first_and_of_equals_the_newer():
    lines = [
        {"set": "dev", "step": 1, "bleu": 20.0, "model": "a"},
        {"set": "dev", "step": 2, "bleu": 30.0, "model": "b"},
        {"set": "test", "step": 2, "bleu": 99.0, "model": "b"},
        {"set": "dev", "step": 3, "bleu": 20.0, "model": "c"},
        {"set": "dev", "step": 2, "bleu": 10.0, "model": "b"},  # scored again, after a rollback
    ]
    assert [(line["model"], line["bleu"]) for line in best_first(lines)] == [
        ("c", 20.0),
        ("a", 20.0),
        ("b", 10.0),
    ]


def test_language_pairs_of_a_set_are_scored_apart():
    def corpus(src, tgt, pairs):
        return {"languages": {"src": src, "tgt": tgt}, "pairs": pairs}

    hypotheses, references = (
        ["eins zwei drei", "one two three", "vier", "一 二"],
        ["eins zwei drei", "x", "vier", "一 二"],
    )
    corpora = [corpus("en", "de", 1), corpus("de", "en", 1), corpus("en", "de", 1), corpus("en", "zh", 1)]
    assert score_pairs(hypotheses, references, corpora) == {
        "en-de": score(["eins zwei drei", "vier"], ["eins zwei drei", "vier"], tgt_lang="de"),
        "de-en": score(["one two three"], ["x"], tgt_lang="en"),
        "en-zh": score(["一 二"], ["一 二"], tgt_lang="zh"),
    }
    assert score_pairs(hypotheses[:2], references[:2], [corpus("en", "de", 1), corpus("en", "de", 1)]) == {}
