"""The training loop: read this first.

    for each step of the plan:
        add up the gradients of my micro-batches; the world adds up everybody's
        a good step updates the weights; a bad one is skipped, or sends the run back to its last checkpoint
        now and then: report, evaluate, save

Every worker runs this same loop and takes the same branches: what only one of them knows (a signal, the clock,
a score) is added up with the losses first.
"""

import math
import signal
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from dragoman.cluster.auto import Fixed
from dragoman.cluster.sync import Sync
from dragoman.cluster.watchdog import Watchdog
from dragoman.cluster.world import PeerLost, World
from dragoman.config import Recipe
from dragoman.data.batches import Ahead, Pairs, Plan, Share, Step, collate
from dragoman.data.shards import Split
from dragoman.errors import UserError
from dragoman.model.loss import token_loss
from dragoman.model.transformer import Transformer
from dragoman.model.weights import require_same_names
from dragoman.observe.phases import PhaseClock
from dragoman.rundir import AVERAGE, MODEL, OPTIMIZER, SYNC, RunDir
from dragoman.train.average import MovingAverage
from dragoman.train.checkpoint import Saver, State, discard_checkpoint, newest_valid, read_checkpoint
from dragoman.train.collect import Collector
from dragoman.train.evaluate import Probe, greedy, sentence_losses, to_device
from dragoman.train.guard import Verdict, judge
from dragoman.train.optimizers import Optimizer
from dragoman.train.precision import autocast, update_loss_scale
from dragoman.train.reporter import Reporter
from dragoman.train.schedules import learning_rate

Feed = Ahead[tuple[Step, Share]]


class Ending(Enum):
    FINISHED = "finished"
    STOPPED_EARLY = "stopped early"
    INTERRUPTED = "interrupted"
    TERMINATED = "terminated"


