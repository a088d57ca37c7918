import pytest
from pydantic import ValidationError

from dragoman.config import Data, Optimizer, Train


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("builtin", "builtin"),
        ("builtin:250000", "builtin:250000"),
        ("a.tsv", ("a.tsv",)),
        ("a.tsv.zst", ("a.tsv.zst",)),
        (["a.en", "a.de"], (("a.en", "a.de"),)),
        ([["a.en", "a.de"], "b.tsv.gz"], (("a.en", "a.de"), "b.tsv.gz")),
        (["a.tsv", "b.tsv"], ("a.tsv", "b.tsv")),
    ],
)
def test_every_way_to_name_a_corpus(given, read):
    assert Data(train=given, dev="builtin").train == read


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("foo", 'unknown corpus name "foo"; give "builtin", a pair [src, tgt], or a .tsv file'),
        ("builtin:0", 'unknown corpus name "builtin:0"; give "builtin", a pair [src, tgt], or a .tsv file'),
        ([], 'give a pair [src, tgt] of paths, a list of such pairs, a .tsv file, or "builtin"'),
        (3, 'give a pair [src, tgt] of paths, a list of such pairs, a .tsv file, or "builtin"'),
        (["a.en"], "each corpus is a pair [src, tgt] of paths, or the path of a two-column .tsv"),
        ([["a", "b", "c"]], "each corpus is a pair [src, tgt] of paths, or the path of a two-column .tsv"),
    ],
)
def test_what_is_no_corpus(given, text):
    with pytest.raises(ValidationError) as caught:
        Data(train=given, dev="builtin")
    assert caught.value.errors()[0]["msg"] == f"Value error, {text}"


def test_a_recipe_is_frozen(recipe_with):
    with pytest.raises(ValidationError, match="frozen"):
        recipe_with().train.steps = 3


def test_numbers_are_finite_and_betas_below_one():
    for wrong in ({"epsilon": float("inf")}, {"betas": [0.9, 1.0]}):
        with pytest.raises(ValidationError):
            Optimizer(**wrong)


def test_what_is_left_out_is_derived(recipe_with):
    recipe = recipe_with("model.layers=4")
    assert (recipe.warmup_steps, recipe.decay_steps) == (100, 900)
    assert recipe.model.num_decoder_layers == 4
    assert recipe.train.tokens_per_micro_batch == 1024
    assert Train(steps=1, tokens_per_step=3).tokens_per_micro_batch == 1
    given = recipe_with("model.decoder_layers=2", "schedule.warmup_steps=0", "schedule.decay_steps=7")
    assert (given.warmup_steps, given.decay_steps, given.model.num_decoder_layers) == (0, 7, 2)
