"""What ``dragoman train`` does: load, prepare, open the run, start workers here, on many hosts, or join others."""

import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.cluster.fleet import Errand, Fleet
from dragoman.cluster.hosts import Host
from dragoman.cluster.join import joined_by_environment
from dragoman.cluster.launch import note_outcome, start_workers
from dragoman.config import Recipe
from dragoman.data.prepare import find, prepare
from dragoman.data.shards import Dataset
from dragoman.errors import ExitCode, UserError
from dragoman.files import disk_errors, read_json_lines, write_json
from dragoman.model.weights import checkpoint_bytes, count_parameters
from dragoman.observe.explain import explain, to_json
from dragoman.observe.reading import Follower
from dragoman.observe.report import write_report
from dragoman.recipe import dump_recipe, load_recipe
from dragoman.rundir import RunDir, best_first
from dragoman.train.start import only_trainer, open_run

if TYPE_CHECKING:
    from dragoman.cluster.world import World


def train_recipe(
    source: str, overrides: Sequence[str] = (), *, workers: int | None = None, hosts: Sequence[Host] = (),
    run_path: Path | None = None, quiet: bool = False,
) -> tuple[ExitCode, dict[str, Any] | None]:  # fmt: skip
    """Train a recipe to its end; return the exit code and, from the worker that leads, a summary of the run."""
    recipe = load_recipe(source, overrides)
    path = run_path or Path("runs") / Path(source).stem
    if joined_by_environment():
        return train_joined(recipe, path, quiet=quiet)
    dataset = prepare(recipe, progress=not quiet)
    if hosts:
        with only_trainer(path):
            run = open_run(recipe, path, dataset)
            with explained(run, quiet=quiet):
                what = errand(recipe, path, dataset, quiet=quiet)
                return Fleet(hosts, what, dataset, recipe.cluster).run()
    workers = choose_workers(workers)
    with only_trainer(path):
        run = open_run(recipe, path, dataset)
        if workers > 1:
            with explained(run, quiet=quiet):
                result = start_workers(run, workers, recipe.cluster, quiet=quiet)
                if result.code is ExitCode.BUG:  # no worker was left to note it
                    note_outcome(run, result.code, result.message)
            return result.code, summarise(run, result.message)
        from dragoman.cluster.world import join_world

        return train_here(run, join_world(recipe.cluster.timeout_seconds), quiet=quiet)


def errand(recipe: Recipe, path: Path, dataset: Dataset, *, quiet: bool) -> Errand:
    """Describe a run for hosts that may not share this one's disk."""
    parameters = count_parameters(recipe.model, dataset.vocab_size)
    return Errand(
        recipe=dump_recipe(recipe),
        run=str(path),
        dataset=str(dataset.path),
        disk_bytes=checkpoint_bytes(recipe, parameters),
        quiet=quiet,
    )


def train_joined(recipe: Recipe, path: Path, *, quiet: bool) -> tuple[ExitCode, dict[str, Any] | None]:
    """Be one of the workers that somebody else started: the leader opens the run, then all train it.

    Hosts that do not see the leader's disk find the same dataset, or make it, and open the run on their own.
    """
    from dragoman.cluster.world import join_world

    world = join_world(recipe.cluster.timeout_seconds, recipe.cluster.interface)
    run, problem, fingerprint, leader = RunDir(path), None, None, None
    with ExitStack() as held:
        for turn, mine in (("leader", world.leads), ("hosts", world.local_rank == 0 and not world.leads)):
            if mine:
                try:
                    dataset = own_dataset(recipe, leader, progress=world.leads and not quiet)
                    fingerprint = dataset.fingerprint
                    if world.leads:
                        held.enter_context(only_trainer(path))
                    if world.leads or not run.recipe.is_file():
                        open_run(recipe, path, dataset)
                except UserError as error:
                    problem = error
            world.meet(turn)
            problem = next((each for each in world.gather(problem) if each is not None), None)
            if problem is not None:
                world.leave()
                raise problem
            leader = world.share(fingerprint)
        check_same_dataset(world.gather((world.host, fingerprint)), Path(recipe.data.directory))
        return train_here(run, world, quiet=quiet)


def own_dataset(recipe: Recipe, leader: str | None, *, progress: bool) -> Dataset:
    """Return this host's dataset: the leader's, which somebody sent here or made here, or one made of this host's text.

    Nothing is sent between workers that others started: they know no way to each other but torch's.
    """
    there = None if leader is None else find(Path(recipe.data.directory) / leader)
    if there is not None:
        return there
    try:
        return prepare(recipe, progress=progress)
    except UserError as error:
        if leader is None:
            raise
        host, path = socket.gethostname(), Path(recipe.data.directory) / leader
        raise UserError(
            f"host {host} has neither the dataset {leader} nor its text: {error.what}",
            where=error.where,
            fix=f"on the first host, before the start: dragoman data send {path} --hosts {host}",
        ) from error


def check_same_dataset(told: Sequence[tuple[str, str | None]], directory: Path) -> None:
    """Name the first host whose text gave another dataset than the leader's."""
    ours = told[0][1]
    for host, fingerprint in told:
        if fingerprint not in (None, ours):
            raise UserError(
                f"host {host} has other text: its dataset is {fingerprint}, the leader's is {ours}",
                where=f"the corpora of the recipe on host {host}",
                fix=f"on the first host, before the start: dragoman data send {directory / str(ours)} --hosts {host}",
            )


def train_here(run: RunDir, world: "World", *, quiet: bool) -> tuple[ExitCode, dict[str, Any] | None]:
    """Train in this process, as a worker of ``world``."""
    from dragoman.train.run import work

    with ExitStack() as ending:
        if world.leads:
            ending.enter_context(explained(run, quiet=quiet))
        try:
            with disk_errors(run.path):
                code, message = work(run, world, quiet=quiet)
        except UserError as error:
            note_outcome(run, ExitCode.USER, error.what, error)
            raise
        if world.leads:
            note_outcome(run, code, message)
    return code, summarise(run, message) if world.leads else None


@contextmanager
def explained(run: RunDir, *, quiet: bool) -> Iterator[None]:
    """Train meanwhile; then leave an explanation and a report, however it ended, and say where the report is."""
    try:
        yield
    finally:
        if not run.events(0).is_file():
            where = " on the host that led" if (run.path / "events").is_dir() else None  # no step was made
        else:
            where = "" if conclude(run) else None
        if where is not None and not quiet:
            print(f"the report is in {run.report}{where}", flush=True)


def conclude(run: RunDir, *, led_by: str | None = None) -> bool:
    """Write explain.json and report.html, and return whether they are written; only if the run was ``led_by`` a host.

    What goes wrong is a warning: the run itself has ended already.
    """
    try:
        history = Follower(run.path).read()
        if led_by is not None and (history.leader is None or history.leader.host != led_by):
            return False
        answers = explain(history)
        write_json(run.explanation, to_json(history, answers))
        write_report(history, answers, run.report)
    except Exception as error:
        what = error.what if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        print(f"warning: no report was written to {run.report}: {what}", file=sys.stderr, flush=True)
        return False
    return True


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
