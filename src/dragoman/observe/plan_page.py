"""The page of a plan, for people and for programs."""

import math
from collections.abc import Iterator
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from dragoman.cluster.estimate import Mode
from dragoman.observe.devices import OF_PEAK
from dragoman.observe.plan import OF_LINE_RATE, Forecast, Outlook, why

GB, MB = 1e9, 1e6
PAGE_COLUMNS = 120
BAR_COLUMNS = 10


def print_plan(forecast: Forecast) -> None:
    """Show a plan on standard output."""
    console = Console(highlight=False)
    console.width = max(console.width, PAGE_COLUMNS)  # a wrapped table cannot be read
    console.print(page(forecast), markup=False)


def page(forecast: Forecast) -> RenderableType:
    return Group(
        Text(title(forecast), style="bold"),
        Text(memory_line(forecast)),
        _modes(forecast),
        Text(f"use {forecast.choice.timing.mode}: {why(forecast)}", style="bold"),
        *(Text(f"note: {note}", style="yellow") for note in notes(forecast)),
        Text(),
        _ladder(forecast),
        Text(
            "\n".join(["assumed and known:", *(f"  {line}" for line in assumptions(forecast))]), style="dim"
        ),
    )


def title(forecast: Forecast) -> str:
    network = forecast.network
    hosts = "" if network.hosts == 1 else f" on {network.hosts} hosts"
    return (
        f"{forecast.parameters / MB:.1f} M weights, {forecast.recipe.train.steps:,} steps of "
        f"{forecast.recipe.train.tokens_per_step:,} tokens; {network.workers} × {forecast.device.title}{hosts}, "
        f"{forecast.precision}"
    )


def memory_line(forecast: Forecast) -> str:
    memory = forecast.memory
    parts = {name: getattr(memory, name) / GB for name in MEMORY}
    listed = ", ".join(f"{name} {value:.2f}" for name, value in parts.items() if value)
    verdict = "fits" if memory.fits else "does NOT fit"
    return (
        f"memory of a device: {memory.total / GB:.2f} of {memory.available / GB:.0f} GB, {verdict} ({listed})"
    )


def notes(forecast: Forecast) -> Iterator[str]:
    """Yield what the user should know, with what to do."""
    train, memory = forecast.recipe.train, forecast.memory
    if not memory.fits:
        fitting = forecast.fitting_tokens
        yield (
            f"does not fit: {memory.total / GB:.1f} GB of {memory.available / GB:.1f}; "
            + (f"train.micro_batch_tokens={fitting} would" if fitting else "no micro-batch would")
        )
    if forecast.recipe.vocab.dropout:
        yield (
            f"vocab.dropout={forecast.recipe.vocab.dropout:g} makes sentences longer than counted here: at 0.1 by "
            "about a fifth, and a step, its memory and the whole run with them"
        )
    idle = forecast.network.workers - forecast.busy
    if idle:
        yield (
            f"a step has {forecast.micro_batches} micro-batches, so {idle} of {forecast.network.workers} devices "
            f"have nothing to do; train.micro_batch_tokens="
            f"{max(1, train.tokens_per_step // forecast.network.workers)} gives each one, or raise tokens_per_step"
        )
    one = forecast.ladder[0].outlooks[forecast.ladder[0].best].tokens_per_second
    if forecast.asked.tokens_per_second < one:
        yield (
            f"in the mode that the recipe asks for, this cluster is slower than one of its devices alone "
            f"({forecast.asked.tokens_per_second:,.0f} against {one:,.0f} tokens/s)"
        )
    asked, choice = forecast.asked.timing, forecast.choice.timing
    if asked.mode != choice.mode:
        yield f"the recipe asks for {asked.mode}: {asked.seconds:.3f} s a step instead of {choice.seconds:.3f}"


MEMORY = ("weights", "gradients", "optimizer", "average", "exchange", "activations", "logits", "reserved")


