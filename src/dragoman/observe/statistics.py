"""The statistics of an explanation: every number comes with the interval it may lie in. Needs numpy alone.

An ``Interval`` holds its value with 95 %. Verdicts are drawn from where the whole interval lies, never from the value
alone, so that noise leads to "unclear" and not to a wrong answer.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

Column = np.ndarray[Any, np.dtype[np.float64]]

NORMAL = NormalDist()
CONFIDENCE = 0.95  # of every interval
TWO_SIDED = NORMAL.inv_cdf(0.5 + CONFIDENCE / 2)
RESAMPLES = 1000
SURE = 0.99  # nothing is ever more certain: all of it rests on assumptions
EXPONENTS = np.geomspace(0.05, 3.0, 150)[:, None]  # of the power laws that a forecast weighs up
DECAYS = np.geomspace(0.05, 3.0, 150)[:, None]  # of the exponentials, in units of the last step


@dataclass(frozen=True)
class Interval:
    """A value, and where it lies with 95 %."""

    value: float
    low: float
    high: float

    def chance_above(self, threshold: float) -> float:
        """Return how certain it is that the truth lies above ``threshold``, as if errors were normal."""
        half = (self.high - self.low) / 2
        if not half > 0:
            return SURE if self.value > threshold else 1 - SURE
        return min(SURE, max(1 - SURE, NORMAL.cdf((self.value - threshold) / (half / TWO_SIDED))))

    def __neg__(self) -> "Interval":
        return Interval(-self.value, -self.high, -self.low)

    def times(self, factor: float) -> "Interval":
        low, high = sorted((self.low * factor, self.high * factor))
        return Interval(self.value * factor, low, high)

    def widened(self, error: float) -> "Interval":
        """Return the interval with another, independent standard error added."""
        more = TWO_SIDED * error
        low, high = self.value - self.low, self.high - self.value
        return Interval(self.value, self.value - math.hypot(low, more), self.value + math.hypot(high, more))


def t_quantile(degrees: int) -> float:
    """Return how many standard errors a 95 % interval reaches to each side, for this many degrees of freedom."""
    if degrees < 3:
        return {1: 12.706, 2: 4.303}.get(degrees, math.inf)
    z = TWO_SIDED  # Fisher and Cornish's expansion; from 3 degrees on within 1 %
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / degrees + second / degrees**2 + third / degrees**3


def slope(x: Column, y: Column) -> Interval | None:
    """Return how steeply ``y`` rises with ``x``, by least squares; None for fewer than three points."""
    if len(x) < 3 or np.ptp(x) == 0:
        return None
    centred = x - x.mean()
    spread = float(centred @ centred)
    steepness = float(centred @ y) / spread
    residuals = y - y.mean() - steepness * centred
    error = math.sqrt(float(residuals @ residuals) / (len(x) - 2) / spread)
    reach = t_quantile(len(x) - 2) * error
    return Interval(steepness, steepness - reach, steepness + reach)


@dataclass(frozen=True)
class Curve:
    """A curve that levels out, ``a + b · shape(step)``: all shapes, weighed by how well they fit."""

    last: float  # steps are counted in this
    weights: Column  # of each shape
    drop: Column  # b
    drop_error: Column
    reach: float  # standard errors to each side of an interval

    def change(self, start: float, end: float) -> Interval:
        """Return by how much the curve changes between two steps, with what is unknown of its shape."""
        shapes = _shapes(np.array([start, end]) / self.last)
        power = shapes[:, 1] - shapes[:, 0]
        changes = self.drop * power
        mean = float(self.weights @ changes)
        variance = self.weights @ ((self.drop_error * power) ** 2 + (changes - mean) ** 2)
        half = self.reach * math.sqrt(float(variance))
        return Interval(mean, mean - half, mean + half)


def fit_curve(steps: Column, values: Column, besides: Column | None = None) -> Curve | None:
    """Fit power laws and exponentials that level out; None for fewer than five points or steps that are all one.

    Losses follow either; which of them is often open, and a forecast has to be as uncertain as that. ``besides`` is
    something else that moves the values in proportion: its part is taken out first, and is not part of the forecast.
    """
    if besides is not None and np.ptp(besides) == 0:
        besides = None
    count, last = len(steps), float(steps.max(initial=0.0))
    degrees = count - 3 - (besides is not None)
    if degrees < 2 or np.ptp(steps) == 0 or steps.min() <= 0:
        return None
    shapes = _shapes(steps / last)
    centred, level = shapes - shapes.mean(1, keepdims=True), values - values.mean()
    if besides is not None:
        other = besides - besides.mean()
        other = other / math.sqrt(float(other @ other))
        centred, level = centred - (centred @ other)[:, None] * other, level - (level @ other) * other
    spread = (centred**2).sum(1)
    drop = centred @ level / spread
    squares = ((level - drop[:, None] * centred) ** 2).sum(1)
    squares += 1e-12 * max(1.0, float(values @ values))  # a perfect fit is not perfectly certain
    weights = (squares / squares.min()) ** (-count / 2)
    return Curve(
        last=last,
        weights=weights / weights.sum(),
        drop=drop,
        drop_error=np.sqrt(squares / degrees / spread),
        reach=t_quantile(degrees),
    )


def _shapes(steps: Column) -> Column:
    """Return shape × step: what every shape has come down to at each step."""
    return np.concatenate([steps**-EXPONENTS, np.exp(-steps / DECAYS)])


def noise(values: Column) -> float:
    """Return the standard deviation of a smooth curve's noise, from how it bends; NaN for fewer than five values."""
    if len(values) < 5:
        return math.nan
    bends = values[:-2] - 2 * values[1:-1] + values[2:]
    return float(np.median(np.abs(bends))) * 1.4826 / math.sqrt(6)


