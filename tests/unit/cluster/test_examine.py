"""Leading the measuring processes: which addresses are tried, who is to blame, and that all are ended."""

import subprocess
import sys
import time

import pytest

from dragoman.cluster import examine
from dragoman.cluster.examine import Lost, addresses_to_try, ask_all, measure_hosts, measuring
from dragoman.cluster.hosts import Host
from dragoman.cluster.survey import MARK, Answer


def answer(name="a", **interfaces):
    return Answer(Host(name), {"interfaces": interfaces, "devices": [], "free_port": 1})


def start(program):
    """Return a function that starts ``program`` in the place of a measuring process."""
    return lambda host: subprocess.Popen(
        [sys.executable, "-uc", f"import json, sys, time\nMARK = {MARK!r}\nname = {host.name!r}\n{program}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


# Tells the time always, and does what it is asked only on hosts whose name begins with "good".
OBEDIENT = """
for line in sys.stdin:
    request = json.loads(line)
    if request["do"] == "clock" or name.startswith("good"):
        print(MARK + json.dumps({"to": request["do"], "time": time.time(), "name": name}))
    elif name.startswith("failing"):
        print(MARK + json.dumps({"to": request["do"], "error": "cannot"}))
"""
DYING = "sys.stdin.readline()\nsys.exit('out of memory')"


def test_all_answers_come_in_the_order_of_the_hosts():
    with measuring([answer("good1"), answer("good2")], start(OBEDIENT)) as sessions:
        assert [each["name"] for each in ask_all(sessions, "join", 10, [{}, {}])] == ["good1", "good2"]


def test_a_host_that_fails_is_named():
    with (
        measuring([answer("good"), answer("failing")], start(OBEDIENT)) as sessions,
        pytest.raises(Lost, match="host failing cannot"),
    ):
        ask_all(sessions, "join", 10, [{}, {}])


def test_hosts_that_wait_are_not_to_blame_for_one_that_died():
    def start_either(host):
        return start(DYING if host.name == "dying" else OBEDIENT)(host)

    with measuring([answer("waiting"), answer("dying")], start_either) as sessions:
        began = time.monotonic()
        with pytest.raises(Lost, match="host dying stopped measuring: out of memory") as caught:
            ask_all(sessions, "all_reduce", 60, [{}, {}])
        assert time.monotonic() - began < 30
        assert caught.value.host == "dying"


def test_hosts_that_hang_together_are_all_named():
    with (
        measuring([answer("one"), answer("two")], start(OBEDIENT)) as sessions,
        pytest.raises(Lost, match="host one, two did not answer within 1 s to all-reduce, but is alive"),
    ):
        ask_all(sessions, "all_reduce", 0.6, [{}, {}])


def test_a_silent_host_is_told_from_those_that_wait(monkeypatch):
    monkeypatch.setattr(examine, "ALIVE_SECONDS", 0.3)
    monkeypatch.setattr(examine, "LEAVE_SECONDS", 0.1)

    def start_either(host):
        return start("time.sleep(60)" if host.name == "stopped" else OBEDIENT)(host)

    with measuring([answer("waiting"), answer("stopped")], start_either) as sessions:
        sessions[0].ask("clock", 30)  # has started
        with pytest.raises(Lost, match="host stopped did not answer"):
            ask_all(sessions, "all_reduce", 0.2, [{}, {}])


def test_every_process_is_ended_also_after_an_interruption(monkeypatch):
    monkeypatch.setattr(examine, "LEAVE_SECONDS", 0.1)
    with (
        pytest.raises(KeyboardInterrupt),
        measuring([answer("one"), answer("two")], start("time.sleep(60)")) as sessions,
    ):
        raise KeyboardInterrupt
    assert all(session.process.poll() is not None for session in sessions)


def test_a_host_that_cannot_measure_is_a_result():
    measured = measure_hosts(
        [answer("a"), answer("b")], interface=None, full=False, say=lambda text: None, start=start(DYING)
    )
    assert [lost.host for lost in measured.lost] == ["a", "b"]
    assert measured.links == []
    assert [each.skipped for each in measured.all_reduce] == ["not measured"] * 3


def test_clocks_are_compared():
    found = answer("good")
    with measuring([found], start(OBEDIENT.replace("time.time()", "time.time() + 100"))) as sessions:
        examine._compare_clock(sessions[0])
    assert found.facts["clock_offset_seconds"] == pytest.approx(100, abs=1)
    assert 0 <= found.facts["clock_doubt_seconds"] < 1


@pytest.mark.parametrize(
    ("source", "target", "interface", "expected"),
    [
        (
            {"eth0": ["10.0.0.1/24"]},
            {"docker0": ["172.17.0.1/16"], "eth0": ["10.0.0.2/24"]},
            None,
            ["10.0.0.2"],
        ),
        (
            {"lo": ["127.0.0.1/8"], "eth0": ["10.0.0.1/32"]},
            {"lo": ["127.0.0.1/8"], "eth0": ["10.0.0.2/32"]},
            None,
            ["b", "10.0.0.2"],
        ),
        ({"eth0": ["10.0.0.1/24"]}, {"eth0": ["10.0.0.2/24"], "ib0": ["10.1.0.2/24"]}, "ib0", ["10.1.0.2"]),
        ({"eth0": ["10.0.0.1/24"]}, {"eth0": ["10.0.0.2/24"]}, "ib0", []),
    ],
)
def test_addresses_to_try(source, target, interface, expected):
    assert addresses_to_try(answer("user@b", **target), answer("a", **source), interface) == expected


def test_a_world_of_one_worker_per_host_meets_where_all_can():
    answers = [
        answer("a", docker0=["172.17.0.1/16"], eth0=["10.0.0.1/24"]),
        answer("b", docker0=["172.17.0.1/16"], eth0=["10.0.0.2/24"]),
    ]
    with measuring(answers, start(OBEDIENT)) as sessions:
        first, second = examine._environments(sessions, [], None)
    assert first["MASTER_ADDR"] == second["MASTER_ADDR"] == "10.0.0.1"
    assert (second["RANK"], second["WORLD_SIZE"], second["LOCAL_RANK"], second["LOCAL_WORLD_SIZE"]) == (
        "1", "2", "0", "1",
    )  # fmt: skip
    assert second["CUDA_VISIBLE_DEVICES"] == ""
    alone = [answers[0]] * 2
    alone[0].facts["devices"] = [{"name": "A100"}] * 2
    with measuring(alone, start(OBEDIENT)) as sessions:
        _, second = examine._environments(sessions, [], None)
    assert (second["MASTER_ADDR"], second["LOCAL_RANK"], second["LOCAL_WORLD_SIZE"]) == (
        "127.0.0.1",
        "1",
        "2",
    )
    assert "CUDA_VISIBLE_DEVICES" not in second
