"""Where the seconds of a step go: a clock that is told whenever the main thread turns to something else.

Every moment between two steps belongs to exactly one phase, or to what stays apart (an evaluation, a checkpoint), so
the phases of a step add up to its seconds by construction.

A host's clock sees a GPU only when it waits for it, which is when losses are read: that is computing. So a GPU's
``compute`` also holds what it still had to do of the update before, and ``optimizer`` holds little.
"""

import time
from collections.abc import Callable

from dragoman.observe.history import PHASES


class PhaseClock:
    """Adds up the seconds of each phase until the step is done."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._phase, self._since = "", now()
        self._spent = dict.fromkeys(PHASES, 0.0)

    def at(self, phase: str) -> None:
        """Turn to ``phase``; what is none of ``PHASES`` stays apart. Costs under a microsecond."""
        now = self._now()
        if self._phase in self._spent:
            self._spent[self._phase] += now - self._since
        self._phase, self._since = phase, now

    def step_done(self, exposed_seconds: float = 0.0) -> dict[str, float]:
        """Return the seconds of each phase since the last call, and turn to telling of them.

        ``exposed_seconds`` is the exchange as the device saw it. The host took for computing what it
        did not see of it.
        """
        self.at("logging")
        spent, self._spent = self._spent, dict.fromkeys(PHASES, 0.0)
        unseen = min(max(exposed_seconds - spent["exchange"], 0.0), spent["compute"])
        spent["exchange"] += unseen
        spent["compute"] -= unseen
        return spent
