"""Training on hosts that can be slowed, cut off and killed: promises 1, 2 and 8 across machines."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dragoman.cluster.lab.client import HOSTS, LAB
from dragoman.files import read_json_lines
from dragoman.observe.events import EDGES
from dragoman.rundir import RunDir, step_directories
from tests.hosts.conftest import Lab, wait_until
from tests.integration.conftest import ENVIRONMENT, TOY, Toy, step_losses

STEPS = 60
CLOSE = 1e-4  # promise 1: the same losses, whatever the number of workers
TRAIN = [sys.executable, "-m", "dragoman", "train", "toy.toml"]
RESUMED = "resuming after step"
ENDLESS = ("--set", "train.steps=100000")  # one host alone takes no time over its steps


class Training:
    """A ``dragoman train`` on the hosts of a lab, whose words are heard as they come."""

    def __init__(self, lab: Lab, path: Path, *arguments: str, run: str = "run"):
        self.lab, self.run = lab, RunDir(path / run)
        in_lab = {name: lab.environment[name] for name in (LAB, HOSTS)}
        self.process = subprocess.Popen(
            [*TRAIN, "--run", run, *arguments],
            cwd=path,
            env={**ENVIRONMENT, **in_lab},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, text: str, seconds: float = 90) -> str:
        """Return the first line with ``text``."""

        def said() -> bool:
            return any(text in line for line in self.lines) or self.process.poll() is not None

        wait_until(said, f"{text!r}, after\n{self.text}", seconds)
        found = [line for line in self.lines if text in line]
        assert found, f"ended with {self.process.returncode} before {text!r}\n{self.text}"
        return found[0]

    def wait_for_step(self, step: int, seconds: float = 90) -> None:
        def done() -> bool:
            events = read_json_lines(self.run.events(0))
            return any(event["event"] == "step" and event["step"] >= step for event in events)

        wait_until(
            lambda: done() or self.process.poll() is not None, f"step {step}, after\n{self.text}", seconds
        )
        assert self.process.poll() is None, (
            f"ended with {self.process.returncode} before step {step}\n{self.text}"
        )

    def end(self, code: int = 0, seconds: float = 150) -> str:
        """Wait for the end, which must have this exit code; return all that was said."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {seconds} s\n{self.text}")
        self.reader.join(10)
        assert self.process.returncode == code, f"exit code {self.process.returncode}\n{self.text}"
        return self.text

    def stop(self) -> None:
        """Stop as a terminal's Ctrl-C does."""
        self.wait_for_step(STEPS)
        os.killpg(self.process.pid, signal.SIGINT)
        self.end(code=130)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.reader.join(10)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    return tmp_path_factory.mktemp("datasets")


@pytest.fixture(scope="module")
def alone(tmp_path_factory, datasets):
    """The losses of one worker on one machine, never disturbed."""
    path = tmp_path_factory.mktemp("alone")
    (path / "toy.toml").write_text(recipe(datasets))
    return step_losses(Toy(path).train("run"))


@pytest.fixture
def start(tmp_path, datasets):
    """A function that starts a training in a lab; all of them end with the test."""
    (tmp_path / "toy.toml").write_text(recipe(datasets))
    started = []

    def start_training(lab: Lab, *arguments: str, **options) -> Training:
        started.append(Training(lab, tmp_path, *arguments, **options))
        return started[-1]

    yield start_training
    for each in started:
        each.kill()


def recipe(datasets: Path) -> str:
    """The toy task, with steps that last long enough to be disturbed and nothing else that takes time."""
    changes = {
        "steps = 30": f"steps = {STEPS}",
        "every_steps = 20": "every_steps = 30",
        "samples_every = 20": "samples_every = 0",
        "[schedule]": "[cluster]\ntimeout_seconds = 120\n[schedule]",
    }
    text = TOY.format(datasets=datasets)
    for old, new in changes.items():
        text = text.replace(old, new)
    return text


def assert_close(run: RunDir, expected: dict[int, float]) -> None:
    """All steps, each once or with the same loss again, and the losses of one worker alone."""
    losses: dict[int, float] = {}
    for rank in range(2):
        for event in read_json_lines(run.events(rank)):
            if event["event"] == "step":
                step = event["step"]
                losses[step] = event["loss"]
                assert event["loss"] == pytest.approx(expected.get(step, event["loss"]), rel=CLOSE)
    assert expected.keys() <= losses.keys()


def assert_taken_back(lab: Lab, training: Training, expected: dict[int, float]) -> None:
    """The lost host2 returns, both train on, and the losses are those of one worker alone."""
    lab.restore("host2")
    training.wait_for("host host2 is back")
    wait_until(
        lambda: training.text.count("shared by workers: 2") == 2,
        f"two hosts again, after\n{training.text}",
        90,
    )
    training.stop()
    assert_close(training.run, expected)


