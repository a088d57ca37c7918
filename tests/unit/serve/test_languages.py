"""Which language a text is in, among those that can be translated."""

import pytest

from dragoman.serve.languages import Detector, name


@pytest.fixture(scope="module")
def detector():
    return Detector()


def test_the_likeliest_comes_first(detector):
    texts = {"en": "Where have you put the red book?", "de": "Wo hast du das rote Buch hingelegt?"}
    for code, text in texts.items():
        found = detector.detect(text, ["en", "de", "fr"])
        assert [found[0]["language"], len(found)] == [code, 3]
        assert found[0]["confidence"] > 50 > found[1]["confidence"]


def test_a_language_that_is_not_served_has_a_low_confidence(detector):
    assert detector.detect("Wo hast du das rote Buch hingelegt?", ["en"])[0]["confidence"] < 20


@pytest.mark.parametrize("text", ["", "123", "\x00", "x" * 100_000, "😀"])
def test_any_text_has_an_answer(detector, text):
    found = detector.detect(text, ["xx", "pt-BR", "en"])
    assert {each["language"] for each in found} == {"xx", "pt-BR", "en"}
    assert all(0 <= each["confidence"] <= 100 for each in found)


def test_names():
    assert [name("de"), name("pt-BR"), name("zh_cn"), name("tlh")] == [
        "German",
        "Portuguese (pt-BR)",
        "Chinese (zh_cn)",
        "tlh",
    ]
