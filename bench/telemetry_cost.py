"""What does it cost that a run watches itself?

    python bench/telemetry_cost.py            two workers on two cores; about five minutes
    python bench/telemetry_cost.py --quick    a minute, for a look

Three figures. *Step*: within one training, the sampler is stopped and let go in turns of a few seconds; the median
step with it over the median step without it, and the standard error, which says how well that is known. *Sampler*: the
CPU that it uses while it may, as a share of one core. *Recording*: what is done in every step beside training (the
marks of phases, the count of operations, the event), measured alone, as a share of the median step.

The target: under 1 % of the step, and under 1 % of a core.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from figures import options, write_figures
from signature import signature

from dragoman.model.flops import training_flops
from dragoman.observe.events import STEP, EventLog, read_events
from dragoman.observe.phases import PhaseClock
from dragoman.recipe import load_recipe
from dragoman.rundir import RunDir

SETTINGS = [
    'data.train="builtin:20000"', 'data.dev="builtin:50"', 'data.test="builtin:4"', "evaluate.beam=1",
    "evaluate.every_steps=1000000", "evaluate.train_sample=50", "checkpoint.every_steps=1000000",
    "log.samples_every=0", "log.tensorboard=false", "train.steps=1000000",
]  # fmt: skip
TURN_SECONDS = 4.0
WARM_SECONDS = 5.0
MARKS = [
    "data",
    "compute",
    "compute",
    "exchange",
    "compute",
    "optimizer",
    "compute",
    "agree",
    "optimizer",
    "measure",
]


def start(directory: Path) -> "tuple[RunDir, subprocess.Popen[bytes], psutil.Process]":
    """Start a training without end; return it with its sampler, once its steps go."""
    run = RunDir(directory / "run")
    changes = [*SETTINGS, f'data.directory="{directory / "datasets"}"']
    options = [part for each in changes for part in ("--set", each)]
    command = [
        sys.executable,
        "-m",
        "dragoman",
        "train",
        "tiny",
        "--run",
        str(run.path),
        "--workers",
        "2",
        *options,
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    with open(directory / "log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    while not (run.events(0).exists() and read_events(run.events(0), STEP)):
        if process.poll() is not None:
            sys.exit((directory / "log").read_text()[-3000:])
        time.sleep(0.5)
    family = psutil.Process(process.pid).children(recursive=True)
    [sampler] = [each for each in family if "dragoman.observe.telemetry" in each.cmdline()]
    return run, process, sampler


def take_turns(sampler: psutil.Process, turns: int) -> tuple[list[tuple[float, float]], float]:
    """Stop the sampler and let it go in turns; return when each turn began and ended, and its share of a core."""
    spans, used = [], 0.0
    for turn in range(turns):
        sampler.resume() if turn % 2 else sampler.suspend()
        before, began = sum(sampler.cpu_times()[:2]), time.time()
        time.sleep(TURN_SECONDS)
        spans.append((began, time.time()))
        used += sum(sampler.cpu_times()[:2]) - before
    sampler.resume()
    return spans, used / sum(ended - began for began, ended in spans[1::2])


def within(steps: list[dict[str, Any]], spans: list[tuple[float, float]]) -> list[float]:
    """Return the seconds of the steps that lie in one of the turns as a whole."""
    return [
        step["seconds"]
        for step in steps
        if any(began <= step["time"] - step["seconds"] and step["time"] <= ended for began, ended in spans)
    ]


def compare(on: list[float], off: list[float]) -> tuple[float, float]:
    """Return the ratio of the medians, and its standard error over 1,000 samples of the same steps."""
    random = np.random.default_rng(1)
    medians = [np.median(random.choice(each, (1000, len(each))), axis=1) for each in (on, off)]
    return statistics.median(on) / statistics.median(off), float(np.std(medians[0] / medians[1]))


def recording_seconds(directory: Path, times: int = 2000) -> float:
    """Return what one step's own record costs: marks, operations counted for 100 pairs, the event."""
    cfg, lengths = load_recipe("tiny").model, np.full((100, 2), 12, np.int32)
    clock, log = PhaseClock(), EventLog(directory / "rank000.jsonl", 0)
    other = {f"field{number}": 0.123456789 for number in range(12)}
    began = time.perf_counter()
    for step in range(times):
        for mark in MARKS:
            clock.at(mark)
        spent = clock.step_done(0.0)
        log.emit(STEP, step=step, **other, flops=training_flops(cfg, 2000, lengths), phases=spent)
    return (time.perf_counter() - began) / times


def measure(directory: Path, turns: int) -> dict[str, Any]:
    run, process, sampler = start(directory)
    try:
        time.sleep(WARM_SECONDS)
        spans, share = take_turns(sampler, turns)
    finally:
        process.terminate()
        process.wait()
    steps = read_events(run.events(0), STEP)
    ratio, error = compare(within(steps, spans[1::2]), within(steps, spans[::2]))
    step, recording = statistics.median(each["seconds"] for each in steps), recording_seconds(directory)
    return {
        "turns": turns,
        "step_seconds": round(step, 4),
        "step_ratio": round(ratio, 4),
        "standard_error": round(error, 4),
        "sampler_share_of_a_core": round(share, 4),
        "recording_microseconds": round(recording * 1e6),
        "recording_share_of_step": round(recording / step, 5),
    }


def main() -> None:
    parser = options(__doc__, quick="8 turns")
    parser.add_argument("--turns", type=int, default=64)
    given = parser.parse_args()
    signed = signature()
    with tempfile.TemporaryDirectory() as directory:
        found = measure(Path(directory), 8 if given.quick else given.turns)
    result = {**found, **signed}
    print("\n".join(f"{name}: {value}" for name, value in result.items()))
    ratios = {"step, unwatched / watched": round(1 / found["step_ratio"], 4)}
    write_figures(given.json, {"ratios": ratios, **result})


if __name__ == "__main__":
    main()
