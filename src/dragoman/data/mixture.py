"""The mixture of a training set: how often an epoch sees the pairs of each corpus.

A weight is a property of a run and shapes no dataset: the same shards serve every mixture. Of a corpus of n pairs
with weight w, an epoch takes the next w·n places of an endless repetition of one fixed order of its pairs. So at
any time some pairs were seen once more than the others and no pair twice more, whatever the weight.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from dragoman.config import Data
from dragoman.data.shards import Dataset
from dragoman.errors import UserError

DECIMALS = 6  # of a weight that is computed: what remains is the same on every machine
STREAM = 2  # of random numbers, apart from those of other uses of the seed


@dataclass(frozen=True)
class Part:
    """A corpus as a part of an epoch."""

    name: str
    pairs: int
    weight: float  # how often an epoch sees each pair, on average

    @property
    def per_epoch(self) -> Fraction:
        """Pairs that an epoch sees: exact, so that epochs join without a gap however many there are."""
        return Fraction(self.weight) * self.pairs

    def places(self, epoch: int) -> npt.NDArray[np.int64]:
        """Return the places in the endless order that an epoch takes."""
        return np.arange(int(epoch * self.per_epoch), int((epoch + 1) * self.per_epoch), dtype=np.int64)


def mixture(dataset: Dataset, data: Data) -> list[Part]:
    """Return the parts of an epoch of ``dataset`` with the weights and the temperature of a recipe."""
    facts: list[dict[str, Any]] = dataset.manifest["splits"]["train"]["corpora"]
    pairs = [int(each["pairs"]) for each in facts]
    weights = effective_weights(pairs, [corpus.weight for corpus in data.train], data.temperature)
    names = [_name(each, in_full=bool(data.tags)) for each in facts]
    parts = [Part(*each) for each in zip(names, pairs, weights, strict=True)]
    if not fewest_pairs(parts):
        raise UserError(
            "the weights of the corpora leave an epoch without a pair",
            where=", ".join(f"{part.name}: {part.pairs:,} pairs, weight {part.weight:g}" for part in parts),
            fix="raise the weights in [[data.train]]",
        )
    return parts


def _name(corpus: dict[str, Any], *, in_full: bool) -> str:
    languages = corpus["languages"]
    return f"{corpus['name']} {languages['src']}-{languages['tgt']}" if in_full else str(corpus["name"])


def effective_weights(
    pairs: Sequence[int], weights: Sequence[float], temperature: float
) -> tuple[float, ...]:
    """Return the given weights, each times what the temperature makes of its corpus.

    At temperature T the share of a corpus of n pairs is n^(1/T) of the sum of these, and the epoch's size stays.
    """
    if temperature == 1:
        return tuple(weights)
    scale = sum(pairs) / sum(n ** (1 / temperature) for n in pairs if n)
    return tuple(
        round(weight * scale * n ** (1 / temperature - 1), DECIMALS) if n else weight
        for n, weight in zip(pairs, weights, strict=True)
    )


def is_plain(parts: Sequence[Part]) -> bool:
    """Whether every pair is seen once an epoch."""
    return all(part.weight == 1 for part in parts)


def fewest_pairs(parts: Sequence[Part]) -> int:
    """Return how many pairs any epoch sees at least."""
    return sum(int(part.per_epoch) for part in parts)


def pairs_of_epoch(parts: Sequence[Part], *, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Return the numbers of the pairs that an epoch sees, some of them more than once."""
    chosen, first = [], 0
    for index, part in enumerate(parts):
        order = np.random.default_rng([seed, index, STREAM]).permutation(part.pairs)
        if part.pairs:
            chosen.append(first + order[part.places(epoch) % part.pairs])
        first += part.pairs
    return np.concatenate(chosen)


def describe(parts: Sequence[Part]) -> str:
    """Say how often an epoch sees what."""
    seen = float(sum(part.per_epoch for part in parts))
    listed = ", ".join(f"{part.name} {part.pairs:,} × {part.weight:.4g}" for part in parts)
    return f"{listed}: about {seen:,.0f} pairs an epoch"
