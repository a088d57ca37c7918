import math

import numpy as np
import pytest

from dragoman.observe.statistics import (
    Interval,
    bootstrap_ratio,
    correlate,
    fit_curve,
    in_blocks,
    noise,
    slope,
    t_quantile,
)


@pytest.mark.parametrize(("degrees", "value"), [(1, 12.706), (2, 4.303), (3, 3.182), (5, 2.571), (30, 2.042)])
def test_quantiles_of_students_t(degrees, value):
    assert t_quantile(degrees) == pytest.approx(value, rel=0.01)


def coverage(draw):
    """Return how often, of 400 draws of (interval, truth), the interval holds the truth."""
    hits = 0
    for seed in range(400):
        interval, truth = draw(np.random.default_rng(seed))
        hits += interval.low <= truth <= interval.high
    return hits / 400


def test_the_interval_of_a_slope_holds_its_95_percent():
    x = np.arange(8.0)
    assert coverage(lambda random: (slope(x, 2 * x + random.normal(0, 1, 8)), 2.0)) == pytest.approx(
        0.95, abs=0.03
    )


def test_the_interval_of_a_bootstrapped_ratio_holds_nearly_95_percent():
    def draw(random):
        tokens = random.integers(5, 60, 100).astype(float)
        return bootstrap_ratio(tokens * random.normal(0.3, 1, 100), tokens), 0.3

    assert coverage(draw) == pytest.approx(0.94, abs=0.03)


@pytest.mark.parametrize("curve", [lambda s: 2 + s**-0.5, lambda s: 1 + 4 * np.exp(-s / 0.5)])
def test_forecasts_hold_for_power_laws_and_exponentials(curve):
    steps = np.linspace(0.25, 1, 20)
    truth = curve(2.0) - curve(1.0)
    held = coverage(
        lambda random: (fit_curve(steps, curve(steps) + random.normal(0, 0.01, 20)).change(1, 2), truth)
    )
    assert held >= 0.9


def test_a_curve_takes_out_what_moves_besides():
    steps = np.linspace(0.1, 1, 30)
    rate = 1 - steps
    found = fit_curve(steps, 2 + np.exp(-steps / 0.1) + 3 * rate, rate).change(1, 2)
    assert found.value == pytest.approx(np.exp(-20) - np.exp(-10), abs=1e-3)


def test_what_is_too_little_is_none():
    assert slope(np.arange(2.0), np.arange(2.0)) is None
    assert fit_curve(np.arange(1.0, 5), np.ones(4)) is None
    assert correlate(np.ones(9), np.arange(9.0)) is None
    assert math.isnan(noise(np.ones(4)))


def test_noise_is_found_beneath_a_curve():
    random = np.random.default_rng(0)
    x = np.linspace(0, 1, 400)
    assert noise(3 * x**2 + random.normal(0, 0.1, 400)) == pytest.approx(0.1, rel=0.15)


def test_correlations_and_what_neighbours_that_resemble_each_other_count():
    random = np.random.default_rng(1)
    x = random.normal(0, 1, 200)
    found = correlate(x, -x + random.normal(0, 0.5, 200))
    assert found.pearson.low < -1 / math.sqrt(1.25) < found.pearson.high
    assert found.spearman.high < -0.7
    walks = random.normal(0, 1, (2, 200)).cumsum(1)
    assert correlate(*walks).independent_points < 20
    assert correlate(
        np.array([1.0, 1, 2, 2, 3]), np.array([5.0, 5, 6, 6, 7])
    ).spearman.value == pytest.approx(1)


def test_blocks_keep_the_sum():
    assert in_blocks(np.arange(10.0), 3).tolist() == [3, 12, 30]
    assert in_blocks(np.arange(2.0), 20).tolist() == [0, 1]


def test_intervals():
    interval = Interval(1.0, 0.0, 2.0)
    assert interval.chance_above(1.0) == pytest.approx(0.5)
    assert interval.chance_above(0.0) == pytest.approx(0.975)
    assert interval.times(-2) == Interval(-2.0, -4.0, 0.0)
    assert interval.widened(1.0).low == pytest.approx(1 - math.hypot(1, 1.96), abs=0.001)
