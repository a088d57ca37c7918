"""Losses by sentence: in the order of the split, and the same whoever computes them."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch

from dragoman.cluster.world import World
from dragoman.config import Model
from dragoman.data.batches import collate
from dragoman.model.loss import token_loss
from dragoman.model.transformer import Transformer
from dragoman.train.evaluate import fixed_sample, sentence_losses, whole_split


class Words:
    """A split of random sentences."""

    def __init__(self, pairs):
        random = np.random.default_rng(1)
        self.lengths = random.integers(1, 12, (pairs, 2)).astype(np.int32)
        self._ids = [[random.integers(3, 30, length) for length in row] for row in self.lengths]

    def __len__(self):
        return len(self.lengths)

    def gather(self, indices, side):
        return [self._ids[index][side] for index in indices]


class OneOf(World):
    """One of several workers, whose sum is done by the test."""

    def sum(self, values):
        return values


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(1)
    return Transformer(Model(layers=1, d_model=16, heads=2, feed_forward=32, dropout=0.5), 30)


@pytest.fixture(scope="module")
def split():
    return Words(40)


def test_each_sentence_has_its_own_loss_in_the_order_of_the_split(model, split):
    losses = sentence_losses(model, whole_split(split, 50), World(), nullcontext())
    assert losses.tokens.tolist() == split.lengths[:, 1].tolist()
    model.eval()
    for row in (0, 7, 39):
        batch = collate(split, np.array([row]))
        expected = token_loss(model(batch), model.projection, batch.tgt_out_N, 0.0).nll.item()
        assert losses.nll[row] == pytest.approx(expected, rel=1e-4)
    assert losses.mean() == pytest.approx(losses.nll.sum() / split.lengths[:, 1].sum())


@pytest.mark.parametrize("workers", [2, 3, 20])
def test_any_number_of_workers_finds_the_same_bits(model, split, workers):
    probe = whole_split(split, 50)
    alone = sentence_losses(model, probe, World(), nullcontext())
    shares = [sentence_losses(model, probe, OneOf(rank, workers), nullcontext()) for rank in range(workers)]
    assert np.array_equal(sum(share.nll for share in shares), alone.nll)
    assert np.array_equal(shares[-1].tokens, alone.tokens)


def test_a_sample_is_measured_as_itself(model, split):
    probe = fixed_sample(split, 10, 50, seed=3)
    chosen = np.sort(np.concatenate(probe.micro_batches))
    part = sentence_losses(model, probe, World(), nullcontext())
    whole = sentence_losses(model, whole_split(split, 50), World(), nullcontext())
    assert part.nll == pytest.approx(whole.nll[chosen], rel=1e-4)
    assert part.tokens.tolist() == whole.tokens[chosen].tolist()
