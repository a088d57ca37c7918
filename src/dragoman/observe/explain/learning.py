"""Questions 2, 3 and 6: is it fully trained, does it overfit, and what did the learning rate do?"""

import math
from typing import Any

import numpy as np

from dragoman.observe import events
from dragoman.observe.explain.answer import (
    NO,
    NOT_RECORDED,
    UNCLEAR,
    YES,
    Case,
    Finding,
    as_evidence,
    unclear,
)
from dragoman.observe.history import Column, History, number
from dragoman.observe.statistics import (
    TWO_SIDED,
    Interval,
    bootstrap_ratio,
    finite,
    fit_curve,
    noise,
    slope,
    smooth,
)
from dragoman.train.schedules import describe, learning_rate

# What twice the steps would have to bring to be worth it. A nat is natural: 0.02 are 2 % of perplexity.
WORTH_NATS, WORTH_BLEU = 0.02, 0.5
BEST_BLEU, LOW_BLEU = 100.0, 5.0  # below the latter hardly a phrase is right, and the score says nothing yet
CERTAIN = 0.975  # one-sided; how sure a verdict has to be
ENDING = ("cosine", "linear")  # schedules that know the end of the run
STEEP = 5  # times what is worth it: few evaluations are enough to see it
HUGE = 10  # … gained in the last third of the run: no falling rate gives as much to a model that has learned
SMALL_RISE = 0.05  # nats; below, dev loss is called level
NOISES = 3.0  # a rise below this many deviations of the curve's own noise is none
SAME_RATE = 1e-6


def trained(case: Case) -> Finding:
    """Question 2: what would twice the steps bring, by the trend and by a fitted curve?"""
    history = case.history
    series = {
        "dev_loss": (*_losses(history)[:2], -1.0, WORTH_NATS),
        "dev_bleu": (*_bleu(history), 1.0, WORTH_BLEU),
    }
    outlooks = {name: _outlook(case, *each) for name, each in series.items()}
    if (bleu := outlooks["dev_bleu"]) and bleu["last"] < LOW_BLEU:
        bleu["vote"] = UNCLEAR
    evidence: dict[str, Any] = {name: outlook for name, outlook in outlooks.items() if outlook}
    if not evidence:
        return unclear(f"dev loss and BLEU are {NOT_RECORDED}, or were measured once only")
    evidence["schedule_ended"] = _schedule_ended(case)
    votes = {name: outlook["vote"] for name, outlook in evidence.items() if isinstance(outlook, dict)}
    decided = {vote for vote in votes.values() if vote != UNCLEAR}
    verdict = decided.pop() if len(decided) == 1 else UNCLEAR
    said = "; ".join(_say(name, outlook) for name, outlook in outlooks.items() if outlook)
    if set(votes.values()) >= {YES, NO}:
        said += ": they do not agree"
    confidence = max(
        (outlooks[name]["certainty"] for name, vote in votes.items() if vote == verdict), default=0.5
    )
    advice = []
    if verdict == NO and evidence["schedule_ended"]:
        said += ". The schedule is at its end, so that merely going on brings nothing"
        advice.append(f"train anew with --set train.steps={2 * case.last_step}: the rate then falls later")
        confidence = min(confidence, 0.8)
    elif verdict == NO and history.ending == "running":
        advice.append("let it run")
    elif verdict == NO:
        advice.append(f"train longer: --set train.steps={2 * case.last_step}")
    return Finding(verdict, said, evidence, confidence if verdict != UNCLEAR else 0.5, advice)


