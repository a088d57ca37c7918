"""Real commands in real processes on a toy task: a model small enough that a step takes milliseconds."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from dragoman.files import read_json_lines
from dragoman.rundir import RunDir

TOY = """
[data]
train = "builtin:800"
dev = "builtin:40"
test = "builtin:40"
directory = "{datasets}"
[vocab]
size = 400
[model]
layers = 1
d_model = 32
heads = 2
feed_forward = 64
[train]
steps = 30
tokens_per_step = 600
micro_batch_tokens = 200
[schedule]
name = "inverse_sqrt"
learning_rate = 0.005
warmup_steps = 10
[evaluate]
every_steps = 20
train_sample = 40
beam = 1
[checkpoint]
every_steps = 5
[log]
every_steps = 10
samples_every = 20
"""

# Bits are compared, so every test computes on the CPU, and no number of cores decides the order of a sum.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "120"}


@dataclass
class Toy:
    """A directory with toy.toml in which commands run, one after another."""

    path: Path
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def run_dir(self, name: str) -> RunDir:
        return RunDir(self.path / name)

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start a command in a process group of its own, as a terminal would."""
        process = subprocess.Popen(
            [sys.executable, "-m", "dragoman", *arguments],
            cwd=self.path,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def call(
        self, *arguments: str, code: int = 0, stdin: str | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end, which must have the given exit code."""
        result = subprocess.run(
            [sys.executable, "-m", "dragoman", *arguments],
            cwd=self.path,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            input=stdin,
            timeout=240,
        )
        assert result.returncode == code, f"exit code {result.returncode}\n{result.stdout}\n{result.stderr}"
        return result

    def train(self, run: str, *arguments: str, workers: int = 1, code: int = 0) -> RunDir:
        self.call("train", "toy.toml", "--run", run, "--workers", str(workers), *arguments, code=code)
        return self.run_dir(run)

    def wait_for_step(self, run: str, step: int, process: "subprocess.Popen[str]") -> None:
        """Return once the events of rank 0 show ``step``."""
        events = self.run_dir(run).events(0)
        wait_until(
            lambda: (
                process.poll() is not None
                or any(line["event"] == "step" and line["step"] >= step for line in read_json_lines(events))
            ),
            f"step {step}",
        )
        assert process.poll() is None, f"ended before step {step}: {process.communicate()}"


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 120) -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.02)


def family(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    """Return the process and all its descendants."""
    parent = psutil.Process(process.pid)
    return [parent, *parent.children(recursive=True)]


def kill(processes: Iterable[psutil.Process]) -> None:
    """Send SIGKILL to all; one may end because another has."""
    for each in processes:
        with suppress(psutil.NoSuchProcess):
            each.send_signal(signal.SIGKILL)


def lives(process: psutil.Process) -> bool:
    """Whether a process has not ended, which it may do while we look."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def workers_of(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    """Return the worker processes of a launcher, by rank."""
    found = [each for each in family(process)[1:] if "dragoman.train.run" in each.cmdline()]
    return sorted(found, key=lambda each: int(each.environ()["RANK"]))


def step_losses(run: RunDir, rank: int = 0) -> dict[int, float]:
    """Return the loss of every step; a step that was done twice must have given the same bits."""
    losses: dict[int, float] = {}
    for line in read_json_lines(run.events(rank)):
        if line["event"] == "step":
            assert losses.setdefault(line["step"], line["loss"]) == line["loss"], (
                f"step {line['step']} differs"
            )
    return losses


@pytest.fixture(scope="session")
def datasets(tmp_path_factory):
    return tmp_path_factory.mktemp("datasets")


@pytest.fixture
def toy(tmp_path, datasets):
    (tmp_path / "toy.toml").write_text(TOY.format(datasets=datasets))
    toy = Toy(tmp_path)
    yield toy
    for process in toy.processes:
        if process.poll() is None:
            kill(family(process))
        process.communicate()


@pytest.fixture(scope="session")
def trained(tmp_path_factory, datasets):
    """One finished run that tests may read but not change."""
    path = tmp_path_factory.mktemp("trained")
    (path / "toy.toml").write_text(TOY.format(datasets=datasets))
    toy = Toy(path)
    toy.train("run", workers=2)
    return toy


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 8 MB."""
    path = tmp_path / "small"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(path)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)
