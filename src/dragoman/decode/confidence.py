"""How good a translation probably is, from how sure the model was of it.

A model's own certainty (the mean log-probability of its tokens) puts translations in order but measures nothing: what
is much for one model is little for another. On dev, where references are known, one can see what came of it. The
confidence in a translation is **the mean sentence chrF, from 0 to 1, of the dev translations that the model was as
sure of**. It rises with the certainty and never falls. A model without dev scores has no such map; the confidence is
then the geometric mean of the tokens' probabilities, and is marked as not calibrated.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from sacrebleu.metrics.chrf import CHRF

MOST_POINTS = 20
FEWEST_IN_A_POINT = 10  # dev sentences; with fewer than two points there is nothing to fit

Calibration = Mapping[str, Any]


def certainty(log_probability: float, num_tokens: int) -> float:
    """Return the mean log-probability of a translation's tokens, at most 0."""
    return min(0.0, log_probability / max(1, num_tokens))


def fit(
    certainties: Sequence[float], hypotheses: Sequence[str], references: Sequence[str]
) -> dict[str, Any] | None:
    """Return the map from certainty to mean sentence chrF as it goes on a model's card, or None of too small a set."""
    metric = CHRF()
    scored = sorted(
        (sure, metric.sentence_score(hypothesis, [reference]).score / 100)
        for sure, hypothesis, reference in zip(certainties, hypotheses, references, strict=True)
        if hypothesis
    )
    num_points = min(MOST_POINTS, len(scored) // FEWEST_IN_A_POINT)
    if num_points < 2:
        return None
    bounds = [len(scored) * k // num_points for k in range(num_points + 1)]
    groups = [scored[a:b] for a, b in pairwise(bounds)]
    points = [(_mean([s for s, _ in group]), _mean([q for _, q in group]), len(group)) for group in groups]
    return {
        "measure": "mean sentence chrF on dev",
        "sentences": len(scored),
        "points": [[round(sure, 4), round(quality, 4)] for sure, quality in _rising(points)],
    }


def confidence(calibration: Calibration | None, sure: float) -> float:
    """Return the confidence, 0 to 1, in a translation of a certainty: between two points a straight line.

    Of what the model is less sure of than of anything in dev, nothing is known but that it is worse: the confidence
    falls as the tokens' probability does.
    """
    if calibration is None:
        return math.exp(sure)
    points = calibration["points"]
    above = bisect_right(points, sure, key=lambda point: point[0])
    if above == 0:
        lowest, quality = points[0]
        return float(quality * math.exp(sure - lowest))
    if above == len(points):
        return float(points[-1][1])
    (x0, y0), (x1, y1) = points[above - 1], points[above]
    return float(y0 + (y1 - y0) * (sure - x0) / (x1 - x0))


def _rising(points: Sequence[tuple[float, float, int]]) -> list[tuple[float, float]]:
    """Pool neighbours until quality never falls (isotonic regression): the closest such curve in squares."""
    pools: list[list[tuple[float, float, int]]] = []
    for point in points:
        pools.append([point])
        while len(pools) > 1 and _quality(pools[-2]) >= _quality(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    return [(sure, _quality(pool)) for pool in pools for sure, _, _ in (pool[0], pool[-1])[: len(pool)]]


def _quality(pool: Sequence[tuple[float, float, int]]) -> float:
    return sum(quality * n for _, quality, n in pool) / sum(n for _, _, n in pool)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
