"""The built-in corpus: English-German sentence pairs from a small grammar, as many as wanted, without a download.

A sentence is drawn as a plan (clauses of words from the lexicon) and then said twice. The English decides the German:
no English sentence has two translations, so a model that has understood the grammar comes near 100 BLEU. What it has
to understand is what makes German hard: gender, case, endings, and where the verb goes.

Pair i of a split depends on (seed, split, i) alone, so any slice can be made anywhere, in any order. A stable hash
reserves some combinations of a verb or an adjective with a noun for dev, and some for test: no training sentence
contains a reserved one; every dev or test sentence contains at least one of its own, and none of the other's.
Hence the splits share no sentence, and remembering does not pass the test; but every single word was seen.
"""

import hashlib
import random
from collections.abc import Iterator
from functools import cache

from dragoman.data.grammar import NOTHING, english, german
from dragoman.data.lexicon import Pair
from dragoman.data.patterns import WHEEL, Draw, Plan

SPLITS = ("train", "dev", "test")


@cache
def owner(combination: Pair) -> str:
    """Return the split that a combination of words is reserved for; "train" if all may use it."""
    percent = int.from_bytes(hashlib.blake2b(" ".join(combination).encode()).digest()) % 100
    return "test" if percent < 6 else "dev" if percent < 10 else "train"


def say(plan: Plan) -> Pair:
    """Return the sentence of a plan in both languages."""
    frame_en, frame_de, clauses = plan
    en = frame_en.format(*map(english, clauses))
    de = frame_de.format(*map(german, clauses)).replace(",.", ".")  # a relative clause at the end
    return en[0].upper() + en[1:], de[0].upper() + de[1:]


def sentences(split: str, count: int, *, seed: int = 1, start: int = 0) -> Iterator[Pair]:
    """Yield `count` (English, German) pairs of a split, from the `start`-th on.

    Pair i depends on (seed, split, i) alone.
    """
    if split not in SPLITS:
        raise ValueError(f'no such split: "{split}"; choose one of {", ".join(SPLITS)}')
    return _sentences(split, range(start, start + count), seed)


def _sentences(split: str, indices: range, seed: int) -> Iterator[Pair]:
    rng = random.Random()
    for i in indices:
        rng.seed(f"{seed} {split} {i}")
        pair = NOTHING
        while not 4 <= pair[0].count(" ") + 1 <= 16:
            draw = Draw(rng.random)
            plan = draw.pick(WHEEL)(draw)
            if {owner(c) for c in draw.combinations} | {"train"} == {split, "train"}:
                pair = say(plan)
        yield pair
