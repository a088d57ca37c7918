"""``sync = "auto"``: measure computing and the network, take the mildest mode that the network allows, keep watching.

The first steps run in full and tell how long a step computes; a probe tells how long bytes travel. From both follows
how long a step would wait in each mode. The mildest mode is taken that loses less than a tenth of its time to waiting
and rounding. Later probes, and the waiting that is measured, make it think again; so does a dev loss that gets worse
twice in a row, which leads to a milder mode for the rest of the run. All workers decide from the same numbers.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from dragoman.cluster.estimate import (
    ALLOWED,
    GRADIENTS,
    WEIGHTS,
    Estimate,
    Link,
    Measured,
    Mode,
    Shape,
    bytes_per_step,
    choose,
    estimate,
)
from dragoman.cluster.probe import probe, slowest
from dragoman.cluster.sync import Cost, Sync
from dragoman.cluster.wire import decode, encode

WARM_UP, MEASURED = 3, 5  # steps before and during the first measurement, and the trial of a new mode
WATCH_STEPS, WATCH_SECONDS = 100, 100.0  # between later looks, at least: each takes most of a second
TOO_MUCH = 0.15  # of a step's time lost makes it think again, once a mode has passed its trial
GUARD_BAND, GUARD_TIMES = 0.02, 2  # dev loss this much above the best, this often in a row
COMPUTING = ("data", "compute", "optimizer")  # phases of a step that no other mode makes shorter
SAMPLE = 2**20  # numbers whose rounding is timed


@dataclass(frozen=True)
class Decision:
    """A choice, and what led to it."""

    step: int
    mode: Mode
    why: str
    measured: Measured | None = None
    estimates: tuple[Estimate, ...] = ()

    def lines(self) -> list[str]:
        """Say it to a reader."""
        said = [f"synchronisation from step {self.step + 1:,}: {self.mode} ({self.why})"]
        if self.measured is not None:
            measured = self.measured
            said.append(
                f"  measured: {measured.compute_seconds:.2f} s computing and {measured.exposed_seconds:.2f} s waiting "
                f"a step; link {measured.link}"
            )
        said += [
            f"  {each.mode!s:<40} {each.bytes_per_step / 1e6:8.2f} MB a step, would wait "
            f"{each.exposed_seconds:6.2f} s, lose {each.share:.0%}{'  <- taken' if each.mode == self.mode else ''}"
            for each in self.estimates
        ]
        return said


class Fixed:
    """The recipe says which mode: nothing to choose."""

    def after_step(self, step: int, spent: Mapping[str, float], cost: Cost) -> None:
        """Look at what a step took, in seconds by phase; now and then, think again."""

    def after_evaluation(self, step: int, dev_loss: float) -> None:
        """Look at what the model has learned; the workers are settled."""

    def state(self) -> dict[str, Any] | None:
        """Return what a checkpoint remembers, as JSON."""
        return None

    def load_state(self, state: dict[str, Any] | None) -> None:
        """Go on with an earlier choice."""


class Auto(Fixed):
    """Chooses the mode of ``sync``, and tells why."""

    def __init__(self, sync: Sync, tell: Callable[[Decision], None]) -> None:
        self._sync, self._tell = sync, tell
        sizes = [weight.numel() for weight in sync.model.parameters()]
        # The embedding is the largest weight, and the first of the forward pass: its gradient is the last.
        self._shape = Shape(sum(sizes), max(sizes), sync.world.size, sync.hosts.count)
        self._modes = GRADIENTS[:2] if sync.hosts.count == 1 else GRADIENTS + WEIGHTS
        self._allowed = len(self._modes)  # how many of them, mildest first, dev loss has not ruled out
        # (computing, waiting, hiding) since the last look. Who waits for bytes keeps the others waiting when they
        # agree. So both count as waiting, and what everybody waits for is the network: nobody computes meanwhile.
        self._steps: list[tuple[float, float, float]] = []
        self._warm, self._on_trial, self._watch_steps = False, False, WATCH_STEPS
        self._link: Link | None = None  # what the choice was made for; None before the first
        self._hidden_seconds = 0.0
        self._measured: dict[Mode, Estimate] = {}  # modes that lost too much when they were in use
        self._best: float | None = None
        self._worse = 0

    def after_step(self, step: int, spent: Mapping[str, float], cost: Cost) -> None:
        computing = sum(spent[phase] for phase in COMPUTING)
        self._steps.append((computing, cost.exposed_seconds + spent["agree"], cost.hidden_seconds))
        if not self._warm and len(self._steps) == WARM_UP:
            self._steps.clear()
            self._warm = True
        elif len(self._steps) >= (MEASURED if self._link is None or self._on_trial else self._watch_steps):
            self._look(step)
            self._steps.clear()

    def after_evaluation(self, step: int, dev_loss: float) -> None:
        if self._best is None or dev_loss < self._best:
            self._best = dev_loss
        self._worse = self._worse + 1 if dev_loss > self._best * (1 + GUARD_BAND) else 0
        place = self._modes.index(self._sync.mode)
        if self._worse >= GUARD_TIMES and place > 0:
            self._allowed, self._worse = place, 0
            self._sync.use(self._modes[place - 1])
            why = f"dev loss {dev_loss:.4f} is above its best {self._best:.4f}, {GUARD_TIMES} times in a row"
            self._tell(Decision(step, self._sync.mode, why))

    def state(self) -> dict[str, Any] | None:
        return {
            "workers": self._sync.world.size,
            "mode": asdict(self._sync.mode),
            "link": None if self._link is None else asdict(self._link),
            "hidden_seconds": self._hidden_seconds,
            "allowed": self._allowed,
            "best": self._best,
            "worse": self._worse,
        }

    def load_state(self, state: dict[str, Any] | None) -> None:
        self._steps, self._warm, self._on_trial = [], False, False
        if state is None:
            return
        self._best, self._worse = state["best"], state["worse"]
        if state["workers"] == self._sync.world.size and Mode(**state["mode"]) in self._modes:
            self._allowed, self._hidden_seconds = state["allowed"], state["hidden_seconds"]
            self._link = None if state["link"] is None else Link(**state["link"])
            self._sync.use(Mode(**state["mode"]))
        else:  # another cluster: measure it, from the start
            self._link = None
            self._sync.use(self._modes[0])

    def _look(self, step: int) -> None:
        in_use = self._sync.mode
        # After the last way for gradients hosts train by themselves, which costs more than a few hundredths of time.
        too_much = ALLOWED if self._on_trial and in_use != GRADIENTS[-1] else TOO_MUCH
        # A mode on trial was chosen for a link that was probed a few steps ago; again only if it is not as hoped for.
        measured = self._measure(self._link if self._on_trial else None)
        if self._on_trial and measured.lost_in(in_use) > too_much:
            measured = replace(measured, link=self._probe())
        lost = measured.lost_in(in_use)
        self._watch_steps = max(WATCH_STEPS, math.ceil(WATCH_SECONDS / measured.step_seconds))
        self._on_trial = False
        if self._link is None:
            why = f"the mildest that loses less than {ALLOWED:.0%} of the time"
        elif measured.link.differs(self._link):
            why = f"the link had {self._link.bytes_per_second * 8 / 1e6:,.0f} Mbit/s"
            self._measured.clear()
        elif lost > too_much:
            why = f"{lost:.0%} of the time was spent on the exchange"
            self._measured[in_use] = Estimate(
                in_use, bytes_per_step(in_use, self._shape), measured.exposed_seconds, lost
            )
        else:
            return
        if in_use.sync != "local":  # else there was no exchange to time
            self._hidden_seconds = measured.hidden_seconds
        # What was measured counts more than what is estimated: a mode that lost too much is out.
        estimates = [
            self._measured.get(mode) or estimate(mode, self._shape, measured, self._hidden_seconds)
            for mode in self._modes[: self._allowed]
        ]
        self._link = measured.link
        mode = choose(estimates).mode
        if mode != in_use:
            self._sync.settle()
            self._sync.use(mode)
            self._warm, self._on_trial = False, True
        self._tell(Decision(step, mode, why, measured, tuple(estimates)))

    def _measure(self, link: Link | None) -> Measured:
        """Return what the last steps took, with a link that is known or probed now."""
        mine = (*(sum(each) / len(each) for each in zip(*self._steps, strict=True)), self._time_rounding())
        computing, waiting, hiding, rounding = zip(*self._sync.world.gather(mine), strict=True)
        return Measured(max(computing), min(waiting), link or self._probe(), max(rounding), min(hiding))

    def _probe(self) -> Link:
        self._sync.drain()
        return slowest(self._sync.world.gather(probe(self._sync.world)))

    def _time_rounding(self) -> float:
        numbers = torch.randn(min(SAMPLE, self._shape.weights), device=self._sync.world.device)
        for _ in range(2):  # the second time counts
            started = time.perf_counter()
            data = encode(numbers, "int4")
            decode(data, len(numbers), "int4")[0].item()
        return (time.perf_counter() - started) * self._shape.weights / len(numbers)
