"""What is wrong with a set of hosts: pure functions from what was found out about them to findings.

A problem keeps the hosts from training together; a warning costs time, or will be asked about later; a note is good
to know. Each has a fix.
"""

import platform
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from dragoman.cluster.examine import Measured
from dragoman.cluster.network import common_address
from dragoman.cluster.survey import Answer, unfit
from dragoman.data.shards import Dataset
from dragoman.errors import UserError

SEVERITIES = ("problem", "warning", "note")
CLOCK_SECONDS = 1.0  # beyond doubt: lines of two logs can no longer be put in order
SPARE_DISK_BYTES = 5 * 10**9  # without a recipe we do not know what is needed
LATENCY_MS = 5.0  # within a building it is below one
SLOW_SHARE = 0.5  # of the other direction, or of the other links
FAST_MBIT = 3_000.0  # a faster link is slow for nobody, and too fast for our short measurement to compare
LEAST_MBIT = 50.0  # without a recipe: too slow for the gradients of any model
EXCHANGE_SECONDS = 1.0  # longer than a step of most models takes on a GPU


@dataclass(frozen=True)
class Need:
    """What a recipe needs of hosts."""

    recipe: str  # as the user names it
    path: Path  # of its dataset; without the text there is no telling which
    fingerprint: str
    dataset: Dataset | None  # as it was prepared here
    unread: UserError | None  # why the text cannot be read
    parameters: int
    disk_bytes: int
    interface: str | None
    exchanges_gradients: bool  # in full, at every step


