"""What runs on a host measures links with real sockets, and leaves when nobody asks any more."""

import json
import socket
import subprocess
import sys

import pytest

from dragoman.cluster import measure
from dragoman.cluster.network import free_port
from dragoman.cluster.survey import MARK


@pytest.fixture
def short(monkeypatch):
    """A second is long for a test."""
    monkeypatch.setattr(measure, "STREAM_SECONDS", 0.1)
    monkeypatch.setattr(measure, "WARM_UP_SECONDS", 0.02)


@pytest.fixture
def process():
    started = subprocess.Popen(
        [sys.executable, "-m", "dragoman.cluster.measure"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with started:
        yield started
        started.kill()


def ask(process, **request):
    process.stdin.write(json.dumps(request) + "\n")
    process.stdin.flush()
    line = process.stdout.readline()
    assert line.startswith(MARK)
    return json.loads(line.removeprefix(MARK))


@pytest.mark.usefixtures("short")
def test_a_link_has_a_rate_a_latency_and_an_interface():
    found = measure.link(["127.0.0.1"], **measure.listen(), interface=None)
    assert found["mbit_per_second"] > 10
    assert 0 < found["latency_ms"] < 1000
    assert found["address"] == "127.0.0.1"
    assert found["interface"].startswith("lo")


@pytest.mark.usefixtures("short")
def test_the_first_address_that_leads_to_the_host_is_taken():
    found = measure.link(["nowhere.invalid", "127.0.0.1"], **measure.listen(), interface=None)
    assert found["address"] == "127.0.0.1"


def test_a_host_that_is_not_the_one_we_want_is_told_from_it():
    there = {**measure.listen(), "token": "00" * measure.TOKEN_BYTES}
    with pytest.raises(OSError, match=r"127\.0\.0\.1: another host answers there"):
        measure.link(["127.0.0.1"], **there, interface=None)


def test_what_does_not_answer_is_named():
    with pytest.raises(OSError, match=r"127\.0\.0\.1: Connection refused"):
        measure.link(["127.0.0.1"], free_port(), "00", interface=None)
    with pytest.raises(OSError, match="no address"):
        measure.link([], free_port(), "00", interface=None)


def test_a_stream_is_measured_after_its_warm_up(monkeypatch):
    monkeypatch.setattr(measure, "WARM_UP_BYTES", 1000)
    monkeypatch.setattr(measure, "STREAM_BYTES", 5000)

    class Stream:
        sizes = iter([800, 400, 3000, 3000])

        def recv_into(self, buffer):
            return next(self.sizes)

    assert measure._receive(Stream())[0] == 6000


def test_a_stream_that_ends_early_is_an_error():
    here, there = socket.socketpair()
    with there:
        here.sendall(b"some")
        here.close()
        with pytest.raises(ConnectionError):
            measure._receive(there)


def test_requests_are_answered_until_the_input_ends(process):
    told = ask(process, do="clock")
    assert told["to"] == "clock"
    assert told["time"] > 1.7e9
    listening = ask(process, do="listen")
    assert listening["port"] > 0
    failed = ask(process, do="link", addresses=[], port=1, token="00", interface=None)
    assert failed == {"to": "link", "error": "it has no address there"}
    process.stdin.close()
    assert process.wait(10) == 0
