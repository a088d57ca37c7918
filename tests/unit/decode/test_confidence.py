"""Confidence is what came of it on dev."""

import math
import random

import pytest

from dragoman.decode.confidence import certainty, confidence, fit

REFERENCE = "The quick brown fox jumps over the lazy dog again and again."


def made(num, seed=1):
    """Translations of which a share of the words is wrong that grows as certainty falls."""
    chance = random.Random(seed)
    sure = [-chance.uniform(0.05, 2) for _ in range(num)]
    words = REFERENCE.split()
    hypotheses = [
        " ".join(word if chance.random() > -each / 2.5 else "xx" for word in words) for each in sure
    ]
    return sure, hypotheses, [REFERENCE] * num


def test_confidence_is_the_mean_quality_of_what_the_model_was_as_sure_of():
    from sacrebleu.metrics.chrf import CHRF

    calibration = fit(*made(2000))
    sure, hypotheses, references = made(2000, seed=2)
    scored = [
        (confidence(calibration, each), CHRF().sentence_score(text, [reference]).score / 100)
        for each, text, reference in zip(sure, hypotheses, references, strict=True)
    ]
    for low in (0.2, 0.4, 0.6):
        group = [pair for pair in scored if low <= pair[0] < low + 0.2]
        assert len(group) > 100
        expected, found = (sum(values) / len(group) for values in zip(*group, strict=True))
        assert found == pytest.approx(expected, abs=0.04)


def test_it_never_falls_and_stays_within_its_bounds():
    calibration = fit(*made(300))
    values = [confidence(calibration, -10 + 0.01 * step) for step in range(1001)]
    assert values == sorted(values)
    assert 0 <= values[0] < 0.01
    assert values[-1] <= 1
    assert calibration["sentences"] == 300


def test_below_everything_in_dev_it_falls_on():
    calibration = {"points": [[-1.0, 0.5], [-0.5, 0.8]]}
    assert confidence(calibration, -0.75) == pytest.approx(0.65)
    assert confidence(calibration, -0.1) == 0.8
    assert confidence(calibration, -2.0) == pytest.approx(0.5 / math.e)


def test_without_dev_it_is_the_probability_of_a_token():
    assert confidence(None, certainty(-2.0, 4)) == pytest.approx(math.exp(-0.5))
    assert certainty(0.0, 0) == 0.0


def test_a_small_set_or_equal_certainties():
    assert fit(*made(19)) is None
    flat = fit([-0.5] * 50, *made(50)[1:])
    assert 0 < confidence(flat, -0.5) < 1
    assert fit([-1.0] * 30, [""] * 30, ["a"] * 30) is None