@dataclass
class Job:
    """All that a worker trains with; put together by ``run.py``."""

    recipe: Recipe
    run: RunDir
    world: World
    model: Transformer
    sync: Sync
    choice: Fixed  # of how to synchronise
    optimizer: Optimizer
    average: MovingAverage | None
    precision: str
    plan: Plan
    pairs: Callable[[int], Pairs]  # of train, as an epoch sees them
    train: Split
    dev: Split
    dev_probe: Probe
    train_probe: Probe
    state: State
    saver: Saver
    keeps_checkpoints: bool  # the leader does, and one worker of each host that has a disk of its own
    report: Reporter
    watch: Watchdog
    clock: PhaseClock
    collector: Collector
    signals: set[int]  # received and not yet acted upon

    def at(self, phase: str, step: int | None = None, micro_batch: int | None = None) -> None:
        """Mark what this worker turns to, for those who watch and those who count."""
        self.clock.at(phase)
        self.watch.at(phase, step, micro_batch)

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Return all tensors of a checkpoint, by file; they are live, not copies."""
        files = {MODEL: dict(self.model.named_parameters()), OPTIMIZER: self.optimizer.state()}
        if self.average is not None:
            files[AVERAGE] = self.average.state()
        if kept := self.sync.state():
            files[SYNC] = kept
        return files  # type: ignore[return-value]


class Totals(NamedTuple):
    """What the workers add up after every step: losses, and how many of them ask for something."""

    loss: float
    nll: float
    tokens: float
    norm: float
    interrupted: float
    terminated: float
    save: float
    stop_early: float
    failed: float


def train(job: Job) -> Ending:
    """Train until the last step, an early stop, or a request to stop; the state is saved in every case."""
    recipe, state = job.recipe, job.state
    rehearse(job)
    feed = open_feed(job)
    while state.step < recipe.train.steps and not state.stopped_early:
        job.at("data", state.step + 1)
        step, batches = next(feed)
        sums = accumulate(job, step, batches)
        mine = gradient_norm(job)
        totals = add_up(job, sums, mine)
        surplus = totals.tokens / step.tokens  # 1, unless BPE-dropout made more tokens than were planned
        step = replace(step, tokens=int(totals.tokens))
        # Hosts that train by themselves have gradients of their own: what counts is the mean of their norms.
        norm = totals.norm / job.world.size / surplus
        verdict, why = assess(job, totals.loss / step.tokens, norm)
        if verdict in (Verdict.ROLL_BACK, Verdict.GIVE_UP):
            feed = go_back(job, feed, verdict, why)
            continue
        rate = learning_rate(step.number, recipe) * state.rate_scale
        if verdict is Verdict.GOOD:
            finish_gradients(job, mine, surplus)
            update(job, step.number, rate)
        state.step, state.tokens = step.number, state.tokens + step.tokens
        cost = job.sync.cost()
        spent = job.clock.step_done(cost.exposed_seconds)
        job.report.step(step, batches, totals.loss, totals.nll, rate, norm, why, spent, cost)
        job.watch.step_done(sum(spent.values()))
        job.at("measure")
        job.choice.after_step(state.step, spent, cost)

        stopping = totals.interrupted or totals.terminated
        state.stopped_early = state.stopped_early or bool(totals.stop_early)
        last = state.step == recipe.train.steps or state.stopped_early or stopping
        if recipe.log.samples_every and state.step % recipe.log.samples_every == 0:
            show_sample(job)
        evaluating = state.step % recipe.evaluate.every_steps == 0 or (last and not stopping)
        if evaluating or last or totals.save or state.step % recipe.checkpoint.every_steps == 0:
            job.at("settle")
            job.sync.settle()
            if evaluating:
                evaluate(job)
            save(job)
        if stopping:
            feed.close()
            return Ending.INTERRUPTED if totals.interrupted else Ending.TERMINATED
    feed.close()
    return Ending.STOPPED_EARLY if state.stopped_early else Ending.FINISHED


def open_feed(job: Job) -> Feed:
    """Read ahead this worker's share of each step that is still to come."""

    def steps(first: int = job.state.step + 1) -> Iterator[tuple[Step, Share]]:
        for number in range(first, job.recipe.train.steps + 1):
            step = job.plan.step(number)
            pairs = job.pairs(step.epoch)
            mine = range(job.world.rank, len(step.micro_batches), job.world.size)
            yield step, [(index, collate(pairs, step.micro_batches[index])) for index in mine]

    return Ahead(steps)


def accumulate(job: Job, step: Step, batches: Share) -> Tensor:
    """Add up the gradients of this worker's micro-batches, then the world's; return (loss, nll, tokens) of mine."""
    sums = torch.zeros(3, dtype=torch.float64, device=job.world.device)
    # Losses are divided by the tokens of the whole step: the sum over the world is then the step's mean gradient.
    # How many these really are no worker knows yet; ``finish_gradients`` makes up for the difference to the plan.
    scale = job.sync.loss_weight(step.tokens, job.state.loss_scale)
    # A worker without a share still takes part in the exchange, with a gradient of zero.
    work = [(index, batch, 1.0) for index, batch in batches] or [(0, collate(job.train, np.array([0])), 0.0)]
    for place, (index, batch, weight) in enumerate(work):
        job.at("compute", step.number, index)
        batch = to_device(batch, job.world.device)
        torch.manual_seed(dropout_seed(job.recipe.train.seed, step.number, index))
        with job.sync.micro_batch(last=place == len(work) - 1):
            with autocast(job.precision, job.world.device):
                hidden_ND = job.sync.module(batch)
                loss = token_loss(
                    hidden_ND, job.model.projection, batch.tgt_out_N, job.recipe.train.label_smoothing
                )
            (loss.smoothed * (weight * scale)).backward()  # type: ignore[no-untyped-call]
        job.at("compute")  # again, if it was waiting
        sums[:2] += weight * torch.stack([loss.smoothed.detach(), loss.nll.detach()])
        sums[2] += weight * len(batch.tgt_out_N)
    return sums


