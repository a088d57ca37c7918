"""Runs whose truth is known, because it is made here: histories in memory, and the same as files of a run.

``step_history`` makes steps of several ranks from what each of them does in a step; ``curve_history`` makes evaluations
from a true curve, with noise as real ones have it. ``write_run`` writes a history the way a run does.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.model.weights import count_parameters
from dragoman.observe.history import (
    PHASES,
    SAMPLE_COLUMNS,
    STEP_COLUMNS,
    Column,
    Evaluation,
    History,
    Launch,
    Samples,
    SentenceLosses,
    Track,
)
from dragoman.recipe import dump_recipe, parse_recipe
from dragoman.rundir import RunDir
from dragoman.train.schedules import learning_rate

BEGAN = 1_700_000_000.0
VOCABULARY = 8000
RECIPE = """
[data]
train = "builtin"
dev = "builtin"
[model]
layers = 4
d_model = 256
feed_forward = 1152
[train]
steps = 1000
tokens_per_step = 4096
"""


def recipe(steps: int = 1000, *overrides: str) -> Any:
    return parse_recipe(RECIPE, "test.toml", [f"train.steps={steps}", *overrides])


PARAMETERS = count_parameters(recipe().model, VOCABULARY)  # about ten million


def step_history(
    steps: int = 200,
    *,
    hosts: Sequence[str] = ("host1", "host2"),
    compute: float = 1.0,
    transfer: float = 0.0,
    data: float = 0.0,
    slow: dict[int, float] | None = None,  # factor on a rank's computing
    spread: float = 0.1,  # of computing from step to step, as a share
    link: float | None = 4e6,  # bytes per second
    telemetry: bool = True,
    first_step: int = 1,
    seed: int = 0,
) -> History:
    """Return a run of one rank a host. All leave an exchange together, ``transfer`` after the last came."""
    random = np.random.default_rng(seed)
    world, history = (
        len(hosts),
        History(Path("made"), ending="finished", recipe=recipe(first_step + steps - 1)),
    )
    factors = np.array([(slow or {}).get(rank, 1.0) for rank in range(world)])[:, None]
    computing = compute * factors * random.lognormal(0, spread, (world, steps))
    reading = data * random.lognormal(0, spread, (world, steps))
    travelling = transfer * random.lognormal(0, spread, steps)
    arrives = computing + reading
    waits = arrives.max(0) - arrives + travelling
    seconds = arrives + waits + 0.03
    moments = BEGAN + np.cumsum(seconds[0])
    numbers = np.arange(first_step, first_step + steps, dtype=np.float64)
    sent = 4.0 * PARAMETERS if world > 1 else 0.0
    for rank, host in enumerate(hosts):
        columns = dict.fromkeys(STEP_COLUMNS, np.full(steps, np.nan))
        columns |= {
            "step": numbers,
            "time": moments,
            "seconds": seconds[rank],
            "tokens": np.full(steps, 4096.0),
        }
        columns |= {"world": np.full(steps, float(world)), "bytes_sent": np.full(steps, sent)}
        columns |= {"lr": np.array([learning_rate(int(step), history.recipe) for step in numbers])}
        columns |= {
            "loss": 2 + 5 * numbers**-0.5,
            "flops": np.full(steps, 4e9),
            "exposed_seconds": waits[rank],
        }
        columns |= {"data": reading[rank], "compute": computing[rank], "exchange": waits[rank]}
        columns |= {
            "agree": np.zeros(steps),
            "optimizer": np.full(steps, 0.02),
            "logging": np.full(steps, 0.01),
        }
        history.tracks[rank] = Track(rank, host, columns)
    began = [
        {"event": "start", "time": BEGAN + rank / 100, "rank": rank, "step": first_step - 1, "world": world,
         "host": host, "parameters": PARAMETERS, "peak_flops": 8e9}
        for rank, host in enumerate(hosts)
    ]  # fmt: skip
    history.notes += began
    if link and world > 1:
        history.notes.append(
            {"event": "link", "time": BEGAN + 1, "rank": 0, "hosts": world, "latency_seconds": 0.001,
             "bytes_per_second": link}
        )  # fmt: skip
    history.notes.append({"event": "finish", "time": float(moments[-1]), "rank": 0, "step": int(numbers[-1])})
    history.launches = [Launch(BEGAN, first_step - 1, False, world, began)]
    history.facts = {"vocab_size": VOCABULARY}
    if telemetry:
        for host in dict.fromkeys(hosts):
            history.telemetry[host] = _sampled(host, moments, seconds[0], sent)
    return history


def _sampled(host: str, moments: Column, seconds: Column, sent: float) -> Samples:
    """Return telemetry of a host that sends the same bytes in every step."""
    times = np.arange(BEGAN, moments[-1] + 1)
    counter = np.interp(times, np.concatenate([[BEGAN], moments]), np.arange(len(moments) + 1) * sent)
    columns = {name: np.zeros(len(times)) for name in SAMPLE_COLUMNS}
    columns |= {
        "time": times,
        "sent": counter.round(),
        "received": counter.round(),
        "cpu": np.full(len(times), 1.5),
    }
    columns |= {"memory_used": np.full(len(times), 1e9), "memory_total": np.full(len(times), 4e9)}
    return Samples(host, "eth0", 2, columns, [])


def curve_history(
    steps: Column,
    dev: Callable[[Column], Column],
    train: Callable[[Column], Column],
    *,
    noise: float = 0.005,
    sentences: int = 200,
    bleu: Callable[[Column], Column] | None = None,
    overrides: Sequence[str] = (),
    seed: int = 0,
) -> History:
    """Return a run that was evaluated at ``steps``; the true losses are ``dev`` and ``train``.

    Weights wobble (``noise``), and sentences differ: some are hard, and each changes in its own way.
    """
    random = np.random.default_rng(seed)
    last = int(steps[-1])
    history = History(Path("made"), ending="finished", recipe=recipe(last, *overrides))
    tokens = random.integers(5, 60, sentences).astype(np.float64)
    hard = random.normal(0, 0.5, sentences)
    wobble = random.normal(0, noise, (2, len(steps)))
    for place, step in enumerate(steps):
        level = float(dev(step)) + wobble[0, place]
        own = random.normal(0, 0.15, sentences)
        own -= (own * tokens).sum() / tokens.sum()  # the wobble is in the weights already
        nll = tokens * (level + hard - (hard * tokens).sum() / tokens.sum() + own)
        history.sentence_losses[int(step)] = SentenceLosses(int(step), nll, tokens)
        loss = float(nll.sum() / tokens.sum())
        clean = float(train(step)) + wobble[1, place]
        history.evaluations.append(Evaluation(int(step), BEGAN + float(step), loss, clean, 1.0))
    if bleu is not None:
        values = bleu(steps) + random.normal(0, 0.15, len(steps))
        history.scores = [{"set": "dev", "step": int(at), "bleu": float(value), "model": f"models/{int(at)}"}
                          for at, value in zip(steps, values, strict=True)]  # fmt: skip
    numbers = np.unique(np.linspace(1, last, min(last, 500)).round())
    columns = dict.fromkeys((*STEP_COLUMNS, *PHASES), np.full(len(numbers), np.nan))
    columns |= {"step": numbers, "time": BEGAN + numbers, "seconds": np.full(len(numbers), 0.5)}
    columns |= {
        "tokens": np.full(len(numbers), 4096.0),
        "world": np.ones(len(numbers)),
        "loss": train(numbers),
    }
    columns |= {"lr": np.array([learning_rate(int(step), history.recipe) for step in numbers])}
    history.tracks[0] = Track(0, "host1", columns)
    start = {"event": "start", "time": BEGAN, "rank": 0, "step": 0, "world": 1, "host": "host1"}
    finish = {"event": "finish", "time": BEGAN + last, "rank": 0, "step": last}
    history.notes, history.launches = [start, finish], [Launch(BEGAN, 0, False, 1, [start])]
    return history


def write_run(history: History, path: Path) -> Path:
    """Write a history as the files of a run, and return the run."""
    run = RunDir(path)
    for file in (run.events(0), run.telemetry("x")):
        file.parent.mkdir(parents=True, exist_ok=True)
    if history.recipe is not None:
        run.recipe.write_text(dump_recipe(history.recipe))
    run.facts.write_text(json.dumps(history.facts))
    for rank in {note["rank"] for note in history.notes} | set(history.tracks):
        told = [note for note in history.notes if note["rank"] == rank]
        told += _step_events(history.tracks[rank]) if rank in history.tracks else []
        if rank == 0:
            told += [
                {"event": "evaluation", "rank": 0, "step": each.step, "time": each.time, "dev_loss": each.dev_loss,
                 "train_loss": each.train_loss, "seconds": each.seconds}
                for each in history.evaluations
            ]  # fmt: skip
        told.sort(key=lambda each: each["time"])  # stable: what a worker says first stays first
        write_lines(run.events(rank), told)
    losses = history.sentence_losses.values()
    write_lines(
        run.sentence_losses,
        [
            {"step": each.step, "dev_nll": each.nll.tolist(), "dev_tokens": each.tokens.tolist()}
            for each in losses
        ],
    )
    write_lines(run.scores, history.scores)
    for host, samples in history.telemetry.items():
        rows = [dict(zip(SAMPLE_COLUMNS, row, strict=True)) for row in
                zip(*(samples[name].tolist() for name in SAMPLE_COLUMNS), strict=True)]  # fmt: skip
        for row in rows:
            row |= {"host": host, "interface": samples.interface, "cpu": [row["cpu"] * 50] * samples.cores}
        write_lines(run.telemetry(host), rows)
    return path


def write_lines(path: Path, entries: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def _step_events(track: Track) -> list[dict[str, Any]]:
    found = []
    for place in range(len(track)):
        entry: dict[str, Any] = {name: _said(track[name][place]) for name in STEP_COLUMNS}
        entry |= {"event": "step", "rank": track.rank, "step": int(track["step"][place])}
        phases = {name: _said(track[name][place]) for name in PHASES}
        found.append(entry | {"phases": phases if phases["compute"] is not None else None})
    return found


def _said(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
