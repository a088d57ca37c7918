"""``dragoman plan --measure``: how fast these machines are for this recipe, in under a minute.

Every worker of every host runs ``trial.py``, led from here over pipes: it computes, rounds and exchanges, and all
workers do each at the same time, as in training. The slowest counts.
"""

import math
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from dragoman.cluster.estimate import Link
from dragoman.cluster.examine import JOIN_SECONDS, Lost, Session, ask_all, measuring
from dragoman.cluster.hosts import Host, start_on, start_piped
from dragoman.cluster.network import common_address
from dragoman.cluster.survey import Answer, Question, facts, require_answers, survey
from dragoman.cluster.timeline import Handling
from dragoman.config import Recipe
from dragoman.errors import UserError
from dragoman.observe.devices import DEVICES, Device
from dragoman.observe.plan import Lengths, Rates
from dragoman.recipe import dump_recipe

PROGRAM = ["-m", "dragoman.train.trial"]
COMPUTE_SECONDS = 12.0  # for all micro-batches together
MICRO_BATCHES = 8
OTHER_REQUEST_SECONDS = 60.0


@dataclass(frozen=True)
class Calibration:
    """What was measured."""

    rates: Rates
    link: Link | None  # between hosts, or within one if there is only one; its latency is a message's
    device: Device  # of the slowest worker, as far as a plan needs to know it


def calibrate(recipe: Recipe, vocab_size: int, lengths: Lengths, hosts: Sequence[Host]) -> Calibration:
    """Measure the hosts, or this machine with one worker if none is named."""
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
            return _measure(sessions, recipe, vocab_size, lengths)
    except Lost as lost:
        raise UserError(
            str(lost), where="--measure", fix="see dragoman doctor, or plan without --measure"
        ) from lost


def _measure(sessions: list[Session], recipe: Recipe, vocab_size: int, lengths: Lengths) -> Calibration:
    def together(do: str, seconds: float = OTHER_REQUEST_SECONDS, **words: Any) -> list[dict[str, Any]]:
        return ask_all(sessions, do, seconds, [words] * len(sessions))

    environments = list(_environments(sessions))
    interface = recipe.cluster.interface
    joins = [
        {"environment": each, "interface": interface, "timeout_seconds": JOIN_SECONDS}
        for each in environments
    ]
    kind = "gpu" if ask_all(sessions, "join", JOIN_SECONDS, joins)[0]["device"] == "cuda" else "cpu"
    shapes = sample_micro_batches(recipe.train.tokens_per_micro_batch, lengths)
    computed = together(
        "compute", recipe=dump_recipe(recipe), vocab_size=vocab_size, shapes=shapes, budget=COMPUTE_SECONDS
    )
    rounded = together("rounding")
    link, byte_seconds = None, 0.0
    if len(sessions) > 1:
        found = together("links")[0]  # all have agreed on it
        messages = 2 * (len(sessions) - 1).bit_length()
        link = Link(found["latency_seconds"] / messages, found["bytes_per_second"])
        byte_seconds = found["byte_seconds"]
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
    device = replace(
        DEVICES["cpu"],
        name=kind,
        title=slowest["device"],
        tflops={slowest["precision"]: math.nan},
        memory_bytes=min(
            session.answer.facts["devices"][0]["memory_bytes"]
            if kind == "gpu"
            else session.answer.facts["memory_bytes"] / session.host.workers
            for session in sessions
        ),
    )
    return Calibration(rates, link, device)


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


def sample_micro_batches(tokens: int, lengths: Lengths, count: int = MICRO_BATCHES) -> list[list[list[int]]]:
    """Return the (src, tgt) lengths of a few micro-batches, short and long in turns.

    As in the plan of steps, pairs of similar length share one. The first few are as good a sample as all.
    """
    pairs = np.rint(lengths.pairs).astype(int)
    pairs = np.tile(pairs, (-(-tokens * count // int(pairs[:, 1].sum())), 1))  # where there are too few
    pairs = pairs[np.lexsort((pairs[:, 0], pairs[:, 1]))]
    ends = np.cumsum(pairs[:, 1])
    starts = np.random.default_rng(0).permutation(count) / count * (ends[-1] - tokens)
    cuts = np.searchsorted(ends, [starts, starts + tokens])
    return [pairs[first : max(last, first + 1)].tolist() for first, last in cuts.T]
