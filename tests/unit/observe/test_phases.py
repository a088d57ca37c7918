"""The clock of phases: every moment is counted once, or stays apart."""

import pytest

from dragoman.observe.history import PHASES
from dragoman.observe.phases import PhaseClock


class Time:
    """A clock that the test moves."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    time = Time()
    clock = PhaseClock(time)

    def spend(phase, seconds):
        clock.at(phase)
        time.now += seconds

    clock.spend, clock.time = spend, time
    return clock


def seconds(**phases):
    return pytest.approx(dict.fromkeys(PHASES, 0.0) | phases)


def test_each_phase_gets_its_seconds_however_often_it_comes(clock):
    for phase, lasts in [
        ("data", 1),
        ("compute", 2),
        ("exchange", 4),
        ("compute", 8),
        ("agree", 16),
        ("optimizer", 32),
    ]:
        clock.spend(phase, lasts)
    assert clock.step_done() == seconds(data=1, compute=10, exchange=4, agree=16, optimizer=32)


def test_telling_of_a_step_belongs_to_the_next_one(clock):
    clock.spend("compute", 1)
    clock.step_done()
    clock.time.now += 3
    clock.spend("compute", 1)
    assert clock.step_done() == seconds(compute=1, logging=3)


@pytest.mark.parametrize("apart", ["evaluate", "checkpoint", "sample", "restore", "measure", "start"])
def test_what_is_no_phase_stays_apart(clock, apart):
    clock.spend("compute", 1)
    clock.step_done()
    clock.spend(apart, 50)
    assert clock.lasting() == 50
    clock.spend("data", 2)
    assert clock.step_done() == seconds(data=2)


def test_what_came_before_the_first_phase_does_not_count(clock):
    clock.time.now += 1000
    clock.spend("data", 2)
    assert clock.step_done() == seconds(data=2)


def test_an_exchange_that_only_the_device_saw_was_taken_for_computing(clock):
    clock.spend("compute", 10)
    clock.spend("exchange", 1)
    assert clock.step_done(exposed_seconds=4) == seconds(compute=7, exchange=4)


@pytest.mark.parametrize("exposed", [0.5, 1.0, 1000.0])
def test_the_device_never_changes_the_sum(clock, exposed):
    clock.spend("compute", 10)
    clock.spend("exchange", 1)
    spent = clock.step_done(exposed_seconds=exposed)
    assert sum(spent.values()) == pytest.approx(11)
    assert min(spent.values()) >= 0
