"""Learning-rate schedules: plain functions from a step to a learning rate.

A schedule is ``f(step, recipe) -> float`` where ``step`` counts optimizer updates from 1. It keeps no state:
resuming at step 41,000 needs the number 41,000 and nothing from the checkpoint. No warm-up is the same as a
warm-up of one step: it reaches the peak at step 1.
"""

import math
from collections.abc import Callable

from dragoman.config import Recipe


def learning_rate(step: int, recipe: Recipe) -> float:
    """Return the learning rate of ``step`` under the recipe's schedule."""
    return SCHEDULES[recipe.schedule.name](step, recipe)


def noam(step: int, recipe: Recipe) -> float:
    """``rate · d_model^-0.5 · min(step^-0.5, step · warmup^-1.5)``, as in "Attention is all you need"."""
    shape = min(step**-0.5, step * _warmup(recipe) ** -1.5)
    return float(recipe.schedule.learning_rate * recipe.model.d_model**-0.5 * shape)


def inverse_sqrt(step: int, recipe: Recipe) -> float:
    """Rise to the peak, then ``peak · sqrt(warmup / step)``."""
    return recipe.schedule.learning_rate * _rise(step, recipe) * min(1.0, math.sqrt(_warmup(recipe) / step))


def cosine(step: int, recipe: Recipe) -> float:
    """Rise to the peak, then follow half a cosine to ``final_ratio · peak`` at the last step."""
    warmup, steps = _warmup(recipe), recipe.train.steps
    progress = (step - warmup) / max(1, steps - warmup)
    return _between(recipe, (1.0 + math.cos(math.pi * _clamp(progress))) / 2.0) * _rise(step, recipe)


def linear(step: int, recipe: Recipe) -> float:
    """Rise to the peak, stay, then fall in a line to ``final_ratio · peak`` over the last ``decay_steps``."""
    left = (recipe.train.steps + 1 - step) / recipe.decay_steps  # the last step still learns
    return _between(recipe, _clamp(left)) * _rise(step, recipe)


def constant(step: int, recipe: Recipe) -> float:
    """Rise to the peak and stay."""
    return recipe.schedule.learning_rate * _rise(step, recipe)


SCHEDULES: dict[str, Callable[[int, Recipe], float]] = {
    "noam": noam,
    "inverse_sqrt": inverse_sqrt,
    "cosine": cosine,
    "linear": linear,
    "constant": constant,
}

_FORMULAS = {
    "noam": "{rate} · {d_model}^-0.5 · min(step^-0.5, step · {warmup}^-1.5)",
    "inverse_sqrt": "{rate} · min(step / {warmup}, sqrt({warmup} / step))",
    "cosine": "{rate} · step / {warmup}, then a cosine from {rate} to {final} at step {steps}",
    "linear": "{rate} · step / {warmup}, then {rate}, then a line to {final} over the last {decay} steps",
    "constant": "{rate} · min(step / {warmup}, 1)",
}


def describe(recipe: Recipe) -> str:
    """Return the formula with this recipe's numbers, and its highest value, in one line."""
    schedule, peak_step = recipe.schedule, min(_warmup(recipe), recipe.train.steps)
    formula = _FORMULAS[schedule.name].format(
        rate=schedule.learning_rate,
        d_model=recipe.model.d_model,
        warmup=_warmup(recipe),
        decay=recipe.decay_steps,
        steps=recipe.train.steps,
        final=f"{schedule.final_ratio * schedule.learning_rate:.3g}",
    )
    peak = f"peak {learning_rate(peak_step, recipe):.2e} at step {peak_step:,}"
    cut_short = " (the run ends during the warm-up)" if recipe.warmup_steps > recipe.train.steps else ""
    return f"{schedule.name}: {formula}, {peak}{cut_short}"


def _warmup(recipe: Recipe) -> int:
    return max(1, recipe.warmup_steps)


def _rise(step: int, recipe: Recipe) -> float:
    return min(1.0, step / _warmup(recipe))


def _between(recipe: Recipe, share: float) -> float:
    """Return the rate that lies ``share`` of the way from the final rate (0) up to the peak (1)."""
    final = recipe.schedule.final_ratio
    return recipe.schedule.learning_rate * (final + (1.0 - final) * share)


def _clamp(x: float) -> float:
    return min(1.0, max(0.0, x))
