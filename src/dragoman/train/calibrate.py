"""``dragoman plan --measure``: how fast these machines are for this recipe, in under a minute.

Every worker of every host runs ``probe.py``, led from here over pipes: it computes, rounds and exchanges, and all
workers do each at the same time, as in training. The slowest counts.
"""

import math
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from dragoman.cluster.estimate import Link, all_reduce_bytes
from dragoman.cluster.examine import JOIN_SECONDS, SUM_SECONDS, Lost, Session, ask_all, measuring
from dragoman.cluster.hosts import Host, start_on, start_piped
from dragoman.cluster.network import common_address
from dragoman.cluster.survey import Answer, Question, facts, require_answers, survey
from dragoman.cluster.timeline import Handling
from dragoman.config import Recipe
from dragoman.errors import UserError
from dragoman.observe.devices import DEVICES, Device
from dragoman.observe.plan import Lengths, Rates
from dragoman.recipe import dump_recipe

PROGRAM = ["-m", "dragoman.train.probe"]
COMPUTE_SECONDS = 12.0  # for all micro-batches together
MICRO_BATCHES = 8
LATENCY_TIMES = 9
EXCHANGE_SECONDS = 4.0
EXCHANGE_NUMBERS = (2**16, 2**23)
OTHER_REQUEST_SECONDS = 60.0


@dataclass(frozen=True)
class Calibration:
    """What was measured."""

    rates: Rates
    link: Link | None  # between hosts, or within one if there is only one; its latency is a message's
    workers: int
    hosts: int
    device: str  # cpu, cuda
    title: str
    memory_bytes: float  # for each worker
    seconds: float

    def as_device(self, recipe: Recipe) -> Device:
        """Return what a worker computes on, as far as a plan needs to know it."""
        base = DEVICES["cpu"]
        wanted = recipe.train.precision
        precision = ("bf16" if self.device == "cuda" else "float32") if wanted == "auto" else wanted
        return replace(
            base,
            name="cpu" if self.device == "cpu" else "gpu",
            title=self.title,
            tflops={precision: math.nan},
            memory_bytes=self.memory_bytes,
        )


def calibrate(
    recipe: Recipe, vocab_size: int, lengths: Lengths, pairs: np.ndarray | None, hosts: Sequence[Host]
) -> Calibration:
    """Measure the hosts, or this machine with one worker if none is named."""
    began = time.monotonic()
    question = Question(devices=True)
    if hosts:
        answers = survey(hosts, question)
        require_answers(answers)
    else:
        answers = [Answer(Host(platform.node()), facts(question))]
    places = [answer for answer in answers for _ in range(answer.host.workers)]
    start = (
        (lambda host: start_on(host, PROGRAM))
        if hosts
        else (lambda host: start_piped([sys.executable, *PROGRAM]))
    )
    try:
        with measuring(places, start) as sessions:
            measured = _measure(sessions, recipe, vocab_size, lengths, pairs)
    except Lost as lost:
        raise UserError(
            str(lost), where="--measure", fix="see dragoman doctor, or plan without --measure"
        ) from lost
    found = answers[0].facts
    devices = found["devices"]
    on_gpu = bool(devices) and measured["device"] == "cuda"
    memory = min(
        answer.facts["devices"][0]["memory_bytes"]
        if on_gpu
        else answer.facts["memory_bytes"] / answer.host.workers
        for answer in answers
    )
    return Calibration(
        rates=measured["rates"],
        link=measured["link"],
        workers=len(places),
        hosts=len(answers),
        device=measured["device"],
        title=devices[0]["name"]
        if on_gpu
        else f"CPU, {found['cores'] // answers[0].host.workers or 1} cores each",
        memory_bytes=memory,
        seconds=time.monotonic() - began,
    )


