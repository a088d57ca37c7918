"""A worker: put together what it trains with, train, and say how it ended.

``python -m dragoman.train.run RUN`` is one worker of a run that ``start.open_run`` has opened.
"""

import gc
import os
import signal
import sys
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from dragoman.cluster.auto import Auto, Fixed
from dragoman.cluster.diagnosis import Limits
from dragoman.cluster.launch import (
    LAUNCH,
    QUIET,
    die_with_parent,
    is_stop,
    note_outcome,
    read_outcome,
)
from dragoman.cluster.probe import probe, slowest
from dragoman.cluster.sync import Sync
from dragoman.cluster.watchdog import Peer, Watchdog
from dragoman.cluster.world import World, is_peer_lost, join_world
from dragoman.config import Cluster, Recipe
from dragoman.data.batches import Pairs, Plan, Share, batch_lengths
from dragoman.data.dropout import Dropout
from dragoman.data.mixture import describe as describe_mixture
from dragoman.data.mixture import is_plain, mixture
from dragoman.data.shards import Dataset, Split
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import ExitCode, UserError
from dragoman.files import disk_errors, read_json
from dragoman.machine import end_process, keep_memory
from dragoman.model.flops import training_flops
from dragoman.model.native import notice
from dragoman.model.transformer import Transformer
from dragoman.observe.console import Console, Silent
from dragoman.observe.phases import PhaseClock
from dragoman.observe.tensorboard import Curves, NoCurves
from dragoman.recipe import load_recipe
from dragoman.rundir import RunDir, step_directories
from dragoman.train.average import MovingAverage
from dragoman.train.checkpoint import Saver, State
from dragoman.train.collect import Collector
from dragoman.train.evaluate import fixed_sample, whole_split
from dragoman.train.loop import Ending, Job, load, train
from dragoman.train.optimizers import build_optimizer
from dragoman.train.peak import device_name, gpu_id, measure_peak
from dragoman.train.precision import FIRST_LOSS_SCALE, agree_on_precision
from dragoman.train.products import set_up_products
from dragoman.train.reporter import Reporter
from dragoman.train.schedules import describe

EXIT_CODES = {
    Ending.FINISHED: ExitCode.DONE,
    Ending.STOPPED_EARLY: ExitCode.DONE,
    Ending.INTERRUPTED: ExitCode.INTERRUPTED,
    Ending.TERMINATED: ExitCode.TERMINATED,
}


def work(run: RunDir, world: World, *, quiet: bool) -> tuple[ExitCode, str]:
    """Train ``run`` as one worker of ``world``; return the exit code and the last word.

    A ``quiet`` one leaves standard output to somebody else.
    """
    keep_memory()
    set_up_products()
    recipe = load_recipe(str(run.recipe))
    with noted_signals() as signals:
        try:
            job = assemble(run, recipe, world, signals, quiet=quiet)
            gc.freeze()  # what is there now stays: looking through it again and again would take 2 % of a step
            try:
                try:
                    ending = train(job)
                finally:
                    job.watch.stop()
                job.saver.wait()
                finished = EXIT_CODES[ending] is ExitCode.DONE
                scored = job.report.end(job.state.step, finished=finished, give_up=lambda: bool(signals))
                world.meet(
                    "over"
                )  # a host whose workers left early would take its part of the meeting with it
                job.report.stop_sampling()
                job.collector.collect_all()
            finally:
                job.report.close()
        finally:
            world.leave()
    if finished and scored:
        return ExitCode.DONE, f"{ending.value} at step {job.state.step:,}"
    if finished:
        code = ExitCode.INTERRUPTED if signal.SIGINT in signals else ExitCode.TERMINATED
        return code, "training is complete, its scores are not; run the same command to score it"
    message = f"stopped at step {job.state.step:,}, state saved; run the same command to go on"
    return EXIT_CODES[ending], message


