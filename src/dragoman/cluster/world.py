"""The world: who I am among the workers, on which device, and how we add numbers up.

One process is a world of one with the same face, so no caller ever asks whether it is distributed.
Workers started by torchrun's agent (ours, or anybody's) find their place in the environment.
"""

import os
import socket
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dragoman.machine import usable_cores


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

    def share(self, value: Any) -> Any:
        """Return the leader's ``value`` on every worker; the others' is ignored."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]

    def leave(self) -> None:
        if self.size > 1:
            dist.destroy_process_group()


def joined_by_environment() -> bool:
    """Whether somebody started this process as one of several workers."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def join_world(timeout_seconds: float) -> World:
    """Take the place in the world that the environment gives; without one, be a world of one."""
    rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if torch.cuda.is_available():
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", max(1, usable_cores() // local_size))))
    if size > 1:
        # Small decisions travel as CPU tensors over Gloo even where gradients use NCCL: no wait for the GPU.
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_seconds))
    return World(rank, size, local_rank, local_size, device)


def is_peer_lost(error: BaseException) -> bool:
    """Whether ``error`` is what a collective raises when another worker died or went silent."""
    if isinstance(error, PeerLost | dist.DistBackendError | dist.DistNetworkError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and ("gloo" in text or "Connection" in text or "NCCL" in text)