def dropout_seed(seed: int, step: int, micro_batch: int) -> int:
    """Return the seed of a micro-batch's dropout: it depends on what is computed, not on who computes it."""
    return int(
        np.random.SeedSequence([seed, step, micro_batch]).generate_state(1, np.uint64)[0] >> np.uint64(1)
    )


def add_up(job: Job, sums: Tensor, norm: Tensor) -> Totals:
    """Share losses and wishes with the world. Reading the numbers waits for the device: once per step."""
    job.at("compute")
    wishes = [
        signal.SIGINT in job.signals,
        signal.SIGTERM in job.signals,
        job.world.leads and 0 < job.recipe.checkpoint.every_minutes < job.saver.minutes_since,
        job.report.wants_early_stop(),
        job.saver.failed,
    ]
    mine = [*sums.tolist(), norm.item(), *wishes]
    job.at("agree")
    totals = Totals(*job.world.agree(mine))
    if totals.failed:
        job.saver.check()
        raise PeerLost("another worker could not save a checkpoint")
    return totals


def gradient_norm(job: Job) -> Tensor:
    """Undo the loss scale, and return the gradient's norm."""
    job.at("optimizer")
    gradients = gradients_of(job.model)
    if job.state.loss_scale != 1.0:
        torch._foreach_div_(gradients, job.state.loss_scale)
    return get_total_norm(gradients)


def finish_gradients(job: Job, norm: Tensor, surplus: float) -> None:
    """Make gradients of this ``norm`` the mean over the step's real tokens, ``surplus`` times the planned, and clip."""
    job.at("optimizer")
    if surplus != 1.0:
        torch._foreach_div_(gradients_of(job.model), surplus)
    largest = job.recipe.train.clip_norm
    if 0 < largest < norm / surplus:  # otherwise all of them would be multiplied by one
        clip_grads_with_norm_(job.model.parameters(), largest, norm / surplus)


def gradients_of(model: Transformer) -> list[Tensor]:
    return [weight.grad for weight in model.parameters() if weight.grad is not None]


def assess(job: Job, loss: float, norm: float) -> tuple[Verdict, str]:
    """Judge the step. In fp16 an overflow is no bad step: the loss scale was too large, and is halved."""
    if job.precision == "fp16":
        overflow = math.isfinite(loss) and not math.isfinite(norm)
        update_loss_scale(job.state, overflow=overflow)
        if overflow:
            discard_gradients(job)
            return Verdict.SKIP, f"fp16 overflow, loss scale lowered to {job.state.loss_scale:g}"
    verdict, why = judge(job.state, job.recipe.guard, loss=loss, gradient_norm=norm)
    if verdict is not Verdict.GOOD:
        discard_gradients(job)
    return verdict, why


def update(job: Job, step: int, rate: float) -> None:
    """Change the weights, and let their average follow."""
    job.at("optimizer")
    job.optimizer.step(rate)
    job.optimizer.zero_grad()
    if job.average is not None:
        job.average.update(step)
    job.sync.after_update()


def discard_gradients(job: Job) -> None:
    """Forget a bad step's gradients, also what was kept of them for the next."""
    job.optimizer.zero_grad()
    job.sync.after_skip()


def rehearse(job: Job) -> None:
    """Run one exchange whose gradients are thrown away.

    DistributedDataParallel lays out its buckets anew after its first backward, and the layout decides the order
    of summation. A resumed run must sum in the same order as one that was never stopped.
    """
    with job.sync.rehearsal():
        accumulate(job, Step(0, 0, [], 1), [])
    job.optimizer.zero_grad()
    job.clock.step_done()  # no step: its time does not count


