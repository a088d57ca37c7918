"""Ways to exchange gradients, between two threads that stand for workers."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dragoman.cluster.across import Hosts
from dragoman.cluster.estimate import wire_bytes
from dragoman.cluster.gradients import Exact, Feedback, LowRank, Rounded
from dragoman.cluster.quantised import Quantised
from dragoman.config import Model
from dragoman.model.transformer import Batch, Transformer

SIZE = 2
GROUPS = []  # kept: a group must not be let go of by one of its own threads


def together(work, size=SIZE):
    """Call ``work(rank, group)`` as every worker of a group at once; return what each returned."""
    store = dist.HashStore()

    def join(rank):
        return dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=30))

    with ThreadPoolExecutor(size) as pool:
        groups = list(pool.map(join, range(size)))
        GROUPS.extend(groups)
        return list(pool.map(work, range(size), groups))


class Bucket:
    """All gradients of a model in one buffer, as DistributedDataParallel hands them over."""

    def __init__(self, model):
        self._parameters = list(model.parameters())
        self._buffer = torch.cat([weight.grad.flatten() for weight in self._parameters])
        pieces = self._buffer.split([weight.numel() for weight in self._parameters])
        self._gradients = [
            piece.view_as(weight) for piece, weight in zip(pieces, self._parameters, strict=True)
        ]

    def buffer(self):
        return self._buffer

    def parameters(self):
        return self._parameters

    def gradients(self):
        return self._gradients


def model_with_gradient(rank, step=0, scale=1.0):
    model = nn.Sequential(nn.Linear(40, 24), nn.Linear(24, 40))
    generator = torch.Generator().manual_seed(100 * step + rank)
    for weight in model.parameters():
        weight.grad = torch.randn(weight.shape, generator=generator) * scale
    return model


def flat(tensors):
    return torch.cat([tensor.flatten() for tensor in tensors])


def exchange(way, model):
    """Do what a step does; return the summed gradient."""
    bucket = Bucket(model)
    result = way.bucket(bucket).wait()
    for weight, piece in zip(model.parameters(), Bucket.gradients(bucket), strict=True):
        weight.grad = piece
    way.finish()
    assert result.shape == bucket.buffer().shape
    return flat(weight.grad for weight in model.parameters()).clone()


def true_sum(step=0, scale=1.0):
    return sum(flat(w.grad for w in model_with_gradient(r, step, scale).parameters()) for r in range(SIZE))


def test_exact_sums_and_counts_its_bytes():
    def work(rank, group):
        model = model_with_gradient(rank)
        way = Exact(model, group)
        return exchange(way, model), way.bytes_sent, way.state()

    for summed, sent, state in together(work):
        torch.testing.assert_close(summed, true_sum())
        assert sent == 4 * summed.numel()  # a ring of two sends half of it, twice
        assert state == {}


def test_rounding_without_feedback_is_within_bf16():
    def work(rank, group):
        model = model_with_gradient(rank)
        return exchange(Rounded(model, group), model)

    first, second = together(work)
    assert first.equal(second)
    torch.testing.assert_close(first, true_sum(), rtol=2**-6, atol=2**-6)


def hosts(group):
    """Let every worker be a host of its own."""
    return Hosts([1 / group.size()] * group.size(), group.rank(), 1, ALONE, group, group.rank())


ALONE = dist.ProcessGroupGloo(dist.HashStore(), 0, 1, timedelta(seconds=30))
WAYS = {
    "int4": lambda model, group: Quantised(model, hosts(group), "int4"),
    "int8": lambda model, group: Quantised(model, hosts(group), "int8"),
    "bf16": lambda model, group: Feedback(model, group, "bf16"),
    "fp16": lambda model, group: Feedback(model, group, "fp16"),
    "powersgd": lambda model, group: LowRank(model, group, 2),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("loss_scale", [1.0, 1024.0])
def test_feedback_loses_nothing_for_good(way, loss_scale):
    steps = 6

    def work(rank, group):
        model = model_with_gradient(rank)
        used = WAYS[way](model, group)
        used.loss_scale = loss_scale
        total = 0
        for step in range(steps):
            fresh = model_with_gradient(rank, step, 1e-4 * loss_scale)
            for weight, other in zip(model.parameters(), fresh.parameters(), strict=True):
                weight.grad = other.grad
            total = total + exchange(used, model) / loss_scale
        kept = flat(used.residual.get(weight, torch.zeros_like(weight)) for weight in model.parameters())
        return total, kept

    (total, kept), (same, other_kept) = together(work)
    assert total.equal(same)
    truth = sum(true_sum(step, 1e-4) for step in range(steps))
    torch.testing.assert_close(total + kept + other_kept, truth, rtol=1e-2, atol=2e-6)


@pytest.mark.parametrize("way", WAYS)
def test_a_settled_state_may_be_loaded_by_any_number(way):
    def work(rank, group):
        model = model_with_gradient(rank)
        used = WAYS[way](model, group)
        exchange(used, model)
        used.settle()
        return used.state()

    first, second = together(work)
    assert first.keys() == second.keys()
    assert all(tensor.equal(second[name]) for name, tensor in first.items())

    def load(rank, group):
        used = WAYS[way](model_with_gradient(rank), group)
        used.load_state(first)
        return used.residual.values()

    for size in (2, 3):
        for kept in together(load, size):
            expected = [tensor * 2 / size for name, tensor in first.items() if name.startswith("residual/")]
            torch.testing.assert_close(list(kept), expected)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_step_is_seen_by_all_and_leaves_nothing_behind(way, bad):
    def work(rank, group):
        model = model_with_gradient(rank)
        used = WAYS[way](model, group)
        if rank == 1:
            for weight in model.parameters():
                weight.grad[0] = bad
        poisoned = exchange(used, model)
        used.forget()
        for weight, other in zip(model.parameters(), model_with_gradient(rank).parameters(), strict=True):
            weight.grad = other.grad
        return poisoned, exchange(used, model)

    for poisoned, healthy in together(work):
        assert not poisoned.isfinite().all()
        assert healthy.isfinite().all()


def test_thin_matrices_are_exact_for_a_gradient_of_low_rank():
    def work(rank, group):
        model = model_with_gradient(rank)
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.grad = weight.grad[:, :1] @ torch.ones(1, weight.shape[1])
        truth = flat(weight.grad for weight in model.parameters())
        dist.all_reduce(truth, group=group)
        return exchange(LowRank(model, group, 2), model), truth

    for summed, truth in together(work):
        torch.testing.assert_close(summed, truth, rtol=1e-4, atol=1e-4)


def backward(model, batch, way):
    """Add up the gradients of two micro-batches, as the trainer does."""
    for is_last in (False, True):
        way.is_last = is_last
        model.logits(model(batch)).square().mean().backward()


def test_the_embedding_goes_in_three_parts_that_add_up():
    cfg = Model(
        layers=1, d_model=16, heads=2, feed_forward=32, dropout=0, attention_dropout=0, relu_dropout=0
    )

    def build(rank):
        torch.manual_seed(0)
        model = Transformer(cfg, vocab_size=40)
        src = torch.tensor([4 + rank, 9, 3, 20 + rank, 8, 3])
        tgt = torch.tensor([9, 30 + rank, 8, 20])  # some words are on both sides
        return model, Batch(src, torch.tensor([3, 3]), tgt, tgt, torch.tensor([2, 2]))

    def gradient(model, batch, way):
        """Return that of a step on one worker alone."""
        for weight in model.parameters():
            weight.grad = None
        backward(model, batch, way)
        return flat(weight.grad for weight in model.parameters())

    # Made one after the other, for threads share a generator.
    models = [build(rank) for rank in range(SIZE)]
    truth = [gradient(*each, Exact(each[0], None)) for each in models]

    def work(rank, group):
        model, batch = models[rank]
        way = Quantised(model, hosts(group), "int8")
        total = 0
        for _ in range(4):
            gradient(model, batch, way)
            total = total + exchange(way, model)
        kept = flat(way.residual[weight] for weight in model.parameters())
        way.leave()
        assert gradient(model, batch, way).equal(truth[rank])
        return total, kept, way.bytes_sent

    (total, kept, sent), (same, other_kept, _) = together(work)
    assert total.equal(same)
    torch.testing.assert_close(total + kept + other_kept, 4 * sum(truth), rtol=1e-3, atol=1e-5)
    # The 7 + 5 rows that somebody looked up of 40 on a side are sent beside the whole, and which they are.
    whole, rows = wire_bytes(len(total), "int8"), wire_bytes(7 * 16, "int8") + wire_bytes(5 * 16, "int8")
    assert whole + rows < sent / 4 < whole + rows + wire_bytes(2 * 40, "int8") + 100
