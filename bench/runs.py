"""Short trainings to measure: on cores of their own or on the hosts of a lab, and what their events tell."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from dragoman.files import read_json_lines
from dragoman.recipe import load_recipe
from dragoman.rundir import RunDir

# What two workers share; `Bench.one_second` makes it a step of one second.
MODELS = {
    "tiny": ["train.tokens_per_step=8192", "train.micro_batch_tokens=2048"],
    "7.5M": [
        "vocab.size=8000", "model.d_model=256", "model.feed_forward=1024", "model.heads=8",
        "train.tokens_per_step=2560", "train.micro_batch_tokens=1280", "schedule.learning_rate=0.002",
    ],
}  # fmt: skip
QUIET = [
    'train.precision="float32"',
    'data.dev="builtin:500"', 'data.test="builtin:4"', "evaluate.beam=1", "evaluate.every_steps=1000000",
    "checkpoint.every_steps=1000000", "checkpoint.every_minutes=0",
    "log.every_steps=10", "log.samples_every=0", "log.tensorboard=false",
]  # fmt: skip
WARM_STEPS = 5
DRAGOMAN = [sys.executable, "-m", "dragoman"]


def lab(network: str) -> list[str]:
    """Return the words before a command that is to find two hosts of one core each."""
    return [*DRAGOMAN, "lab", "run", "--hosts", "2", "--network", network, "--cores-per-host", "1", "--"]


class Bench:
    """Runs trainings in a directory of its own, and reads what they told."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def command(self, name: str, settings: list[str]) -> list[str]:
        shutil.rmtree(self.run(name).path, ignore_errors=True)
        changes = [*QUIET, f'data.directory="{self.directory / "datasets"}"', *settings]
        options = [part for each in changes for part in ("--set", each)]
        return [*DRAGOMAN, "train", "tiny", "--run", str(self.run(name).path), *options]

    def run(self, name: str) -> RunDir:
        return RunDir(self.directory / name)

    def start(self, name: str, command: list[str], core: int | None = None) -> "subprocess.Popen[bytes]":
        cores = sorted(os.sched_getaffinity(0))
        pinned = command if core is None else ["taskset", "-c", str(cores[core % len(cores)]), *command]
        output = (self.directory / f"{name}.log").open("wb")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        return subprocess.Popen(pinned, stdout=output, stderr=subprocess.STDOUT, env=environment)

    def finish(self, name: str, process: "subprocess.Popen[bytes]") -> None:
        if process.wait():
            sys.exit(f"{name} failed:\n{(self.directory / f'{name}.log').read_text()[-3000:]}")

    def in_lab(self, name: str, settings: list[str], network: str) -> None:
        self.finish(name, self.start(name, [*lab(network), *self.command(name, settings)]))

    def alone(self, settings: list[str], names: list[str]) -> None:
        """Train with one worker on each of as many cores as there are names."""
        commands = [self.command(name, [*settings, "cluster.sync=every-step"]) for name in names]
        started = [
            self.start(name, command, core)
            for core, (name, command) in enumerate(zip(names, commands, strict=True))
        ]
        for name, process in zip(names, started, strict=True):
            self.finish(name, process)

    def one_second(self, settings: list[str]) -> list[str]:
        """Return the settings with steps that take each of two workers about a second to compute, on this machine."""
        self.alone([*settings, "train.steps=12"], ["trial"])
        train = load_recipe(str(self.run("trial").recipe)).train
        micro_batches = train.tokens_per_step // train.tokens_per_micro_batch
        tokens = round(train.tokens_per_micro_batch * 2 / self.figures("trial")["step_seconds"])
        return [
            *settings,
            f"train.tokens_per_step={tokens * micro_batches}",
            f"train.micro_batch_tokens={tokens}",
        ]

    def figures(self, name: str) -> dict[str, Any]:
        """Return speed, bytes and dev loss of a finished run."""
        events = read_json_lines(self.run(name).events(0))
        chosen = [line for line in events if line["event"] == "sync"]
        first = (chosen[-1]["step"] if chosen else 0) + WARM_STEPS
        steps = [line for line in events if line["event"] == "step" and line["step"] >= first]
        if len(steps) < 2:
            sys.exit(f"{name}: too few steps to measure after step {first}; give more --steps")
        seconds = steps[-1]["time"] - steps[0]["time"]
        counted = steps[1:]
        return {
            "tokens_per_second": round(sum(line["tokens"] for line in counted) / seconds),
            "step_seconds": round(seconds / len(counted), 3),
            "exposed_seconds": round(sum(line["exposed_seconds"] for line in counted) / len(counted), 3),
            "mb_per_step": round(sum(line["bytes_sent"] for line in counted) / len(counted) / 1e6, 3),
            "dev_loss": next(line["dev_loss"] for line in events if line["event"] == "evaluation"),
            "mode": chosen[-1]["mode"] if chosen else None,
        }