def _modes(forecast: Forecast) -> Table:
    """Return where the seconds of a step go in every mode, and what a run takes."""
    table = _table("seconds of a step")
    columns = ["compute", "round", "exposed", "agree", "update", "step", "MB sent", "tokens/s", "hours"]
    for name in [*columns, *(["cost"] if forecast.price else [])]:
        table.add_column(name, justify="right")
    for each in forecast.outlooks:
        timing = each.timing
        times = (
            timing.compute,
            timing.handling,
            timing.exposed,
            timing.agree,
            timing.optimizer,
            timing.seconds,
        )
        cells = [f"{value:.3f}" for value in times]
        cells += [f"{timing.bytes_sent / MB:,.1f}", f"{each.tokens_per_second:,.0f}", f"{each.hours:,.1f}"]
        if forecast.price and each.cost is not None:
            cells.append(f"{forecast.price.currency}{each.cost:,.0f}")
        chosen = each is forecast.choice
        table.add_row(short(timing.mode) + (" ←" if chosen else ""), *cells, style="bold" if chosen else "")
    return table


def _ladder(forecast: Forecast) -> Table:
    """Return tokens per second from 1 device to many, and what the best mode makes of them as a bar."""
    table = _table("devices")
    table.add_column("hosts", justify="right", no_wrap=True)
    modes = {name: each.timing.mode for name, each in forecast.ladder[0].outlooks.items()}
    for mode in modes.values():
        table.add_column(
            short(mode).replace("ressed", ".").replace(" ", "\n", 1), justify="right", no_wrap=True
        )
    table.add_column("best", no_wrap=True)
    table.add_column("× one device", no_wrap=True)
    one = forecast.ladder[0].outlooks[forecast.ladder[0].best].tokens_per_second
    gains = [rung.outlooks[rung.best].tokens_per_second / one for rung in forecast.ladder]
    for rung, gain in zip(forecast.ladder, gains, strict=True):
        cells = [f"{each.tokens_per_second:,.0f}" for each in rung.outlooks.values()]
        idle = "" if rung.busy == rung.devices else f" ({rung.busy} busy)"
        bar = "█" * max(1, round(BAR_COLUMNS * gain / max(gains)))
        table.add_row(
            f"{rung.devices:,}{idle}", f"{rung.hosts:,}", *cells, short(modes[rung.best]), f"{bar} {gain:.1f}"
        )
    return table


def short(mode: Mode) -> str:
    """Return a mode's name for a narrow column; local/16 exchanges each weight every 16 steps."""
    return (
        f"{mode.sync}/{mode.inner_steps} {mode.wire}" if mode.sync == "local" else f"{mode.sync} {mode.wire}"
    )


def assumptions(forecast: Forecast) -> Iterator[str]:
    """Yield what the figures rest on, and how to change it."""
    lengths, rates, network, device = forecast.lengths, forecast.rates, forecast.network, forecast.device
    yield (
        f"sentences of {lengths.src:.0f} → {lengths.tgt:.0f} tokens ({lengths.source}; --lengths): "
        f"{forecast.flops_per_step / 1e12:,.2f} TFLOP a step"
    )
    peak = device.tflops[forecast.precision]
    share = (
        f", {rates.flops_per_second / peak / 1e12:.0%} of the peak of {peak:g}" if math.isfinite(peak) else ""
    )
    yield (
        f"{rates.flops_per_second / 1e12:.4g} TFLOP/s achieved ({rates.source}{share}; --tflops, --measure); products "
        f"reach {OF_PEAK:.0%} of peak, the rest is bound by memory; micro-batches differ by {rates.spread:.0%}"
    )
    if network.workers > 1:
        yield (
            f"within a host {network.within.bytes_per_second * 8 / 1e9:,.1f} Gbit/s (--within), between hosts "
            f"{network.between.bytes_per_second * 8 / 1e6:,.0f} Mbit/s ({OF_LINE_RATE:.0%} of a line's rate) and "
            f"{network.between.latency_seconds * 1e3:.2f} ms a message (--network, --latency-ms, --measure)"
        )
        yield (
            "bytes travel in a ring of all workers, small messages in a tree; buckets hide behind the last backward "
            "pass; compressed and local change what is learned (docs/sync.md)"
        )
    if forecast.price:
        yield (
            f"{forecast.price.currency}{forecast.price.amount:g} for an hour of each {forecast.price.per} "
            "(--price 3.06/h, --price 12.24/host/h)"
        )
    yield "evaluations, checkpoints, preparation and failures are not counted"


