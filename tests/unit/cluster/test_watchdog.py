"""Beats over real sockets; time is a number that the tests move on, save where a process is really stopped."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import timeit
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dragoman.cluster.diagnosis import Beat, Limits
from dragoman.cluster.watchdog import (
    DATAGRAM_BYTES,
    Peer,
    Watchdog,
    current_stack,
    read_datagram,
    tell_hosts_apart,
    write_datagram,
)

LIMITS = Limits(timeout_seconds=600)
BEAT = Beat(1, "compute", 120, 3, 1.5, 2.5, 1.2, ("a.py:1 f",))
SOON = 20  # seconds that a busy machine may take for what takes one


class Rank(Watchdog):
    """A watchdog that notes what its listeners hear."""

    def __init__(self, rank=0, host="here", limits=LIMITS, *, token="t", bind="127.0.0.1", **others) -> None:
        self.stalls, self.recoveries, self.losses, self.warnings = [], [], [], []
        listeners = {
            "on_stall": self.stalls.append,
            "on_recovery": self.recoveries.append,
            "on_lost": self.losses.append,
            "warn": self.warnings.append,
        }
        super().__init__(rank, host, limits, token=token, bind=bind, **(listeners | others))
        self.rank, self.host = rank, host

    def suspects(self) -> list[tuple[str, int]]:
        """Those of the last stall."""
        return [(kind, beat.rank) for kind, beat in self.stalls[-1].suspects()]


class Room:
    """Some ranks, two a host, on one clock; each has done a few steps of a second."""

    def __init__(self, size: int) -> None:
        self.now = 1000.0
        self.ranks = [Rank(rank, f"host{rank // 2 + 1}", clock=lambda: self.now) for rank in range(size)]
        for rank in self.ranks:
            rank.meet([Peer(each.rank, each.host, each.address()) for each in self.ranks])
        self.stopped: set[int] = set()
        self.wait(3)
        self.step()

    def wait(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1.0
            for rank in self.ranks:
                if rank.rank not in self.stopped:
                    rank.round()

    def step(self) -> None:
        for rank in self.ranks:
            rank.at("compute", step=10, micro_batch=0)
            rank.step_done(1.0)


@contextmanager
def room_of(size: int) -> Iterator[Room]:
    room = Room(size)
    try:
        yield room
        assert not any(rank.warnings for rank in room.ranks)
    finally:
        for rank in room.ranks:
            rank.stop()


def test_a_rank_stuck_in_data_is_named_by_one_and_noted_by_all():
    with room_of(4) as room:
        for rank in room.ranks:
            rank.at("exchange", step=10)
        room.ranks[2].at("data", step=10)
        room.wait(14)
        assert not any(rank.stalls for rank in room.ranks)
        room.wait(4)
        assert [rank.suspects() for rank in room.ranks] == [[("stuck", 2)]] * 4
        assert [rank.stalls[0].speaks for rank in room.ranks] == [True, False, False, False]
        text = "\n".join(room.ranks[0].stalls[0].lines())
        assert "rank 2 on host2: stuck loading data of step 10 for " in text
        assert "test_watchdog.py" in text  # its stack came with the beats
        assert "rank 0 on host1: waiting in the exchange of step 10 for " in text


def test_it_is_said_again_when_it_changes_or_now_and_then_and_when_it_is_over():
    with room_of(2) as room:
        room.ranks[0].at("exchange", step=10)
        room.ranks[1].at("data", step=10)
        room.wait(20)
        assert len(room.ranks[0].stalls) == 1
        room.wait(60)
        assert len(room.ranks[0].stalls) == 2
        room.stopped = {1}
        room.wait(15)
        assert len(room.ranks[0].stalls) == 3
        assert room.ranks[0].suspects() == [("silent", 1)]
        room.stopped = set()
        assert room.ranks[0].recoveries == []
        room.step()
        room.wait(2)
        [seconds] = room.ranks[0].recoveries
        assert 94 <= seconds <= 98
        room.wait(10)
        assert len(room.ranks[0].stalls) == 3
        assert room.ranks[0].losses == []


def test_a_lost_host_is_given_up_after_half_a_minute():
    with room_of(4) as room:
        room.stopped = {2, 3}
        for rank in room.ranks:
            rank.at("exchange", step=10)
        room.wait(28)
        assert room.ranks[1].suspects() == [("silent", 2), ("silent", 3)]
        assert room.ranks[1].losses == []
        room.wait(5)
        for rank in room.ranks[:2]:
            assert len(rank.losses) == 1
            assert rank.losses[0].startswith("host2 (ranks 2, 3) has given no sign of life for 3")
        room.wait(700)
        assert len(room.ranks[0].losses) == 1


def test_a_link_that_is_cut_for_20_seconds_is_survived():
    with room_of(4) as room:
        for rank in room.ranks:
            rank.at("exchange", step=10)
        sent = [rank._send for rank in room.ranks]
        for rank in room.ranks:
            rank._send = lambda beat: None
        room.wait(20)
        for rank, send in zip(room.ranks, sent, strict=True):
            rank._send = send
        room.wait(6)
        room.step()
        room.wait(2)
        for rank in room.ranks:
            assert rank.stalls
            assert len(rank.recoveries) == 1
            assert rank.losses == []


def test_nobody_waits_longer_than_the_timeout():
    with room_of(2) as room:
        room.ranks[0].at("exchange", step=10)
        room.ranks[1].at("data", step=10)
        room.wait(599)
        assert [rank.losses for rank in room.ranks] == [[], []]
        room.wait(3)
        for rank in room.ranks:  # the stuck one too
            [reason] = rank.losses
            assert "rank 1 on host1: stuck loading data of step 10 for 60" in reason


def test_a_long_evaluation_that_moves_is_left_alone():
    with room_of(2) as room:
        room.ranks[0].at("agree", step=10)
        for micro_batch in range(40):
            room.ranks[1].at("evaluate", micro_batch=micro_batch)
            room.wait(20)
        assert [kind for kind, _ in room.ranks[0].suspects()] == ["slow"]
        assert room.ranks[0].losses == []


def test_a_checkpoint_has_a_history_of_its_own():
    with room_of(2) as room:
        for _ in range(3):
            room.ranks[0].at("checkpoint")
            room.ranks[1].at("exchange", step=11)
            room.wait(40)
            assert not room.ranks[1].stalls
            room.step()
        room.ranks[0].at("checkpoint")
        room.ranks[1].at("exchange", step=11)
        room.wait(300)
        assert not room.ranks[0].stalls
        room.wait(25)
        assert (
            room.ranks[0].stalls[0].lines()[0]
            == "saving a checkpoint after step 10 has taken 321 s (median 40 s)"
        )


def test_a_rank_that_was_stopped_itself_blames_nobody():
    with room_of(2) as room:
        for rank in room.ranks:
            rank.at("exchange", step=10)
        room.stopped = {0, 1}
        room.wait(3000)
        room.stopped = set()
        room.wait(10)
        for rank in room.ranks:
            assert rank.stalls == []
            assert rank.losses == []


def test_a_peer_that_was_never_heard_is_said_once_and_never_blamed():
    now = 0.0
    deaf = Rank(0, clock=lambda: now)
    silent = Rank(1, "there", clock=lambda: now)
    deaf.meet([Peer(1, "there", silent.address())])
    deaf.at("exchange", step=1)
    for second in range(100):
        now = float(second)
        deaf.round()
    [warning] = deaf.warnings
    assert warning.startswith("no beat ever came from rank 1: is UDP to ('127.0.0.1', ")
    assert deaf.suspects() == []
    assert deaf.stalls[-1].lines()[-1] == "  rank 1: no beat ever came, so nothing is known"
    assert deaf.losses == []
    for rank in (deaf, silent):
        rank.stop()


def test_whoever_leaves_says_so():
    with room_of(2) as room:
        room.ranks[0].at("exchange", step=10)
        room.ranks[1].stop()
        room.stopped = {1}
        room.wait(17)
        assert "rank 1 on host1: left 1" in room.ranks[0].stalls[0].lines()[1]


def test_a_world_of_one_watches_itself():
    now = 0.0
    alone = Rank(bind=None, clock=lambda: now)
    assert alone.address() == ("", 0)
    alone.meet([])
    alone.at("data", step=1)
    for second in range(700):
        now = float(second)
        alone.round()
    assert alone.stalls[0].speaks
    assert alone.stalls[0].lines()[1] == "  rank 0 on here: stuck loading data of step 1 for 61 s"
    assert any("test_watchdog.py" in line for line in alone.stalls[0].lines())
    [reason] = alone.losses
    assert reason.startswith("nobody has moved for 600 s; rank 0 on here: stuck loading data")
    alone.stop()


def test_the_stack_shows_the_thread_that_works_for_the_phase():
    entered, leave = threading.Event(), threading.Event()

    def read_a_hanging_disk():
        entered.set()
        leave.wait()

    thread = threading.Thread(target=read_a_hanging_disk, name="data")
    thread.start()
    entered.wait()
    stack = current_stack("data")
    assert any(line.endswith(" test_the_stack_shows_the_thread_that_works_for_the_phase") for line in stack)
    assert any(line.endswith(" read_a_hanging_disk") for line in stack[stack.index("thread data:") :])
    assert not any("_pytest" in line for line in stack)
    assert "thread data:" not in current_stack("compute")
    leave.set()
    thread.join()


def test_a_beat_survives_its_journey_and_fits_a_packet():
    assert read_datagram(write_datagram(BEAT, "t"), "t") == BEAT
    long = Beat(
        1, "start", None, None, 1.5, 2.5, None, tuple(f"{'ä' * 50}.py:{line} f" for line in range(40))
    )
    data = write_datagram(long, "t")
    assert len(data) <= DATAGRAM_BYTES
    assert read_datagram(data, "t").stack == long.stack[: len(read_datagram(data, "t").stack)] != ()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\x00",
        b"[]",
        b"3",
        b"null",
        b"{}",
        b"[" * 50_000,
        write_datagram(BEAT, "another attempt"),
        write_datagram(BEAT, "t").replace(b"compute", b"juggle"),
        write_datagram(BEAT, "t").replace(b'"compute"', b"[]"),
        write_datagram(BEAT, "t").replace(b"1.5", b'"long"'),
        write_datagram(BEAT, "t").replace(b": 120", b": Infinity"),
        write_datagram(BEAT, "t")[:-9],
    ],
    ids=lambda data: data[:20],
)
def test_what_is_no_beat_of_ours_is_ignored(data):
    assert read_datagram(data, "t") is None
    with room_of(2) as room:
        room.ranks[1]._socket.sendto(data, room.ranks[0].address())
        room.wait(1)


def test_ipv6():
    try:
        ranks = [Rank(rank, bind="::1") for rank in range(2)]
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    for rank in ranks:
        rank.meet([Peer(each.rank, each.host, each.address()) for each in ranks])
        rank.round()
    ranks[0].round()
    assert list(ranks[0]._heard) == [1]
    for rank in ranks:
        rank.stop()


def test_one_name_at_two_addresses_is_two_hosts():
    peers = [Peer(0, "a", ("10.0.0.1", 1)), Peer(1, "a", ("10.0.0.2", 1)), Peer(2, "b", ("10.0.0.3", 1))]
    assert tell_hosts_apart(peers) == {0: "a (10.0.0.1)", 1: "a (10.0.0.2)", 2: "b"}


def test_a_network_that_takes_no_beats_is_no_failure():
    rank = Rank()
    rank.meet([Peer(1, "there", ("127.0.0.1", 0)), Peer(2, "there", ("::1", 9))])
    rank.round()
    rank.stop()
    assert rank.warnings == []


def test_a_mark_costs_next_to_nothing():
    rank = Rank(bind=None)
    seconds = min(timeit.repeat(lambda: rank.at("compute", 7, 3), number=1000, repeat=20)) / 1000
    assert seconds < 2e-6


def test_a_listener_that_fails_is_said_once_and_the_watch_goes_on():
    limits = Limits(timeout_seconds=0.5, beat_seconds=0.01, rare_seconds=0.1, repeat_seconds=0.02)
    warnings, lost, failures = [], threading.Event(), []

    def fail(diagnosis):
        failures.append(diagnosis)
        raise RuntimeError("disk full")

    rank = Rank(limits=limits, on_stall=fail, on_lost=lambda reason: lost.set(), warn=warnings.append)
    rank.start()
    assert lost.wait(SOON)
    rank.stop()
    assert len(failures) > 1
    assert warnings == ["the watchdog failed, and goes on: RuntimeError('disk full')"]


def test_a_listener_that_hangs_does_not_hold_up_the_end():
    limits = Limits(timeout_seconds=0.5, beat_seconds=0.01, rare_seconds=0.1)
    hanging, lost, leave = threading.Event(), threading.Event(), threading.Event()

    def hang(diagnosis):
        hanging.set()
        leave.wait()

    rank = Rank(limits=limits, on_stall=hang, on_lost=lambda reason: lost.set())
    rank.start()
    assert hanging.wait(SOON)
    assert lost.wait(SOON)
    leave.set()
    rank.stop()


def test_it_stops_at_once_also_twice_and_leaves_nothing():
    before = threading.active_count()
    rank = Rank(limits=Limits(timeout_seconds=600, beat_seconds=300))
    rank.start()
    assert threading.active_count() == before + 2
    rank.stop()
    rank.stop()
    assert threading.active_count() == before
    assert rank._socket.fileno() == -1


CHILD = """
import json, os, sys, time
from dragoman.cluster.diagnosis import Limits
from dragoman.cluster.watchdog import Peer, Watchdog

