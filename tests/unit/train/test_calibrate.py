"""Calibrating on this machine: small, but real."""

import numpy as np
import pytest

from dragoman.cluster import measure
from dragoman.cluster.world import World
from dragoman.data.batches import collate
from dragoman.observe.plan import Lengths
from dragoman.recipe import dump_recipe
from dragoman.train import trial
from dragoman.train.calibrate import sample_micro_batches


def tokens(shape):
    return sum(tgt for _, tgt in shape)


def test_micro_batches_are_sampled_from_short_to_long():
    pairs = np.stack([np.arange(2, 1002) % 40 + 2, np.arange(1000) % 50 + 1], axis=1)
    shapes = sample_micro_batches(500, Lengths(pairs, "test"))
    assert len(shapes) == 8
    assert all(tokens(shape) == pytest.approx(500, abs=60) for shape in shapes)
    means = [np.mean(shape, axis=0)[1] for shape in shapes]
    assert min(means) < 12
    assert max(means) > 45
    assert all(np.ptp(np.array(shape)[:, 1]) <= 15 for shape in shapes)  # alike within one


def test_without_a_dataset_all_micro_batches_are_alike():
    shapes = sample_micro_batches(280, Lengths(np.array([[30.2, 28.0]]), "assumed"))
    assert all(pair == [30, 28] for shape in shapes for pair in shape)
    assert all(tokens(shape) == pytest.approx(280, abs=28) for shape in shapes)


def test_random_pairs_have_the_lengths_they_were_given():
    batch = collate(trial.Random([[3, 2], [5, 4]], 100), np.arange(2))
    assert batch.src_lengths_B.tolist() == [3, 5]
    assert len(batch.tgt_out_N) == 6


def test_a_trial_measures_what_a_plan_needs(recipe_with, monkeypatch):
    monkeypatch.setitem(measure.held, "world", World())
    recipe = recipe_with("model.layers=1", "model.d_model=32", "model.heads=2", "model.feed_forward=64")
    told = trial.compute(dump_recipe(recipe), 96, [[[7, 6]] * 20, [[9, 12]] * 10], budget=0.2)
    assert told["flops_per_second"] > 1e6
    assert 0 < told["backward_share"] < 1
    assert told["spread"] >= 0
    assert told["optimizer_seconds"] > 0
    assert told["precision"] == "float32"
    rounded = trial.rounding()
    assert 0 < rounded["decode"] < 1e-6
    assert 0 < rounded["encode"] < 1e-6


def test_what_is_too_large_is_cut():
    assert trial.cut([[5, 4]] * 10, 17) == [[5, 4]] * 4
    assert trial.cut([[5, 400]] * 10, 17) == [[5, 400]]
