"""The plan: every pair once an epoch, the same for every world, hardly any padding."""

import threading
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dragoman.data.batches import (
    Ahead,
    Plan,
    batch_lengths,
    collate,
    padding_share,
    plan_epoch,
    plan_evaluation,
)
from dragoman.data.builtin import sentences
from dragoman.data.mixture import Part, fewest_pairs, pairs_of_epoch
from dragoman.data.tokenizer import BOS, EOS

lengths_strategy = st.lists(
    st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=300
).map(lambda pairs: np.array(pairs, dtype=np.int32))  # fmt: skip


class ListSplit:
    """A split in memory."""

    def __init__(self, pairs):
        self.pairs = [(np.array(src), np.array(tgt)) for src, tgt in pairs]
        self.lengths = np.array([[len(src), len(tgt)] for src, tgt in pairs], dtype=np.int32)

    def gather(self, indices, side):
        return [self.pairs[index][side] for index in indices]


@given(lengths_strategy, st.integers(1, 500), st.integers(1, 200), st.integers(0, 5), st.integers(0, 3))
def test_every_pair_occurs_exactly_once_in_an_epoch(lengths, tokens_per_step, per_micro_batch, seed, epoch):
    steps = plan_epoch(lengths, tokens_per_step, per_micro_batch, seed=seed, epoch=epoch)
    planned = np.concatenate([indices for step in steps for indices in step])
    assert sorted(planned) == list(range(len(lengths)))
    assert all(len(indices) for step in steps for indices in step)


@given(lengths_strategy, st.integers(1, 500), st.integers(1, 200))
def test_every_epoch_has_the_same_number_of_steps(lengths, tokens_per_step, per_micro_batch):
    first, second = (plan_epoch(lengths, tokens_per_step, per_micro_batch, seed=1, epoch=e) for e in (0, 1))
    assert len(first) == len(second)


@given(lengths_strategy, st.integers(2, 6))
def test_any_world_shares_out_the_same_micro_batches(lengths, size):
    plan = Plan(lengths, 200, 50, seed=3)
    for number in range(1, plan.steps_per_epoch + 1):
        micro_batches = plan.step(number).micro_batches
        shared = [micro_batches[rank::size] for rank in range(size)]
        assert sorted(i for mine in shared for indices in mine for i in indices) == sorted(
            np.concatenate(micro_batches)
        )


def test_steps_have_about_the_asked_tokens_and_equal_numbers_of_micro_batches():
    random = np.random.default_rng(0)
    lengths = random.integers(3, 40, size=(5000, 2)).astype(np.int32)
    plan = Plan(lengths, tokens_per_step=2000, tokens_per_micro_batch=500, seed=1)
    steps = [plan.step(number) for number in range(1, plan.steps_per_epoch + 1)]
    assert np.mean([step.tokens for step in steps]) == pytest.approx(2000, rel=0.02)
    assert all(len(step.micro_batches) == 4 for step in steps)


def test_micro_batches_take_equally_long():
    random = np.random.default_rng(0)
    tgt = random.integers(3, 40, size=5000)
    src = tgt + random.geometric(0.3, size=5000)
    lengths = np.stack([src, tgt], axis=1).astype(np.int32)
    micro_batches = [indices for [indices] in plan_epoch(lengths, 500, 500, seed=1, epoch=0)]
    work = np.array(
        [(lengths[indices] @ [1, 2]).sum() for indices in micro_batches]
    )  # source tokens count half
    assert work.std() < 0.03 * work.mean()


def test_a_plan_answers_for_any_step_at_any_time():
    lengths = np.random.default_rng(0).integers(3, 40, size=(500, 2)).astype(np.int32)
    in_order, resumed = (Plan(lengths, 300, 100, seed=1) for _ in range(2))
    steps = [in_order.step(number) for number in range(1, 3 * in_order.steps_per_epoch)]
    for step in reversed(steps):
        again = resumed.step(step.number)
        assert again.tokens == step.tokens
        assert all(np.array_equal(a, b) for a, b in zip(again.micro_batches, step.micro_batches, strict=True))


def test_epochs_and_seeds_differ():
    lengths = np.random.default_rng(0).integers(3, 9, size=(500, 2)).astype(np.int32)
    first = {tuple(indices) for step in plan_epoch(lengths, 300, 100, seed=1, epoch=0) for indices in step}
    for other in ({"seed": 1, "epoch": 1}, {"seed": 2, "epoch": 0}):
        second = {tuple(indices) for step in plan_epoch(lengths, 300, 100, **other) for indices in step}
        assert len(first & second) < len(first) / 4