def smooth(values: Column) -> Column:
    """Return a curve whose points are averaged with their neighbours; its ends stay as they are."""
    if len(values) < 3:
        return values
    inner = (values[:-2] + 2 * values[1:-1] + values[2:]) / 4
    return np.concatenate([values[:1], inner, values[-1:]])


def bootstrap_ratio(top: Column, bottom: Column, *, seed: int = 0) -> Interval:
    """Return sum(top) / sum(bottom) and where it would lie if other pairs had been drawn."""
    value = float(top.sum() / bottom.sum())
    if len(top) < 2:
        return Interval(value, -math.inf, math.inf)
    drawn = np.random.default_rng(seed).integers(0, len(top), (RESAMPLES, len(top)))
    ratios = top[drawn].sum(1) / np.maximum(bottom[drawn].sum(1), 1e-300)
    low, high = np.quantile(ratios, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(value, float(low), float(high))


def in_blocks(values: Column, blocks: int) -> Column:
    """Return sums over about even runs of neighbours: neighbours resemble each other, blocks hardly do."""
    edges = np.linspace(0, len(values), min(blocks, len(values)) + 1).astype(int)
    return np.add.reduceat(values, edges[:-1]) if len(values) else values


@dataclass(frozen=True)
class Correlation:
    pearson: Interval
    spearman: Interval
    points: int
    independent_points: float  # points that resemble their neighbours count for less


def correlate(x: Column, y: Column) -> Correlation | None:
    """Return how ``x`` and ``y`` go together; None where there are fewer than five points or one does not vary."""
    if len(x) < 5 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    pearson, spearman = _coefficient(x, y), _coefficient(_ranks(x), _ranks(y))
    alike = max(0.0, _coefficient(x[:-1], x[1:]) * _coefficient(y[:-1], y[1:]))
    independent = max(3.5, len(x) * (1 - alike) / (1 + alike))
    return Correlation(
        _fisher(pearson, independent, 1.0), _fisher(spearman, independent, 1.06), len(x), independent
    )


def _coefficient(x: Column, y: Column) -> float:
    x, y = x - x.mean(), y - y.mean()
    size = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / size if size else 0.0


def _ranks(values: Column) -> Column:
    """Return the place of each value in ascending order; equals share theirs."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[places], np.float64)


def _fisher(coefficient: float, points: float, variance: float) -> Interval:
    centre = math.atanh(max(-0.999999, min(0.999999, coefficient)))
    reach = TWO_SIDED * math.sqrt(variance / (points - 3))
    return Interval(coefficient, math.tanh(centre - reach), math.tanh(centre + reach))


def finite(*columns: Column) -> list[Column]:
    """Return columns of equal length without the rows in which any of them is not a number."""
    keep: Any = np.logical_and.reduce([np.isfinite(column) for column in columns])
    return [column[keep] for column in columns]
