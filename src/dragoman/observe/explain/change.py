"""Question 12: what to change next, ranked by what it is predicted to gain.

Gains have one currency: the share of a step's time that is saved, and for changes to what is learned the share of
perplexity. Synchronisation is predicted with ``cluster.timeline``, the model of a step that ``plan`` uses.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from dragoman.cluster.estimate import GRADIENTS, WEIGHTS, Link, Mode
from dragoman.cluster.timeline import Gradient, Handling, Network, Work, step_timing
from dragoman.observe import events
from dragoman.observe.devices import DEVICES, Device
from dragoman.observe.explain.answer import NO, NOT_RECORDED, YES, Case, Finding, share_of, unclear
from dragoman.observe.explain.machines import ALWAYS, slowest_rank, ten_times
from dragoman.observe.history import number, whole
from dragoman.observe.plan import assumed_lengths, backward_share, gradient_order, sheet_rates

WORTH = 0.05  # of the time or perplexity: less is not worth a change
SETTINGS = {"every-step": 'cluster.sync="every-step"', "compressed": 'cluster.sync="compressed"',
            "local": 'cluster.sync="local"'}  # fmt: skip


@dataclass(frozen=True)
class Change:
    """One thing to do, and what it should give."""

    change: str
    measure: str  # what it changes: seconds per step, dev loss, share of wall clock
    now: float
    predicted: float
    gain: float  # as a share

    def __str__(self) -> str:
        units = {"seconds per step": " s per step", "dev loss": " dev loss", "wall seconds": " s in all"}
        return f"{self.change}: {self.now:.3g} → {self.predicted:.3g}{units[self.measure]}"


def next_change(case: Case) -> Finding:
    """Question 12: all that could be changed, the largest predicted gain first."""
    changes = sorted(_changes(case), key=lambda each: -each.gain)
    worthy = [each for each in changes if each.gain >= WORTH]
    evidence = {"changes": [asdict(each) for each in changes], "worth": WORTH}
    advice = [str(each) for each in worthy[:5]]
    if worthy:
        return Finding(YES, f"{worthy[0]} ({worthy[0].gain:.0%} better)", evidence, 0.8, advice)
    if case.parts and case.found.get("q02_trained", unclear("")).verdict != "unclear":
        return Finding(NO, f"nothing is predicted to gain {WORTH:.0%} or more", evidence, 0.7)
    if case.parts:
        speed = f"no other use of the machines is predicted to gain {WORTH:.0%} or more"
        return unclear(f"{speed}; whether more steps would is unclear", evidence)
    return unclear(f"too little is known to predict what a change would gain ({NOT_RECORDED})", evidence)


def _changes(case: Case) -> Iterator[Change]:
    yield from _learning(case)
    yield from _evaluations(case)
    if case.parts:
        yield from _waiting(case)
        yield from _synchronisation(case)


def _learning(case: Case) -> Iterator[Change]:
    trained, overfits = (case.found.get(key) for key in ("q02_trained", "q03_overfitting"))
    if overfits is not None and overfits.verdict == YES:
        best, last = overfits.evidence["best_dev_loss"], overfits.evidence["last_dev_loss"]
        text = f"use the model of step {overfits.evidence['best_step']:,}, and more text or dropout"
        yield Change(text, "dev loss", last, best, 1 - math.exp(best - last))
    elif trained is not None and trained.verdict == NO:
        outlook = trained.evidence.get("dev_loss", {})
        last, forecast = outlook.get("last"), outlook.get("forecast")
        text = f"twice the steps (train.steps={2 * case.last_step})"
        if (gained := outlook.get("gain_of_last_third")) is not None:  # it changes too fast for a forecast
            text, forecast = f"{text}, if they bring what the last third did", max(0.0, last - gained)
        if forecast is not None and forecast < last:
            yield Change(text, "dev loss", last, forecast, 1 - math.exp(forecast - last))


def _evaluations(case: Case) -> Iterator[Change]:
    duration = case.found.get("q01_duration")
    phases, wall = (
        (duration.evidence.get(name) for name in ("phases", "wall_seconds")) if duration else (None, None)
    )
    if not phases or not wall:
        return
    for name, setting in (
        (events.EVALUATION, "evaluate.every_steps"),
        (events.CHECKPOINT, "checkpoint.every_steps"),
    ):
        if (spent := phases.get(name, 0.0)) > 0:
            yield Change(
                f"{name}s half as often ({setting})", "wall seconds", wall, wall - spent / 2, spent / 2 / wall
            )


def _waiting(case: Case) -> Iterator[Change]:
    """Yield what it would give not to wait for data or the slowest rank."""
    now = case.step_seconds
    if share_of(case.parts, "data") > 0.02:
        yield _faster(
            "data that are there in time (a local disk, a free core)", now, now - case.parts["data"]
        )
    slow = slowest_rank(case)
    if slow is not None and case.parts["straggler"] > 0:
        rank, share, host = slow
        if share >= ALWAYS:
            text = f"rank {rank} on {host or 'its host'} as fast as the others"
            yield _faster(text, now, now - _excess(case, rank))
        else:
            text = "work shared more evenly (smaller train.micro_batch_tokens)"
            yield _faster(text, now, now - case.parts["straggler"])
    if share_of(case.parts, "logging") > 0.02:
        yield _faster("less to tell per step (log.every_steps)", now, now - case.parts["logging"])


def _excess(case: Case, rank: int) -> float:
    """Return how much longer one rank works on a step than the others do."""

    def work(share: Any) -> float:
        return float((share.parts["data"] + share.parts["compute"] + share.parts["optimizer"]).mean())

    others = [work(share) for each, share in case.shares.items() if each != rank]
    if not others or rank not in case.shares:
        return 0.0
    return max(0.0, min(work(case.shares[rank]) - sum(others) / len(others), case.step_seconds))


def _synchronisation(case: Case) -> Iterator[Change]:
    """Yield a faster link, and the other ways to stay one model.

    Predicted is the difference between two ways; how long a step takes in the one in use was measured.
    """
    now = case.step_seconds
    if case.world < 2 or share_of(case.parts, "transfer") < 0.02:
        return
    if len(case.hosts) > 1:
        yield _faster("a link 10 times as fast", now, ten_times(case))
    mode, setting = _mode(case), _setting(case)
    if mode is None or setting is None:
        return
    modes = GRADIENTS + WEIGHTS if len(case.hosts) > 1 else GRADIENTS[:2]
    here = step_timing(mode, *setting).seconds
    for other in modes:
        if other != mode:
            then = now + step_timing(other, *setting).seconds - here
            yield _faster(_name(other), now, max(then, now - case.parts["transfer"]))


def _mode(case: Case) -> Mode | None:
    """Return how the workers stayed one model at the end."""
    recipe = case.history.recipe
    for note in reversed(case.history.noted(events.SYNC)):
        mode = note.get("mode")
        if isinstance(mode, dict) and {"sync", "wire"} <= mode.keys():
            return Mode(str(mode["sync"]), str(mode["wire"]), whole(mode.get("inner_steps")) or 1)
    if recipe is None or recipe.cluster.sync == "auto" or recipe.cluster.wire_format == "powersgd":
        return Mode("every-step", "float32") if recipe is not None and recipe.cluster.sync == "auto" else None
    cluster = recipe.cluster
    return Mode(cluster.sync, cluster.wire_format, cluster.inner_steps if cluster.sync == "local" else 1)


def _setting(case: Case) -> tuple[list[Gradient], Work, Network, Handling] | None:
    """Return what a step depends on beside its mode, measured as far as it was; None if too little was."""
    recipe, vocabulary = case.history.recipe, whole(case.history.facts.get("vocab_size"))
    hosts = max(1, len(case.hosts))
    if recipe is None or not vocabulary or (hosts > 1 and case.link is None):
        return None
    device = _device(case)
    within = Link(device.within_latency, device.within_rate)
    network = Network(case.world, hosts, within, Link(*case.link) if case.link else within)
    handling = sheet_rates(recipe, device, "float32", vocabulary).handling
    for note in case.history.noted(events.SYNC):
        known = note.get("measured")
        if isinstance(known, dict) and case.parameters and number(known.get("rounding_seconds")) > 0:
            each = number(known["rounding_seconds"]) / case.parameters / 2
            handling = replace(handling, encode=each, decode=each)
    parts, told = case.parts, case.steady_column("micro_batches")
    micro_batches = max(1.0, float(told.mean()) / case.world) if len(told) else 1.0
    work = Work(
        compute_seconds=parts["data"] + parts["compute"] + parts["straggler"] + parts["logging"],
        backward_seconds=parts["compute"] / micro_batches * backward_share(recipe.model, vocabulary),
        optimizer_seconds=parts["optimizer"],
    )
    return gradient_order(recipe.model, vocabulary, assumed_lengths(recipe)), work, network, handling


def _device(case: Case) -> Device:
    """Return the device in the table that the workers' is called like; a CPU if none is."""
    name = "".join(str(note.get("device", "")) for note in case.starts[:1]).lower().replace(" ", "")
    return next((device for device in DEVICES.values() if device.name in name), DEVICES["cpu"])


def _name(mode: Mode) -> str:
    kind = "gradients" if mode.sync != "local" else f"weights every {mode.inner_steps} steps"
    return f'{mode.wire} {kind} ({SETTINGS[mode.sync]}, cluster.wire="{mode.wire}")'


def _faster(text: str, now: float, then: float) -> Change:
    return Change(text, "seconds per step", now, then, (now - then) / now if now > 0 else 0.0)
