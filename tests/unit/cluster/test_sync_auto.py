"""What auto makes of measurements, without any network."""

import dataclasses
from itertools import pairwise

import pytest
import torch
from torch import nn

from dragoman.cluster import auto
from dragoman.cluster.auto import Auto, Decision
from dragoman.cluster.estimate import (
    GRADIENTS,
    WEIGHTS,
    Estimate,
    Link,
    Measured,
    Mode,
    Shape,
    choose,
    estimate,
)
from dragoman.cluster.sync import Cost

MODES = GRADIENTS + WEIGHTS
BASE = Shape(weights=7_500_000, last=2_000_000, workers=2, hosts=2)


def measured(mbit, compute=1.0, exposed=0.0):
    return Measured(compute, exposed, Link(0.001, mbit * 1e6 / 8), rounding_seconds=0.03)


def chosen(mbit, hidden=0.3):
    return choose([estimate(mode, BASE, measured(mbit), hidden) for mode in MODES]).mode


def test_the_slower_the_link_the_stronger_the_mode():
    assert chosen(10_000) == Mode("every-step", "float32")
    assert chosen(500) == Mode("every-step", "bf16")
    assert chosen(100) == Mode("compressed", "int4")
    assert chosen(20) == Mode("local", "int4", 2)
    assert chosen(5) == Mode("local", "int4", 8)
    assert chosen(0.01) == Mode("local", "int4", 64)  # nothing is good enough: the least bad


def test_estimates_know_bytes_and_what_cannot_hide():
    full = estimate(Mode("every-step", "float32"), BASE, measured(100), 0.3)
    assert full.bytes_per_step == 30e6
    assert full.exposed_seconds == pytest.approx(2.4 - 0.3, abs=0.01)
    small = estimate(Mode("compressed", "int4"), BASE, measured(100), hidden_seconds=10.0)
    last = 0.1 * 2 / 7.5  # of what travels, the embedding's rows that the source looked up
    assert small.exposed_seconds == pytest.approx(3.984 / 12.5 * last, abs=0.003)
    slow = estimate(Mode("local", "int4", 2), BASE, measured(8), 0.0)
    assert slow.exposed_seconds == pytest.approx(1.99 - 1.0, abs=0.01)


class FakeWorld:
    size, device = 2, torch.device("cpu")

    def gather(self, value):
        return [value, value]


class FakeSync:
    """Stands for the workers: remembers what it is told."""

    def __init__(self, hosts=2):
        self.world, self.model = FakeWorld(), nn.Linear(100, 100)
        self.hosts = type("Hosts", (), {"count": hosts})
        self.mode, self.settled = MODES[0], 0

    def use(self, mode):
        self.mode = mode

    def settle(self):
        self.settled += 1


@pytest.fixture
def told(monkeypatch):
    """An Auto whose link is what the test says, and what it told."""
    decisions = []
    sync = FakeSync()
    chooser = Auto(sync, decisions.append)
    chooser._shape = BASE
    rates = {"mbit": 100.0}
    monkeypatch.setattr(Auto, "_probe", lambda self: Link(0.001, rates["mbit"] * 1e6 / 8))
    monkeypatch.setattr(Auto, "_time_rounding", lambda self: 0.03)
    return sync, chooser, decisions, rates


def go(chooser, steps, exposed, first=1, agree=0.0):
    spent = {
        "data": 0.1,
        "compute": 0.8,
        "optimizer": 0.1,
        "exchange": exposed,
        "agree": agree,
        "logging": 9.0,
    }
    for step in range(first, first + steps):
        chooser.after_step(step, spent, Cost(0, exposed, 0.3))


FIRST = auto.WARM_UP + auto.MEASURED
WATCH = max(auto.WATCH_STEPS, int(auto.WATCH_SECONDS))  # steps between looks at steps of a second or more


def test_it_measures_then_chooses_then_keeps_quiet(told):
    sync, chooser, decisions, _ = told
    go(chooser, FIRST - 1, 2.1)
    assert not decisions
    go(chooser, 1, 2.1, FIRST)
    assert [each.mode for each in decisions] == [Mode("compressed", "int4")] == [sync.mode]
    assert sync.settled == 1
    go(chooser, 3 * WATCH, 0.05)
    assert len(decisions) == 1


@pytest.mark.parametrize(("mbit", "mode"), [(20, Mode("local", "int4", 2)), (10_000, MODES[0])])
def test_another_link_makes_it_think_again(told, mbit, mode):
    sync, chooser, decisions, rates = told
    go(chooser, FIRST, 2.1)
    rates["mbit"] = mbit
    go(chooser, FIRST, 0.05)  # on trial: the link was probed just now, and is not probed again
    assert len(decisions) == 1
    go(chooser, WATCH, 0.05)
    assert sync.mode == mode
    assert "had 100 Mbit/s" in decisions[-1].why


