"""The plan of steps: which pairs are in which micro-batch of which step, for every epoch.

The plan is a pure function of (lengths, mixture, settings, seed, epoch). It never looks at the world, so every worker
computes the same one, any number of workers share the same micro-batches, and a resumed run continues at step
k by asking for step k + 1.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch

from dragoman.data.mixture import Part, fewest_pairs, is_plain, pairs_of_epoch
from dragoman.data.tokenizer import BOS
from dragoman.model.transformer import Batch

T = TypeVar("T")
Indices = np.ndarray  # pair numbers in a split
Share = list[tuple[int, Batch]]  # a worker's of a step: (index in the step, micro-batch)


class Pairs(Protocol):
    """What can be read pair by pair: a split, or what an epoch makes of it."""

    def gather(self, indices: Indices, side: int) -> list[np.ndarray]:
        """Return the token ids of these pairs on a side (0 source, 1 target)."""


@dataclass(frozen=True)
class Step:
    """One step of the plan: its micro-batches, and the tokens of all of them together in ordinary segmentation."""

    number: int
    epoch: int
    micro_batches: list[Indices]
    tokens: int


def plan_epoch(
    lengths: np.ndarray,
    tokens_per_step: int,
    tokens_per_micro_batch: int,
    *,
    seed: int,
    epoch: int,
    num_steps: int | None = None,
) -> list[list[Indices]]:
    """Return the steps of one epoch, each a list of micro-batches of pair indices.

    Every pair occurs exactly once. Pairs of the same length are shuffled, laid out by length, cut into
    micro-batches of equal work, and the micro-batches are shuffled into steps: so a micro-batch holds hardly
    any padding, and a step holds many lengths. Every epoch of the same pairs has the same number of steps;
    where the pairs change from epoch to epoch, ``num_steps``, at most one a pair, keeps it the same.
    ``tokens_per_step`` and ``tokens_per_micro_batch`` are target tokens, on average.
    """
    random = np.random.default_rng([seed, epoch])
    src, tgt = lengths[:, 0].astype(np.int64), lengths[:, 1].astype(np.int64)
    # Source lengths rise and fall in turns from one target length to the next, so that neighbours across the
    # change are alike too.
    serpentine = np.where(tgt % 2 == 0, src, -src)
    shuffled = random.permutation(len(lengths))
    order = shuffled[np.lexsort((serpentine[shuffled], tgt[shuffled]))]

    fixed = num_steps is not None
    num_steps = num_steps or max(1, round(int(tgt.sum()) / tokens_per_step))
    per_step = max(1, round(tokens_per_step / tokens_per_micro_batch))
    # A sentence longer than its share leaves the next micro-batch empty; only those that exist are kept.
    micro_batches = np.split(order, _equal_work(src[order], tgt[order], num_steps * per_step)[1:])
    if fixed and len(micro_batches) < num_steps:
        micro_batches = np.array_split(order, num_steps)
    places = random.permutation(len(micro_batches))
    bounds = np.arange(num_steps + 1) * len(micro_batches) // num_steps
    steps = [
        [micro_batches[place] for place in places[start:end]]
        for start, end in pairwise(bounds)
        if end > start
    ]
    return steps


def _equal_work(src: np.ndarray, tgt: np.ndarray, parts: int) -> np.ndarray:
    """Return where to cut pairs of these lengths, in this order, into ``parts`` that take equally long.

    Workers wait for the slowest. A source token is about half the work of a target token, which also meets the source
    and the vocabulary.
    """
    return _cut(src + 2 * tgt, parts)


def _cut(work: np.ndarray, parts: int) -> np.ndarray:
    """Return where parts of equal work begin, with the first at 0."""
    before = np.cumsum(work) - work
    return np.flatnonzero(np.diff(before * parts // max(int(work.sum()), 1), prepend=-1))


class Plan:
    """The steps of a whole run, numbered from 1, epoch after epoch."""

    def __init__(
        self,
        lengths: np.ndarray,
        tokens_per_step: int,
        tokens_per_micro_batch: int,
        *,
        seed: int,
        parts: Sequence[Part] = (),
    ) -> None:
        """Plan over all pairs, or over the mixture that ``parts``, the corpora of the split, describe."""
        self._lengths = lengths
        self._settings = (tokens_per_step, tokens_per_micro_batch)
        self._seed = seed
        self._parts = [] if is_plain(parts) else list(parts)
        self._epoch, self._steps = 0, self._plan(0)
        self.steps_per_epoch = len(self._steps)

    def step(self, number: int) -> Step:
        """Return step ``number``; asking in ascending order plans each epoch once."""
        epoch, place = divmod(number - 1, self.steps_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._steps = epoch, self._plan(epoch)
        micro_batches = self._steps[place]
        tokens = sum(int(self._lengths[indices, 1].sum()) for indices in micro_batches)
        return Step(number, epoch, micro_batches, tokens)

    def _plan(self, epoch: int) -> list[list[Indices]]:
        if not self._parts:
            return plan_epoch(self._lengths, *self._settings, seed=self._seed, epoch=epoch)
        seen = pairs_of_epoch(self._parts, seed=self._seed, epoch=epoch)
        steps = plan_epoch(
            self._lengths[seen], *self._settings, seed=self._seed, epoch=epoch, num_steps=self._num_steps()
        )
        return [[seen[indices] for indices in step] for step in steps]

    def _num_steps(self) -> int:
        """Return the steps of every epoch: those of an average one, and no more than the smallest has pairs."""
        tokens, first = 0.0, 0
        for part in self._parts:
            tokens += part.weight * float(self._lengths[first : first + part.pairs, 1].sum())
            first += part.pairs
        return max(1, min(round(tokens / self._settings[0]), fewest_pairs(self._parts)))


def plan_evaluation(lengths: np.ndarray, tokens_per_micro_batch: int) -> list[Indices]:
    """Cut a split into micro-batches of similar length, the same every time."""
    [micro_batches] = plan_epoch(lengths, int(lengths[:, 1].sum()), tokens_per_micro_batch, seed=0, epoch=0)
    return micro_batches


def padding_share(lengths: np.ndarray, micro_batches: list[Indices]) -> float:
    """Return the share of positions, source and target together, that are padding."""
    padded = sum(int(lengths[indices].max(axis=0).sum()) * len(indices) for indices in micro_batches)
    real = sum(int(lengths[indices].sum()) for indices in micro_batches)
    return 1 - real / padded


def collate(pairs: Pairs, indices: Indices) -> Batch:
    """Read the pairs ``indices`` and lay them out as one micro-batch on the CPU."""
    src, tgt = pairs.gather(indices, 0), pairs.gather(indices, 1)
    tgt_out_N = np.concatenate(tgt).astype(np.int64)
    tgt_lengths_B = np.array([len(ids) for ids in tgt])
    # What a sentence begins with takes the place of what the one before it ends with.
    tgt_in_N = np.roll(tgt_out_N, 1)
    tgt_in_N[np.cumsum(tgt_lengths_B) - tgt_lengths_B] = BOS
    return Batch(
        src_M=torch.from_numpy(np.concatenate(src).astype(np.int64)),
        src_lengths_B=torch.tensor([len(ids) for ids in src]),
        tgt_in_N=torch.from_numpy(tgt_in_N),
        tgt_out_N=torch.from_numpy(tgt_out_N),
        tgt_lengths_B=torch.from_numpy(tgt_lengths_B),
    )


def batch_lengths(batch: Batch) -> np.ndarray:
    """Return the lengths of a micro-batch's pairs (n, 2), source and target."""
    return torch.stack([batch.src_lengths_B, batch.tgt_lengths_B], 1).numpy()


class Ahead(Generic[T]):
    """Iterate over ``make()`` with a thread that stays a few items ahead, so that reading hides behind work."""

    def __init__(self, make: Callable[[], Iterator[T]], depth: int = 2) -> None:
        self._items: queue.Queue[T | _Failure] = queue.Queue(depth)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._fill, args=(make,), daemon=True, name="data")
        self._thread.start()

    def __iter__(self) -> "Ahead[T]":
        return self

    def __next__(self) -> T:
        item = self._items.get()
        if isinstance(item, _Failure):
            raise item.error
        return item

    def close(self) -> None:
        """Stop the thread, also when it waits for room."""
        self._closed.set()
        while self._thread.is_alive():
            with suppress(queue.Empty):
                self._items.get(timeout=0.05)

    def _fill(self, make: Callable[[], Iterator[T]]) -> None:
        try:
            for item in make():
                self._items.put(item)
                if self._closed.is_set():
                    return
            raise StopIteration
        except BaseException as error:  # handed to the reader, who raises it
            self._items.put(_Failure(error))


@dataclass(frozen=True)
class _Failure:
    error: BaseException