def tell(*values):
    print(json.dumps(values), flush=True)

def lost(reason):
    tell("lost", reason)
    os._exit(7)

def wait_for_the_disk():
    time.sleep(1000)

limits = Limits(**json.loads(sys.argv[1]))
watch = Watchdog(
    1, "there", limits, token="t", bind="127.0.0.1", on_lost=lost, warn=lambda text: tell("warning", text),
    on_stall=lambda found: tell("stall", [(kind, beat.rank) for kind, beat in found.suspects()]),
    on_recovery=lambda seconds: tell("recovery", seconds),
)
tell("address", watch.address())
address = tuple(json.loads(sys.stdin.readline()))
watch.at("data", step=10)
watch.step_done(0.1)
watch.start([Peer(0, "here", address)])
if sys.argv[2] == "stuck":
    wait_for_the_disk()
sys.stdin.readline()
watch.stop()
"""


@contextmanager
def two_processes(limits: dict, role: str) -> Iterator[tuple[subprocess.Popen, queue.Queue]]:
    """Rank 0 here waits in the exchange for rank 1 in another process; yield that process and what rank 0 hears."""
    heard: queue.Queue = queue.Queue()
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, json.dumps(limits), role],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    here = Rank(
        limits=Limits(**limits),
        on_stall=lambda found: heard.put(("stall", found)),
        on_recovery=lambda seconds: heard.put(("recovery", seconds)),
        on_lost=lambda reason: heard.put(("lost", reason)),
    )
    try:
        _, address = json.loads(child.stdout.readline())
        child.stdin.write(json.dumps(here.address()) + "\n")
        child.stdin.flush()
        here.at("exchange", step=10)
        here.step_done(0.1)
        here.start([Peer(1, "there", tuple(address))])
        yield child, heard
    finally:
        here.stop()
        child.kill()
        child.communicate()


def next_of(heard: queue.Queue, wanted: str, accept=lambda value: True):
    """Wait for something that rank 0 hears."""
    until = time.monotonic() + SOON
    while True:
        name, value = heard.get(timeout=max(0.0, until - time.monotonic()))
        if name == wanted and accept(value):
            return value


def test_a_process_that_is_stopped_is_named_and_takes_up_its_work_again():
    limits = {"timeout_seconds": 600, "beat_seconds": 0.1, "silent_seconds": 1.5, "step_seconds": 2.5}
    with two_processes(limits | {"gap_seconds": 1}, "waits") as (child, heard):
        next_of(heard, "stall", lambda found: [kind for kind, _ in found.suspects()] == ["stuck"])
        os.kill(child.pid, signal.SIGSTOP)
        found = next_of(heard, "stall", lambda found: [kind for kind, _ in found.suspects()] == ["silent"])
        assert "rank 1 on there: no sign of life for " in found.lines()[1]
        assert "; last seen loading data of step 10" in found.lines()[1]
        os.kill(child.pid, signal.SIGCONT)
        # It counts anew from here, so for a moment all is well.
        next_of(heard, "recovery")
        told = [json.loads(line) for line in child.communicate("\n", timeout=SOON)[0].splitlines()]
        assert child.returncode == 0
        assert ["silent", 0] not in [suspect for name, value in told if name == "stall" for suspect in value]


def test_a_process_that_is_stuck_ends_itself_and_the_others_have_its_stack():
    limits = {"timeout_seconds": 5, "beat_seconds": 0.1, "step_seconds": 1.5, "repeat_seconds": 0.5}
    with two_processes(limits, "stuck") as (child, heard):
        found = next_of(
            heard, "stall", lambda found: [beat.rank for _, beat in found.suspects() if beat.stack] == [1]
        )
        assert found.lines()[1].startswith("  rank 1 on there: stuck loading data of step 10 for ")
        assert found.lines()[2].endswith(" wait_for_the_disk")
        next_of(heard, "lost")
        assert child.wait(timeout=SOON) == 7