def test_waiting_more_than_estimated_makes_it_stronger(told):
    sync, chooser, decisions, _ = told
    go(chooser, FIRST, 2.1)
    go(chooser, FIRST, 0.2)  # soon after a choice: is it what was hoped for?
    assert sync.mode == Mode("local", "int4", 2)
    assert "19% of the time was spent on the exchange" in decisions[-1].why
    go(chooser, FIRST, 0.12)  # now local/2 has failed, too, and int4 is not taken again
    assert sync.mode == Mode("local", "int4", 4)


def test_waiting_for_a_worker_that_waits_for_bytes_counts_too(told):
    sync, chooser, decisions, _ = told
    go(chooser, FIRST, 2.1)
    go(chooser, FIRST, 0.02, agree=0.18)
    assert sync.mode == Mode("local", "int4", 2)
    assert "19% of the time was spent on the exchange" in decisions[-1].why


def test_waiting_for_a_worker_that_computes_is_not_the_networks_fault(told, monkeypatch):
    sync, chooser, decisions, _ = told
    go(chooser, FIRST, 2.1)

    def gather(value):  # the other one computes for longer, and waits for nobody
        computing, waiting, *rest = value
        return [value, (computing + waiting, 0.0, *rest)]

    monkeypatch.setattr(sync.world, "gather", gather)
    go(chooser, FIRST, 0.2, agree=0.2)
    assert sync.mode == Mode("compressed", "int4")
    assert len(decisions) == 1


def test_a_little_waiting_is_no_reason_to_train_apart(told):
    sync, chooser, decisions, _ = told
    go(chooser, FIRST, 2.1)
    go(chooser, FIRST, 0.12)
    assert sync.mode == Mode("compressed", "int4")
    assert len(decisions) == 1


def test_a_mode_that_passed_its_trial_may_wait_a_little_more(told):
    sync, chooser, decisions, _ = told
    go(chooser, FIRST, 2.1)
    go(chooser, FIRST, 0.05)
    go(chooser, WATCH, 0.12)
    assert len(decisions) == 1
    go(chooser, WATCH, 0.3)
    assert sync.mode == Mode("local", "int4", 2)


def test_a_worse_dev_loss_leads_to_a_milder_mode_for_good(told):
    sync, chooser, decisions, rates = told
    go(chooser, FIRST, 2.1)
    for step, loss in enumerate([2.0, 2.03, 2.05]):  # one bad evaluation is none
        chooser.after_evaluation(step, loss)
    assert sync.mode == Mode("compressed", "int4")
    chooser.after_evaluation(4, 2.05)
    assert sync.mode == Mode("compressed", "int8")
    assert "dev loss 2.0500 is above its best 2.0000" in decisions[-1].why
    rates["mbit"] = 20
    go(chooser, WATCH, 2.0)
    assert sync.mode == Mode("compressed", "int8")  # what is ruled out stays out


def test_a_good_dev_loss_is_no_reason(told):
    _, chooser, decisions, _ = told
    go(chooser, FIRST, 2.1)
    for step, loss in enumerate([3.0, 2.9, 2.95, 2.94, 2.0]):
        chooser.after_evaluation(step, loss)
    assert len(decisions) == 1


def test_the_choice_is_remembered_for_the_same_workers(told):
    sync, chooser, _, _ = told
    go(chooser, FIRST, 2.1)
    state = chooser.state()
    again = FakeSync()
    other = Auto(again, lambda decision: None)
    other.load_state(state)
    assert again.mode == sync.mode
    assert other.state() == state
    other.load_state({**state, "workers": 3})
    assert again.mode == MODES[0]  # measured anew


def test_on_one_host_only_gradients_in_full_are_candidates():
    assert Auto(FakeSync(hosts=1), lambda decision: None)._modes == GRADIENTS[:2]


def test_a_decision_shows_its_numbers():
    table = tuple(Estimate(mode, 1e6, 0.5, 0.25) for mode in MODES[:2])
    decision = Decision(8, MODES[1], "because", measured(100, 1.5, 2.0), table)
    first, numbers, *rows = decision.lines()
    assert first == "synchronisation from step 9: every-step, bf16 (because)"
    assert "1.50 s computing and 2.00 s waiting" in numbers
    assert "100 Mbit/s" in numbers
    assert [row.endswith("<- taken") for row in rows] == [False, True]
    assert dataclasses.asdict(decision)["mode"]["wire"] == "bf16"


def test_short_steps_are_looked_at_as_seldom_by_the_clock(told):
    _, chooser, _, rates = told
    spent = {"data": 0.0, "compute": 0.125, "optimizer": 0.0, "exchange": 0.0, "agree": 0.0, "logging": 0.0}
    probes = []
    probe = chooser._probe
    chooser._probe = lambda: probes.append(step) or probe()
    rates["mbit"] = 100_000
    for step in range(1, 3 * round(auto.WATCH_SECONDS / 0.125)):
        chooser.after_step(step, spent, Cost(0, 0.0, 0.1))
    assert [after - before for before, after in pairwise(probes)] == [auto.WATCH_SECONDS / 0.125] * 2
