"""What the network between workers can do, found out by a few exchanges that all of them take part in."""

import time
from collections.abc import Sequence

import torch

from dragoman.cluster.estimate import Link, all_reduce_bytes
from dragoman.cluster.world import World

SECONDS = 0.5  # of the exchange that counts; what a probe costs
BYTES = (2**18, 2**23)  # less is all latency; more tells nothing new


def probe(world: World) -> Link:
    """Time exchanges of almost nothing, and of as much as fits into half a second; return what this worker saw."""
    latency = min(_time_exchange(world, 4) for _ in range(5))
    size = BYTES[0]
    seconds = _time_exchange(world, size)
    # All workers time the same exchange; the leader's size is everybody's.
    wanted = size * SECONDS / seconds
    size = world.share(int(min(max(wanted, BYTES[0]), BYTES[1])))
    seconds = _time_exchange(world, size)
    return Link(latency, all_reduce_bytes(size, world.size) / max(seconds - latency, 1e-6))


def slowest(links: Sequence[Link]) -> Link:
    """Return the link that all workers agree on: nobody saw a worse one."""
    return Link(max(link.latency_seconds for link in links), min(link.bytes_per_second for link in links))


def _time_exchange(world: World, size: int) -> float:
    numbers = torch.zeros(size // 4, device=world.device)
    started = time.perf_counter()
    world.sum(numbers)[0].item()
    return time.perf_counter() - started
