"""Who shares a machine with whom, and exchanges between machines.

Within a host bytes are cheap, between hosts they are not. So the workers of a host first become equal by themselves;
then the first worker of each host speaks for all of them, and tells them what the other hosts said.
"""

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from dragoman.cluster.wire import Gather, Group, chunks, decode, encode
from dragoman.cluster.world import World


@dataclass(frozen=True)
class Hosts:
    """Who works on the same machine, and who speaks for each."""

    shares: list[float]  # of all workers, those of each host
    number: int  # of this host among them
    workers: int  # of this host
    here: Group  # the workers of this host
    across: Group | None  # the first worker of every host; None for the others
    first: int  # rank of this host's first worker

    @property
    def count(self) -> int:
        return len(self.shares)

    @property
    def share(self) -> float:
        """The workers of this host, as a share of all."""
        return self.shares[self.number]


def find_hosts(world: World, timeout_seconds: float) -> Hosts:
    """Let the workers find out who shares a machine with whom, and make the groups they need."""
    ranks = same_host(world.gather((world.host, world.local_rank)))
    timeout = timedelta(seconds=timeout_seconds)
    # Everybody makes every group, in the same order, also those it is no member of.
    groups = [dist.new_group(members, timeout=timeout) for members in ranks]
    across = dist.new_group([members[0] for members in ranks], timeout=timeout)
    here = next(number for number, members in enumerate(ranks) if world.rank in members)
    return Hosts(
        shares=[len(members) / world.size for members in ranks],
        number=here,
        workers=len(ranks[here]),
        here=groups[here],
        across=across if world.rank == ranks[here][0] else None,
        first=ranks[here][0],
    )


def same_host(workers: Sequence[tuple[str, int]]) -> list[list[int]]:
    """Return the ranks on each host, from every worker's host name and its number there.

    Two workers with the same name and number are on two hosts: machines may be called the same.
    """
    hosts: dict[tuple[str, int], list[int]] = {}
    seen: Counter[tuple[str, int]] = Counter()
    for rank, (name, number) in enumerate(workers):
        hosts.setdefault((name, seen[name, number]), []).append(rank)
        seen[name, number] += 1
    return list(hosts.values())


class Exchange:
    """What ``combine`` makes of all hosts' numbers, on its way; the workers of a host give the same numbers.

    Takes the numbers and what is to be added to them as ``encode`` does, and like it leaves in ``values`` what
    rounding lost. ``combine`` is given pieces of whole blocks.
    """

    def __init__(
        self,
        hosts: Hosts,
        values: Tensor,
        wire: str,
        combine: Callable[[list[Tensor]], Tensor],
        more: Tensor | None = None,
        weight: float = 1.0,
    ) -> None:
        self._hosts, self._combine, self._gather = hosts, combine, None
        self._numbers, self._wire, self.bytes_sent = len(values), wire, 0
        # Equal workers round equally, so each knows what its host's first worker sends.
        self._data = encode(values, wire, more, weight)
        if hosts.across is not None:
            self._gather = Gather(self._data, self._numbers, wire, hosts.across)
            self.bytes_sent = self._gather.bytes_sent

    def sent(self, start: int, end: int) -> Tensor:
        """Return what the other hosts see of a piece of this one's numbers, after rounding."""
        return decode(self._data, self._numbers, self._wire, start, end)

    def drain(self) -> None:
        """Wait until all has arrived."""
        if self._gather is not None:
            self._gather.drain()

    def wait(self, result: Tensor | None = None) -> Tensor:
        """Return the combination, the same bits on every worker of every host, in ``result`` if given."""
        if result is None:
            result = torch.empty(self._numbers, device=self._data.device)
        self.drain()
        if self._gather is not None:
            for start, end in chunks(result):
                result[start:end] = self._combine(self._gather.numbers(start, end))
        if self._hosts.workers > 1:
            dist.broadcast(result, self._hosts.first, group=self._hosts.here)
        return result


def total(values: list[Tensor]) -> Tensor:
    """Return the sum of all hosts' numbers, added up in the order of hosts."""
    return functools.reduce(torch.add, values)
