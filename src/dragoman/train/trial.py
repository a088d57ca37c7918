"""What runs on a host while ``dragoman plan --measure`` calibrates: ``python -m dragoman.train.trial``.

It is the doctor's measuring process (``cluster/measure.py``) with three more requests: ``compute`` times micro-batches
of the recipe's model with random tokens, ``rounding`` numbers as they are rounded for the wire, ``links`` sums over the
world.
"""

import time
from statistics import fmean, median, pstdev
from typing import Any

import numpy as np
import torch

from dragoman.cluster import measure
from dragoman.cluster.estimate import all_reduce_bytes
from dragoman.cluster.probe import probe, slowest
from dragoman.cluster.wire import chunks, decode, encode
from dragoman.cluster.world import World
from dragoman.data.batches import collate
from dragoman.data.tokenizer import BOS
from dragoman.model.flops import training_flops
from dragoman.model.loss import token_loss
from dragoman.model.transformer import Transformer
from dragoman.recipe import parse_recipe
from dragoman.train.average import MovingAverage
from dragoman.train.evaluate import to_device
from dragoman.train.optimizers import build_optimizer
from dragoman.train.peak import device_name
from dragoman.train.precision import agree_on_precision, autocast
from dragoman.train.products import set_up_products

TRIAL_TOKENS = 256  # of a first micro-batch, which tells how much can be measured
FEWEST = 2  # micro-batches, however slow the machine
UPDATES = 5
SAMPLE = 2**20  # numbers whose rounding is timed: a bucket
ROUNDINGS = 7
PROBES = 3
EXCHANGE_SECONDS, NUMBERS = 0.5, (2**16, 2**22)  # of the exchange whose cost to the processor is measured

Shape = list[list[int]]  # (src, tgt) lengths of a micro-batch's pairs


def compute(recipe: str, vocab_size: int, shapes: list[Shape], budget: float) -> dict[str, Any]:
    """Time micro-batches and updates of a recipe's model; what would take longer than ``budget`` seconds in part."""
    world: World = measure.held["world"]
    set_up_products()
    cfg = parse_recipe(recipe, "the recipe")
    torch.manual_seed(world.rank)
    model = Transformer(cfg.model, vocab_size).to(world.device)
    precision = agree_on_precision(world, cfg.train.precision, cfg.model.d_model)
    optimizer = build_optimizer(model, cfg.optimizer, cfg.model.d_model, precision)
    average = MovingAverage(model, cfg.train.ema_decay) if cfg.train.average == "ema" else None

    def run(shape: Shape) -> tuple[float, float]:
        return time_micro_batch(model, shape, vocab_size, precision, cfg.train.label_smoothing, world)

    trial = cut(shapes[0], TRIAL_TOKENS)
    fastest = min(sum(run(trial)) for _ in range(3))
    tokens = sum(tgt for _, tgt in trial) * budget / 2 / fastest / (len(shapes) + 1)
    shapes = [cut(shape, min(world.gather(tokens))) for shape in shapes]
    run(shapes[0])
    times: list[tuple[float, float]] = []
    ends = time.perf_counter() + budget
    for shape in shapes:
        if len(times) < FEWEST or time.perf_counter() < ends:
            times.append(run(shape))
    updates = []
    for _ in range(UPDATES):
        run(trial)
        began = time.perf_counter()
        gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if cfg.train.clip_norm:
            torch.nn.utils.clip_grads_with_norm_(model.parameters(), cfg.train.clip_norm, norm)
        norm.item()
        optimizer.step(0.0)
        optimizer.zero_grad()
        if average is not None:
            average.update(1)
        finish(world)
        updates.append(time.perf_counter() - began)
    whole, measured = [sum(each) for each in times], shapes[: len(times)]
    return {
        "flops_per_second": sum(training_flops(cfg.model, vocab_size, np.array(each)) for each in measured)
        / sum(whole),
        "backward_share": sum(backward for _, backward in times) / sum(whole),
        "spread": pstdev(whole) / fmean(whole),
        "optimizer_seconds": median(updates),
        "precision": precision,
        "device": device_name(world.device),
    }


def rounding() -> dict[str, Any]:
    """Time what is done with a bucket whose numbers travel in four bits, before and after, for each number."""
    world: World = measure.held["world"]
    kept, buffer, summed = torch.randn(3, SAMPLE, device=world.device)
    spoil = torch.empty(2**23, device=world.device)  # what training computes meanwhile takes the cache
    before, after = [], []
    for _ in range(ROUNDINGS):
        spoil.fill_(0.0)
        finish(world)
        began = time.perf_counter()
        data = encode(kept, "int4", buffer)
        finish(world)
        before.append(time.perf_counter() - began)
        spoil.fill_(0.0)
        finish(world)
        began = time.perf_counter()
        for start, end in chunks(summed):
            summed[start:end] += decode(data, SAMPLE, "int4", start, end)
        finish(world)
        after.append(time.perf_counter() - began)
    each = median(after) / SAMPLE
    return {"encode": median(before) / SAMPLE + each, "decode": each}


def links() -> dict[str, Any]:
    """Probe the link that a ring of all workers sees, and what a byte costs the processor."""
    world: World = measure.held["world"]
    seen = [slowest(world.gather(probe(world))) for _ in range(PROBES)]
    rate = median(link.bytes_per_second for link in seen)
    numbers = int(min(max(rate * EXCHANGE_SECONDS / 4, NUMBERS[0]), NUMBERS[1]))
    values = torch.zeros(numbers, device=world.device)
    worked = time.process_time()
    world.sum(values)
    worked = time.process_time() - worked
    sent = all_reduce_bytes(4 * numbers, world.size)
    return {
        "latency_seconds": median(link.latency_seconds for link in seen),
        "bytes_per_second": rate,
        "byte_seconds": 0.0 if world.device.type == "cuda" else worked / sent,
    }


def time_micro_batch(
    model: Transformer, shape: Shape, vocab_size: int, precision: str, smoothing: float, world: World
) -> tuple[float, float]:
    """Return the seconds forward and backward of a micro-batch of random tokens; its gradients are added up."""
    batch = to_device(collate(Random(shape, vocab_size), np.arange(len(shape))), world.device)
    finish(world)
    began = time.perf_counter()
    with autocast(precision, world.device):
        loss = token_loss(model(batch), model.projection, batch.tgt_out_N, smoothing)
    finish(world)
    middle = time.perf_counter()
    (loss.smoothed / len(batch.tgt_out_N)).backward()  # type: ignore[no-untyped-call]
    finish(world)
    return middle - began, time.perf_counter() - middle


class Random:
    """Stands for a split: pairs of the given lengths, of tokens that mean nothing."""

    def __init__(self, shape: Shape, vocab_size: int) -> None:
        self._shape, self._vocab_size = shape, vocab_size
        self._random = np.random.default_rng(0)

    def gather(self, indices: np.ndarray, side: int) -> list[np.ndarray]:
        lengths = [(self._shape[index][side],) for index in indices]
        return [self._random.integers(BOS + 1, self._vocab_size, length) for length in lengths]


def cut(shape: Shape, tokens: float) -> Shape:
    """Return as many of the pairs as have ``tokens`` tokens together, at least one."""
    ends = np.cumsum([tgt for _, tgt in shape])
    return shape[: max(1, int(np.searchsorted(ends, tokens, side="right")))]


def finish(world: World) -> None:
    """Wait for the device: what was asked of it is only then done."""
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)


def main() -> None:
    measure.REQUESTS.update(compute=compute, rounding=rounding, links=links)
    measure.main()


if __name__ == "__main__":
    main()
