"""Who is to blame for a step that takes too long, and when there is no hope."""

import json
from dataclasses import replace

import pytest

from dragoman.cluster.diagnosis import PHASES, Beat, Limits, judge, reason_to_give_up

LIMITS = Limits(timeout_seconds=600)


def beat(rank: int, phase: str, seconds: float, *, quiet: float = 0.0, **others) -> Beat:
    """A beat of step 120 on a host of two ranks; so far the step has been nothing but this phase."""
    values = {"step": 120, "micro_batch": None, "lasting": seconds, "median": 1.2} | others
    return Beat(rank, phase, seconds=seconds, host=f"host{rank // 2 + 1}", quiet=quiet, **values)


def kinds(*beats: Beat, me: int = 0) -> list[tuple[str, int]]:
    found = judge(beats, me, LIMITS)
    return [] if found is None else [(kind, beat.rank) for kind, beat in found.ranks]


def test_nothing_is_said_while_steps_are_as_long_as_usual():
    assert kinds(beat(0, "exchange", 14), beat(1, "compute", 14)) == []
    assert kinds(beat(0, "compute", 100, median=20.0), beat(1, "compute", 100, median=20.0)) == []


def test_a_rank_stuck_in_data_and_a_rank_that_waits_for_it_are_told_apart():
    assert kinds(beat(0, "exchange", 15.5), beat(1, "data", 16)) == [("stuck", 1), ("waiting", 0)]
    assert kinds(beat(0, "data", 16), beat(1, "exchange", 15.5)) == [("stuck", 0), ("waiting", 1)]


def test_far_longer_than_its_peers_is_sooner_than_far_longer_than_its_history():
    slow = beat(1, "compute", 70, median=20.0)
    waiting, working = beat(0, "exchange", 50, median=20.0), beat(0, "compute", 70, median=20.0)
    assert kinds(waiting, slow) == [("stuck", 1), ("waiting", 0)]
    assert kinds(working, slow) == []
    assert kinds(replace(slow, rank=0)) == []  # alone in its world, it has only its history


def test_a_rank_that_moves_is_slow_and_not_stuck():
    assert kinds(beat(0, "exchange", 30), beat(1, "compute", 2, lasting=31)) == [("slow", 1), ("waiting", 0)]


def test_a_silent_rank_is_named_when_somebody_waits():
    silent = beat(1, "compute", 21, micro_batch=3, quiet=21)
    assert kinds(beat(0, "exchange", 16), silent) == [("silent", 1), ("waiting", 0)]
    assert kinds(beat(0, "exchange", 16, median=60.0), silent) == [("silent", 1), ("waiting", 0)]
    assert kinds(beat(0, "exchange", 3), silent) == []  # only beats are lost: the step goes on
    assert kinds(beat(0, "compute", 3), silent) == []


def test_a_wait_for_a_checkpoint_is_no_stall_until_the_checkpoint_is_too_long():
    assert kinds(beat(0, "checkpoint", 55, median=None), beat(1, "exchange", 54)) == []
    assert kinds(beat(0, "checkpoint", 61, median=None), beat(1, "exchange", 60)) == [
        ("stuck", 0),
        ("waiting", 1),
    ]
    assert kinds(beat(0, "checkpoint", 300, median=40.0), beat(1, "exchange", 299)) == []


def test_the_first_step_has_more_time():
    assert kinds(beat(0, "compute", 59, median=None), beat(1, "exchange", 59, median=None)) == []
    assert kinds(beat(0, "compute", 61, median=None), beat(1, "exchange", 59, median=None))[0] == ("stuck", 0)


def test_when_all_wait_it_is_the_network():
    found = judge([beat(0, "exchange", 33, lasting=34), beat(2, "agree", 33, lasting=34)], 0, LIMITS)
    assert found.suspects() == []
    assert found.lines() == [
        "step 120 has taken 34 s (median 1.2 s)",
        "  rank 0 on host1: waiting in the exchange of step 120 for 33 s",
        "  rank 2 on host2: waiting for the sums of all of step 120 for 33 s",
        "  all ranks wait for each other: the network between the hosts is stuck or very slow",
    ]
    here = judge([beat(0, "exchange", 33), beat(1, "exchange", 33)], 0, LIMITS)
    assert here.lines()[-1] == "  all ranks wait for each other: a collective hangs"
    part = judge([beat(0, "exchange", 33)], 0, LIMITS, unheard=[1, 2])
    assert part.lines()[-1] == "  ranks 1, 2: no beat ever came, so nothing is known"


def test_exactly_one_rank_speaks_the_lowest_that_is_heard():
    beats = [beat(0, "compute", 40, quiet=40), beat(1, "exchange", 39), beat(2, "exchange", 39)]
    assert [judge(beats, rank, LIMITS).speaks for rank in (1, 2)] == [True, False]