def overfitting(case: Case) -> Finding:
    """Question 3: did dev loss turn and rise while the training sample's went on falling?"""
    history = case.history
    steps, dev, clean = _losses(history)
    if len(steps) < 2:
        return unclear(f"dev loss is {NOT_RECORDED}, or was measured once only")
    best, last = int(np.argmin(smooth(dev))), len(dev) - 1
    rise, method = _rise(history, steps, dev, best, last)
    trains = _training(history, steps, clean)
    learned = float(trains[best] - trains[last])  # how much lower the loss on what it learns from became
    evidence = {
        "best_step": int(steps[best]),
        "last_step": int(steps[last]),
        "best_dev_loss": float(dev[best]),
        "last_dev_loss": float(dev[last]),
        "rise": as_evidence(rise),
        "rise_method": method,
        "train_loss_at_best": float(trains[best]),
        "train_loss_at_last": float(trains[last]),
        "gap_at_best": float(dev[best] - trains[best]),
        "gap_at_last": float(dev[last] - trains[last]),
        "evaluations": len(steps),
    }
    if best == last:
        gap = (
            f", {dev[last] - trains[last]:.2f} above the training sample's"
            if math.isfinite(trains[last])
            else ""
        )
        summary = (
            f"dev loss was lowest at the last evaluation ({dev[last]:.3f} at step {steps[last]:,.0f}{gap})"
        )
        if len(steps) < 4:
            return unclear(f"{summary}, but {len(steps)} evaluations are too few to see a turn", evidence)
        return Finding(NO, summary, evidence, 0.95)
    summary = (
        f"dev loss was lowest at step {steps[best]:,.0f} ({dev[best]:.3f}) and is {dev[last]:.3f} now "
        f"(since then {rise.value:+.3f}, 95 % within {rise.low:+.3f} and {rise.high:+.3f})"
    )
    rises = rise.chance_above(0.0)
    if rises >= CERTAIN and min(rise.value, dev[last] - dev[best]) >= WORTH_NATS / 2 and last - best >= 2:
        if not learned > 0:
            if math.isnan(learned):
                return unclear(f"{summary}; the loss on training text is {NOT_RECORDED}", evidence)
            return unclear(f"{summary}, but the training sample's rose too: it comes apart", evidence)
        summary += f", while the training sample's fell by {learned:.3f}"
        advice = [
            f"use the model of step {steps[best]:,.0f}; stop there with --set evaluate.patience=3",
            "more training text, or more dropout",
        ]
        return Finding(YES, summary, evidence, rises, advice)
    small = 1 - rise.chance_above(SMALL_RISE)
    if small >= CERTAIN:
        return Finding(NO, f"{summary}: no rise worth the name", evidence, small)
    return unclear(f"{summary}: too little to be sure", evidence)


def rate(case: Case) -> Finding:
    """Question 6: the formula with this run's numbers, its peak, and the measured curve against it."""
    track, recipe = case.history.leader, case.history.recipe
    steps, rates = finite(track["step"], track["lr"]) if track is not None else (np.zeros(0), np.zeros(0))
    if not len(steps):
        return unclear(f"the learning rate is {NOT_RECORDED}")
    peak = int(rates.argmax())
    evidence: dict[str, Any] = {
        "peak": float(rates[peak]),
        "peak_step": int(steps[peak]),
        "last": float(rates[-1]),
        "steps": len(steps),
    }
    measured = f"measured peak {rates[peak]:.3g} at step {steps[peak]:,.0f}, {rates[-1]:.3g} at the end"
    if recipe is None:
        falls = _decay_exponent(steps, rates, peak)
        evidence["decay_exponent"] = falls
        shape = f"; it falls like step^{falls:.2f}" if math.isfinite(falls) else ""
        return unclear(f"{measured}{shape}; the formula is {NOT_RECORDED}", evidence)
    formula = np.array([learning_rate(int(step), recipe) for step in steps])
    rollbacks = [note for note in case.history.noted(events.ROLLBACK) if note["rank"] == 0]
    scales = np.array([1.0, *(number(note.get("rate_scale")) for note in rollbacks)])
    with np.errstate(divide="ignore", invalid="ignore"):
        deviation = np.abs(rates[:, None] / (formula[:, None] * scales) - 1)
    deviation[(formula == 0) & (rates == 0)] = 0.0
    nearest = np.nanmin(np.where(np.isnan(deviation), np.inf, deviation), axis=1)
    scaled = np.abs(deviation[:, 0]) > SAME_RATE
    strays = nearest > SAME_RATE
    evidence |= {
        "formula": describe(recipe),
        "largest_deviation": float(nearest.max()),
        "steps_off_formula": int(strays.sum()),
        "steps_scaled_by_rollbacks": int((scaled & ~strays).sum()),
        "rollbacks": [
            {
                "step": note.get("step"),
                "to_step": note.get("to_step"),
                "rate_scale": number(note.get("rate_scale")),
            }
            for note in rollbacks
        ],
    }
    summary = f"{describe(recipe)}; {measured}"
    if rollbacks:
        summary += f"; lowered by {len(rollbacks)} rollbacks to {scales[-1]:g} of it"
    if not strays.any():
        return Finding(YES, summary, evidence, 0.99)
    first, final = steps[strays][0], steps[strays][-1]
    where = f"{strays.sum():,} steps from {first:,.0f} to {final:,.0f} differ, by up to {nearest.max():.2g}"
    if final < steps[-1]:
        where += ": the recipe's steps or warm-up were probably changed when the run was resumed"
    return Finding(NO, f"{summary}; {where}", evidence, 0.99)


