"""Sentences of all requests, translated together.

One queue for each model, in turns: each wave takes one sentence of every waiting request, then the next of each, so a
book does not hold up a word. A wave is sorted by length and cut into batches, one or more for each core. What each
sentence becomes does not depend on what it was batched with.
"""

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from itertools import accumulate, groupby
from typing import Any, NamedTuple

from dragoman.decode.translator import Translation, Translator

logger = logging.getLogger(__name__)

BATCH_CHARACTERS = 3000  # about 30 sentences: larger is hardly faster on a core, and everybody waits for it
SMALLEST_BATCH_CHARACTERS = 160  # two sentences: below this, spreading over cores gains nothing
MOST_JOBS = 500  # well below the connections that the server takes, so that the queue is what refuses
OVERHEAD_CHARACTERS = 20  # what a sentence costs besides its letters
SMOOTHING = 0.1  # weight of the newest batch in the measured rate


class Full(Exception):
    """The queue takes no more; ``seconds`` is when it probably will."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"try again in {seconds} s")
        self.seconds = seconds


class Job:
    """The sentences of one request; ``done`` resolves to their translations, in order."""

    def __init__(
        self, sentences: Sequence[str], nbest: int, attention: bool, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.sentences, self.loop = sentences, loop
        self.options: dict[str, Any] = {"nbest": nbest, "attention": attention}
        self.done: asyncio.Future[list[Translation]] = loop.create_future()
        self.translations: list[Translation | None] = [None] * len(sentences)
        self.cost = sum(map(_cost, sentences))
        self.waiting = deque(range(len(sentences)))
        self.missing = len(sentences)
        self.is_over = False


class Place(NamedTuple):
    """One sentence of a job."""

    job: Job
    number: int

    @property
    def sentence(self) -> str:
        return self.job.sentences[self.number]


def _cost(sentence: str) -> int:
    return len(sentence) + OVERHEAD_CHARACTERS


class Batcher:
    """A model at work for many. ``submit`` and ``cancel`` are called from the event loop's thread."""

    def __init__(
        self, translator: Translator, *, cores: int, most_characters: int, longest_wait_seconds: float
    ) -> None:
        self.translator = translator
        self._cores, self._most, self._longest_wait = cores, most_characters, longest_wait_seconds
        self._jobs: deque[Job] = deque()
        self._ready: deque[list[Place]] = deque()
        self._cost, self._num_jobs = 0, 0  # of everything that was accepted and is not done
        self._rate: float | None = None  # cost per second of one core
        self._changed = threading.Condition()
        self._closing = False
        # One more than cores: while they compute, the next batch is made ready.
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(cores + 1)]
        for thread in self._threads:
            thread.start()

    @property
    def queued(self) -> int:
        """Characters that wait or are being translated."""
        return self._cost

    def wait_seconds(self) -> float:
        """Return how long what is queued will take; 0 as long as nothing was measured."""
        return self._cost / (self._rate * self._cores) if self._rate else 0.0

    def submit(self, sentences: Sequence[str], nbest: int = 1, attention: bool = False) -> Job:
        """Queue sentences, or raise Full. A request that finds the queue empty is never refused."""
        job = Job(sentences, nbest, attention, asyncio.get_running_loop())
        with self._changed:
            seconds = self.wait_seconds()
            too_much = self._cost + job.cost > self._most or self._num_jobs >= MOST_JOBS
            if self._cost and (too_much or seconds > self._longest_wait):
                raise Full(min(60, max(1, math.ceil(seconds))))
            if not sentences:
                job.done.set_result([])
                return job
            self._cost += job.cost
            self._num_jobs += 1
            self._jobs.append(job)
            self._changed.notify_all()
        return job

    def cancel(self, job: Job) -> None:
        """Forget what of a job was not begun; nobody waits for it any more."""
        with self._changed:
            if not job.is_over:
                self._end(job)
        job.done.cancel()

    def close(self) -> None:
        """Translate what was accepted, then end. Returns at once."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def join(self, seconds: float) -> None:
        """Wait for the end after ``close``."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _end(self, job: Job) -> None:
        job.is_over = True
        job.waiting.clear()
        self._cost -= job.cost
        self._num_jobs -= 1

    def _work(self) -> None:
        while (batch := self._take()) is not None:
            began = time.monotonic()
            lines = [place.sentence for place in batch]
            try:
                translations = list(self.translator.translate(lines, **batch[0].job.options))
            except Exception as error:
                logger.exception("a batch failed")
                self._fail(batch, error)
            else:
                self._deliver(batch, translations, time.monotonic() - began)

    def _take(self) -> list[Place] | None:
        """Return the next batch, waiting for one; None once closed and empty."""
        with self._changed:
            while True:
                if not self._ready:
                    self._make_wave()
                while self._ready:
                    batch = [place for place in self._ready.popleft() if not place.job.is_over]
                    if batch:
                        return batch
                if self._closing and not self._jobs:
                    return None
                if not self._jobs:
                    self._changed.wait()

    def _make_wave(self) -> None:
        """Take sentences in turns, of requests that are to be translated as the first of them is."""
        wave: list[Place] = []
        room = BATCH_CHARACTERS * self._cores
        turns, self._jobs = self._jobs, deque()
        options = next((job.options for job in turns if job.waiting), {})
        others = deque(job for job in turns if job.waiting and job.options != options)
        turns = deque(job for job in turns if job.waiting and job.options == options)
        while turns and room > 0:
            job = turns.popleft()
            place = Place(job, job.waiting.popleft())
            wave.append(place)
            room -= _cost(place.sentence)
            if job.waiting:
                turns.append(job)
        self._jobs = others + turns
        if not wave:
            return
        wave.sort(key=lambda place: len(place.sentence))
        total = sum(_cost(place.sentence) for place in wave)
        size = max(SMALLEST_BATCH_CHARACTERS, min(BATCH_CHARACTERS, total / self._cores))
        ends = accumulate(_cost(place.sentence) for place in wave)
        middles = (end - _cost(place.sentence) / 2 for place, end in zip(wave, ends, strict=True))
        for _, batch in groupby(zip(wave, middles, strict=True), lambda each: each[1] // size):
            self._ready.append([place for place, _ in batch])
        if len(self._ready) > 1:
            self._changed.notify_all()

    def _deliver(self, batch: list[Place], translations: list[Translation], seconds: float) -> None:
        finished: list[Job] = []
        with self._changed:
            rate = sum(_cost(place.sentence) for place in batch) / max(seconds, 1e-6)
            self._rate = rate if self._rate is None else self._rate + SMOOTHING * (rate - self._rate)
            for place, translation in zip(batch, translations, strict=True):
                job = place.job
                job.translations[place.number] = translation
                job.missing -= 1
                if job.missing == 0 and not job.is_over:
                    self._end(job)
                    finished.append(job)
        if finished:
            finished[0].loop.call_soon_threadsafe(_resolve, finished)

    def _fail(self, batch: list[Place], error: Exception) -> None:
        with self._changed:
            failed = list({id(place.job): place.job for place in batch if not place.job.is_over}.values())
            for job in failed:
                self._end(job)
        for job in failed:
            job.loop.call_soon_threadsafe(_reject, job, error)


def _resolve(jobs: list[Job]) -> None:
    for job in jobs:
        if not job.done.done():
            job.done.set_result([translation for translation in job.translations if translation is not None])


def _reject(job: Job, error: Exception) -> None:
    if not job.done.done():
        job.done.set_exception(error)
