"""How a step passes in time: buckets of gradients become ready, travel over two kinds of links, and arrive. No torch.

Workers of one host have fast links, hosts a slower network between them. A ring that passes all workers crosses each
host's network once in each direction, so what one worker sends is also what its host's network carries. Bytes hide
behind the part of the backward pass that is still to come; what is left of them when it ends is *exposed*.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from dragoman.cluster.estimate import BYTES, LEVELS, LOOKED_UP, Link, Mode, all_reduce_bytes, wire_bytes

# What torch's DistributedDataParallel does: a small first bucket, then larger ones; sync.py makes the latter small
# where the network is expected to be slow.
FIRST_BUCKET_BYTES, BUCKET_BYTES, SMALL_BUCKET_BYTES = 2**20, 25 * 2**20, 2**20


@dataclass(frozen=True)
class Network:
    """Who is connected with whom; a link's latency is that of one message."""

    workers: int
    hosts: int
    within: Link  # between the workers of a host
    between: Link  # between hosts

    @property
    def on_a_host(self) -> int:
        """Workers of the fullest host."""
        return -(-self.workers // self.hosts)

    def latency_seconds(self) -> float:
        """Return what an exchange of almost nothing takes: up and down a tree."""
        return within_latency(self) + 2 * math.ceil(math.log2(self.hosts)) * self.between.latency_seconds

    def sum_seconds(self, size: float) -> float:
        """Return what summing ``size`` bytes over all workers takes, in a ring."""
        sent = all_reduce_bytes(round(size), self.workers)
        rates = [self.within.bytes_per_second] if self.on_a_host > 1 else []
        rates += [self.between.bytes_per_second] if self.hosts > 1 else []
        return self.latency_seconds() + sent / min(rates) if rates else 0.0

    def sum_within_seconds(self, size: float) -> float:
        """Return what summing ``size`` bytes over the workers of a host takes."""
        sent = all_reduce_bytes(round(size), self.on_a_host)
        return within_latency(self) + sent / self.within.bytes_per_second if self.on_a_host > 1 else 0.0

    def tell_within_seconds(self, size: float) -> float:
        """Return what it takes until the workers of a host know what its first one knows."""
        return within_latency(self) / 2 + size / self.within.bytes_per_second if self.on_a_host > 1 else 0.0

    def gather_seconds(self, size: float) -> float:
        """Return what it takes until every host holds every host's ``size`` bytes."""
        if self.hosts == 1:
            return 0.0
        hops = math.ceil(math.log2(self.hosts))
        return hops * self.between.latency_seconds + (self.hosts - 1) * size / self.between.bytes_per_second


def within_latency(network: Network) -> float:
    return 2 * math.ceil(math.log2(network.on_a_host)) * network.within.latency_seconds


@dataclass(frozen=True)
class Handling:
    """What numbers that travel cost the processor, in seconds for each."""

    encode: float = 0.0  # to round it, keep what is lost, and restore what the others see of it
    decode: float = 0.0  # to restore another host's and add it
    byte: float = 0.0  # to send and receive a byte; a GPU has engines for that


@dataclass(frozen=True)
class Work:
    """What the slowest worker computes in a step, without any exchange."""

    compute_seconds: float  # forward and backward of all its micro-batches
    backward_seconds: float  # of the last one: what exchanges hide behind
    optimizer_seconds: float


@dataclass(frozen=True)
class Gradient:
    """A weight's gradient: how many numbers, and the share of the backward pass after which it is there."""

    numbers: int
    ready: float


@dataclass(frozen=True)
class Timing:
    """Where the seconds of a step go in one mode."""

    mode: Mode
    compute: float
    handling: float  # rounding, restoring, copying
    exposed: float  # waiting for gradients or weights that travel
    agree: float  # waiting for the losses of all
    optimizer: float
    bytes_sent: float  # by a host in a step

    @property
    def seconds(self) -> float:
        return self.compute + self.handling + self.exposed + self.agree + self.optimizer

    @property
    def lost_share(self) -> float:
        return (self.handling + self.exposed + self.agree) / self.seconds


def into_buckets(gradients: Iterable[Gradient], cap_bytes: int) -> list[Gradient]:
    """Return the buckets that gradients travel in: one is full when it has reached its size, and waits for its last."""
    buckets: list[Gradient] = []
    limit, numbers, ready = FIRST_BUCKET_BYTES if cap_bytes == BUCKET_BYTES else cap_bytes, 0, 0.0
    for gradient in gradients:
        numbers, ready = numbers + gradient.numbers, gradient.ready
        if 4 * numbers >= limit:
            buckets.append(Gradient(numbers, ready))
            limit, numbers = cap_bytes, 0
    return [*buckets, Gradient(numbers, ready)] if numbers else buckets


def step_timing(
    mode: Mode, gradients: list[Gradient], work: Work, network: Network, handling: Handling
) -> Timing:
    """Return how a step passes in ``mode``: the slowest worker computes, and all wait for what travels."""
    compute, optimizer = work.compute_seconds, work.optimizer_seconds
    if network.workers == 1:
        return Timing(mode, compute, 0.0, 0.0, 0.0, optimizer, 0.0)
    weights, others = sum(each.numbers for each in gradients), network.hosts - 1
    agree = network.latency_seconds()
    buckets = into_buckets(gradients, BUCKET_BYTES if mode.sync == "every-step" else SMALL_BUCKET_BYTES)
    if mode.sync == "local" and others:
        exposed = _wait(
            buckets, [network.sum_within_seconds(4 * each.numbers) for each in buckets], work.backward_seconds
        )
        numbers = weights / mode.inner_steps
        size = wire_bytes(weights, mode.wire) / mode.inner_steps
        rounding = numbers * (handling.encode + handling.decode * others)
        travel = network.gather_seconds(size) + network.tell_within_seconds(4 * numbers)
        late = max(0.0, travel - (compute + optimizer + exposed + agree))
        rounding += _copying(handling.byte, others * size, late, travel)
        return Timing(mode, compute, rounding, exposed + late, agree, optimizer, others * size)
    if mode.wire not in LEVELS or not others:
        # On one host nothing is rounded that only helps between hosts.
        wire = mode.wire if mode.wire in BYTES and mode.sync != "local" else "float32"
        sizes = [wire_bytes(each.numbers, wire) for each in buckets]
        travels = [network.sum_seconds(size) for size in sizes]
        exposed = _wait(buckets, travels, work.backward_seconds)
        sent = float(all_reduce_bytes(sum(sizes), network.workers))
        copying = _copying(handling.byte, sent, exposed, sum(travels))
        return Timing(mode, compute, copying, exposed, agree, optimizer, sent)
    # Gradients in few bits: a host's workers sum theirs first and round them, both in the way of the backward pass.
    # The embedding's goes first, as that of the output, and its rows last.
    table = gradients[-1].numbers
    rows = round(table * LOOKED_UP)
    buckets = into_buckets(gradients[:-1], SMALL_BUCKET_BYTES)
    buckets = [Gradient(table, gradients[0].ready), *buckets, Gradient(rows, 1.0)]
    sizes = [wire_bytes(each.numbers, mode.wire) for each in buckets]
    travels = [network.gather_seconds(size) for size in sizes]
    before = [
        network.sum_within_seconds(4 * each.numbers) + each.numbers * handling.encode for each in buckets
    ]
    after = [
        network.tell_within_seconds(4 * each.numbers) + each.numbers * handling.decode * others
        for each in buckets
    ]
    exposed = _wait(buckets, travels, work.backward_seconds, before, after)
    rounding = (weights + rows) * (handling.encode + handling.decode * others)
    exposed += sum(before) + sum(after) - rounding  # the exchanges within the host
    sent = float(others * sum(sizes))
    rounding += _copying(handling.byte, sent, exposed, sum(travels))
    return Timing(mode, compute, rounding, exposed, agree, optimizer, sent)


def _wait(
    buckets: list[Gradient],
    travel: list[float],
    backward: float,
    before: list[float] | None = None,
    after: list[float] | None = None,
) -> float:
    """Return the seconds that are waited between the end of the backward pass and the last bucket's arrival.

    Buckets travel one after the other. ``before`` is done with each in the way of the backward pass, ``after`` with
    each that has arrived, in order, once the backward pass is over; neither counts as waiting.
    """
    before, after = before or [0.0] * len(buckets), after or [0.0] * len(buckets)
    worked, free, arrivals = 0.0, 0.0, []
    for bucket, seconds, first in zip(buckets, travel, before, strict=True):
        worked += first
        free = max(free, backward * bucket.ready + worked) + seconds
        arrivals.append(free)
    ended = backward + worked
    now = ended
    for arrival, last in zip(arrivals, after, strict=True):
        now = max(now, arrival) + last
    return now - ended - sum(after)


def _copying(byte_seconds: float, sent: float, exposed: float, travel: float) -> float:
    """Return what sending takes away from other work: bytes that are waited for cost nothing more."""
    return min(byte_seconds * sent, travel) * max(0.0, 1 - exposed / travel) if travel else 0.0