def _losses(history: History) -> tuple[Column, Column, Column]:
    """Return steps, dev losses and clean training losses (which may be NaN) of all evaluations."""
    rows = [each for each in history.evaluations if math.isfinite(each.dev_loss)]
    columns = [
        np.array([getattr(each, name) for each in rows]) for name in ("step", "dev_loss", "train_loss")
    ]
    return columns[0].astype(np.float64), columns[1], columns[2]


def _bleu(history: History) -> tuple[Column, Column]:
    lines = history.scored("dev")
    return np.array([float(line["step"]) for line in lines]), np.array(
        [float(line["bleu"]) for line in lines]
    )


def _outlook(case: Case, steps: Column, values: Column, better: float, worth: float) -> dict[str, Any]:
    """Return what twice the steps would bring of one measure, and the vote that follows; empty if not known.

    ``better`` is the sign of an improvement. Where the schedule leads the rate down to an end, part of the improvement
    is due to the rate, and would not come twice: it is taken out, in proportion to the rate.
    """
    recipe = case.history.recipe
    if recipe is not None:  # before the peak of the rate a curve says nothing about its end
        after = steps > recipe.warmup_steps
        steps, values = (steps[after], values[after]) if after.sum() >= 2 else (steps, values)
    if len(steps) < 2:
        return {}
    tail = steps >= steps[-1] - (steps[-1] - steps[0]) / 3
    if tail.sum() < 4:
        tail = np.arange(len(steps)) >= len(steps) - 4
    trend = slope(steps[tail] / 1000, values[tail])
    half = steps >= steps[-1] / 4  # the beginning follows another law than the end
    half = half if half.sum() >= 6 else np.ones(len(steps), bool)
    rates = None
    if recipe is not None and recipe.schedule.name in ENDING:
        rates = np.array([learning_rate(int(step), recipe) for step in steps[half]])
    curve = fit_curve(steps[half], values[half], rates)
    best_possible = BEST_BLEU if better > 0 else math.inf
    outlook: dict[str, Any] = {"last": float(values[-1]), "points": len(steps), "worth": worth}
    if trend is not None:
        outlook["slope_per_1000_steps"] = as_evidence(trend)
    if curve is None:
        return outlook | _short_outlook(steps, values, better, worth)
    gain = curve.change(float(steps[-1]), 2 * float(steps[-1])).times(better)
    outlook["gain_by_twice_the_steps"] = as_evidence(gain)
    outlook["forecast"] = min(best_possible, max(0.0, float(values[-1]) + better * gain.value))
    more = gain.chance_above(worth)
    improving = trend is not None and trend.times(better).low > 0
    worsening = trend is not None and trend.times(better).high < 0
    if more >= CERTAIN and improving:
        return outlook | {"vote": NO, "certainty": more}
    if 1 - more >= CERTAIN or worsening:
        return outlook | {"vote": YES, "certainty": max(1 - more, CERTAIN if worsening else 0.0)}
    plain = fit_curve(steps[half], values[half]) if rates is not None else None
    if plain is not None and improving:
        # Few evaluations cannot tell the rate's part from the rest; if all of it is huge, the rest is not nothing.
        whole = plain.change(float(steps[-1]), 2 * float(steps[-1])).times(better)
        if whole.low > STEEP * worth:
            outlook |= {"gain_by_twice_the_steps": as_evidence(whole), "gain_holds_the_rates_part": True}
            outlook["forecast"] = min(best_possible, max(0.0, float(values[-1]) + better * whole.value))
            return outlook | {"vote": NO, "certainty": 0.8}
    recent = better * values[tail]
    gained = float(recent[-1] - recent[0])
    if gained >= HUGE * worth and (np.diff(recent) > 0).all():
        return outlook | {"gain_of_last_third": gained, "vote": NO, "certainty": 0.85}
    return outlook | {"vote": UNCLEAR, "certainty": max(more, 1 - more)}


