"""Starts one contestant at a time on given cores, watches its memory, and makes figures of the steps it reports.

All are counted alike: real target tokens with end-of-sentence between the end of step ``warm_steps`` and that of
the last, by the clock and by the processor time of all processes. As soon as the last step is told the contestant is
killed: what it saves, evaluates and reports afterwards is not the question here.
"""

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
from peers import LOG, Step

LOOK_SECONDS = 0.5
MB = 1e6


class Failed(Exception):
    """A contestant ended before its last step; the message has the end of what it said."""


class Sample(NamedTuple):
    """A look at all processes of a contestant."""

    time: float
    cpu_seconds: float  # of those that live
    all_mb: float  # each process at its most so far, libraries counted once
    largest_mb: float  # of one process


@dataclass(frozen=True)
class Figures:
    """What one training showed."""

    tokens_per_second: float
    tokens_per_cpu_second: float
    tokens_per_step: float
    step_seconds: float
    first_step_seconds: float  # from the start of the command to the end of the first step
    peak_mb: float  # of all processes together
    largest_mb: float  # of the largest process


def run(
    command: Sequence[str],
    *,
    cores: Sequence[int],
    work: Path,
    steps: Callable[[], list[Step]],
    num_steps: int,
    warm_steps: int,
    environment: Mapping[str, str],
) -> Figures:
    """Let a contestant make ``num_steps`` steps on ``cores``; return its figures, or raise ``Failed``."""
    pinned = ["taskset", "-c", ",".join(map(str, cores)), *command]
    surroundings = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **environment}
    with (work / LOG).open("wb") as log:
        started = time.time()
        process = psutil.Popen(pinned, stdout=log, stderr=subprocess.STDOUT, env=surroundings, cwd=work)
    samples = []
    try:
        while len(steps()) < num_steps:
            samples.append(look(process))
            try:
                process.wait(LOOK_SECONDS)
            except psutil.TimeoutExpired:
                continue
            break
        samples.append(look(process))
    finally:
        kill(process)
    done = steps()
    if len(done) < num_steps:
        said = (work / LOG).read_text(encoding="utf-8", errors="replace")
        raise Failed(f"ended after {len(done)} of {num_steps} steps:\n{said[-3000:]}")
    return figures(done[:num_steps], [each for each in samples if each], started, warm_steps)


def look(process: psutil.Process) -> Sample | None:
    """Return what all processes of a contestant take from the machine; None when it has ended."""
    cpu, most, shared = 0.0, [], []
    for each in family(process):
        try:
            memory, times = status(each.pid), each.cpu_times()
        except (psutil.Error, OSError):
            continue  # it has ended
        if "VmHWM" in memory:
            most.append(memory["VmHWM"])
            shared.append(memory["RssFile"] + memory["RssShmem"])
            cpu += times.user + times.system
    # Processes of one toolkit have the same libraries in memory: those of the process that has most are counted.
    return Sample(time.time(), cpu, sum(most) - sum(shared) + max(shared), max(most)) if most else None


def status(pid: int) -> dict[str, float]:
    """Return what the system says about the memory of a process, in MB; reading it costs next to nothing."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = (line.partition(":") for line in lines if line.endswith(" kB"))
    return {name: int(value.split()[0]) * 1024 / MB for name, _, value in fields}


def family(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def kill(process: psutil.Popen) -> None:
    """End a contestant and all it has started, parents first, so that none is replaced."""
    for each in family(process):
        try:
            each.kill()
        except psutil.Error:
            continue
    process.wait()


def figures(steps: Sequence[Step], samples: Sequence[Sample], started: float, warm_steps: int) -> Figures:
    """Make figures of what a contestant told and of what was seen from outside."""
    first, last, counted = steps[warm_steps - 1], steps[-1], steps[warm_steps:]
    seconds, tokens = last.time - first.time, sum(step.tokens for step in counted)
    times, cpu_seconds = [each.time for each in samples], [each.cpu_seconds for each in samples]
    began, ended = np.interp([first.time, last.time], times, cpu_seconds).tolist()
    training = [each for each in samples if each.time <= last.time + LOOK_SECONDS]
    return Figures(
        tokens_per_second=tokens / seconds,
        tokens_per_cpu_second=tokens / max(ended - began, 1e-9),
        tokens_per_step=tokens / len(counted),
        step_seconds=seconds / len(counted),
        first_step_seconds=steps[0].time - started,
        peak_mb=max(each.all_mb for each in training),
        largest_mb=max(each.largest_mb for each in training),
    )
