"""How a step passes, against times worked out by hand."""

import itertools

import pytest

from dragoman.cluster.estimate import GRADIENTS, WEIGHTS, Link, Mode
from dragoman.cluster.timeline import (
    BUCKET_BYTES,
    FIRST_BUCKET_BYTES,
    SMALL_BUCKET_BYTES,
    Gradient,
    Handling,
    Network,
    Work,
    into_buckets,
    step_timing,
)

FULL, HALF, INT4 = GRADIENTS[0], GRADIENTS[1], GRADIENTS[3]
NOTHING = Handling()
# 26 M numbers that are there after half of the backward pass, and 6 M at its end: two buckets.
GRADIENT = [Gradient(26_000_000, 0.5), Gradient(6_000_000, 1.0)]


def network(workers=2, hosts=2, rate=100e6, within=1e9, latency=0.0):
    return Network(workers, hosts, Link(0.0, within), Link(latency, rate))


def test_a_ring_sends_nearly_twice_the_bytes_over_the_slowest_link():
    assert network(4, 2).sum_seconds(100e6) == pytest.approx(2 * 3 / 4 * 1.0)
    assert network(4, 1).sum_seconds(100e6) == pytest.approx(0.15)  # one host: its own links
    assert network(2, 2, within=1.0).sum_seconds(100e6) == pytest.approx(1.0)  # nobody shares a host
    assert network(1, 1).sum_seconds(100e6) == 0.0


def test_two_levels_have_a_time_each():
    here = network(4, 2)
    assert here.sum_within_seconds(100e6) == pytest.approx(0.1)
    assert here.tell_within_seconds(100e6) == pytest.approx(0.1)
    assert here.gather_seconds(100e6) == pytest.approx(1.0)
    assert network(16, 8).gather_seconds(100e6) == pytest.approx(7.0)  # everybody's to everybody


def test_small_messages_go_up_and_down_a_tree():
    links = Link(0.001, 1e9), Link(0.010, 1e9)
    assert Network(4, 2, *links).latency_seconds() == pytest.approx(2 * 0.001 + 2 * 0.010)
    assert Network(16, 8, *links).latency_seconds() == pytest.approx(2 * 0.001 + 6 * 0.010)
    assert Network(1, 1, *links).latency_seconds() == 0.0


def test_a_bucket_is_full_when_it_has_reached_its_size():
    small = [Gradient(FIRST_BUCKET_BYTES // 8, place / 10) for place in range(1, 11)]
    first, rest = into_buckets(small, BUCKET_BYTES)
    assert (first.numbers, first.ready) == (FIRST_BUCKET_BYTES // 4, 0.2)
    assert (rest.numbers, rest.ready) == (FIRST_BUCKET_BYTES, 1.0)
    assert [each.numbers for each in into_buckets(small, SMALL_BUCKET_BYTES)] == [SMALL_BUCKET_BYTES // 4] * 5


def test_a_bucket_hides_behind_the_backward_pass_that_is_still_to_come():
    # 104 MB leave at 1 s and arrive at 2.04 s; 24 MB are ready at 2 s, wait for the link, and arrive at 2.28 s.
    timing = step_timing(FULL, GRADIENT, Work(3.0, 2.0, 0.1), network(), NOTHING)
    assert timing.exposed == pytest.approx(0.28)
    assert timing.seconds == pytest.approx(3.0 + 0.28 + 0.1)
    assert timing.bytes_sent == 128e6
    # In half the bytes the first has arrived before the second is ready.
    assert step_timing(HALF, GRADIENT, Work(3.0, 2.0, 0.1), network(), NOTHING).exposed == pytest.approx(0.12)


def test_rounding_is_in_the_way_and_gradients_of_four_bits_are_small():
    handling = Handling(encode=10e-9, decode=5e-9)
    timing = step_timing(INT4, GRADIENT, Work(3.0, 2.0, 0.1), network(), handling)
    # A fifth of the embedding's rows travel a second time, when all else has arrived.
    assert timing.handling == pytest.approx(33.2e6 * 15e-9)
    assert timing.exposed == pytest.approx(0.0, abs=1e-9)  # restoring what came before takes longer
    size = 1_200_000 * 34 / 64  # half a byte and a share of the scale
    timing = step_timing(INT4, GRADIENT, Work(3.0, 2.0, 0.1), network(), NOTHING)
    assert timing.exposed == pytest.approx(size / 100e6, abs=1e-6)


def test_weights_travel_while_the_next_step_computes():
    work = Work(3.0, 2.0, 0.1)
    mode = Mode("local", "int4", 4)
    size = 32e6 / 4 * 34 / 64
    assert step_timing(mode, GRADIENT, work, network(), NOTHING).exposed == 0.0
    slow = step_timing(mode, GRADIENT, work, network(rate=1e6), NOTHING)
    assert slow.exposed == pytest.approx(size / 1e6 - 3.1, abs=1e-3)
    assert slow.bytes_sent == pytest.approx(size, rel=1e-4)


def test_weights_may_travel_in_two_bytes():
    timing = step_timing(Mode("local", "bf16", 4), GRADIENT, Work(3.0, 2.0, 0.1), network(3, 3), NOTHING)
    assert timing.bytes_sent == 2 * 32e6 / 4 * 2  # to two others
    alone = step_timing(Mode("local", "bf16", 4), GRADIENT, Work(3.0, 2.0, 0.1), network(2, 1), NOTHING)
    assert alone.bytes_sent == 128e6


def test_on_one_host_nothing_is_rounded():
    timing = step_timing(INT4, GRADIENT, Work(3.0, 2.0, 0.1), network(2, 1), Handling(1.0, 1.0))
    assert timing.handling == 0.0
    assert timing.bytes_sent == 128e6


def test_a_worker_alone_waits_for_nobody():
    for mode in GRADIENTS + WEIGHTS:
        assert step_timing(
            mode, GRADIENT, Work(3.0, 2.0, 0.1), network(1, 1), NOTHING
        ).seconds == pytest.approx(3.1)


def test_handling_bytes_costs_the_processor_only_while_it_has_other_work():
    hidden = step_timing(FULL, GRADIENT, Work(30.0, 20.0, 0.1), network(rate=0.5e9), Handling(byte=1e-9))
    assert hidden.handling == pytest.approx(0.104, rel=0.01)  # the first bucket; the second cannot hide
    waiting = step_timing(FULL, GRADIENT, Work(0.0, 0.0, 0.1), network(), Handling(byte=1e-9))
    assert waiting.handling == pytest.approx(0.0)


@pytest.mark.parametrize("mode", GRADIENTS + WEIGHTS, ids=str)
def test_a_faster_network_is_never_slower(mode):
    work, handling = Work(1.0, 0.6, 0.1), Handling(2e-9, 1e-9, 1e-8)
    for workers, hosts in [(2, 1), (2, 2), (8, 2), (64, 16), (1024, 128)]:
        rates = [10.0**power for power in range(5, 12)]
        seconds = [
            step_timing(mode, GRADIENT, work, network(workers, hosts, rate, latency=1e-4), handling).seconds
            for rate in rates
        ]
        assert all(faster <= slower + 1e-9 for slower, faster in itertools.pairwise(seconds))
