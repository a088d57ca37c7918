"""Who holds up the world: pure functions from what each rank last said of itself (a beat) to a diagnosis.

    silent   no beat for a while: the process is stopped, or its host is dead or cut off
    stuck    beats, but has been in one place far longer than usual
    slow     takes far longer than usual too, but moves
    busy     at work, and within its limits
    waiting  for the others, in a collective: a victim, never a suspect

Every rank judges for itself and, as all hear the same beats, comes to the same result. No two machines' clocks are
compared: a beat says how long something has lasted, never when it began.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

FAR = 8.0  # times the median: far longer than its own history
FAR_BEHIND = 3.0  # times the median, while all others wait for this one rank: far longer than its peers
SHOWN_OTHERS = 8  # lines for ranks that are not suspects; a large world says how many more there are


class Phase(NamedTuple):
    doing: str  # as a sentence says it
    waits: bool = False  # for the other ranks
    rare: bool = False  # not in every step: measured apart from the steps


PHASES = {
    "start": Phase("starting", rare=True),
    "data": Phase("loading data"),
    "compute": Phase("computing"),
    "exchange": Phase("waiting in the exchange", waits=True),  # of gradients
    "agree": Phase("waiting for the sums of all", waits=True),  # losses, wishes, decisions
    "optimizer": Phase("updating the weights"),
    "evaluate": Phase("evaluating", rare=True),
    "sample": Phase("translating a sample", rare=True),
    "measure": Phase("measuring device and network", waits=True, rare=True),
    "checkpoint": Phase("saving a checkpoint", rare=True),
    "restore": Phase("loading a checkpoint", rare=True),
    "left": Phase("leaving", rare=True),  # the last beat of a rank that stops its watchdog
}


@dataclass(frozen=True)
class Limits:
    """How long is too long. Tests use shorter ones."""

    timeout_seconds: float  # nobody moves: give up
    beat_seconds: float = 1.0
    silent_seconds: float = 10.0
    lost_host_seconds: float = 30.0  # a link may be cut for less
    step_seconds: float = 15.0  # at least, however short steps usually are
    rare_seconds: float = 60.0  # at least, for what is not in every step, and for the first step
    gap_seconds: float = 5.0  # a watchdog that comes so late was stopped itself
    repeat_seconds: float = 60.0

    def of(self, phase: str, median: float | None, *, behind: bool = False) -> float:
        """Return how long a step, or a rare phase, may last; ``median`` is that of its history.

        A step has less time when this rank is ``behind``: all others wait for it.
        """
        rare = PHASES[phase].rare
        least = self.rare_seconds if rare or median is None else self.step_seconds
        return max(least, (FAR_BEHIND if behind and not rare else FAR) * (median or 0.0))


@dataclass(frozen=True)
class Beat:
    """What a rank says of itself, brought up to date by whoever heard it."""

    rank: int
    phase: str
    step: int | None
    micro_batch: int | None
    seconds: float  # in this very place
    lasting: float  # in this step, or this rare phase
    median: float | None  # of the recent steps, or of this rare phase
    stack: tuple[str, ...] = ()  # innermost first, once it lasts long
    host: str = ""  # filled in by the hearer, as is
    quiet: float = 0.0  # how long ago it was heard

    def aged(self, seconds: float) -> "Beat":
        """Return what holds ``seconds`` later if nothing else is heard."""
        return replace(self, seconds=self.seconds + seconds, lasting=self.lasting + seconds, quiet=seconds)

    def waits(self) -> bool:
        return PHASES[self.phase].waits

    def doing(self) -> str:
        """Return for example "computing micro-batch 3 of step 120"."""
        phase = PHASES[self.phase]
        what = "" if self.micro_batch is None else f" micro-batch {self.micro_batch}"
        when = "" if self.step is None else f" {'after' if phase.rare else 'of'} step {self.step:,}"
        return phase.doing + what + when

    def line(self, kind: str) -> str:
        """Return what there is to say about this rank, found to be of ``kind``."""
        if self.phase == "left":
            text = f"left {_span(self.quiet)} ago"
        elif kind == "silent":
            text = f"no sign of life for {_span(self.quiet)}; last seen {self.doing()}"
        elif kind == "stuck":
            text = f"stuck {self.doing()} for {_span(self.seconds)}"
        elif kind == "slow":
            text = f"slow: {self.doing()}, {_span(self.lasting)} in all"
        else:
            text = f"{self.doing()} for {_span(self.seconds)}"
        return f"rank {self.rank} on {self.host}: {text}"


@dataclass(frozen=True)
class Diagnosis:
    """Who holds up the world, as far as this rank can see."""

    longest: Beat  # what takes too long
    ranks: tuple[tuple[str, Beat], ...]  # (kind, beat), suspects first
    unheard: tuple[int, ...]  # of which no beat ever came
    speaks: bool  # whether this rank is the one to say so

    def suspects(self) -> list[tuple[str, Beat]]:
        return [(kind, beat) for kind, beat in self.ranks if kind in ("silent", "stuck", "slow")]

    def lines(self) -> list[str]:
        """Return it as text: what takes too long, then rank by rank, suspects with their stacks."""
        what, suspects = self.longest, self.suspects()
        name = what.doing() if PHASES[what.phase].rare or what.step is None else f"step {what.step:,}"
        usual = "" if what.median is None else f" (median {_span(what.median)})"
        lines = [f"{name} has taken {_span(what.lasting)}{usual}"]
        for kind, beat in self.ranks[: len(suspects) + SHOWN_OTHERS]:
            lines.append(f"  {beat.line(kind)}")
            if (kind, beat) in suspects:
                lines += [f"      {frame}" for frame in beat.stack]
        hidden = len(self.ranks) - len(suspects) - SHOWN_OTHERS
        if hidden > 0:
            lines.append(f"  {hidden} more ranks wait or are within their limits")
        if self.unheard:
            lines.append(f"  {name_ranks(self.unheard)}: no beat ever came, so nothing is known")
        elif not suspects:
            hosts = {beat.host for _, beat in self.ranks}
            why = (
                "the network between the hosts is stuck or very slow"
                if len(hosts) > 1
                else "a collective hangs"
            )
            lines.append(f"  all ranks wait for each other: {why}")
        return lines

    def to_json(self) -> dict[str, Any]:
        """Return it as the values of an event."""
        return {
            "step": self.longest.step,
            "phase": self.longest.phase,
            "seconds": self.longest.lasting,
            "median": self.longest.median,
            "suspects": [beat.rank for _, beat in self.suspects()],
            "ranks": [{"kind": kind, **asdict(beat)} for kind, beat in self.ranks],
            "unheard": list(self.unheard),
        }


def judge(beats: Sequence[Beat], me: int, limits: Limits, unheard: Sequence[int] = ()) -> Diagnosis | None:
    """Return who holds up the world, or None while all is well. ``beats`` are the last of every rank, and mine.

    Silence alone is no stall: while the steps go on, only the beats are lost.
    """

    def is_heard(beat: Beat) -> bool:
        return beat.quiet <= limits.silent_seconds and beat.phase != "left"

    silent = [beat for beat in beats if not is_heard(beat)]
    waiting = [beat for beat in beats if is_heard(beat) and beat.waits()]
    working = [beat for beat in beats if is_heard(beat) and not beat.waits()]
    behind = bool(waiting) and len(working) == 1
    late = [beat for beat in working if beat.lasting > limits.of(beat.phase, beat.median, behind=behind)]
    if late:
        held_up = late
    elif silent:
        held_up = [beat for beat in waiting if beat.seconds > limits.step_seconds]
    elif not working:
        held_up = [beat for beat in waiting if beat.lasting > limits.of(beat.phase, beat.median)]
    else:
        held_up = []  # they wait for somebody who may well take this long, for a checkpoint say
    if not held_up:
        return None
    ranks = [
        *(("silent", beat) for beat in silent),
        *(("stuck" if 2 * beat.seconds >= beat.lasting else "slow", beat) for beat in late),
        *(("busy", beat) for beat in working if beat not in late),
        *(("waiting", beat) for beat in waiting),
    ]
    longest = max(held_up, key=lambda beat: beat.lasting)
    speaker = min(beat.rank for beat in (*waiting, *working))
    return Diagnosis(longest, tuple(ranks), tuple(unheard), speaks=speaker == me)


def reason_to_give_up(beats: Sequence[Beat], me: int, limits: Limits) -> str:
    """Return why this rank should end, to be started again with the others, or "" while there is hope.

    Whoever is held up gives up a host that is silent for long. Else there is hope as long as anybody moves, be it
    from one micro-batch to the next: a long step or evaluation is no reason.
    """
    [mine] = [beat for beat in beats if beat.rank == me]
    waited = mine.waits() and mine.seconds >= limits.step_seconds
    if waited or mine.lasting > limits.of(mine.phase, mine.median):
        for host in sorted({beat.host for beat in beats}):
            there = [beat for beat in beats if beat.host == host]
            if (quiet := min(beat.quiet for beat in there)) >= limits.lost_host_seconds:
                ranks = name_ranks([beat.rank for beat in there])
                return f"{host} ({ranks}) has given no sign of life for {_span(quiet)}"
    idle = min(beat.seconds for beat in beats)
    if idle < limits.timeout_seconds:
        return ""
    diagnosis = judge(beats, me, limits)
    suspects = [] if diagnosis is None else [beat.line(kind) for kind, beat in diagnosis.suspects()]
    return "; ".join([f"nobody has moved for {_span(idle)}", *suspects])


def name_ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"
