"""Opening a run: make its directory, or check that it may go on. Needs no torch, and runs once, in the launcher."""

import fcntl
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from dragoman import __version__
from dragoman.config import Recipe
from dragoman.data.mixture import mixture
from dragoman.data.passport import passport
from dragoman.data.shards import Dataset
from dragoman.errors import UserError
from dragoman.files import TEMPORARY, disk_errors, read_json, write_json, write_text
from dragoman.model.weights import count_parameters
from dragoman.recipe import changed_fields, dump_recipe, load_recipe
from dragoman.rundir import RunDir


def open_run(recipe: Recipe, path: Path, dataset: Dataset) -> RunDir:
    """Return the run at ``path``, new or resumed; refuse one that was started with other settings or data."""
    run = RunDir(path)
    if run.recipe.is_file():
        _check_same_experiment(run, recipe, dataset)
    elif path.exists() and not (path.is_dir() and all(_is_ours(entry, run) for entry in path.iterdir())):
        raise UserError(
            "this exists already and is not a run",
            where=str(path),
            fix="choose another directory with --run, or remove this one",
        )
    facts = {
        "dataset": str(dataset.path.resolve()),
        "fingerprint": dataset.fingerprint,
        "vocab_size": dataset.vocab_size,
        "parameters": count_parameters(recipe.model, dataset.vocab_size),
        "passport": passport(dataset),
        "mixture": [vars(part) for part in mixture(dataset, recipe.data)],
        "versions": {
            "dragoman": __version__,
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "ctranslate2", "sentencepiece", "sacrebleu")},
        },
        "machine": {"host": platform.node(), "system": platform.platform(), "cores": os.cpu_count()},
        "time": time.time(),
    }
    with disk_errors(path):
        write_json(run.facts, facts)
        write_text(run.recipe, dump_recipe(recipe))
    return run


@contextmanager
def only_trainer(path: Path) -> Iterator[None]:
    """Hold the run for this process: two trainers of one run would destroy each other's work."""
    with disk_errors(path):
        path.mkdir(parents=True, exist_ok=True)
        lock = open(RunDir(path).lock, "a+")  # noqa: SIM115 - held open for as long as the lock
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise UserError(
                f"this run is being trained already (process {lock.read().strip() or 'unknown'})",
                where=str(path),
                fix="wait for it to end, stop it, or choose another directory with --run",
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _is_ours(entry: Path, run: RunDir) -> bool:
    """Whether a launch that was killed before its run existed may have left this."""
    return entry == run.facts or entry.name.startswith((".lock", ".agent-", TEMPORARY))


def _check_same_experiment(run: RunDir, recipe: Recipe, dataset: Dataset) -> None:
    facts = read_json(run.facts)
    if facts["fingerprint"] != dataset.fingerprint:
        raise UserError(
            f"the run was started with other data (dataset {facts['fingerprint']}, now {dataset.fingerprint})",
            where=str(run.path),
            fix="restore the data, filter and vocab settings of the run, or choose another directory with --run",
        )
    changes = changed_fields(load_recipe(str(run.recipe)), recipe)
    if changes:
        listed = "; ".join(f"{name} was {old!r}, is now {new!r}" for name, old, new in changes)
        raise UserError(
            f"the recipe changed since the run was started: {listed}",
            where=str(run.recipe),
            fix="set these values back, or choose another directory with --run",
        )
