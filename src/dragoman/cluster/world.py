"""The world: who I am among the workers, on which device, and how we add numbers up.

One process is a world of one with the same face, so no caller ever asks whether it is distributed.
Workers find their place in the environment (``join.py`` makes every starter's variables look alike).
"""

import os
import socket
import sys
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dragoman.cluster.network import Route, route_to, use_interface
from dragoman.machine import usable_cores

WATCHDOG_SECONDS = 30
LEADER_SECONDS = 60  # for the leading worker to listen; then torch says what is wrong
PATIENCE = timedelta(days=2)  # for a host that prepares a large corpus
LOOPBACK = Route("lo" if sys.platform == "linux" else "lo0", "127.0.0.1")


class PeerLost(Exception):
    """Another worker is gone, so this one cannot go on; whoever started us starts us again."""


@dataclass(frozen=True)
class World:
    """A group of workers that take every step together."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    route: Route = LOOPBACK  # to the other hosts

    @property
    def host(self) -> str:
        return socket.gethostname()

    @property
    def leads(self) -> bool:
        """Whether this is the one worker that writes files and talks."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Return the element-wise sum of ``values`` over all workers (on the CPU or the device)."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def agree(self, numbers: list[float]) -> list[float]:
        """Return the sums of a few numbers over all workers. Gloo's all-reduce takes twice as many round trips."""
        if self.size == 1:
            return numbers
        mine = torch.tensor(numbers, dtype=torch.float64)
        everybodys = mine.new_empty(self.size, len(mine))
        dist.all_gather(list(everybodys.unbind()), mine)
        return everybodys.sum(0).tolist()

    def share(self, value: Any, source: int = 0) -> Any:
        """Return the ``value`` of one worker, the leader's if none is named, on every worker."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=source, device=torch.device("cpu"))
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """Return every worker's ``value`` on every worker, by rank."""
        values = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(values, value)
        return values

    def meet(self, place: str) -> None:
        """Wait until every worker has come to ``place``, however long that takes: collectives have a timeout."""
        if self.size > 1:
            store = dist.distributed_c10d._get_default_store()
            store.set(f"{place}/{self.rank}", "here")
            store.wait([f"{place}/{rank}" for rank in range(self.size)], PATIENCE)

    def leave(self) -> None:
        if self.size > 1:
            dist.destroy_process_group()


def join_world(timeout_seconds: float, interface: str | None = None) -> World:
    """Take the place in the world that the environment gives; without one, be a world of one.

    Messages go over ``interface``, or over the one that leads to the worker that leads.
    """
    rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if torch.cuda.is_available():
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", max(1, usable_cores() // local_size))))
    route = LOOPBACK
    if size > 1:
        if local_size < size or interface is not None:
            route = route_to(os.environ["MASTER_ADDR"], interface)
        use_interface(route.interface)
        # Small decisions travel as CPU tensors over Gloo even where gradients use NCCL: no wait for the GPU.
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        if rank:
            _await_leader()
        # The watchdog gives up after the timeout and says why; this is for when it cannot.
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_seconds + WATCHDOG_SECONDS))
    return World(rank, size, local_rank, local_size, device, route)


def _await_leader() -> None:
    """Return once the leading worker listens, or after a while: a refused connection torch tries again late."""
    leader = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    ends = time.monotonic() + LEADER_SECONDS
    while time.monotonic() < ends:
        try:
            socket.create_connection(leader, timeout=1).close()
            return
        except OSError:
            time.sleep(0.01)


def is_peer_lost(error: BaseException) -> bool:
    """Whether ``error`` is what a collective raises when another worker died or went silent."""
    if isinstance(error, PeerLost | dist.DistBackendError | dist.DistNetworkError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and ("gloo" in text or "Connection" in text or "NCCL" in text)