@dataclass(frozen=True)
class Examination:
    """All that was found out, about hosts or (``here``) about this machine alone."""

    answers: Sequence[Answer]
    measured: Measured
    need: Need | None
    here: bool

    @property
    def found(self) -> list[Answer]:
        """The hosts that answered."""
        return [answer for answer in self.answers if not answer.problem]


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, or (a note) good to know, and what to do about it."""

    where: str  # a host, or a → b
    severity: Literal["problem", "warning", "note"]
    what: str
    fix: str


def diagnose(examination: Examination) -> list[Finding]:
    """Return all that is wrong, problems first."""
    findings = [
        *_unanswered(examination),
        *_unfit(examination),
        *_unsent(examination),
        *_few_devices(examination),
        *_unequal_devices(examination),
        *_cut_links(examination),
        *_slow_links(examination),
        *_slow_exchange(examination),
    ]
    # A host that measures with itself may fail twice.
    return sorted(dict.fromkeys(findings), key=lambda finding: SEVERITIES.index(finding.severity))


def _unanswered(examination: Examination) -> Iterator[Finding]:
    """Hosts that said nothing, or fell silent."""
    for answer in examination.answers:
        if answer.problem:
            yield Finding(answer.host.name, "problem", answer.problem, answer.fix)
    for lost in examination.measured.lost:
        fix = f"see whether {lost.host} is overloaded or was cut off, and try again"
        if lost.alive:
            fix = "check the links, and allow TCP between the hosts on all ports: Gloo and NCCL choose them"
        yield Finding(lost.host, "problem", str(lost), fix)


def _unfit(examination: Examination) -> Iterator[Finding]:
    """Hosts with other versions, without the data, without room, without the interface, or with a wrong clock."""
    need = examination.need
    if need is not None and need.unread is not None:
        what = f"the text of {need.recipe} cannot be read: {need.unread.what} ({need.unread.where})"
        yield Finding("here", "problem", what, need.unread.fix)
    elif (
        need is not None and need.dataset is None and not examination.here
    ):  # alone, `dragoman train` prepares
        what = f"the dataset of {need.recipe} ({need.fingerprint}) is not prepared: it will be when training starts"
        fix = f"nothing to do; to do it now: dragoman data prepare {need.recipe}"
        yield Finding("here", "note", what, fix)
    for answer in examination.found:
        name, found = answer.host.name, answer.facts
        dataset, disk_bytes = (None, 0) if need is None else (need.dataset, need.disk_bytes)
        for what, fix in unfit(answer, dataset, disk_bytes):
            yield Finding(name, "problem", what, fix)
        if need is not None and need.interface not in (None, *found["interfaces"]):
            what = f"host {name} has no interface {need.interface} with an address"
            fix = f"set cluster.interface to one of: {', '.join(found['interfaces'])}; or leave it out"
            yield Finding(name, "problem", what, fix)
        if need is None and found["disk_free_bytes"] < SPARE_DISK_BYTES:
            what = f"host {name} has {found['disk_free_bytes'] / 1e6:,.0f} MB free where runs are written"
            fix = "make room for checkpoints; with --recipe RECIPE the doctor knows how much they need"
            yield Finding(name, "warning", what, fix)
        if found["python"].split(".")[:2] != platform.python_version().split(".")[:2]:
            what = f"host {name} has Python {found['python']}, here it is {platform.python_version()}"
            yield Finding(name, "warning", what, "use one version on all hosts: python=PATH in a hosts file")
        offset, doubt = found.get("clock_offset_seconds", 0.0), found.get("clock_doubt_seconds", 0.0)
        if abs(offset) - doubt > CLOCK_SECONDS:
            direction = "ahead of" if offset > 0 else "behind"
            what = (
                f"the clock of host {name} is {abs(offset):,.1f} s {direction} ours: logs are hard to compare"
            )
            fix = f"on {name}: install chrony, or switch NTP on with timedatectl set-ntp true"
            yield Finding(name, "warning", what, fix)


def _unsent(examination: Examination) -> Iterator[Finding]:
    """Hosts that the dataset will be sent to."""
    dataset = None if examination.need is None else examination.need.dataset
    for answer in examination.found:
        if dataset is None or not answer.lacks_dataset:
            continue
        name, damage = answer.host.name, answer.facts["dataset"]["damage"]
        rates = [
            link.mbit_per_second
            for link in examination.measured.links
            if link.target == name and not link.error
        ]
        size = f"{dataset.num_bytes / 1e6:,.0f} MB"
        if rates:
            seconds = dataset.num_bytes * 8 / 1e6 / min(rates)
            size += f", about {seconds:,.0f} s at {min(rates):,.0f} Mbit/s"
        state = f"has a damaged dataset ({damage})" if damage else "does not have the dataset"
        what = f"host {name} {state}: it will be sent when training starts ({size})"
        port = "" if answer.host.port is None else f" --ssh-port {answer.host.port}"
        fix = f"nothing to do; to send it now: dragoman data send {dataset.path} --hosts {name}{port}"
        yield Finding(name, "note", what, fix)


def _few_devices(examination: Examination) -> Iterator[Finding]:
    """Hosts with fewer GPUs or cores than workers."""
    with_gpu = [answer.host.name for answer in examination.found if answer.facts["devices"]]
    for answer in examination.found:
        name, workers = answer.host.name, answer.host.workers
        gpus, cores = len(answer.facts["devices"]), answer.facts["cores"]
        if with_gpu and not gpus:
            what = f"torch {answer.facts['torch']} finds no GPU on host {name}, but on {', '.join(with_gpu)}"
            fix = f"on {name}: look at nvidia-smi, install torch with CUDA; or leave {name} out"
            yield Finding(name, "problem", what, fix)
        elif gpus and workers > gpus:
            what = f"{workers} workers cannot share the {counted(gpus, 'GPU')} of host {name}"
            yield Finding(name, "problem", what, f"ask for {name}:{gpus}")
        if workers > cores:
            what = f"{workers} workers share the {counted(cores, 'core')} of host {name}"
            yield Finding(name, "warning", what, f"ask for {name}:{cores}, or give the host more cores")


def _unequal_devices(examination: Examination) -> Iterator[Finding]:
    """GPUs of different kinds: all wait for the slowest in every step."""
    names = {device["name"] for answer in examination.found for device in answer.facts["devices"]}
    if len(names) > 1:
        hosts = {answer.host.name: devices_of(answer.facts) for answer in examination.found}
        what = f"GPUs differ, and the slowest decides: {', '.join(f'{n} has {d}' for n, d in hosts.items())}"
        yield Finding(", ".join(hosts), "warning", what, "train on equal GPUs, or leave the slowest out")


def _cut_links(examination: Examination) -> Iterator[Finding]:
    """Hosts that do not reach each other."""
    for a, b in combinations(examination.found, 2):
        ends = {a.host.name, b.host.name}
        cut = [
            link for link in examination.measured.links if link.error and {link.source, link.target} == ends
        ]
        if not cut:
            continue
        where = f"{cut[0].source} {'→' if len(cut) == 1 else '↔'} {cut[0].target}"
        errors = "; ".join(dict.fromkeys(link.error for link in cut))
        if common_address(a.addresses, [b.addresses]) is None:
            what = f"{where}: no network leads from one to the other ({errors})"
            fix = "put both on one network, or name them in --hosts by addresses where they reach each other"
        else:
            what = f"{where}: no connection, though they share a network ({errors})"
            fix = "check the link, and allow TCP between them on all ports: Gloo and NCCL choose them"
        yield Finding(where, "problem", what, fix)


def _slow_links(examination: Examination) -> Iterator[Finding]:
    """Links that are long, slow in one direction, or slower than the others; a slow host is named but once."""
    links = {(link.source, link.target): link for link in examination.measured.links if not link.error}
    slow: set[str] = set()
    for name in [answer.host.name for answer in examination.found]:
        own = [link.mbit_per_second for ends, link in links.items() if name in ends]
        others = [link.mbit_per_second for ends, link in links.items() if name not in ends]
        if own and others and is_slow(max(own), statistics.median(others)):
            slow.add(name)
            usual = statistics.median(others)
            what = f"host {name} has {max(own):,.0f} Mbit/s to the others, and those have {usual:,.0f} between them"
            fix = f"on {name}: check cable, port and speed of the interface (ethtool); or leave {name} out"
            yield Finding(name, "warning", what, fix)
    for (a, b), link in links.items():
        back = links.get((b, a))
        if back is None or a > b:
            continue  # each pair once
        where = f"{a} ↔ {b}"
        latency = max(link.latency_ms, back.latency_ms)
        if latency > LATENCY_MS:
            fix = 'use hosts that are closer, or exchange more rarely: cluster.sync = "local"'
            yield Finding(where, "warning", f"{where}: {latency:,.1f} ms there and back", fix)
        slower, faster = sorted((link, back), key=lambda each: each.mbit_per_second)
        if is_slow(slower.mbit_per_second, faster.mbit_per_second):
            where = f"{slower.source} → {slower.target}"
            what = f"{where}: {slower.mbit_per_second:,.0f} Mbit/s, back it is {faster.mbit_per_second:,.0f}"
            fix = "see what else sends there, and whether an interface is half duplex or shaped (ethtool, tc qdisc)"
            yield Finding(where, "warning", what, fix)
        others = [
            each.mbit_per_second
            for ends, each in links.items()
            if not {a, b} >= {*ends} and not slow & {*ends}
        ]
        if others and not slow & {a, b} and is_slow(faster.mbit_per_second, statistics.median(others)):
            usual = statistics.median(others)
            what = (
                f"{a} ↔ {b}: {faster.mbit_per_second:,.0f} Mbit/s, other hosts have {usual:,.0f} between them"
            )
            yield Finding(where, "warning", what, "check the cables and switches between these two")


def _slow_exchange(examination: Examination) -> Iterator[Finding]:
    """The slowest link, if it is slow in relation to the model: all wait for it in every exchange."""
    links, need = examination.measured.links, examination.need
    measured = [link for link in links if not link.error]
    if not measured:
        return
    fastest = max(link.mbit_per_second for link in measured)
    link = min(measured, key=lambda each: each.mbit_per_second)
    where = f"{link.source} → {link.target}"
    if need is None:
        if fastest < LEAST_MBIT:  # otherwise the slow ones are named already
            what = f"{where}: {link.mbit_per_second:,.0f} Mbit/s is little to exchange gradients over"
            fix = (
                'use a faster network, or cluster.sync = "auto"; --recipe RECIPE tells what an exchange takes'
            )
            yield Finding(where, "warning", what, fix)
        return
    workers = sum(answer.host.workers for answer in examination.found)
    seconds = 2 * (workers - 1) / workers * 4 * need.parameters * 8 / 1e6 / link.mbit_per_second
    if seconds > EXCHANGE_SECONDS and need.exchanges_gradients:
        duration = f"{seconds:,.1f} s" if seconds < 10 else f"{seconds:,.0f} s"
        gradients = f"{need.parameters / 1e6:,.0f} M float32 gradients"
        what = f"{where}: an exchange of {gradients} takes about {duration}"
        yield Finding(where, "warning", what, 'consider cluster.sync = "auto"')


def is_slow(rate: float, usual: float) -> bool:
    return rate < min(SLOW_SHARE * usual, FAST_MBIT)


def devices_of(facts: dict[str, Any]) -> str:
    """Return the GPUs of a host in words."""
    kinds = Counter((device["name"], device["memory_bytes"]) for device in facts["devices"])
    listed = [f"{count} × {name}, {size / 1e6:,.0f} MB" for (name, size), count in kinds.items()]
    return "; ".join(listed) or "no GPU"


def counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
