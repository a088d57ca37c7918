"""Questions 1 and 10: how long the run took and will take, and how long a step is."""

import math

import numpy as np

from dragoman.observe import events
from dragoman.observe.attribution import PARTS, WARM_UP_STEPS, attribute
from dragoman.observe.console import format_duration
from dragoman.observe.explain.answer import NO, NOT_RECORDED, UNCLEAR, YES, Case, Finding, unclear
from dragoman.observe.history import History, number
from dragoman.observe.statistics import finite

STEADY = 1.5  # 95 % of steps within this many medians is a steady pace
UNSTEADY = 2.0
FEW_STEPS = 20


def duration(case: Case) -> Finding:
    """Question 1: wall clock by phase, steps, tokens, restarts, and what is still to go."""
    history = case.history
    moments = _moments(history)
    wall = moments[-1] - moments[0] if moments else _step_seconds(history)
    if not wall > 0:
        return unclear(f"when things happened is {NOT_RECORDED}")
    phases = _by_phase(case, wall)
    total_steps = history.recipe.train.steps if history.recipe is not None else None
    tokens = float(np.nansum(history.leader["tokens"])) if history.leader is not None else 0.0
    left = max(0, total_steps - case.last_step) if total_steps and history.ending != "finished" else 0
    done = case.last_step - (history.launches[0].step if history.launches else 0)
    downtime = phases.get("downtime", 0.0)
    to_go = left * (wall - downtime) / done if done > 0 else math.nan
    evidence = {
        "wall_seconds": wall,
        "phases": phases,
        "steps": case.last_step,
        "steps_planned": total_steps,
        "tokens": tokens or None,
        "restarts": max(0, len(history.launches) - 1),
        "repeated_steps": history.repeated_steps,
        "seconds_to_go": to_go,
        "device_hours": wall * case.world / 3600,
        "device_hours_to_go": to_go * case.world / 3600,
        "ending": history.ending,
    }
    known = {name: seconds for name, seconds in phases.items() if seconds > 0}
    largest = sorted(known, key=lambda name: -known[name])[:3]
    where = ", ".join(f"{name} {known[name] / wall:.0%}" for name in largest) if wall > 0 else ""
    of = f" of {total_steps:,}" if total_steps else ""
    summary = f"{format_duration(wall)} for {case.last_step:,}{of} steps"
    summary += f" ({where})" if where else ""
    if left:
        summary += (
            f"; {history.ending}, {format_duration(to_go)} to go" if done > 0 else f"; {history.ending}"
        )
    verdict = {"finished": YES, "running": NO, "stopped": NO, "failed": NO, "killed": NO}.get(
        history.ending, UNCLEAR
    )
    return Finding(verdict, summary, evidence, 0.95 if verdict != UNCLEAR else 0.5, _ending_advice(case))


def step_time(case: Case) -> Finding:
    """Question 10: mean, median and 95th percentile, and tokens per second."""
    history = case.history
    seconds = case.steady_column("seconds")
    if not len(seconds):
        few = history.leader is not None and np.isfinite(history.leader["seconds"]).any()
        return unclear(
            f"no more than the first {WARM_UP_STEPS} steps after a start are known, which are slower"
            if few
            else f"the seconds of steps are {NOT_RECORDED}"
        )
    median, p95 = (float(np.quantile(seconds, share)) for share in (0.5, 0.95))
    tokens = case.steady_column("tokens")
    speed = float(tokens.sum() / seconds.sum()) if len(tokens) == len(seconds) else math.nan
    evidence = {
        "mean_seconds": float(seconds.mean()),
        "median_seconds": median,
        "p95_seconds": p95,
        "steps_counted": len(seconds),
        "steps_left_out_after_starts": WARM_UP_STEPS,
        "tokens_per_second": speed,
        "tokens_per_second_per_device": speed / case.world if history.launches else None,
        "devices": case.world if history.launches else None,
        "by_world": _by_world(case),
    }
    summary = f"{seconds.mean():.3g} s on average (median {median:.3g}, p95 {p95:.3g})"
    if math.isfinite(speed):
        summary += f", {speed:,.0f} tokens/s"
        summary += f", {speed / case.world:,.0f} per device" if history.launches else ""
    if len(seconds) < FEW_STEPS:
        return unclear(f"{summary}: only {len(seconds)} steps to judge by", evidence)
    ratio = p95 / median
    verdict = YES if ratio <= STEADY else NO if ratio >= UNSTEADY else UNCLEAR
    advice = []
    if verdict == NO:
        advice.append(
            f"one step in twenty takes over {ratio:.1f} times the median: see what else runs on the hosts"
        )
    return Finding(verdict, summary, evidence, 0.9 if verdict != UNCLEAR else 0.5, advice)