def as_json(forecast: Forecast) -> dict[str, Any]:
    """Return everything, with the same keys every time."""
    network, memory, rates = forecast.network, forecast.memory, forecast.rates
    return {
        "model": {
            "parameters": forecast.parameters,
            "flops_per_step": forecast.flops_per_step,
            "micro_batches_per_step": forecast.micro_batches,
            "src_tokens_per_sentence": forecast.lengths.src,
            "tgt_tokens_per_sentence": forecast.lengths.tgt,
            "lengths_from": forecast.lengths.source,
        },
        "cluster": {
            "device": forecast.device.name,
            "title": forecast.device.title,
            "precision": forecast.precision,
            "workers": network.workers,
            "hosts": network.hosts,
            "busy_workers": forecast.busy,
            "between_mbit_per_second": network.between.bytes_per_second * 8 / MB,
            "between_latency_ms": network.between.latency_seconds * 1e3,
            "within_mbit_per_second": network.within.bytes_per_second * 8 / MB,
        },
        "rates": {
            "from": rates.source,
            "flops_per_second": rates.flops_per_second,
            "optimizer_seconds": rates.optimizer_seconds,
            "backward_share": rates.backward_share,
            "spread": rates.spread,
            "encode_nanoseconds": rates.handling.encode * 1e9,
            "decode_nanoseconds": rates.handling.decode * 1e9,
            "byte_nanoseconds": rates.handling.byte * 1e9,
        },
        "memory": {
            **{f"{name}_bytes": getattr(memory, name) for name in MEMORY},
            "total_bytes": memory.total,
            "available_bytes": memory.available,
            "fits": memory.fits,
            "largest_micro_batch_tokens": forecast.fitting_tokens,
        },
        "modes": [_outlook(each) for each in forecast.outlooks],
        "choice": {**_outlook(forecast.choice), "why": why(forecast)},
        "asked": _outlook(forecast.asked),
        "scaling": [
            {
                "devices": rung.devices,
                "hosts": rung.hosts,
                "busy": rung.busy,
                "best": rung.best,
                "tokens_per_second": {name: each.tokens_per_second for name, each in rung.outlooks.items()},
                "hours": {name: each.hours for name, each in rung.outlooks.items()},
                "cost": {name: each.cost for name, each in rung.outlooks.items()},
            }
            for rung in forecast.ladder
        ],
        "price": None if forecast.price is None else vars(forecast.price),
        "notes": list(notes(forecast)),
        "assumptions": list(assumptions(forecast)),
    }


def _outlook(outlook: Outlook) -> dict[str, Any]:
    timing = outlook.timing
    return {
        "mode": str(timing.mode),
        "sync": timing.mode.sync,
        "wire": timing.mode.wire,
        "inner_steps": timing.mode.inner_steps,
        "step_seconds": timing.seconds,
        "compute_seconds": timing.compute,
        "rounding_seconds": timing.handling,
        "exposed_seconds": timing.exposed,
        "agree_seconds": timing.agree,
        "optimizer_seconds": timing.optimizer,
        "bytes_sent": timing.bytes_sent,
        "tokens_per_second": outlook.tokens_per_second,
        "hours": outlook.hours,
        "cost": outlook.cost,
    }


def _table(first: str) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column(first, no_wrap=True)
    return table