def _short_outlook(steps: Column, values: Column, better: float, worth: float) -> dict[str, Any]:
    """Vote from the last two evaluations alone: only what improves very fast is certain to go on."""
    doublings = math.log2(steps[-1] / steps[-2]) if steps[-2] > 0 else math.inf
    pace = better * float(values[-1] - values[-2]) / doublings if doublings > 0 else 0.0
    steep = pace >= STEEP * worth and (len(values) < 3 or better * float(values[-2] - values[-3]) > 0)
    return {"gain_per_doubling": pace, "vote": NO if steep else UNCLEAR, "certainty": 0.8 if steep else 0.5}


def _schedule_ended(case: Case) -> bool:
    """Whether the rate has come down to where the schedule ends: steps beyond would learn next to nothing."""
    recipe = case.history.recipe
    if recipe is None or recipe.schedule.name not in ENDING or recipe.schedule.final_ratio > 0.5:
        return False
    return case.last_step >= recipe.train.steps


def _say(name: str, outlook: dict[str, Any]) -> str:
    label, form = ("dev loss", ".3f") if name == "dev_loss" else ("dev BLEU", ".1f")
    last, gain = outlook["last"], outlook.get("gain_by_twice_the_steps")
    if name == "dev_bleu" and last < LOW_BLEU:
        return f"{label} {last:{form}}, too low to tell"
    if gain is None:
        return f"{label} {last:{form}} at {outlook['points']} evaluations"
    if gain["high"] - gain["low"] > last:
        gained = outlook.get("gain_of_last_third")
        recently = f" ({gained:{form}} better within the last third)" if gained is not None else ""
        return f"{label} {last:{form}}, changing too fast for a forecast{recently}"
    sign = -1 if name == "dev_loss" else 1
    bounds = sorted((last + sign * gain["low"], last + sign * gain["high"]))
    most = BEST_BLEU if name == "dev_bleu" else math.inf
    low, high = (f"{min(most, max(0.0, each)):{form}}" for each in bounds)
    forecast = f"{outlook['forecast']:{form}}"
    return f"{label} {last:{form}}, forecast for twice the steps {forecast} ({low} to {high})"


def _rise(history: History, steps: Column, dev: Column, best: int, last: int) -> tuple[Interval, str]:
    """Return how much higher dev loss is at the end than where it was lowest, and what that rests on.

    Two things make it uncertain: that weights wobble from evaluation to evaluation, and that other dev sentences could
    have been chosen (bootstrap over them, in pairs). A line through the evaluations since sees a slow rise best, their
    mean a sudden one; the clearer of the two counts.
    """
    level, wobble = float(dev[best + 1 :].mean() - dev[best]) if best < last else 0.0, noise(dev)
    # The lowest of many noisy values is too low: a rise has to be clear of that.
    wobble = abs(level) if math.isnan(wobble) else NOISES / 2 * wobble
    found = {"the mean of the evaluations since": Interval(level, level, level).widened(wobble)}
    line = slope(steps[best:], dev[best:]) if last - best >= 4 else None
    if line is not None:
        found["a line through the evaluations since"] = line.times(float(steps[last] - steps[best]))
    method = max(found, key=lambda name: found[name].low)
    rise = found[method]
    before, after = (history.sentence_losses.get(int(steps[place])) for place in (best, last))
    if before is None or after is None or len(before.nll) != len(after.nll):
        return rise, f"{method}; the losses of single sentences are not recorded"
    keep = np.isfinite(before.nll) & np.isfinite(after.nll) & (before.tokens > 0)
    drawn = bootstrap_ratio((after.nll - before.nll)[keep], before.tokens[keep])
    error = (drawn.high - drawn.low) / 2 / TWO_SIDED
    return rise.widened(error), f"{method}, and a paired bootstrap over {int(keep.sum())} dev sentences"


def _training(history: History, steps: Column, clean: Column) -> Column:
    """Return the loss on training text at each evaluation: of the clean sample, else of the steps around it."""
    track = history.leader
    if np.isfinite(clean).any() or track is None:
        return clean
    known, losses = finite(track["step"], track["loss"])
    found = []
    for place, step in enumerate(steps):
        since = steps[place - 1] if place else 0.0
        near = losses[(known > since) & (known <= step)]
        found.append(float(near.mean()) if len(near) else math.nan)
    return np.array(found)


def _decay_exponent(steps: Column, rates: Column, peak: int) -> float:
    """Return e of a fall like step^e after the peak; NaN if there is none."""
    later = (steps > 1.2 * steps[peak]) & (rates > 0)
    found = slope(np.log(steps[later]), np.log(rates[later])) if later.sum() >= 5 else None
    return found.value if found is not None else math.nan
