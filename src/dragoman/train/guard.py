"""What to do with a step's loss and gradient before they may touch the weights."""

import math
from enum import Enum

from dragoman.config import Guard
from dragoman.train.checkpoint import State

MEMORY = 0.98  # of the running mean: about fifty steps
FIRST_STEPS = 50  # the loss falls too fast to call anything a spike


class Verdict(Enum):
    GOOD = "good"
    SKIP = "skip"
    ROLL_BACK = "roll back"
    GIVE_UP = "give up"


def judge(state: State, cfg: Guard, *, loss: float, gradient_norm: float) -> tuple[Verdict, str]:
    """Return the verdict on a step and why, and note it in ``state``.

    Depends on numbers that are the same on every worker, so every worker takes the same branch.
    """
    if not math.isfinite(loss) or not math.isfinite(gradient_norm):
        why = f"loss {loss:.4g}, gradient norm {gradient_norm:.4g}"
    elif state.good_steps >= FIRST_STEPS and loss > state.mean_loss + cfg.spike_nats:
        why = f"loss {loss:.4g} is far above its running mean {state.mean_loss:.4g}"
    else:
        state.mean_loss = loss if not state.good_steps else MEMORY * state.mean_loss + (1 - MEMORY) * loss
        state.good_steps += 1
        state.bad_steps = 0
        return Verdict.GOOD, ""
    state.bad_steps += 1
    if state.bad_steps < cfg.max_skips:
        return Verdict.SKIP, why
    if state.rollbacks < cfg.max_rollbacks:
        return Verdict.ROLL_BACK, why
    return Verdict.GIVE_UP, why