def slow_steps(lab: Lab, rate: str = "5mbit") -> None:
    """Let a step take about a third of a second: 0.2 MB of gradients over a slow link."""
    for host in ("host1", "host2"):
        lab.slow(host, rate)


def fast_steps(lab: Lab) -> None:
    """What was to be disturbed has been."""
    slow_steps(lab, "1gbit")


def signal_workers(lab: Lab, host: str, name: str) -> None:
    """Send a signal to the workers of one host; process numbers are those of the whole lab."""
    script = (
        "here=$(readlink /proc/self/ns/net); for each in /proc/[0-9]*; do "
        '[ "$(readlink $each/ns/net)" = "$here" ] && grep -q train[.]run $each/cmdline 2>/dev/null '
        f"&& kill -{name} ${{each#/proc/}} && echo $each; done"
    )
    found = lab.run(host, ["bash", "-c", script]).stdout.split()
    assert found, f"no worker on {host}"


@pytest.mark.timeout(200)
def test_two_hosts_train_as_one_machine_does(lab, start, alone):
    training = start(lab)
    said = training.end()
    assert "2 hosts meet at host1" in said
    assert "network: host1 eth0 (10.77.0.1), host2 eth0 (10.77.0.2)" in said
    assert "finished at step 60" in said
    assert_close(training.run, alone)


@pytest.mark.timeout(300)
def test_a_killed_host_is_done_without_and_taken_back_and_sent_what_it_lost(lab, start, alone, datasets):
    slow_steps(lab)
    lab.output("host2", ["mount", "-t", "tmpfs", "none", str(datasets)])
    training = start(lab, *ENDLESS)
    training.wait_for_step(12)
    lab.output("host2", ["sh", "-c", f"rm -r {datasets}/*"])
    lab.kill("host2")
    killed = time.monotonic()
    training.wait_for("host host2 is lost")
    training.wait_for("shared by workers: 1")
    training.wait_for(RESUMED)
    assert time.monotonic() - killed < 60
    assert_taken_back(lab, training, alone)
    assert training.text.count("host host2 has the dataset: ") == 2


@pytest.mark.timeout(300)
def test_when_the_host_of_the_meeting_dies_the_others_meet_elsewhere(lab, start, alone):
    slow_steps(lab)
    training = start(lab)
    training.wait_for_step(12)
    lab.kill("host1")
    training.wait_for("1 host meets at host2")
    training.wait_for(RESUMED)
    training.end()
    assert_close(training.run, alone)


@pytest.mark.timeout(300)
def test_a_link_that_is_cut_for_a_while_costs_only_time(lab, start, alone):
    slow_steps(lab)
    training = start(lab)
    training.wait_for_step(12)
    lab.cut("host2")
    training.wait_for("has taken", seconds=40)
    training.wait_for("host1 |   rank 1 on host2: no sign of life")
    training.wait_for("host2 |   rank 0 on host1: no sign of life")
    time.sleep(3)  # about 20 s in all
    lab.restore("host2")
    training.wait_for("it goes on, after")
    fast_steps(lab)
    said = training.end()
    assert RESUMED not in said
    assert_close(training.run, alone)


@pytest.mark.timeout(300)
def test_a_host_that_stays_cut_off_is_done_without_and_taken_back(lab, start, alone):
    slow_steps(lab)
    training = start(lab, *ENDLESS)
    training.wait_for_step(12)
    lab.cut("host2")
    cut = time.monotonic()
    training.wait_for("gives up: host2 (rank 1) has given no sign of life")
    training.wait_for(RESUMED)
    assert time.monotonic() - cut < 75
    training.wait_for("host host2 is lost")
    assert_taken_back(lab, training, alone)


@pytest.mark.timeout(300)
def test_a_worker_that_is_stopped_is_named_within_a_minute(lab, start, alone):
    training = start(lab, "--set", "cluster.timeout_seconds=40")
    slow_steps(lab)
    training.wait_for_step(12)
    signal_workers(lab, "host2", "STOP")
    stopped = time.monotonic()
    training.wait_for("rank 1 on host2: no sign of life", seconds=60)
    assert time.monotonic() - stopped < 60
    training.wait_for("gives up")
    fast_steps(lab)
    training.wait_for(RESUMED)
    training.end()
    assert_close(training.run, alone)


@pytest.mark.timeout(200)
def test_a_slow_link_only_makes_it_slow(lab, start, alone):
    training = start(lab)
    training.wait_for_step(5)
    lab.slow("host2", "3mbit")
    training.end()
    assert_close(training.run, alone)
    sent = [
        event["bytes_sent"] for event in read_json_lines(training.run.events(0)) if event["event"] == "step"
    ]
    assert min(sent) > 50_000


