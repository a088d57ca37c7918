"""Local training: who shares a host, what the hosts' differences become, and how slices travel."""

import pytest
import torch
from torch import nn

from dragoman.cluster.across import Hosts, same_host
from dragoman.cluster.estimate import BLOCK
from dragoman.cluster.local import MOMENTUM, Local, Slice, lengthen
from tests.unit.cluster.test_sync_gradients import ALONE, together


def test_workers_share_a_host_by_name_and_number():
    assert same_host([("a", 0), ("a", 1), ("b", 0), ("b", 1)]) == [[0, 1], [2, 3]]
    assert same_host([("a", 0), ("b", 0), ("a", 1), ("b", 1)]) == [[0, 2], [1, 3]]  # dealt in turns
    assert same_host([("a", 0), ("a", 0)]) == [[0], [1]]  # two machines of one name
    assert same_host([("a", 0), ("a", 1), ("a", 0)]) == [[0, 1], [2]]


def test_agreeing_hosts_are_averaged_and_noise_keeps_its_length():
    same = torch.randn(BLOCK, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(lengthen(same, [same, same], [0.5, 0.5]), same)
    noise = torch.randn(2, 1000 * BLOCK, generator=torch.Generator().manual_seed(1))
    longer = lengthen(noise.mean(0), list(noise), [0.5, 0.5])
    assert longer.norm().item() == pytest.approx(noise[0].norm().item(), rel=0.03)
    opposed = lengthen(torch.zeros(BLOCK + 1), [torch.ones(BLOCK + 1), -torch.ones(BLOCK + 1)], [0.5, 0.5])
    assert opposed.eq(0).all()


def test_slices_cover_every_weight_once():
    rows = [torch.zeros(10), torch.zeros(3), torch.zeros(7)]
    for start, end in [(0, 6), (6, 12), (12, 20)]:
        for part in Slice(rows, start, end).weights:
            part += 1  # the weights' own memory
    assert all(row.eq(1).all() for row in rows)


def hosts(rank, group):
    return Hosts([1 / group.size()] * group.size(), rank, 1, ALONE, group, rank)


def local(rank, group, **changes):
    model = nn.Linear(20, 30)
    for weight in model.parameters():
        nn.init.constant_(weight, 1.0)  # threads share one random generator
    settings = {"wire": "int8", "inner_steps": 3, "learning_rate": 1.0, "momentum": 0.0, **changes}
    return model, Local(hosts(rank, group), model, **settings)


def moved(model, rank):
    """Pretend an inner step: both hosts go down, the second one faster."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.sub_(0.1 * (rank + 1))


def test_hosts_settle_on_the_mean_of_where_they_went():
    def work(rank, group):
        model, outer = local(rank, group)
        start = model.weight.detach().clone()
        for _ in range(4):
            moved(model, rank)
            outer.after_update()
        outer.settle([], [])
        return (start - model.weight).detach(), model.bias.detach()

    (first, bias), (second, other_bias) = together(work)
    assert first.equal(second)
    assert bias.equal(other_bias)
    # Four steps of 0.1 and of 0.2 have the mean 0.6; the gain adds a twentieth at most, the root of 10 to 9.
    assert 0.6 <= first.mean().item() <= 0.6 * 1.06


def test_nothing_changed_means_nothing_to_settle():
    def work(rank, group):
        model, outer = local(rank, group)
        before = model.weight.detach().clone()
        outer.settle([], [])
        return before.equal(model.weight), outer.bytes_sent

    assert together(work) == [(True, 0), (True, 0)]


def test_moments_and_averages_are_averaged():
    def work(rank, group):
        model, outer = local(rank, group)
        moved(model, rank)
        outer.after_update()
        moments = [torch.full((5,), float(rank))]
        averages = [weight.detach() + rank for weight in model.parameters()]
        outer.settle(moments, averages)
        return moments[0], averages[0]

    (moment, average), (other_moment, other_average) = together(work)
    assert moment.tolist() == other_moment.tolist() == [0.5] * 5
    assert average.equal(other_average)


def test_momentum_goes_into_the_checkpoint_and_comes_back():
    def work(rank, group):
        model, outer = local(rank, group, momentum=0.5)
        for _ in range(3):
            moved(model, rank)
            outer.after_update()
        outer.settle([], [])
        saved = {name: tensor.clone() for name, tensor in outer.state().items()}
        moved(model, rank)
        outer.after_update()
        outer.load_state(saved)  # with a slice on its way
        return saved[MOMENTUM], outer.state()[MOMENTUM]

    for saved, loaded in together(work):
        assert saved.abs().sum() > 0
        assert saved.equal(loaded)
