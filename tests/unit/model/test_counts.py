"""Sizes that are known without building a model."""

import pytest

from dragoman.config import Model
from dragoman.model.transformer import Transformer
from dragoman.model.weights import checkpoint_bytes, count_parameters
from dragoman.recipe import load_recipe


@pytest.mark.parametrize(
    "shape",
    [
        {"layers": 1, "d_model": 16, "heads": 2, "feed_forward": 40},
        {"layers": 3, "decoder_layers": 2, "d_model": 32, "heads": 4, "feed_forward": 24, "norm": "post"},
    ],
)
def test_weights_are_counted_as_they_are_built(shape):
    model = Model(**shape)
    built = sum(weight.numel() for weight in Transformer(model, 64).parameters())
    assert count_parameters(model, 64) == built


def test_a_run_needs_room_for_one_checkpoint_more_than_it_keeps():
    recipe = load_recipe("tiny", ["checkpoint.keep_last=2", "checkpoint.keep_best=1"])
    assert checkpoint_bytes(recipe, 1000) == 4 * 12_000
