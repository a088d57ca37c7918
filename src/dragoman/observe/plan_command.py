"""What ``dragoman plan`` was asked for becomes a forecast: devices and links that are named, or measured."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dragoman.cluster.estimate import Link
from dragoman.cluster.hosts import Host
from dragoman.cluster.lab.hosts import parse_rate
from dragoman.cluster.timeline import Network
from dragoman.errors import UserError
from dragoman.observe.devices import DEVICES, Device, find_device
from dragoman.observe.plan import (
    Forecast,
    Lengths,
    forecast,
    lengths_of,
    parse_price,
    plan_network,
    sheet_rates,
)
from dragoman.recipe import load_recipe


@dataclass(frozen=True)
class Wish:
    """The options of the command; what is None was not said."""

    gpus: int | None = None
    gpus_per_host: int | None = None
    device: str | None = None
    network: str | None = None
    price: str | None = None
    measure: bool = False
    lengths: str | None = None
    tflops: float | None = None
    within: str | None = None
    latency_ms: float | None = None


def make_plan(source: str, overrides: Sequence[str], wish: Wish, hosts: Sequence[Host]) -> Forecast:
    """Return the forecast of a recipe on the cluster that was described, or on ``hosts``."""
    recipe = load_recipe(source, overrides)
    price = None if wish.price is None else parse_price(wish.price)
    lengths, vocab_size = lengths_of(recipe)
    if wish.lengths is not None:
        lengths = parse_lengths(wish.lengths)
    device = None if wish.device is None else find_device(wish.device)
    rates = calibration = None
    if wish.measure:
        from dragoman.train.calibrate import calibrate

        calibration = calibrate(recipe, vocab_size, lengths, hosts)
        rates, device = calibration.rates, calibration.device
    if device is None:
        raise UserError(
            "which device?",
            where="dragoman plan",
            fix=f"give --device with one of {', '.join(DEVICES)}; or --measure to measure the machines at hand",
        )
    network = chosen_network(wish, hosts, device)
    if calibration is not None and calibration.link is not None:
        measured = calibration.link
        if len(hosts) == 1:
            network = replace(network, within=measured)
        elif wish.network is None:
            network = replace(network, between=measured)
    if wish.latency_ms is not None:
        network = replace(network, between=Link(wish.latency_ms / 1e3, network.between.bytes_per_second))
    if wish.tflops is not None:
        rates = rates or sheet_rates(recipe, device, device.precision(recipe.train.precision), vocab_size)
        rates = replace(rates, flops_per_second=wish.tflops * 1e12, source="--tflops")
    return forecast(recipe, device, network, vocab_size=vocab_size, lengths=lengths, rates=rates, price=price)


def chosen_network(wish: Wish, hosts: Sequence[Host], device: Device) -> Network:
    """Return the cluster that was described: by numbers of devices, or by hosts."""
    if wish.gpus is not None or not hosts:
        workers = wish.gpus or 1
        count = -(-workers // (wish.gpus_per_host or workers))
    else:
        workers, count = sum(host.workers for host in hosts), len(hosts)
    if count > 1 and wish.network is None and not wish.measure:
        raise UserError(
            f"how fast is the network between the {count} hosts?",
            where="dragoman plan",
            fix="give --network, such as --network 1Gbit; or --measure to measure the hosts at hand",
        )
    between = None if wish.network is None else parse_rate(wish.network, f"--network {wish.network}")
    within = None if wish.within is None else parse_rate(wish.within, f"--within {wish.within}")
    return plan_network(device, workers, count, between, within)


def parse_lengths(text: str) -> Lengths:
    """Read ``28,30``: the mean tokens of both sides."""
    try:
        src, tgt = (float(part) for part in text.split(","))
        if min(src, tgt) < 1:
            raise ValueError
    except ValueError:
        raise UserError(
            f"{text!r} are not the lengths of two sides",
            where=f"--lengths {text}",
            fix="write the mean tokens of a source and of a target sentence, such as 28,30",
        ) from None
    return Lengths(np.array([[src, tgt]]), "--lengths")
