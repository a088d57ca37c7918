"""The files of a run: this module owns every name in a run directory.

runs/NAME/  recipe.toml  run.json  outcome.json  log.txt  events/rank000.jsonl …  telemetry/HOST.jsonl  tensorboard/
            checkpoints/step-00001000/{model.safetensors optimizer.safetensors state.json MANIFEST.json}
            models/step-00001000/  best -> models/step-00001000  scores.jsonl  hypotheses/  samples.txt
            sentence_losses.jsonl  report.html  explain.json  lane.log
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.errors import UserError
from dragoman.files import TEMPORARY

# The files of a checkpoint.
MANIFEST, STATE = "MANIFEST.json", "state.json"
MODEL, OPTIMIZER, AVERAGE = "model.safetensors", "optimizer.safetensors", "average.safetensors"
SYNC = "sync.safetensors"  # what compressed and local synchronisation remember between steps

_STEP_NAME = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True)
class RunDir:
    """The paths of one run; creates nothing by itself."""

    path: Path

    @property
    def recipe(self) -> Path:
        """The resolved recipe; its presence is what makes a directory a run."""
        return self.path / "recipe.toml"

    @property
    def facts(self) -> Path:
        """What the run was started with: dataset fingerprint, versions, machine."""
        return self.path / "run.json"

    @property
    def outcome(self) -> Path:
        """How the last launch ended; written last, read by the launcher for its exit code."""
        return self.path / "outcome.json"

    @property
    def lock(self) -> Path:
        """Held by the process that trains the run, whose id it contains."""
        return self.path / ".lock"

    @property
    def log(self) -> Path:
        return self.path / "log.txt"

    @property
    def lane_log(self) -> Path:
        """What the evaluation lane says; it never writes to the terminal."""
        return self.path / "lane.log"

    @property
    def samples(self) -> Path:
        return self.path / "samples.txt"

    @property
    def scores(self) -> Path:
        return self.path / "scores.jsonl"

    @property
    def sentence_losses(self) -> Path:
        """The dev loss of every sentence at every evaluation: step, dev_nll, dev_tokens."""
        return self.path / "sentence_losses.jsonl"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def explanation(self) -> Path:
        """The answers to the twelve questions."""
        return self.path / "explain.json"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def models(self) -> Path:
        return self.path / "models"

    @property
    def best(self) -> Path:
        """A relative symbolic link to the best model, so that it changes in one atomic rename."""
        return self.path / "best"

    @property
    def hypotheses(self) -> Path:
        return self.path / "hypotheses"

    def events(self, rank: int) -> Path:
        return self.path / "events" / f"rank{rank:03d}.jsonl"

    def telemetry(self, host: str) -> Path:
        """What a host's machine did; its name as a file's, whatever the host is called."""
        return self.path / "telemetry" / f"{re.sub(r'[^A-Za-z0-9._-]', '_', host).lstrip('.') or '_'}.jsonl"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / step_name(step)

    def model(self, step: int) -> Path:
        return self.models / step_name(step)

    @classmethod
    def open(cls, path: Path) -> "RunDir":
        """Return the run at ``path``, which must exist."""
        run = cls(path)
        if not run.recipe.is_file():
            raise UserError(
                "this is not a run (it has no recipe.toml)",
                where=str(path),
                fix="give the directory that `dragoman train` made, such as runs/NAME",
            )
        return run


def step_name(step: int) -> str:
    """Name the directory of a step so that names sort as steps do."""
    return f"step-{step:08d}"


def step_directories(parent: Path) -> dict[int, Path]:
    """Return the finished ``step-…`` directories below ``parent`` by step, in ascending order."""
    if not parent.is_dir():
        return {}
    found = {}
    for path in parent.iterdir():
        match = _STEP_NAME.fullmatch(path.name)
        if match and not path.name.startswith(TEMPORARY):
            found[int(match[1])] = path
    return dict(sorted(found.items()))


def best_first(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the dev scores of a run, highest BLEU first; of equals the newer step is better.

    A model that was scored again counts once, with its last score.
    """
    last_of_model = {line["model"]: line for line in lines if line["set"] == "dev"}
    return sorted(last_of_model.values(), key=lambda line: (line["bleu"], line["step"]), reverse=True)