def test_the_text_says_who_where_what_and_for_how_long():
    stack = ("dragoman/data/shards.py:88 gather", "dragoman/train/loop.py:95 train")
    beats = [
        beat(0, "exchange", 33, lasting=34, stack=("torch/autograd/graph.py:824 backward",)),
        beat(1, "data", 34, stack=stack),
        beat(2, "compute", 34, quiet=21, micro_batch=3),
        beat(3, "compute", 5, micro_batch=1, lasting=34),
        beat(4, "checkpoint", 9, median=None),
        beat(5, "left", 22, quiet=22),
    ]
    assert judge(beats, 0, LIMITS).lines() == [
        "step 120 has taken 34 s (median 1.2 s)",
        "  rank 2 on host2: no sign of life for 21 s; last seen computing micro-batch 3 of step 120",
        "  rank 5 on host3: left 22 s ago",
        "  rank 1 on host1: stuck loading data of step 120 for 34 s",
        "      dragoman/data/shards.py:88 gather",
        "      dragoman/train/loop.py:95 train",
        "  rank 3 on host2: slow: computing micro-batch 1 of step 120, 34 s in all",
        "  rank 4 on host3: saving a checkpoint after step 120 for 9 s",
        "  rank 0 on host1: waiting in the exchange of step 120 for 33 s",
    ]


def test_the_text_of_a_rare_phase_and_of_the_start():
    evaluating = judge([beat(0, "evaluate", 70, micro_batch=5, median=None)], 0, LIMITS)
    assert evaluating.lines() == [
        "evaluating micro-batch 5 after step 120 has taken 70 s",
        "  rank 0 on host1: stuck evaluating micro-batch 5 after step 120 for 70 s",
    ]
    starting = judge([beat(0, "start", 61, step=None, median=None)], 0, LIMITS)
    assert starting.lines()[0] == "starting has taken 61 s"


def test_a_large_world_is_told_in_few_lines():
    lines = judge(
        [beat(0, "data", 16), *(beat(rank, "exchange", 15) for rank in range(1, 64))], 0, LIMITS
    ).lines()
    assert len(lines) == 11
    assert lines[-1] == "  55 more ranks wait or are within their limits"


def test_an_event_holds_all_of_it():
    found = judge([beat(0, "exchange", 33), beat(1, "data", 34, stack=("a.py:1 f",))], 0, LIMITS)
    event = json.loads(json.dumps(found.to_json()))
    assert event["suspects"] == [1]
    assert (event["step"], event["phase"], event["seconds"], event["median"]) == (120, "data", 34, 1.2)
    stuck, waiting = event["ranks"]
    assert (stuck["kind"], stuck["rank"], stuck["host"], stuck["stack"]) == (
        "stuck",
        1,
        "host1",
        ["a.py:1 f"],
    )
    assert waiting["kind"] == "waiting"
    assert not event.keys() & {"event", "time", "rank"}  # every event has these already


def test_a_lost_host_is_given_up_when_somebody_waits_for_it():
    there = [beat(2, "compute", 31, quiet=31), beat(3, "exchange", 30, quiet=30.5)]
    assert (
        reason_to_give_up([beat(0, "exchange", 30), *there], 0, LIMITS)
        == "host2 (ranks 2, 3) has given no sign of life for 30 s"
    )
    # Steps of a minute: it is not overdue by its history, but it waits.
    assert reason_to_give_up([beat(0, "exchange", 20, median=60.0), *there], 0, LIMITS)
    assert reason_to_give_up([beat(0, "compute", 20), *there], 0, LIMITS)


@pytest.mark.parametrize(
    "beats",
    [
        [beat(0, "exchange", 22), beat(2, "compute", 21, quiet=21)],  # the link is cut for a moment
        [beat(0, "exchange", 40), beat(1, "compute", 40, quiet=40)],  # a rank of this very host
        [
            beat(0, "exchange", 40),
            beat(2, "compute", 40, quiet=40),
            beat(3, "exchange", 40),
        ],  # its host lives
        [beat(0, "exchange", 3), beat(2, "compute", 40, quiet=40)],  # steps go on, only beats are lost
        [beat(0, "compute", 599), beat(2, "exchange", 599)],
    ],
)
def test_there_is_hope(beats):
    assert reason_to_give_up(beats, 0, LIMITS) == ""


def test_nobody_waits_for_ever():
    beats = [beat(0, "exchange", 600), beat(1, "data", 601)]
    for me in (0, 1):
        assert reason_to_give_up(beats, me, LIMITS) == (
            "nobody has moved for 600 s; rank 1 on host1: stuck loading data of step 120 for 601 s"
        )
    assert reason_to_give_up([beat(0, "data", 600, median=None)], 0, LIMITS)
    assert reason_to_give_up([beat(0, "exchange", 600), beat(1, "data", 700, quiet=700)], 0, LIMITS)


def test_a_step_longer_than_the_timeout_is_fine_while_somebody_moves():
    assert not reason_to_give_up([beat(0, "exchange", 700), beat(1, "compute", 50, lasting=750)], 0, LIMITS)


def test_the_phases_that_wait_are_no_suspects():
    assert {name for name, phase in PHASES.items() if phase.waits} == {
        "exchange",
        "agree",
        "measure",
        "settle",
    }