@pytest.mark.timeout(200)
def test_a_stop_reaches_all_hosts(lab, start, alone):
    slow_steps(lab)
    training = start(lab)
    training.wait_for_step(12)
    os.killpg(training.process.pid, signal.SIGINT)  # as a terminal does
    said = training.end(code=130)
    assert "stopping all hosts" in said
    assert "state saved; run the same command to go on" in said
    fast_steps(lab)
    again = start(lab)
    again.wait_for(RESUMED)
    again.end()
    assert_close(again.run, alone)


@pytest.mark.timeout(200)
def test_hosts_end_when_their_terminal_is_gone(lab, start):
    slow_steps(lab)
    training = start(lab)
    training.wait_for_step(8)
    training.process.kill()
    count = ["bash", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c train[.]run"]
    wait_until(lambda: lab.inside(count).stdout.strip() == "0", "the workers to end", 60)
    assert step_directories(training.run.checkpoints)


@pytest.mark.timeout(200)
def test_fewer_hosts_than_wanted_end_the_run(lab, start):
    slow_steps(lab)
    training = start(lab, "--set", "cluster.min_hosts=2")
    training.wait_for_step(8)
    lab.kill("host2")
    said = training.end(code=2)
    assert "error: only 1 of 2 hosts are left, and cluster.min_hosts is 2" in said


@pytest.mark.timeout(200)
def test_a_host_without_the_dataset_is_sent_it_and_one_with_other_data_is_named(lab, start, alone, datasets):
    lab.run("host2", ["mount", "-t", "tmpfs", "none", str(datasets)])
    training = start(lab)
    said = training.end()
    assert re.search(r"sending the dataset \w+ \(0\.\d MB\) to host2\n", said)
    assert "host host2 has the dataset: 0." in said
    assert "2 hosts meet at host1" in said
    assert_close(training.run, alone)
    (dataset,) = lab.output("host2", ["sh", "-c", f"ls -d {datasets}/*/"]).split()
    lab.output("host2", ["sed", "-i", '0,/"sha256": "./s//"sha256": "x/', f"{dataset}manifest.json"])
    said = start(lab, run="other").end(code=2)
    assert f"error: the dataset {Path(dataset).name} of host host2 has other files than the one here" in said
    assert f"fix:   on host2: remove {dataset.rstrip('/')} if nobody needs it, and ours will be sent" in said
    assert "meet at" not in said


@pytest.mark.timeout(200)
def test_a_host_without_room_is_named_before_anything_trains(lab, start, tmp_path):
    lab.run("host2", ["mount", "-t", "tmpfs", "-o", "size=100k", "none", str(tmp_path)])
    said = start(lab).end(code=2)
    assert "error: host host2 has 0 MB free where the run is written" in said


@pytest.mark.timeout(200)
def test_a_host_that_cannot_be_reached_is_named_before_anything_trains(lab, start):
    lab.cut("host2")
    said = start(lab).end(code=2)
    assert "error: host host2 cannot be reached" in said
    assert "fix:   dragoman lab restore host2" in said


@pytest.mark.timeout(300)
def test_hosts_that_share_no_disk_each_keep_the_run(lab, start, alone, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    for host in ("host1", "host2"):
        assert lab.run(host, ["mount", "-t", "tmpfs", "none", str(own)]).returncode == 0
    training = start(lab, "--set", f"train.steps={STEPS // 2}", run="own/run")
    training.end()
    listing = [lab.output(host, ["ls", str(own / "run" / "checkpoints")]) for host in ("host1", "host2")]
    assert f"step-{STEPS // 2:08d}" in listing[0]
    assert f"step-{STEPS // 2:08d}" in listing[1]
    # The leader loses its disk; what the other host has is enough to go on.
    lab.output("host1", ["rm", "-r", str(own / "run" / "checkpoints")])
    again = start(lab, run="own/run")
    again.wait_for(f"resuming after step {STEPS // 2}")
    again.end()

    def read(host: str, name: str) -> list[dict]:
        return list(map(json.loads, lab.output(host, ["cat", str(own / "run" / name)]).splitlines()))

    steps = [event for event in read("host1", "events/rank000.jsonl") if event["event"] == "step"]
    assert {event["step"]: event["loss"] for event in steps} == pytest.approx(alone, rel=CLOSE)
    # The leader's disk holds what the other host wrote, of both launches, each line once.
    theirs = read("host2", "events/rank001.jsonl")
    assert [event["event"] for event in theirs].count("step") == STEPS
    assert [event["event"] for event in theirs if event["event"] in EDGES] == [
        "start",
        "finish",
        "resume",
        "finish",
    ]
    assert read("host1", "events/rank001.jsonl") == theirs
    samples = read("host2", "telemetry/host2.jsonl")
    assert read("host1", "telemetry/host2.jsonl") == samples
    assert {sample["interface"] for sample in samples} == {"eth0"}
    links = [event for event in read("host1", "events/rank000.jsonl") if event["event"] == "link"]
    assert [link["hosts"] for link in links] == [2, 2]
    assert all(link["bytes_per_second"] > 1e6 and 0 < link["latency_seconds"] < 1 for link in links)