def _moments(history: History) -> list[float]:
    """Return when the first and the last thing happened."""
    moments = [note["time"] for note in history.notes]
    for track in history.tracks.values():
        known = track["time"][np.isfinite(track["time"])]
        moments += [float(known.min()), float(known.max())] if len(known) else []
    moments += [each.time for each in history.evaluations if math.isfinite(each.time)]
    return [min(moments), max(moments)] if moments and min(moments) < max(moments) else []


def _step_seconds(history: History) -> float:
    """Return the seconds of all steps; where only some were told of, each stands for those before it."""
    if history.leader is None:
        return 0.0
    step, seconds = finite(history.leader["step"], history.leader["seconds"])
    gaps = np.diff(step, prepend=0.0) if history.kind != "dragoman" else np.ones(len(step))
    return float((gaps * seconds).sum())


def _by_phase(case: Case, wall: float) -> dict[str, float]:
    """Return the leader's seconds by what they went into; together they are the wall clock."""
    history, phases = case.history, dict.fromkeys((*PARTS, "unattributed steps"), 0.0)
    share = attribute(history).get(0)
    if share is not None:
        phases |= {name: float(share.parts[name].sum()) for name in PARTS}
    if history.leader is not None:
        phases["unattributed steps"] = max(0.0, _step_seconds(history) - sum(phases.values()))
    for name in (events.EVALUATION, events.CHECKPOINT, events.SAMPLE):
        phases[name] = sum(
            max(0.0, number(note.get("seconds")))
            for note in history.noted(name)
            if note["rank"] == 0 and math.isfinite(number(note.get("seconds")))
        )
    phases["repeated steps"] = history.repeated_seconds
    phases["downtime"] = _downtime(history)
    finish = history.noted(events.FINISH)
    if finish:
        phases["last scores"] = max(0.0, _moments(history)[1] - finish[-1]["time"])
    phases["other"] = max(0.0, wall - sum(phases.values()))
    return phases


def _downtime(history: History) -> float:
    """Return the seconds between the last word before each restart and the restart."""
    told = [note["time"] for note in history.notes if note["rank"] == 0]
    if history.leader is not None:
        told += list(history.leader["time"])
    words = np.sort(np.array(told, np.float64))
    total = 0.0
    for launch in history.launches[1:]:
        before = words[words < launch.time]
        total += launch.time - float(before[-1]) if len(before) else 0.0
    return total


def _by_world(case: Case) -> dict[str, dict[str, float]]:
    """Return how long steps took with each number of workers."""
    worlds, seconds = case.steady_column("world"), case.steady_column("seconds")
    if len(worlds) != len(seconds):
        return {}
    return {
        str(int(world)): {
            "steps": int((worlds == world).sum()),
            "mean_seconds": float(seconds[worlds == world].mean()),
        }
        for world in np.unique(worlds)
    }


def _ending_advice(case: Case) -> list[str]:
    history = case.history
    message = str((history.outcome or {}).get("message") or "")
    match history.ending:
        case "killed":
            return ["run the same `dragoman train` again: it goes on from the last checkpoint"]
        case "failed":
            return [f"it failed: {message}" if message else "see the end of log.txt for why it failed"]
        case "stopped":
            return ["run the same `dragoman train` again to go on"]
    return []
