"""Bad steps are skipped, repeated ones send the run back, and not for ever."""

import math

import pytest

from dragoman.config import Guard
from dragoman.train.checkpoint import State
from dragoman.train.guard import FIRST_STEPS, Verdict, judge

GUARD = Guard(spike_nats=2.0, max_skips=3, max_rollbacks=1)


def settled_state(loss=3.0):
    state = State()
    for _ in range(FIRST_STEPS):
        assert judge(state, GUARD, loss=loss, gradient_norm=1.0) == (Verdict.GOOD, "")
    return state


@pytest.mark.parametrize(
    ("loss", "norm"), [(math.nan, 1.0), (math.inf, 1.0), (3.0, math.nan), (3.0, math.inf)]
)
def test_what_is_not_finite_is_skipped_from_the_first_step_on(loss, norm):
    verdict, why = judge(State(), GUARD, loss=loss, gradient_norm=norm)
    assert verdict is Verdict.SKIP
    assert "nan" in why or "inf" in why


def test_a_spike_is_measured_against_the_running_mean():
    state = settled_state()
    assert judge(state, GUARD, loss=4.9, gradient_norm=1.0)[0] is Verdict.GOOD
    verdict, why = judge(state, GUARD, loss=9.0, gradient_norm=1.0)
    assert verdict is Verdict.SKIP
    assert "running mean" in why


def test_the_first_steps_may_do_what_they_like():
    state = State()
    judge(state, GUARD, loss=3.0, gradient_norm=1.0)
    assert judge(state, GUARD, loss=11.0, gradient_norm=1.0)[0] is Verdict.GOOD


def test_bad_steps_do_not_move_the_mean():
    state = settled_state()
    before = state.mean_loss
    judge(state, GUARD, loss=100.0, gradient_norm=1.0)
    assert state.mean_loss == before


def test_repeated_bad_steps_go_back_then_give_up():
    state = settled_state()
    verdicts = [judge(state, GUARD, loss=math.nan, gradient_norm=1.0)[0] for _ in range(3)]
    assert verdicts == [Verdict.SKIP, Verdict.SKIP, Verdict.ROLL_BACK]
    state.rollbacks, state.bad_steps = 1, 0
    verdicts = [judge(state, GUARD, loss=math.nan, gradient_norm=1.0)[0] for _ in range(3)]
    assert verdicts == [Verdict.SKIP, Verdict.SKIP, Verdict.GIVE_UP]


def test_a_good_step_ends_a_row_of_bad_ones():
    state = settled_state()
    for _ in range(10):
        judge(state, GUARD, loss=math.nan, gradient_norm=1.0)
        assert judge(state, GUARD, loss=3.0, gradient_norm=1.0)[0] is Verdict.GOOD
