"""What does it cost that a run watches itself?

    python bench/telemetry_cost.py            two workers on two cores, five rounds; about five minutes
    python bench/telemetry_cost.py --quick    one round of few steps, for a look

Three figures. *Step*: the median step with telemetry over the median step without, the same training, one after the
other and in turns who is first; the median of all rounds counts. *Sampler*: the CPU that the process uses, as a share
of one core, after its start. *Recording*: what is done in every step beside training (the marks of phases, the count
of operations, the event), measured alone, as a share of the median step.

The target: under 1 % of the step, and under 1 % of a core.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from signature import signature

from dragoman.files import read_json_lines
from dragoman.model.flops import training_flops
from dragoman.observe.events import STEP, EventLog, read_events
from dragoman.observe.phases import PhaseClock
from dragoman.recipe import load_recipe
from dragoman.rundir import RunDir

SETTINGS = [
    'data.train="builtin:20000"', 'data.dev="builtin:50"', 'data.test="builtin:4"', "evaluate.beam=1",
    "evaluate.every_steps=1000000", "evaluate.train_sample=50", "checkpoint.every_steps=1000000",
    "log.samples_every=0", "log.tensorboard=false",
]  # fmt: skip
WARM_STEPS = 5
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


def train(directory: Path, steps: int, *, telemetry: bool) -> dict[str, float]:
    """Run one training; return its median step and, with telemetry, the sampler's share of a core."""
    run = RunDir(directory / "run")
    shutil.rmtree(run.path, ignore_errors=True)
    changes = [
        *SETTINGS,
        f'data.directory="{directory / "datasets"}"',
        f"train.steps={steps}",
        f"log.telemetry={str(telemetry).lower()}",
    ]
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
    looks: list[tuple[float, float]] = []  # (moment, seconds of CPU that the sampler has used)
    while process.poll() is None:
        for each in psutil.Process(process.pid).children(recursive=True):
            try:
                if "dragoman.observe.telemetry" in each.cmdline() and read_json_lines(run.events(0))[-1:]:
                    looks.append((time.monotonic(), sum(each.cpu_times()[:2])))
            except psutil.Error:
                continue  # it has just ended
        time.sleep(1)
    if process.returncode:
        sys.exit((directory / "log").read_text()[-3000:])
    seconds = [event["seconds"] for event in read_events(run.events(0), STEP)][WARM_STEPS:]
    found = {"step_seconds": statistics.median(seconds)}
    if telemetry:
        (began, used), (ended, most) = looks[1], looks[-1]  # the first look may fall into its start
        found["sampler_share"] = (most - used) / (ended - began)
    return found


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


def measure(directory: Path, rounds: int, steps: int) -> dict[str, Any]:
    train(directory, WARM_STEPS + 2, telemetry=False)  # prepares the data
    ratios, shares, without = [], [], []
    for number in range(rounds):
        order = (True, False) if number % 2 else (False, True)
        found = {telemetry: train(directory, steps, telemetry=telemetry) for telemetry in order}
        ratios.append(found[True]["step_seconds"] / found[False]["step_seconds"])
        shares.append(found[True]["sampler_share"])
        without.append(found[False]["step_seconds"])
        print(
            f"round {number + 1}: step x {ratios[-1]:.4f}, sampler {shares[-1]:.2%} of a core",
            file=sys.stderr,
        )
    step, recording = statistics.median(without), recording_seconds(directory)
    return {
        "rounds": rounds,
        "steps": steps,
        "step_seconds": round(step, 4),
        "step_ratio": round(statistics.median(ratios), 4),
        "step_ratios": [round(ratio, 4) for ratio in sorted(ratios)],
        "sampler_share_of_a_core": round(statistics.median(shares), 4),
        "recording_microseconds": round(recording * 1e6),
        "recording_share_of_step": round(recording / step, 5),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rounds, steps = (1, 20) if given.quick else (given.rounds, given.steps)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as directory:
        result = {**measure(Path(directory), rounds, steps), "load_before": round(load, 1), **signature()}
    print(
        json.dumps(result) if given.json else "\n".join(f"{name}: {value}" for name, value in result.items())
    )


if __name__ == "__main__":
    main()
