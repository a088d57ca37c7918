"""How workers stay one model: the face that the training loop sees.

One replica (torch's DistributedDataParallel) wraps the model for the whole run. Its communication hook hands every
bucket to the way of exchanging gradients that is in use, so the mode can change in the middle of a run:

    every-step   gradients are summed in every step, in full; any number of workers gives the same losses
    compressed   … rounded or as thin matrices; what that loses is kept and goes with the next step
    local        hosts train by themselves and average their weights now and then

Workers may hold something of their own between steps. ``settle`` brings it together: afterwards all are in the
same state, and one checkpoint holds everything for any number of workers.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dragoman.cluster.across import Hosts, find_hosts
from dragoman.cluster.estimate import LEVELS, Mode
from dragoman.cluster.gradients import Answer, Exact, Feedback, LowRank, Rounded
from dragoman.cluster.local import Local
from dragoman.cluster.quantised import Quantised
from dragoman.cluster.replica import Replica
from dragoman.cluster.wire import DTYPES
from dragoman.cluster.world import World
from dragoman.config import Cluster

# On a slow link the first bytes should leave early. Plain every-step keeps torch's size, and so its order of sums.
SMALL_BUCKET_MB = 1

Tensors = Callable[[], Iterable[Tensor]]


def mode_of(cfg: Cluster) -> Mode:
    """Return the mode that a recipe asks for; ``auto`` starts with the exact one."""
    if cfg.sync == "local":
        return Mode(cfg.sync, cfg.wire_format, cfg.inner_steps)
    return Mode("every-step" if cfg.sync == "auto" else cfg.sync, cfg.wire_format)


@dataclass(frozen=True)
class Cost:
    """What staying one model cost this worker in a step."""

    bytes_sent: int
    exposed_seconds: float  # of waiting that no computation hides
    hidden_seconds: float = 0.0  # of an exchange, at most: the backward pass after its first gradients


class Sync:
    """The model as the world trains it: call ``module`` within ``micro_batch``."""

    def __init__(
        self, world: World, model: nn.Module, cfg: Cluster, *, moments: Tensors, averages: Tensors
    ) -> None:
        """``moments`` and ``averages`` return what the optimizer and the moving average hold at that time."""
        self.world, self.model, self.cfg = world, model, cfg
        self._moments, self._averages = moments, averages
        self._hosts: Hosts | None = None
        self._local: Local | None = None
        self._gradients = Exact(model, None)
        self._waiting, self._hiding = Stopwatch(world.device), Stopwatch(world.device)
        self.on_wait: Callable[[], None] = lambda: None  # called when nothing is left to do but to wait
        self.module: nn.Module = model
        if world.size > 1:
            replica = Replica(
                model,
                device_ids=[world.device] if world.device.type == "cuda" else None,
                gradient_as_bucket_view=True,
                bucket_cap_mb=None if cfg.sync == "every-step" else SMALL_BUCKET_MB,
            )
            replica.register_comm_hook(None, self._exchange_bucket)
            self.module = replica
        self.mode = self.use(mode_of(cfg))

    def use(self, mode: Mode) -> Mode:
        """Train in ``mode`` from now on; all workers are in the same state."""
        self.mode, self._local = mode, None
        self._gradients.leave()
        if self.world.size == 1:
            return mode
        group = dist.group.WORLD
        if mode.sync == "local" and self.hosts.count > 1:
            self._local = Local(
                self.hosts,
                self.model,
                wire=mode.wire,
                inner_steps=mode.inner_steps,
                learning_rate=self.cfg.outer_learning_rate,
                momentum=self.cfg.outer_momentum,
            )
            self._gradients = Exact(self.model, self.hosts.here)
        elif mode.wire in LEVELS and self.hosts.count > 1:
            self._gradients = Quantised(self.model, self.hosts, mode.wire)
        elif mode.wire == "powersgd":
            self._gradients = LowRank(self.model, group, self.cfg.powersgd_rank)
        elif mode.sync == "compressed" and mode.wire in DTYPES:
            self._gradients = Feedback(self.model, group, mode.wire)
        elif mode.sync == "every-step" and mode.wire == "bf16":
            self._gradients = Rounded(self.model, group)
        else:
            self._gradients = Exact(self.model, group)
        return mode

    @property
    def hosts(self) -> Hosts:
        """Who works where; found out together, when first asked for."""
        if self._hosts is None:
            self._hosts = find_hosts(self.world, self.cfg.timeout_seconds)
        return self._hosts

    def description(self) -> str:
        """Say in one line how workers stay one model."""
        if self.world.size == 1:
            return "one worker: nothing to exchange"
        if (self.mode.sync == "local" or self.mode.wire in LEVELS) and self.hosts.count == 1:
            return (
                f"{self.mode}, but all workers are on one host: gradients are summed in every step, in full"
            )
        return str(self.mode)

    def loss_weight(self, tokens: int, loss_scale: float) -> float:
        """Return what to multiply a sum of losses with, in a step of ``tokens`` tokens over the world.

        The gradients that are exchanged then sum to the mean over the step. A host that trains by itself takes
        the mean over its part of the step.
        """
        self._gradients.loss_scale = loss_scale
        return loss_scale / (tokens if self._local is None else tokens * self._local.hosts.share)

    @contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[None]:
        """Surround one forward and backward; only the last of a step exchanges gradients."""
        self._gradients.is_last = last
        if not isinstance(self.module, Replica):
            yield
        elif not last:
            with self.module.no_sync():
                yield
        else:
            yield
            self._gradients.finish()
            self._waiting.stop()

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Exchange gradients that mean nothing, and remember nothing of them."""
        real, self._gradients = self._gradients, Exact(self.model, self._gradients.group)
        real.leave()
        yield
        self._gradients = real
        real.enter()
        self.cost()

    def after_update(self) -> None:
        """Follow a step that changed the weights."""
        if self._local is not None:
            self._begin_to_wait()
            self._local.after_update()
            self._waiting.stop()

    def after_skip(self) -> None:
        """Follow a step whose gradient was bad."""
        self._gradients.forget()

    def settle(self) -> None:
        """Bring all workers into the same state, before an evaluation or a checkpoint."""
        self._gradients.settle()
        if self._local is not None:
            self._local.settle((each for each in self._moments() if each.ndim), self._averages())

    def drain(self) -> None:
        """Wait until nothing is on its way: the link is free."""
        if self._local is not None:
            self._local.drain()

    def cost(self) -> Cost:
        """Return what the step cost since the last call."""
        sent = self._gradients.bytes_sent
        self._gradients.bytes_sent = 0
        if self._local is not None:
            sent += self._local.bytes_sent
            self._local.bytes_sent = 0
        return Cost(sent, self._waiting.seconds(), self._hiding.seconds())

    def state(self) -> dict[str, Tensor]:
        """Return what a checkpoint holds beside weights and optimizer; nothing for plain ``every-step``."""
        return self._gradients.state() | ({} if self._local is None else self._local.state())

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from a checkpoint of any mode and number of workers; the weights are loaded already."""
        self._gradients.load_state(tensors)
        if self._local is not None:
            self._local.load_state(tensors)

    def _begin_to_wait(self) -> None:
        self._waiting.start()
        self.on_wait()

    def _exchange_bucket(
        self,
        state: None,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> Answer:
        answer = self._gradients.bucket(bucket)
        if bucket.index() == 0:
            self._hiding.start()
        if bucket.is_last():
            self._hiding.stop()
            self._begin_to_wait()
        return answer


class Stopwatch:
    """Adds up seconds between moments on the device; the host's clock says little about a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._now = _gpu_moment if device.type == "cuda" else time.perf_counter
        self._moments: list[Any] = []

    def start(self) -> None:
        self._moments.append(self._now())

    stop = start

    def seconds(self) -> float:
        """Return the seconds since the last call. Waits for the device, as reading the step's loss did already."""
        spans = [
            ended - began if isinstance(ended, float) else _gpu_seconds(began, ended)
            for began, ended in zip(self._moments[::2], self._moments[1::2], strict=True)
        ]
        self._moments.clear()
        return sum(spans)


def _gpu_moment() -> Any:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _gpu_seconds(began: Any, ended: Any) -> float:
    ended.synchronize()
    return float(began.elapsed_time(ended)) / 1000