@given(lengths_strategy, st.lists(st.floats(0.1, 4), min_size=1, max_size=3), st.integers(1, 400))
def test_a_mixture_gives_every_epoch_its_pairs_in_the_same_number_of_steps(lengths, weights, tokens_per_step):
    cuts = np.linspace(0, len(lengths), len(weights) + 1).astype(int)
    parts = [
        Part("a", int(end - start), weight)
        for (start, end), weight in zip(pairwise(cuts), weights, strict=True)
    ]
    assume(fewest_pairs(parts))
    plan = Plan(lengths, tokens_per_step, 50, seed=1, parts=parts)
    for epoch in range(3):
        numbers = range(epoch * plan.steps_per_epoch + 1, (epoch + 1) * plan.steps_per_epoch + 1)
        steps = [plan.step(number) for number in numbers]
        assert {step.epoch for step in steps} == {epoch}
        planned = np.concatenate([indices for step in steps for indices in step.micro_batches])
        assert sorted(planned) == sorted(pairs_of_epoch(parts, seed=1, epoch=epoch))
        assert sum(step.tokens for step in steps) == lengths[planned, 1].sum()


def test_a_mixture_with_all_weights_one_is_the_plan_without():
    lengths = np.random.default_rng(0).integers(3, 40, size=(500, 2)).astype(np.int32)
    plain, mixed = (Plan(lengths, 300, 100, seed=1, parts=parts) for parts in ((), [Part("a", 500, 1.0)]))
    for number in (1, plain.steps_per_epoch + 1):
        steps = zip(plain.step(number).micro_batches, mixed.step(number).micro_batches, strict=True)
        assert all(np.array_equal(a, b) for a, b in steps)


def test_padding_is_under_three_percent_on_the_built_in_corpus():
    # Words and commas stand in for subwords: the shape of the length distribution is what matters.
    pairs = sentences("train", 20_000)
    lengths = np.array([[len(s.split()) + 1, len(t.split()) + 1] for s, t in pairs], dtype=np.int32)
    steps = plan_epoch(lengths, 2048, 512, seed=1, epoch=0)
    assert padding_share(lengths, [indices for step in steps for indices in step]) < 0.03


def test_evaluation_covers_a_split_in_similar_lengths():
    lengths = np.random.default_rng(0).integers(3, 40, size=(500, 2)).astype(np.int32)
    micro_batches = plan_evaluation(lengths, 200)
    assert sorted(np.concatenate(micro_batches)) == list(range(500))
    assert all(lengths[indices, 1].sum() < 300 for indices in micro_batches)


def test_collate_lays_sentences_in_a_row_and_shifts_the_target():
    split = ListSplit([([5, 6, EOS], [7, EOS]), ([8, EOS], [9, 10, EOS])])
    batch = collate(split, np.array([0, 1]))
    assert batch.src_M.tolist() == [5, 6, EOS, 8, EOS]
    assert batch.src_lengths_B.tolist() == [3, 2]
    assert batch.tgt_in_N.tolist() == [BOS, 7, BOS, 9, 10]
    assert batch.tgt_out_N.tolist() == [7, EOS, 9, 10, EOS]
    assert batch.tgt_lengths_B.tolist() == [2, 3]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=9))
def test_lengths_can_be_read_from_a_micro_batch(lengths):
    split = ListSplit([([5] * src, [6] * tgt) for src, tgt in lengths])
    assert batch_lengths(collate(split, np.arange(len(lengths)))).tolist() == list(map(list, lengths))


def test_reading_ahead_keeps_order_ends_and_raises():
    def fail_at_three():
        yield 1
        yield 2
        raise ValueError("broken shard")

    assert list(Ahead(lambda: iter(range(100)))) == list(range(100))
    reader = Ahead(fail_at_three)
    assert [next(reader), next(reader)] == [1, 2]
    with pytest.raises(ValueError, match="broken shard"):
        next(reader)


def test_reading_ahead_can_be_closed_at_any_time():
    before = threading.active_count()
    reader = Ahead(lambda: iter(range(10**9)))
    assert next(reader) == 0
    reader.close()
    assert threading.active_count() == before
