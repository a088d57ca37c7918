"""What a worker tells while it trains: events always; console, curves and the lane's scores if it leads."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from dragoman.cluster.across import same_host
from dragoman.cluster.auto import Decision
from dragoman.cluster.diagnosis import Diagnosis
from dragoman.cluster.estimate import Link
from dragoman.cluster.sync import Cost
from dragoman.cluster.world import World
from dragoman.config import Recipe
from dragoman.data.batches import Share, Step
from dragoman.data.tokenizer import Tokenizer
from dragoman.decode.lane import Lane
from dragoman.files import append_json_line, open_json_lines, read_json_lines
from dragoman.observe import events
from dragoman.observe.console import Console, Silent
from dragoman.observe.events import EventLog, plain
from dragoman.observe.telemetry import Sampler
from dragoman.observe.tensorboard import Curves, NoCurves
from dragoman.rundir import RunDir
from dragoman.train.checkpoint import State
from dragoman.train.evaluate import SentenceLosses

LANE_RESTARTS = 2


class Reporter:
    """Tells the same story to everyone who listens; knows nothing about how training works."""

    def __init__(
        self,
        recipe: Recipe,
        run: RunDir,
        world: World,
        console: Console | Silent,
        curves: Curves | NoCurves,
        tokenizer: Tokenizer,
        flops: Callable[[Share], float],
    ) -> None:
        """``flops`` tells what a worker computes for its share of a step."""
        self._recipe, self._run, self._world, self._tokenizer = recipe, run, world, tokenizer
        self.console, self._curves, self._flops = console, curves, flops
        self._events = EventLog(run.events(world.rank), world.rank)
        self._since_line: list[tuple[int, float]] = []  # (tokens, seconds) of the steps since the last line
        self._lane: Lane | None = None
        self._lane_failures = 0
        self._scores_seen = 0
        self._sampler: Sampler | None = None
        self._sentences = open_json_lines(run.sentence_losses) if world.leads else None
        self.say, self.warn = console.say, console.warn

    def begin(self, state: State, *, resumed: bool, gpu: str | None, **facts: Any) -> None:
        """Open the story with ``facts`` about this worker, and start lane and telemetry beside the training."""
        world = self._world
        self._events.emit(
            events.RESUME if resumed else events.START,
            step=state.step,
            world=world.size,
            host=world.host,
            interface=world.route.interface,
            **facts,
        )
        self._curves.go_back(state.step)
        if self._world.leads:
            self._lane = Lane.start(self._run)
            known = read_json_lines(self._run.scores)
            self._scores_seen = len(known)
            for entry in known:  # a curve file is new with every start and lacks them
                self._draw_score(entry)
        self._start_sampler(gpu)

    def link(self, hosts: int, link: Link) -> None:
        """Tell what the network between hosts can do."""
        if self._world.leads:
            self._events.emit(events.LINK, hosts=hosts, **asdict(link))

    def step(
        self,
        step: Step,
        mine: Share,
        loss: float,
        nll: float,
        rate: float,
        norm: float,
        bad_because: str,
        spent: dict[str, float],
        cost: Cost,
    ) -> None:
        """Report one step; ``loss`` and ``nll`` are sums over its tokens, ``spent`` the seconds of its phases."""
        seconds = sum(spent.values())
        mean = {"loss": loss / step.tokens, "nll": nll / step.tokens}
        self._events.emit(
            events.STEP,
            step=step.number,
            **mean,
            tokens=step.tokens,
            lr=rate,
            seconds=seconds,
            gradient_norm=norm,
            epoch=step.epoch,
            micro_batches=len(step.micro_batches),
            world=self._world.size,
            bytes_sent=cost.bytes_sent,
            exposed_seconds=cost.exposed_seconds,
            flops=self._flops(mine),
            phases=spent,
        )
        if bad_because:
            self._events.emit(events.SKIP, step=step.number, why=bad_because)
            self.warn(f"step {step.number:,} skipped: {bad_because}")
        self.console.tick(step.number)
        self._since_line.append((step.tokens, seconds))
        if step.number % self._recipe.log.every_steps == 0 or step.number == 1:
            tokens, elapsed = (sum(column) for column in zip(*self._since_line, strict=True))
            speed, step_seconds = tokens / elapsed, elapsed / len(self._since_line)
            self._since_line.clear()
            self.console.progress(
                step.number,
                loss=mean["loss"],
                learning_rate=rate,
                tokens_per_second=speed,
                step_seconds=step_seconds,
            )
            self._curves.add("train_loss", mean["loss"], step.number)
            self._curves.add("learning_rate", rate, step.number)
            self._curves.add("tokens_per_second", speed, step.number)
            self._curves.add("gradient_norm", norm, step.number)
            self._look_at_lane()

    def evaluation(self, step: int, dev: SentenceLosses, train_loss: float, seconds: float) -> None:
        dev_loss = dev.mean()
        self._events.emit(
            events.EVALUATION, step=step, dev_loss=dev_loss, train_loss=train_loss, seconds=seconds
        )
        if self._sentences is not None:
            nll, tokens = (np.round(each, 3).tolist() for each in (dev.nll, dev.tokens))
            append_json_line(self._sentences, plain({"step": step, "dev_nll": nll, "dev_tokens": tokens}))
        self.console.evaluation(step, dev_loss, train_loss, seconds)
        self._curves.add("eval_loss", dev_loss, step)
        self._curves.add("train_sample_loss", train_loss, step)

    def sync(self, decision: Decision) -> None:
        """Tell how workers stay one model from now on, and why."""
        self._events.emit(events.SYNC, **asdict(decision))
        for line in decision.lines():
            self.say(line)

    def checkpoint(self, step: int, seconds: float) -> None:
        """``seconds`` is how long the step was held up, not how long the writing takes."""
        self._events.emit(events.CHECKPOINT, step=step, seconds=seconds)

    def sample(
        self, step: int, src_ids: np.ndarray, tgt_ids: np.ndarray, prediction: Sequence[int], seconds: float
    ) -> None:
        source, target, predicted = (
            self._tokenizer.decode(list(map(int, ids))) for ids in (src_ids, tgt_ids, prediction)
        )
        told = {"source": source, "target": target, "prediction": predicted}
        self._events.emit(events.SAMPLE, step=step, **told, seconds=seconds)
        self.console.sample(step, source, target, predicted)

    def rollback(self, bad_step: int, state: State, why: str) -> None:
        self._curves.go_back(state.step)
        self._events.emit(
            events.ROLLBACK, step=bad_step, to_step=state.step, why=why, rate_scale=state.rate_scale
        )
        self.warn(
            f"step {bad_step:,}: {why}. Going back to step {state.step:,} "
            f"with the learning rate times {state.rate_scale:g}"
        )

    def stall(self, diagnosis: Diagnosis) -> None:
        """Name those who hold up the world; all hear of it, one says it."""
        self._events.emit(events.STALL, **diagnosis.to_json())
        if diagnosis.speaks:
            self._speak("\n".join(diagnosis.lines()))

    def recovery(self, seconds: float) -> None:
        self._events.emit(events.RECOVERY, seconds=seconds)
        self.say(f"it goes on, after {seconds:.0f} s")

    def lost(self, why: str) -> None:
        """Say that this worker gives up, for whoever started it to start it again."""
        self._events.emit(events.LOST, why=why)
        self._speak(f"rank {self._world.rank} on {self._world.host} gives up: {why}")

    def _speak(self, text: str) -> None:
        """Warn, also where this worker does not lead and has no console."""
        if self._world.leads:
            self.warn(text)
        else:
            print(f"warning: {text}", file=sys.stderr, flush=True)

    def wants_early_stop(self) -> bool:
        """Whether dev BLEU has not improved for the recipe's patience; only the leader knows the scores."""
        evaluate = self._recipe.evaluate
        if not self._world.leads or not evaluate.patience or evaluate.patience_metric != "bleu":
            return False
        bleu = [entry["bleu"] for entry in read_json_lines(self._run.scores) if entry["set"] == "dev"]
        return len(bleu) - 1 - int(np.argmax(bleu)) >= evaluate.patience if bleu else False

    def end(self, step: int, *, finished: bool, give_up: Callable[[], bool]) -> bool:
        """Close the story. A finished training waits for the lane's last scores, unless told to ``give_up``.

        Return whether all that was to be scored is scored."""
        self._events.emit(events.FINISH if finished else events.STOP, step=step)
        if self._lane is None:
            return True
        if not finished:
            self._lane.stop()
            return False
        self.say("training is over; the lane scores what is left, and the test set")
        lane, stopped = self._lane, False

        def on_wait() -> None:
            nonlocal stopped
            self._new_scores()
            if give_up() and not stopped:
                stopped = True
                lane.stop()

        lane.finish(on_wait)
        self._new_scores()
        failure = lane.poll_failure()
        if failure is not None and not stopped:
            raise RuntimeError(f"training is complete, but the lane could not score it: {failure}")
        return not stopped

    def stop_sampling(self) -> None:
        """End telemetry, so that its file is complete."""
        if self._sampler is not None:
            self._sampler.stop()
            self._sampler = None

    def close(self) -> None:
        self.stop_sampling()
        if self._sentences is not None:
            self._sentences.close()
        self._events.close()
        self._curves.close()
        self.console.close()

    def _start_sampler(self, gpu: str | None) -> None:
        """Let the first worker of each host start the sampler; training goes on without it if need be."""
        if not self._recipe.log.telemetry:
            return
        world = self._world
        workers = world.gather((world.host, world.local_rank, os.getpid(), gpu))
        hosts = same_host([(host, local_rank) for host, local_rank, _, _ in workers])
        if world.local_rank == 0:
            here = [workers[rank] for rank in next(ranks for ranks in hosts if world.rank in ranks)]
            try:
                self._sampler = Sampler.start(
                    self._run.telemetry(world.host),
                    self._run.log,
                    host=world.host,
                    interface=world.route.interface,
                    workers=[pid for _, _, pid, _ in here],
                    gpus=[name for _, _, _, name in here if name is not None],
                )
            except OSError as error:
                self._speak(f"no telemetry of {world.host}: {error}")

    def _look_at_lane(self) -> None:
        """Report new scores; a lane that died is said and started again, since training does not need it."""
        self._new_scores()
        if self._lane is None:
            return
        failure = self._lane.poll_failure()
        if failure is not None:
            self._lane_failures += 1
            again = self._lane_failures <= LANE_RESTARTS
            self.warn(f"the lane failed{'; starting it again' if again else ''}: {failure}")
            self._lane = Lane.start(self._run) if again else None

    def _new_scores(self) -> None:
        if self._world.leads:
            entries = read_json_lines(self._run.scores)
            for entry in entries[self._scores_seen :]:
                self._events.emit(events.SCORE, **entry)
                self.console.score(entry)
                self._draw_score(entry)
            self._scores_seen = len(entries)

    def _draw_score(self, entry: dict[str, Any]) -> None:
        prefix = "Eval" if entry["set"] == "dev" else "Test"
        self._curves.add(f"{prefix}_BLEU_Score", entry["bleu"], int(entry["step"]))
        self._curves.add(f"{prefix}_chrF_Score", entry["chrf"], int(entry["step"]))