def assemble(run: RunDir, recipe: Recipe, world: World, signals: set[int], *, quiet: bool) -> Job:
    """Build a worker's job, at the newest valid checkpoint if there is one."""
    dataset = Dataset.open(Path(read_json(run.facts)["dataset"]))
    train_split, dev_split = dataset.split("train"), dataset.split("dev")
    newest = max(step_directories(run.checkpoints), default=0)
    console = (
        Console(
            run.log,
            run.samples,
            total_steps=recipe.train.steps,
            start_step=newest,
            stream=sys.stderr if quiet else sys.stdout,
        )
        if world.leads
        else Silent()
    )
    shown = world.leads and recipe.log.tensorboard
    curves = Curves(run.tensorboard, resume_step=newest) if shown else NoCurves()

    def flops(mine: Share) -> float:
        return sum(
            training_flops(recipe.model, dataset.vocab_size, batch_lengths(batch)) for _, batch in mine
        )

    tokenizer = Tokenizer.load(dataset.tokenizer_path)
    report = Reporter(recipe, run, world, console, curves, tokenizer, flops)

    torch.manual_seed(recipe.train.seed)
    model = Transformer(recipe.model, dataset.vocab_size).to(world.device)
    tokens_per_micro_batch = recipe.train.tokens_per_micro_batch
    precision = agree_on_precision(world, recipe.train.precision, recipe.model.d_model)
    optimizer = build_optimizer(model, recipe.optimizer, recipe.model.d_model, precision)
    average = MovingAverage(model, recipe.train.ema_decay) if recipe.train.average == "ema" else None
    watch = start_watch(world, recipe.cluster, report)
    shared = shares_disk(run, world)
    sync = Sync(
        world,
        model,
        recipe.cluster,
        moments=lambda: optimizer.state().values(),
        averages=lambda: average.state().values() if average is not None else (),
    )
    if recipe.optimizer.name == "muon" and world.size > 1 and sync.hosts.workers > 1:
        optimizer.share(sync.hosts.here)
    job = Job(
        recipe=recipe,
        run=run,
        world=world,
        model=model,
        sync=sync,
        choice=Auto(sync, report.sync) if recipe.cluster.sync == "auto" and world.size > 1 else Fixed(),
        optimizer=optimizer,
        average=average,
        precision=precision,
        plan=Plan(
            train_split.lengths,
            recipe.train.tokens_per_step,
            tokens_per_micro_batch,
            seed=recipe.train.seed,
            parts=mixture(dataset, recipe.data),
        ),
        pairs=seen_pairs(recipe, dataset, train_split),
        train=train_split,
        dev=dev_split,
        dev_probe=whole_split(dev_split, tokens_per_micro_batch),
        train_probe=fixed_sample(
            train_split, recipe.evaluate.train_sample, tokens_per_micro_batch, seed=recipe.train.seed
        ),
        state=State(loss_scale=FIRST_LOSS_SCALE if precision == "fp16" else 1.0),
        saver=Saver(run, recipe.checkpoint),
        keeps_checkpoints=world.leads or (world.local_rank == 0 and not shared),
        report=report,
        watch=watch,
        clock=PhaseClock(),
        collector=Collector(run, world, shares_disk=shared),
        signals=signals,
    )
    job.sync.on_wait = lambda: job.at("exchange")
    resumed = load(job)
    job.at("measure")
    report.begin(
        job.state,
        resumed=resumed,
        gpu=gpu_id(world.device),
        device=device_name(world.device),
        precision=precision,
        parameters=sum(weight.numel() for weight in model.parameters()),
        peak_flops=measure_peak(world, precision, recipe.model, tokens_per_micro_batch)
        if recipe.log.telemetry
        else None,
    )
    introduce(job, dataset, resumed=resumed)
    return job


def seen_pairs(recipe: Recipe, dataset: Dataset, train: Split) -> Callable[[int], Pairs]:
    """Return the training pairs as an epoch sees them, by its number: as they are, or with BPE-dropout."""
    if not recipe.vocab.dropout:
        return lambda epoch: train
    return Dropout(
        train,
        dataset.tokenizer_path.read_bytes(),
        probability=recipe.vocab.dropout,
        seed=recipe.train.seed,
        max_length=recipe.filter.max_length,
    ).epoch


def shares_disk(run: RunDir, world: World) -> bool:
    """Whether this worker sees what the leader writes into the run directory."""
    mark = run.path / f".disk-{world.share(uuid.uuid4().hex)}"
    if world.leads:
        mark.touch()
    world.share(None)  # it is there now
    sees = mark.exists()
    world.gather(sees)
    if world.leads:
        mark.unlink()
    return sees


def start_watch(world: World, cfg: Cluster, report: Reporter) -> Watchdog:
    """Begin to watch this worker and the others; one that is held up for too long ends, to be started again."""

    def give_up(why: str) -> None:
        report.lost(why)
        end_process(ExitCode.BUG)

    watch = Watchdog(
        world.rank,
        world.host,
        Limits(cfg.timeout_seconds),
        token=world.share(uuid.uuid4().hex),
        bind=world.route.address if world.size > 1 else None,
        on_stall=report.stall,
        on_recovery=report.recovery,
        on_lost=give_up,
        warn=report.warn,
    )
    told = world.gather((world.host, watch.address()))
    watch.start([Peer(rank, host, address) for rank, (host, address) in enumerate(told)])
    return watch


