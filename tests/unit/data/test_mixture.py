"""How often an epoch sees the pairs of each corpus."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.data.mixture import Part, describe, effective_weights, is_plain, mixture, pairs_of_epoch
from dragoman.errors import UserError

some_parts = st.lists(
    st.builds(Part, st.just("a"), st.integers(0, 40), st.floats(0.01, 5)), min_size=1, max_size=4
)


@given(some_parts, st.integers(0, 3), st.integers(0, 5), st.integers(1, 6))
def test_no_pair_is_ever_seen_twice_more_than_another_of_its_corpus(parts, seed, first_epoch, epochs):
    parts = [Part("base", 5, 1.0), *parts]
    seen = Counter()
    for epoch in range(first_epoch, first_epoch + epochs):
        seen.update(pairs_of_epoch(parts, seed=seed, epoch=epoch).tolist())
    first = 0
    for part in parts:
        counts = [seen[pair] for pair in range(first, first + part.pairs)]
        if counts:
            assert max(counts) - min(counts) <= 1
            assert abs(sum(counts) - epochs * part.weight * part.pairs) < 1
        first += part.pairs
    assert set(seen) <= set(range(first))


def test_fractions_rotate_through_the_whole_corpus():
    parts = [Part("half", 100, 0.5)]
    halves = [set(pairs_of_epoch(parts, seed=1, epoch=epoch).tolist()) for epoch in range(3)]
    assert [len(half) for half in halves] == [50, 50, 50]
    assert halves[0] | halves[1] == set(range(100))
    assert halves[2] == halves[0]
    assert halves[0] != set(pairs_of_epoch(parts, seed=2, epoch=0).tolist())


def test_temperature_evens_out_the_shares_and_keeps_the_size_of_an_epoch():
    pairs = [900_000, 90_000, 10_000]
    assert effective_weights(pairs, [1, 2, 3], 1) == (1, 2, 3)
    for temperature in (1.5, 2, 5, 100):
        weights = effective_weights(pairs, [1, 1, 1], temperature)
        assert sum(n * w for n, w in zip(pairs, weights, strict=True)) == pytest.approx(1e6, rel=1e-5)
        assert weights[0] < 1 < weights[2]
        shares = [n * w for n, w in zip(pairs, weights, strict=True)]
        assert shares[0] / shares[2] == pytest.approx(90 ** (1 / temperature), rel=1e-3)
    assert effective_weights(pairs, [1, 1, 3], 2)[2] == pytest.approx(
        3 * effective_weights(pairs, [1, 1, 1], 2)[2]
    )
    assert effective_weights([10, 0], [1, 1], 2) == (1.0, 1)


def dataset(*pairs):
    languages = {"src": "en", "tgt": "de"}
    corpora = [{"name": f"c{i}", "pairs": n, "languages": languages} for i, n in enumerate(pairs)]
    return SimpleNamespace(manifest={"splits": {"train": {"corpora": corpora}}})


def weighted(recipe_with, *weights, temperature=1):
    tables = ",".join(f'{{files="a.tsv", weight={weight}}}' for weight in weights)
    return recipe_with(f"data.train=[{tables}]", f"data.temperature={temperature}").data


def test_the_mixture_of_a_recipe(recipe_with):
    parts = mixture(dataset(800, 200), weighted(recipe_with, 1, 2.5))
    assert parts == [Part("c0", 800, 1.0), Part("c1", 200, 2.5)]
    assert not is_plain(parts)
    assert describe(parts) == "c0 800 × 1, c1 200 × 2.5: about 1,300 pairs an epoch"
    assert is_plain(mixture(dataset(800, 200), weighted(recipe_with, 1, 1)))
    assert [
        part.weight for part in mixture(dataset(800, 200), weighted(recipe_with, 1, 1, temperature=2))
    ] == [
        0.833333,
        1.666667,
    ]


def test_language_pairs_are_named_where_there_are_several(recipe_with):
    data = recipe_with('data.train=["a.tsv", {files="b.tsv", tgt_lang="fr"}]').data
    assert [part.name for part in mixture(dataset(8, 2), data)] == ["c0 en-de", "c1 en-de"]


def test_an_epoch_without_a_pair_is_an_error(recipe_with):
    with pytest.raises(UserError) as caught:
        mixture(dataset(8), weighted(recipe_with, 0.1))
    assert str(caught.value) == (
        "error: the weights of the corpora leave an epoch without a pair\n"
        "  where: c0: 8 pairs, weight 0.1\n  fix:   raise the weights in [[data.train]]"
    )


def test_a_corpus_without_pairs_does_no_harm():
    assert np.sort(pairs_of_epoch([Part("a", 0, 2.0), Part("b", 3, 1.0)], seed=0, epoch=4)).tolist() == [
        0,
        1,
        2,
    ]
