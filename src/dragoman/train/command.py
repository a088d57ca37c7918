"""What ``dragoman train`` does: load, prepare, open the run, start workers here or join those somebody started."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.cluster.launch import note_outcome, start_workers
from dragoman.config import Recipe
from dragoman.data.prepare import prepare
from dragoman.errors import ExitCode, UserError
from dragoman.files import disk_errors, read_json_lines
from dragoman.recipe import load_recipe
from dragoman.rundir import RunDir, best_first
from dragoman.train.start import only_trainer, open_run

if TYPE_CHECKING:
    from dragoman.cluster.world import World


def train_recipe(
    source: str, overrides: Sequence[str] = (), *, workers: int | None = None, run_path: Path | None = None,
    quiet: bool = False,
) -> tuple[ExitCode, dict[str, Any] | None]:  # fmt: skip
    """Train a recipe to its end; return the exit code and, from the worker that leads, a summary of the run."""
    from dragoman.cluster.world import join_world, joined_by_environment

    recipe = load_recipe(source, overrides)
    path = run_path or Path("runs") / Path(source).stem
    if joined_by_environment():
        return train_joined(recipe, path, quiet=quiet)
    dataset = prepare(recipe, progress=not quiet)
    workers = choose_workers(workers)
    with only_trainer(path):
        run = open_run(recipe, path, dataset)
        if workers > 1:
            code, message = start_workers(run, workers, recipe.cluster, quiet=quiet)
            return code, summarise(run, message)
        return train_here(run, join_world(recipe.cluster.timeout_seconds), quiet=quiet)


def train_joined(recipe: Recipe, path: Path, *, quiet: bool) -> tuple[ExitCode, dict[str, Any] | None]:
    """Be one of the workers that somebody else started: the leader opens the run, then all train it."""
    from dragoman.cluster.world import join_world

    world = join_world(recipe.cluster.timeout_seconds)
    with ExitStack() as held:
        problem = None
        if world.leads:
            try:
                dataset = prepare(recipe, progress=not quiet)
                held.enter_context(only_trainer(path))
                open_run(recipe, path, dataset)
            except UserError as error:
                problem = error
        problem = world.share(problem)
        if problem is not None:
            world.leave()
            raise problem
        return train_here(RunDir(path), world, quiet=quiet)


def train_here(run: RunDir, world: "World", *, quiet: bool) -> tuple[ExitCode, dict[str, Any] | None]:
    """Train in this process, as a worker of ``world``."""
    from dragoman.train.run import work

    try:
        with disk_errors(run.path):
            code, message = work(run, world, quiet=quiet)
    except UserError as error:
        note_outcome(run, ExitCode.USER, error.what, error)
        raise
    if not world.leads:
        return code, None
    note_outcome(run, code, message)
    return code, summarise(run, message)


def choose_workers(wanted: int | None) -> int:
    """Return how many workers to start: one per GPU, or on a machine without as many as wanted, else one."""
    import torch

    gpus = torch.cuda.device_count()
    if gpus and wanted is not None and wanted > gpus:
        raise UserError(
            f"{wanted} workers cannot share {gpus} GPUs",
            where=f"--workers {wanted}",
            fix=f"use at most {gpus} workers, or hide the GPUs with CUDA_VISIBLE_DEVICES= to train on the CPU",
        )
    return wanted or max(1, gpus)


def summarise(run: RunDir, message: str) -> dict[str, Any]:
    scores = read_json_lines(run.scores)
    dev, test = best_first(scores), [entry for entry in scores if entry["set"] == "test"]
    return {
        "run": str(run.path),
        "message": message,
        "best": dev[0] if dev else None,
        "test": test[-1] if test else None,
    }
