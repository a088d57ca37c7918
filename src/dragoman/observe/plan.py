"""``dragoman plan``: what a run will take, before a cent is spent. Imports without torch.

FLOPs are counted from the model's shape, a device's rate comes from its data sheet (``devices``) or is measured, memory
is counted (``memory``), and how a step passes on a network is simulated bucket by bucket (``cluster.timeline``).
``tokens_per_step`` is over the whole world: more devices share the same step, by whole micro-batches.
"""

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist

import numpy as np

from dragoman import config
from dragoman.cluster.estimate import ALLOWED, GRADIENTS, WEIGHTS, Estimate, Link, Mode, choose
from dragoman.cluster.timeline import Gradient, Handling, Network, Timing, Work, step_timing
from dragoman.errors import UserError
from dragoman.model.flops import training_flops
from dragoman.model.weights import count_parameters
from dragoman.observe.devices import LAUNCH_SECONDS, Device
from dragoman.observe.memory import Memory, MicroBatch, matrix_weights, memory_of

LARGEST_WORLD = 1024
# Assumed where nothing is prepared or measured.
TOKENS_PER_SENTENCE = 28.0  # on both sides, with end-of-sentence: WMT English→German in 32,000 subwords
SPREAD = 0.05  # of micro-batches' seconds: their standard deviation, as a share of the mean
MESSAGE_SECONDS = 50e-6  # between hosts of one data centre
OF_LINE_RATE = 0.94  # that is left for data by Ethernet, IP and TCP
ENCODE_BYTES, DECODE_BYTES = 40, 16  # of memory traffic for a number that is rounded, and restored
BYTE_SECONDS = 1e-9  # of a core, to send and receive a byte
UPDATE_BYTES, CLIP_BYTES, AVERAGE_BYTES = 28, 12, 12  # of memory traffic for a weight
OF_MEMORY_RATE = 0.75


@dataclass(frozen=True)
class Lengths:
    """The (src, tgt) tokens of every training pair, or of one that stands for all."""

    pairs: np.ndarray
    source: str

    @property
    def src(self) -> float:
        return float(self.pairs[:, 0].mean())

    @property
    def tgt(self) -> float:
        return float(self.pairs[:, 1].mean())


@dataclass(frozen=True)
class Rates:
    """How fast a worker is, and where that is known from."""

    flops_per_second: float
    optimizer_seconds: float
    handling: Handling
    least_seconds: float = 0.0  # of a micro-batch, however small
    backward_share: float = 2 / 3
    spread: float = SPREAD
    source: str = "data sheet"


@dataclass(frozen=True)
class Price:
    """Money for an hour of a device or a host."""

    amount: float
    per: str  # device, host
    currency: str = ""

    def cost(self, hours: float, devices: int, hosts: int) -> float:
        return self.amount * hours * (devices if self.per == "device" else hosts)


@dataclass(frozen=True)
class Outlook:
    """What a run takes in one mode."""

    timing: Timing
    tokens_per_second: float
    hours: float
    cost: float | None


@dataclass(frozen=True)
class Rung:
    """One size of the cluster on the way from 1 device to many."""

    devices: int
    hosts: int
    busy: int  # devices that have a micro-batch to work on
    outlooks: dict[str, Outlook]  # by mode
    best: str


@dataclass(frozen=True)
class Forecast:
    """All that a plan says."""

    recipe: config.Recipe
    parameters: int
    lengths: Lengths
    device: Device
    precision: str
    network: Network
    rates: Rates
    price: Price | None
    micro_batches: int  # of a step
    flops_per_step: float
    memory: Memory
    outlooks: list[Outlook]
    estimates: list[Estimate]
    choice: Outlook
    asked: Outlook  # what the recipe says; the choice if it says auto
    ladder: list[Rung]

    @property
    def busy(self) -> int:
        return min(self.network.workers, self.micro_batches)

    @property
    def fitting_tokens(self) -> int:
        """The largest micro-batch that fits."""
        return self.memory.largest_micro_batch(self.recipe.train.tokens_per_micro_batch)


