"""Checkpoints: all that a run needs to go on as if it had never stopped.

A checkpoint is a directory of safetensors and JSON, written beside, checksummed, fsynced and renamed, so it is
whole or absent. Reading takes the newest one whose checksums hold. Writing happens on a thread, from a copy of
the tensors, so a step waits for the copy and never for the disk.
"""

import hashlib
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dragoman import config
from dragoman.files import (
    beside,
    disk_errors,
    publish_directory,
    read_json,
    read_json_lines,
    remove_unfinished,
    sha256,
    write_json,
)
from dragoman.rundir import MANIFEST, STATE, RunDir, best_first, step_directories

VERSION = 1
UNSCORED_KEPT = 5  # newest checkpoints that wait for the lane even when keep_last is smaller

Tensors = dict[str, dict[str, Tensor]]  # file name to its tensors


@dataclass
class State:
    """What a run remembers between steps, beside its tensors. The data position is ``step`` itself."""

    step: int = 0
    tokens: int = 0
    rate_scale: float = 1.0  # lowered by each rollback
    rollbacks: int = 0
    went_back_to: int | None = None  # the step of the last rollback, until a new checkpoint is written
    bad_steps: int = 0  # in a row
    good_steps: int = 0
    mean_loss: float = 0.0  # running mean over good steps
    loss_scale: float = 1.0  # of fp16; 1 otherwise
    loss_scale_age: int = 0
    best_dev_loss: float | None = None
    evaluations_since_best: int = 0
    stopped_early: bool = False
    sync: dict[str, Any] | None = None  # what `cluster.sync = auto` has chosen, and why


def snapshot(tensors: Mapping[str, Mapping[str, Tensor]]) -> Tensors:
    """Copy tensors to the CPU, so that training may go on while they are written."""
    return {
        file: {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in group.items()}
        for file, group in tensors.items()
    }


def write_checkpoint(run: RunDir, state: State, tensors: Tensors) -> Path:
    """Write a checkpoint under its final name, replacing one of the same step."""
    path = run.checkpoint(state.step)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = beside(path)
        try:
            temporary.mkdir()
            for file, group in tensors.items():
                _write_tensors(temporary / file, group)
            write_json(temporary / STATE, {"version": VERSION, **asdict(state)})
            names = sorted(file.name for file in temporary.iterdir())
            files = {
                name: {"bytes": (temporary / name).stat().st_size, "sha256": sha256(temporary / name)}
                for name in names
            }
            identity = hashlib.sha256(
                "".join(str(files[name]["sha256"]) for name in names).encode()
            ).hexdigest()
            manifest = {"version": VERSION, "step": state.step, "hash": identity, "files": files}
            write_json(temporary / MANIFEST, manifest)
            if path.exists():  # the run went back to an earlier step and came by again
                replaced = beside(path.with_name(path.name + "-replaced"))
                path.rename(replaced)
                publish_directory(temporary, path)
                shutil.rmtree(replaced)
            else:
                publish_directory(temporary, path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return path


def _write_tensors(path: Path, group: dict[str, Tensor]) -> None:
    try:
        save_file(group, path)
    except SafetensorError as error:  # hides what the system said in its text
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def damage(path: Path) -> str | None:
    """Return what is wrong with a checkpoint on disk, or None if every checksum holds."""
    try:
        manifest = read_json(path / MANIFEST)
        if manifest["version"] != VERSION:
            return f"its format is version {manifest['version']}, this program reads {VERSION}"
        for name, expected in manifest["files"].items():
            file = path / name
            if not file.is_file():
                return f"{name} is missing"
            if file.stat().st_size != expected["bytes"] or sha256(file) != expected["sha256"]:
                return f"{name} is not what was written"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{MANIFEST} cannot be read ({error})"
    return None


def newest_valid(run: RunDir, warn: Callable[[str], None]) -> Path | None:
    """Return the newest undamaged checkpoint; damaged ones are named and passed over."""
    for path in reversed(step_directories(run.checkpoints).values()):
        wrong = damage(path)
        if wrong is None:
            return path
        warn(f"checkpoint {path.name} is damaged: {wrong}; using an older one")
    return None


def read_checkpoint(path: Path) -> tuple[State, Tensors]:
    """Read a checkpoint that ``newest_valid`` returned."""
    values = read_json(path / STATE)
    known = {field.name for field in fields(State)}
    state = State(**{name: value for name, value in values.items() if name in known})
    return state, {file.name: load_file(file) for file in sorted(path.glob("*.safetensors"))}


def prune(run: RunDir, cfg: config.Checkpoint) -> None:
    """Remove checkpoints that are neither new, nor among the best, nor still to be scored."""
    scores = read_json_lines(run.scores)
    scored = {entry["step"] for entry in scores if entry["set"] == "dev"}
    directories = step_directories(run.checkpoints)
    steps = list(directories)
    best = best_first(scores)[: cfg.keep_best]
    keep = set(steps[-cfg.keep_last :]) | {
        step for line in best for step in line.get("averaged", [line["step"]])
    }
    keep |= {step for step in steps[-UNSCORED_KEPT:] if step not in scored}
    for step, path in directories.items():
        if step not in keep:
            _remove(path)


def discard_checkpoint(run: RunDir, step: int) -> None:
    """Remove the checkpoint of ``step``, unless it is the only one."""
    directories = step_directories(run.checkpoints)
    if step in directories and len(directories) > 1:
        _remove(directories[step])


def _remove(path: Path) -> None:
    # Renamed first: a reader sees a whole checkpoint or none.
    doomed = beside(path)
    path.rename(doomed)
    shutil.rmtree(doomed)


class Saver:
    """Writes checkpoints on a thread, one at a time; a failed write surfaces at the next call."""

    def __init__(self, run: RunDir, cfg: config.Checkpoint) -> None:
        self._run, self._cfg = run, cfg
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self.last_saved = time.monotonic()
        if run.checkpoints.is_dir():
            remove_unfinished(run.checkpoints)

    def save(self, state: State, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Copy everything now and write it in the background, after the previous write has ended."""
        self.wait()
        copies, frozen_state = snapshot(tensors), State(**asdict(state))
        self._thread = threading.Thread(target=self._write, args=(frozen_state, copies), name="checkpoint")
        self._thread.start()
        self.last_saved = time.monotonic()

    def wait(self) -> None:
        """Return when nothing is being written any more."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def check(self) -> None:
        """Raise what went wrong in the background, if anything did."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    @property
    def failed(self) -> bool:
        return self._error is not None

    @property
    def minutes_since(self) -> float:
        return (time.monotonic() - self.last_saved) / 60

    def _write(self, state: State, tensors: Tensors) -> None:
        try:
            write_checkpoint(self._run, state, tensors)
            prune(self._run, self._cfg)
        except BaseException as error:  # handed to the training thread by check()
            self._error = error
