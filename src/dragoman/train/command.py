"""What ``dragoman train`` does: load, prepare, open the run, start workers here or join those somebody started."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dragoman.cluster.launch import note_outcome, start_workers
from dragoman.data.prepare import prepare
from dragoman.errors import ExitCode, UserError
from dragoman.files import disk_errors, read_json_lines
from dragoman.recipe import load_recipe
from dragoman.rundir import RunDir, best_first
from dragoman.train.start import only_trainer, open_run


def train_recipe(
    source: str, overrides: Sequence[str] = (), *, workers: int | None = None, run_path: Path | None = None,
    quiet: bool = False,
) -> tuple[ExitCode, dict[str, Any]]:  # fmt: skip
    """Train a recipe to its end; return the exit code and a summary of the run."""
    recipe = load_recipe(source, overrides)
    path = run_path or Path("runs") / Path(source).stem
    dataset = prepare(recipe, progress=not quiet)
    workers = choose_workers(workers)
    with only_trainer(path):
        run = open_run(recipe, path, dataset)
        if workers > 1:
            code, message = start_workers(run, workers, recipe.cluster, quiet=quiet)
        else:
            code, message = train_here(run, quiet=quiet)
    return code, summarise(run, message)


def train_here(run: RunDir, *, quiet: bool) -> tuple[ExitCode, str]:
    """Be the only worker."""
    from dragoman.train.run import work

    try:
        with disk_errors(run.path):
            code, message = work(run, quiet=quiet)
    except UserError as error:
        note_outcome(run, ExitCode.USER, error.what, error)
        raise
    note_outcome(run, code, message)
    return code, message


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