def forecast(
    recipe: config.Recipe,
    device: Device,
    network: Network,
    *,
    vocab_size: int,
    lengths: Lengths,
    rates: Rates | None = None,
    price: Price | None = None,
) -> Forecast:
    """Return what training ``recipe`` on these devices and links will take."""
    precision = device.precision(recipe.train.precision)
    weights = count_parameters(recipe.model, vocab_size)
    rates = rates or sheet_rates(recipe, device, precision, vocab_size)
    batch = micro_batch(recipe.train.tokens_per_micro_batch, lengths)
    flops = training_flops(recipe.model, vocab_size, lengths.pairs) / lengths.pairs[:, 1].sum() * batch.tokens
    order = gradient_order(recipe.model, vocab_size, lengths)
    count = max(1, round(recipe.train.tokens_per_step / recipe.train.tokens_per_micro_batch))
    inner = recipe.cluster.inner_steps
    modes = [*GRADIENTS, *WEIGHTS]
    wanted = Mode(
        recipe.cluster.sync, recipe.cluster.wire_format, inner if recipe.cluster.sync == "local" else 1
    )
    if wanted not in modes and wanted.sync != "auto" and wanted.wire != "powersgd":
        modes.append(wanted)

    def outlook(mode: Mode, net: Network) -> Outlook:
        work = slowest_work(flops / rates.flops_per_second, rates, count, net.workers)
        timing = step_timing(mode, order, work, net, rates.handling)
        hours = timing.seconds * recipe.train.steps / 3600
        cost = None if price is None else price.cost(hours, net.workers, net.hosts)
        return Outlook(timing, recipe.train.tokens_per_step / timing.seconds, hours, cost)

    outlooks = [outlook(mode, network) for mode in modes]
    estimates = [estimate_of(each.timing) for each in outlooks]
    # What is chosen among is what auto chooses among: on one host, nothing that only helps between hosts.
    offered = GRADIENTS[:2] if network.hosts == 1 else [*GRADIENTS, *WEIGHTS]
    chosen = choose([each for each in estimates if each.mode in offered]).mode
    choice = next(each for each in outlooks if each.timing.mode == chosen)
    asked = next((each for each in outlooks if each.timing.mode == wanted), choice)
    shown = [*GRADIENTS, Mode("local", "int4", inner)]
    ladder = []
    for devices in [2**power for power in range(LARGEST_WORLD.bit_length())]:
        hosts = -(-devices // network.on_a_host)
        net = replace(network, workers=devices, hosts=hosts)
        rungs = {str(mode): outlook(mode, net) for mode in shown}
        best = choose([estimate_of(each.timing) for each in rungs.values()]).mode
        ladder.append(Rung(devices, hosts, min(devices, count), rungs, str(best)))
    return Forecast(
        recipe=recipe,
        parameters=weights,
        lengths=lengths,
        device=device,
        precision=precision,
        network=network,
        rates=rates,
        price=price,
        micro_batches=count,
        flops_per_step=flops * count,
        memory=memory_of(
            recipe,
            vocab_size,
            batch,
            asked.timing.mode,
            precision=precision,
            on_gpu=device.is_gpu,
            hosts=network.hosts,
            available=device.memory_bytes,
            reserved=device.reserved_bytes,
        ),
        outlooks=outlooks,
        estimates=estimates,
        choice=choice,
        asked=asked,
        ladder=ladder,
    )


def micro_batch(tokens: float, lengths: Lengths) -> MicroBatch:
    return MicroBatch(tokens / lengths.tgt, lengths.src, lengths.tgt)


def estimate_of(timing: Timing) -> Estimate:
    """Return a timing as what ``choose`` chooses among."""
    return Estimate(timing.mode, timing.bytes_sent, timing.exposed, timing.lost_share)


def why(forecast: Forecast) -> str:
    """Say why the chosen mode was chosen."""
    share = forecast.choice.timing.lost_share
    if forecast.network.workers == 1:
        return "one device: nothing to exchange"
    if share < ALLOWED:
        return f"the mildest that loses less than {ALLOWED:.0%} of the time: {share:.0%}"
    return f"every mode loses more than {ALLOWED:.0%} of the time; this one least: {share:.0%}"


def slowest_work(seconds: float, rates: Rates, micro_batches: int, workers: int) -> Work:
    """Return what the slowest worker of a step does, if a micro-batch takes ``seconds`` on average.

    Micro-batches differ. The slowest of those with the most of them is slower than the mean by what chance makes of it.
    """
    seconds = max(seconds, rates.least_seconds)
    most = -(-micro_batches // workers)
    with_most = min(workers, micro_batches - workers * (most - 1))
    extra = NormalDist().inv_cdf((with_most - 0.375) / (with_most + 0.25)) * rates.spread * math.sqrt(most)
    return Work(seconds * (most + extra), seconds * rates.backward_share, rates.optimizer_seconds)


def sheet_rates(recipe: config.Recipe, device: Device, precision: str, vocab_size: int) -> Rates:
    """Return how fast a worker is by its device's data sheet."""
    weights, cfg = count_parameters(recipe.model, vocab_size), recipe.model
    rate = device.memory_rate * OF_MEMORY_RATE
    touched = UPDATE_BYTES + (CLIP_BYTES if recipe.train.clip_norm else 0)
    touched += AVERAGE_BYTES if recipe.train.average == "ema" else 0
    achieved = device.flops_per_second(precision, cfg.d_model)
    optimizer = touched * weights / rate
    if (
        recipe.optimizer.name == "muon"
    ):  # five iterations, each about three products of a matrix with its square
        optimizer += 5 * 6 * cfg.d_model * matrix_weights(cfg) / achieved
    handling = Handling(ENCODE_BYTES / rate, DECODE_BYTES / rate, 0.0 if device.is_gpu else BYTE_SECONDS)
    launches = 60 + 40 * cfg.layers + 65 * cfg.num_decoder_layers
    least = launches * LAUNCH_SECONDS if device.is_gpu else 0.0
    return Rates(achieved, optimizer, handling, least, backward_share(cfg, vocab_size))


def backward_share(cfg: config.Model, vocab_size: int) -> float:
    """Return the share of computing that is the backward pass: twice the forward pass, but for the logits.

    Their gradients come with the loss, and are ready when it begins.
    """
    matrices = matrix_weights(cfg)
    return 2 / 3 * matrices / (matrices + vocab_size * cfg.d_model)


def gradient_order(cfg: config.Model, vocab_size: int, lengths: Lengths) -> list[Gradient]:
    """Return the gradients as the backward pass makes them: decoder, encoder; the embedding is the last.

    The embedding also makes the logits. That part of its gradient comes with the loss, before the backward pass.
    """
    width, inner = cfg.d_model, cfg.feed_forward
    # Their share of the FLOPs; attention's own products, a few percent, are spread over all.
    encoder = lengths.src * cfg.layers * (4 * width + 2 * inner)
    decoder = lengths.src * cfg.num_decoder_layers * 2 * width
    decoder += lengths.tgt * cfg.num_decoder_layers * (6 * width + 2 * inner)
    total = encoder + decoder
    attention = [width * width, width, 3 * width * width, 3 * width, width, width]
    forward = [inner * width, width, inner * width, inner, width, width]
    gradients, done = [], 0.0

    def layers(count: int, sizes: list[int], flops: float) -> None:
        nonlocal done
        for _ in range(count):
            for size in sizes:
                done += flops / count * size / sum(sizes)
                gradients.append(Gradient(size, min(1.0, done / total)))

    norms = [width, width] if cfg.norm == "pre" else []
    gradients += [Gradient(size, done / total) for size in norms]
    layers(cfg.num_decoder_layers, [*forward, *attention, *attention], decoder)
    gradients += [Gradient(size, done / total) for size in norms]
    layers(cfg.layers, [*forward, *attention], encoder)
    return [*gradients, Gradient(vocab_size * width, 1.0)]


def assumed_lengths(recipe: config.Recipe) -> Lengths:
    """Return lengths for text that is not known."""
    assumed = min(TOKENS_PER_SENTENCE, float(recipe.filter.max_length))
    return Lengths(np.array([[assumed, assumed]]), "assumed")


def lengths_of(recipe: config.Recipe) -> tuple[Lengths, int]:
    """Return the lengths of a recipe's sentences and its vocabulary's size, from its dataset if it is prepared.

    Otherwise the lengths are assumed, and the vocabulary is what the recipe asks for.
    """
    from dragoman.data.prepare import fingerprint
    from dragoman.data.shards import Dataset

    directory = Path(recipe.data.directory)
    try:
        dataset = Dataset.open(directory / fingerprint(recipe)) if directory.is_dir() else None
    except UserError:  # the text need not be here, nor be prepared
        dataset = None
    if dataset is None:
        return assumed_lengths(recipe), -(-recipe.vocab.size // 8) * 8
    return Lengths(dataset.split("train").lengths, f"dataset {dataset.path}"), dataset.vocab_size


def parse_price(text: str) -> Price:
    """Read ``3.06/h`` (of a device), ``$12.24/host`` or ``12.24/host/h``."""
    match = re.fullmatch(r"([$€£]?)\s*(\d+(?:\.\d+)?)(?:/(device|gpu|host))?(?:/h)?", text.strip().lower())
    if not match:
        raise UserError(
            f"{text!r} is not a price",
            where=f"--price {text}",
            fix="write 3.06/h for an hour of one device, or 12.24/host/h for an hour of one host",
        )
    return Price(float(match[2]), "host" if match[3] == "host" else "device", match[1])


def plan_network(
    device: Device, workers: int, hosts: int, bits_per_second: float | None, within_bits: float | None = None
) -> Network:
    """Return the links of a cluster from what is known of them; hosts without a limit are joined as one is within."""
    within = Link(device.within_latency, within_bits / 8 if within_bits else device.within_rate)
    between = Link(MESSAGE_SECONDS, OF_LINE_RATE * bits_per_second / 8) if bits_per_second else within
    return Network(workers, hosts, within, between)