def evaluate(job: Job) -> None:
    """Measure dev loss and clean training-sample loss, and note whether dev still improves."""
    job.at("evaluate")
    recipe, state = job.recipe, job.state
    with job.average.applied() if job.average is not None else nullcontext():
        sentences, clean = (
            sentence_losses(job.model, probe, job.world, autocast(job.precision, job.world.device))
            for probe in (job.dev_probe, job.train_probe)
        )
    dev = sentences.mean()
    if state.best_dev_loss is None or dev < state.best_dev_loss:
        state.best_dev_loss, state.evaluations_since_best = dev, 0
    else:
        state.evaluations_since_best += 1
        if (
            recipe.evaluate.patience_metric == "loss"
            and 0 < recipe.evaluate.patience <= state.evaluations_since_best
        ):
            state.stopped_early = True
    job.report.evaluation(state.step, sentences, clean.mean(), job.clock.lasting())
    job.choice.after_evaluation(state.step, dev)


def show_sample(job: Job) -> None:
    """Let the model translate a dev sentence, another one each time."""
    job.at("sample")
    if job.world.leads:
        index = np.array([job.state.step // job.recipe.log.samples_every % len(job.dev)])
        [src_ids], [tgt_ids] = job.dev.gather(index, 0), job.dev.gather(index, 1)
        prediction = greedy(job.model, src_ids, autocast(job.precision, job.world.device))
        job.report.sample(job.state.step, src_ids, tgt_ids, prediction, job.clock.lasting())


def save(job: Job) -> None:
    """Write a checkpoint of this moment in the background."""
    job.at("checkpoint")
    job.state.went_back_to = None
    job.state.sync = job.choice.state()
    if job.keeps_checkpoints:
        job.saver.save(job.state, job.tensors())
    job.collector.collect()
    job.report.checkpoint(job.state.step, job.clock.lasting())


def load(job: Job) -> bool:
    """Take up the newest valid checkpoint, the same one on every worker; return whether there is one."""
    job.at("restore")
    found = newest_valid(job.run, job.report.warn) if job.world.local_rank == 0 else None
    told = job.world.gather((job.world.host, "" if found is None else found.name))
    newest = max(name for _, name in told)
    if not newest:
        return False
    path = job.run.checkpoints / newest
    if {host for host, _ in told} == {host for host, name in told if name == newest}:
        state, files = read_checkpoint(path)
    else:  # a host that was away, or a new one, has not got it
        source = told.index((next(host for host, name in told if name == newest), newest))
        state, files = job.world.share(read_checkpoint(path) if job.world.rank == source else None, source)
    for field in fields(State):
        setattr(job.state, field.name, getattr(state, field.name))
    weights = dict(job.model.named_parameters())
    require_same_names(set(weights), set(files[MODEL]), path)
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(files[MODEL][name])
    job.optimizer.load_state(files[OPTIMIZER])
    if job.average is not None:
        job.average.load_state(files[AVERAGE])
    job.choice.load_state(job.state.sync)
    job.sync.load_state(files.get(SYNC, {}))
    return True


def go_back(job: Job, feed: Feed, verdict: Verdict, why: str) -> Feed:
    """Return to the last good checkpoint with a lower learning rate, or give up; return the feed from there.

    A checkpoint that did not help before is not good: it was written when the weights were already spoilt.
    """
    feed.close()
    guard, bad_step = job.recipe.guard, job.state.step + 1
    rollbacks, rate_scale = job.state.rollbacks + 1, job.state.rate_scale * guard.rollback_rate
    job.saver.wait()
    if job.keeps_checkpoints and job.state.went_back_to is not None:
        discard_checkpoint(job.run, job.state.went_back_to)
    if verdict is Verdict.GIVE_UP or not load(job):
        tried = (
            f"after going back {guard.max_rollbacks} times"
            if verdict is Verdict.GIVE_UP
            else "before a checkpoint"
        )
        raise UserError(
            f"training diverged at step {bad_step:,} {tried}: {why}",
            where=str(job.run.path),
            fix="lower schedule.learning_rate or lengthen schedule.warmup_steps, and start a new run",
        )
    job.state.rollbacks, job.state.rate_scale, job.state.bad_steps = rollbacks, rate_scale, 0
    job.state.went_back_to = job.state.step
    job.report.rollback(bad_step, job.state, why)
    job.clock.step_done()  # a step that did not happen
    return open_feed(job)