def _measure(
    sessions: list[Session], recipe: Recipe, vocab_size: int, lengths: Lengths, pairs: np.ndarray | None
) -> dict[str, Any]:
    def together(do: str, seconds: float = OTHER_REQUEST_SECONDS, **words: Any) -> list[dict[str, Any]]:
        return ask_all(sessions, do, seconds, [words] * len(sessions))

    environments = list(_environments(sessions))
    interface = recipe.cluster.interface
    joins = [
        {"environment": each, "interface": interface, "timeout_seconds": JOIN_SECONDS}
        for each in environments
    ]
    device = ask_all(sessions, "join", JOIN_SECONDS, joins)[0]["device"]
    shapes = sample_micro_batches(recipe.train.tokens_per_micro_batch, lengths, pairs)
    computed = together(
        "compute", recipe=dump_recipe(recipe), vocab_size=vocab_size, shapes=shapes, budget=COMPUTE_SECONDS
    )
    rounded = together("rounding")
    link, byte_seconds = None, 0.0
    if len(sessions) > 1:
        link, byte_seconds = _measure_link(together, len(sessions))
    # The slowest worker holds up the rest.
    slowest = min(computed, key=lambda each: each["flops_per_second"])
    rates = Rates(
        flops_per_second=slowest["flops_per_second"],
        optimizer_seconds=max(each["optimizer_seconds"] for each in computed),
        handling=Handling(
            max(each["encode"] for each in rounded), max(each["decode"] for each in rounded), byte_seconds
        ),
        backward_share=slowest["backward_share"],
        spread=fmean(each["spread"] for each in computed),
        source="measured",
    )
    return {"rates": rates, "link": link, "device": device}


def _measure_link(together: Any, workers: int) -> tuple[Link, float]:
    """Return the link that a ring of all workers sees, and what a byte costs the processor."""
    few = max(each["seconds"] for each in together("exchange", numbers=1, times=LATENCY_TIMES))
    numbers = EXCHANGE_NUMBERS[0]
    for _ in range(2):
        answers = together("exchange", SUM_SECONDS, numbers=numbers, times=3)
        seconds = max(max(each["seconds"] for each in answers) - few, 1e-6)
        rate = all_reduce_bytes(4 * numbers, workers) / seconds
        processor = fmean(each["processor_seconds"] for each in answers)
        byte_seconds = processor / all_reduce_bytes(4 * numbers, workers)
        # The second time as much as there is time for: only then has a stream found its speed.
        numbers = int(min(max(numbers * EXCHANGE_SECONDS / 3 / seconds, numbers), EXCHANGE_NUMBERS[1]))
    messages = 2 * max(1, (workers - 1).bit_length())
    return Link(few / messages, rate), 0.0 if answers[0]["device"] == "cuda" else byte_seconds


def _environments(sessions: Sequence[Session]) -> Iterator[dict[str, str]]:
    """Yield each worker's place in the world, as torchrun would tell it."""
    names = [session.host.name for session in sessions]
    first = sessions[0].answer
    address = "127.0.0.1"
    if others := [session.answer for session in sessions if session.host.name != names[0]]:
        address = common_address(first.addresses, [each.addresses for each in others]) or names[0]
    for rank, name in enumerate(names):
        yield {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(names)),
            "LOCAL_RANK": str(rank - names.index(name)),
            "LOCAL_WORLD_SIZE": str(names.count(name)),
            "MASTER_ADDR": address,
            "MASTER_PORT": str(first.facts["free_port"]),
        }


def sample_micro_batches(
    tokens: int, lengths: Lengths, pairs: np.ndarray | None, count: int = MICRO_BATCHES
) -> list[list[list[int]]]:
    """Return the (src, tgt) lengths of a few micro-batches, short and long in turns.

    As in the plan of steps, sentences of similar length share one. Without a dataset all are alike. The first few of
    them are as good a sample as all.
    """
    if pairs is None:
        sentences = max(1, round(tokens / lengths.tgt))
        return [[[round(lengths.src), round(lengths.tgt)]] * sentences] * count
    order = np.lexsort((pairs[:, 0], pairs[:, 1]))
    ends = np.cumsum(pairs[order, 1])
    middles = (np.random.default_rng(0).permutation(count) + 0.5) / count * ends[-1]
    shapes = []
    for middle in middles:
        first, last = np.searchsorted(ends, [max(0.0, middle - tokens / 2), middle + tokens / 2])
        shapes.append(pairs[order[first : max(last, first + 1)]].astype(int).tolist())
    return shapes