def introduce(job: Job, dataset: Dataset, *, resumed: bool) -> None:
    """Say what is going to happen, with the numbers that matter."""
    recipe, say = job.recipe, job.report.say
    parameters = sum(weight.numel() for weight in job.model.parameters())
    say(f"run {job.run.path}")
    say(f"dataset {dataset.fingerprint}: {len(job.train):,} pairs, vocabulary {dataset.vocab_size:,}")
    if not is_plain(parts := mixture(dataset, recipe.data)):
        say(f"mixture: {describe_mixture(parts)}")
    say(f"model: {parameters / 1e6:.1f} M parameters, {job.precision} on {job.world.device.type}")
    if missing := notice(job.world.device):
        job.report.warn(missing)
    say(f"optimizer: {job.optimizer.description()}")
    say(f"learning rate: {describe(recipe)}")
    per_step = len(job.plan.step(1).micro_batches)
    say(
        f"plan: {recipe.train.steps:,} steps of about {recipe.train.tokens_per_step:,} tokens, "
        f"{job.plan.steps_per_epoch:,} an epoch; {per_step} micro-batches a step, shared by workers: {job.world.size}"
    )
    say(f"synchronisation: {job.sync.description()}")
    if per_step % job.world.size:
        job.report.warn(
            f"{per_step} micro-batches do not share out evenly over {job.world.size} workers: some wait in every "
            "step. Set train.micro_batch_tokens so that a step has a multiple of the workers"
        )
    hosts = dict(job.world.gather((job.world.host, job.world.route)))
    if len(hosts) > 1:
        ways = ", ".join(f"{host} {route.interface} ({route.address})" for host, route in hosts.items())
        say(f"network: {ways}")
        if recipe.log.telemetry:
            link = slowest(job.world.gather(probe(job.world)))
            job.report.link(len(hosts), link)
            say(f"link: {link}")
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    if restarts:
        job.report.warn(f"a worker was lost; restarted ({restarts} of {recipe.cluster.max_restarts})")
    if resumed:
        say(f"resuming after step {job.state.step:,}")


@contextmanager
def noted_signals() -> Iterator[set[int]]:
    """Collect SIGINT and SIGTERM instead of dying of them: the loop stops after the current step."""
    received: set[int] = set()
    handled = (signal.SIGINT, signal.SIGTERM)
    previous = [signal.signal(number, lambda number, frame: received.add(number)) for number in handled]
    try:
        yield received
    finally:
        for number, handler in zip(handled, previous, strict=True):
            signal.signal(number, handler)


def be_worker(run: RunDir) -> ExitCode:
    """Work under the launcher's agent; return 0 once an ending is decided, so as not to be restarted.

    A stop is no such ending: the agent also stops workers to start them again in another world, and if it does
    so on another host first, this one must look restartable to its own agent.
    """
    known = read_outcome(run, os.environ[LAUNCH])
    if known is not None and not is_stop(known["exit_code"]):
        return ExitCode.DONE
    if os.environ["RANK"] == "0":
        run.outcome.unlink(missing_ok=True)  # of workers that were stopped to make way for these
    try:
        with disk_errors(run.path):
            cluster = load_recipe(str(run.recipe)).cluster
            world = join_world(cluster.timeout_seconds, cluster.interface)
            code, message = work(run, world, quiet=QUIET in os.environ)
    except UserError as error:
        note_outcome(run, ExitCode.USER, error.what, error)
    except Exception as error:
        rank = os.environ["RANK"]
        if is_peer_lost(error):
            print(f"worker {rank}: lost contact with another worker", file=sys.stderr, flush=True)
            return ExitCode.BUG  # the agent restarts us
        traceback.print_exc()  # doing the same again would fail again
        note_outcome(run, ExitCode.BUG, f"worker {rank} failed: {error}")
    else:
        if os.environ["RANK"] == "0":
            note_outcome(run, code, message)
        if is_stop(code):
            return code
    return ExitCode.DONE


if __name__ == "__main__":
    die_with_parent()
    end_process(be_worker(RunDir(Path(sys.argv[1]))))
