"""Questions 4, 5 and 11: were the devices busy, was the network the bottleneck, and does step time follow it?

The network is judged by exposed transfer: the time in which every rank waited and none computed. Average utilisation
cannot judge it. A link that is idle while all compute and busy while all wait is half idle on average, and holds up
everything.
"""

import math
from itertools import pairwise
from typing import Any

import numpy as np

from dragoman.observe.explain.answer import (
    NO,
    NOT_RECORDED,
    UNCLEAR,
    YES,
    Case,
    Finding,
    as_evidence,
    share_of,
    unclear,
)
from dragoman.observe.history import Column, number
from dragoman.observe.statistics import Correlation, Interval, bootstrap_ratio, correlate, finite, in_blocks

MUCH = 0.15  # of the time: a part that takes more holds the run up
BUSY, IDLE = 0.85, 0.70  # share of steps that compute
EFFICIENT, WASTEFUL = 0.35, 0.15  # achieved FLOP/s against the GEMM peak, while computing
CERTAIN = 0.975
BLOCKS = 20  # of steps, that a bootstrap draws from
FEW_STEPS = 10
FEW_WINDOWS = 8
RELATED = 0.3  # a coefficient below says nothing of use
ALWAYS = 0.7  # of the steps wait for the same rank: it is slow, not unlucky
WAITS = {"data": "waiting for data", "transfer": "transfer", "straggler": "waiting for the slowest rank"}


def devices(case: Case) -> Finding:
    """Question 4: utilisation, memory, achieved FLOP/s against the measured peak, and how much of a step computes."""
    evidence = _usage(case)
    busy = None
    if case.parts:
        busy = share_of(case.parts, "compute") + share_of(case.parts, "optimizer")
        evidence |= {"parts": case.parts, "compute_share": busy}
    peak, achieved = _flops(case)
    efficiency = achieved / peak / busy if busy and peak and math.isfinite(achieved) else math.nan
    evidence |= {
        "flops_per_second": achieved,
        "peak_flops": peak,
        "share_of_peak": achieved / peak if peak else None,
    }
    if busy is None:
        return unclear(f"where the time of steps went is {NOT_RECORDED}", evidence)
    reason, waits = _largest_wait(case)
    summary = f"they computed {busy:.0%} of the time"
    if math.isfinite(efficiency):
        summary += f", at {efficiency:.0%} of the measured peak while computing"
    if busy < BUSY:
        summary += f"; {WAITS[reason]} took {waits:.0%}"
    used = evidence.get("gpu_utilisation") or evidence.get("cpu_share")
    if used is not None:
        what = "GPU utilisation" if evidence.get("gpu_utilisation") else "CPU use of the hosts"
        summary += f" ({what} {used:.0%})"
    if busy <= IDLE:
        return Finding(NO, summary, evidence, 0.95, [f"see the waiting first: {WAITS[reason]}"])
    if math.isfinite(efficiency) and efficiency <= WASTEFUL:
        advice = ["larger train.micro_batch_tokens: small matrices leave a device half idle"]
        return Finding(NO, summary, evidence, 0.9, advice)
    if busy >= BUSY and math.isfinite(efficiency) and efficiency >= EFFICIENT:
        return Finding(YES, summary, evidence, 0.95)
    if busy >= BUSY and not math.isfinite(efficiency):
        return unclear(f"{summary}; FLOP/s or the device's peak are {NOT_RECORDED}", evidence)
    return Finding(UNCLEAR, f"{summary}: neither full nor wasted", evidence, 0.5)


def network(case: Case) -> Finding:
    """Question 5: the share of exposed transfer, told apart from stragglers and slow data."""
    evidence = _traffic(case)
    if not case.shares:
        missing = [rank for rank in range(case.world) if rank not in case.history.tracks]
        if missing and case.history.tracks:
            return unclear(
                f"the events of rank {', '.join(map(str, missing))} are {NOT_RECORDED}: transfer cannot be told from "
                "waiting for others",
                evidence,
            )
        return unclear(f"how long steps waited for each other is {NOT_RECORDED}", evidence)
    transfer = part_interval(case, "transfer")
    reason, largest = _largest_wait(case)
    evidence |= {
        "transfer_share": as_evidence(transfer),
        "shares": {name: share_of(case.parts, name) for name in case.parts},
        "steps_counted": len(case.shares[0].step),
        "step_seconds": case.step_seconds,
        "largest_wait": reason,
        "step_seconds_with_10x_link": ten_times(case),
    }
    slow = slowest_rank(case)
    if slow is not None:
        evidence |= {"slowest_rank": slow[0], "slowest_rank_share": slow[1], "slowest_host": slow[2]}
    summary = _network_summary(case, evidence, transfer, reason, largest)
    if case.world == 1:
        return Finding(NO, "one worker has nobody to exchange anything with", evidence, 0.99)
    if len(case.hosts) == 1:
        return Finding(
            NO, f"all workers are on {case.hosts[0]}, with no network between them; {summary}", evidence, 0.95
        )
    if len(case.shares[0].step) < FEW_STEPS:
        return unclear(f"{summary}; only {len(case.shares[0].step)} steps to judge by", evidence)
    above = transfer.chance_above(MUCH)
    if reason != "transfer" and largest > MUCH and above > 1 - CERTAIN:
        # It costs something, but something else costs more: blame that, if it is surely more.
        other = part_interval(case, reason, minus="transfer").chance_above(0.0)
        if other >= CERTAIN:
            return Finding(NO, summary, evidence, other, _wait_advice(case, reason))
        return unclear(f"{summary}: too close to tell which is worse", evidence)
    if above >= CERTAIN:
        return Finding(
            YES, summary, evidence, above, ["send less, or rarer: question 12 says what that gives"]
        )
    if above <= 1 - CERTAIN:
        advice = _wait_advice(case, reason) if largest > MUCH else []
        return Finding(NO, summary, evidence, 1 - above, advice)
    return unclear(f"{summary}: about {MUCH:.0%}, where it begins to matter", evidence)


def correlation(case: Case) -> Finding:
    """Question 11: Pearson's and Spearman's coefficients over windows, and what they can mean."""
    windows = _windows(case)
    found = {name: correlate(*finite(seconds, rates)) for name, (seconds, rates) in windows.items()}
    known = {name: each for name, each in found.items() if each is not None}
    evidence: dict[str, Any] = {name: _coefficients(each) for name, each in known.items()}
    if len(case.hosts) == 1:
        return unclear(f"all workers are on {case.hosts[0]}: there is no network to correlate with", evidence)
    if not known:
        return unclear(
            f"network use or step time is {NOT_RECORDED}, does not vary, or there are too few steps", evidence
        )
    name = "interface_rate" if "interface_rate" in known else next(iter(known))
    each = known[name]
    pearson = each.pearson
    what = {"interface_rate": "the interface's rate", "sent_rate": "the rate of bytes that steps sent",
            "transfer_seconds": "transfer"}[name]  # fmt: skip
    summary = (
        f"step time against {what}: r = {pearson.value:+.2f} ({pearson.low:+.2f} to {pearson.high:+.2f}), "
        f"Spearman {each.spearman.value:+.2f}, {each.points} windows"
    )
    mechanism = _mechanism(pearson, known.get("transfer_seconds"))
    evidence |= {"judged_by": name, "mechanism": mechanism}
    if each.points < FEW_WINDOWS:
        return unclear(f"{summary}: too few windows", evidence)
    if (pearson.low > 0 or pearson.high < 0) and abs(pearson.value) >= RELATED:
        sure = max(pearson.chance_above(0), 1 - pearson.chance_above(0))
        return Finding(YES, f"{summary}. {mechanism}", evidence, sure)
    if pearson.low > -RELATED and pearson.high < RELATED:
        return Finding(NO, f"{summary}. {mechanism}", evidence, 0.95)
    return unclear(f"{summary}: not enough to be sure", evidence)


def part_interval(case: Case, name: str, minus: str | None = None) -> Interval:
    """Return the share of all ranks' time that a part took, by a bootstrap over blocks of steps."""
    tops: Column = np.zeros(0)
    bottoms: Column = np.zeros(0)
    for share in case.shares.values():
        part = share.parts[name] - (share.parts[minus] if minus else 0.0)
        tops, bottoms = (
            _added(total, in_blocks(column, BLOCKS))
            for total, column in ((tops, part), (bottoms, share.seconds))
        )
    return bootstrap_ratio(tops, bottoms)


def slowest_rank(case: Case) -> tuple[int, float, str] | None:
    """Return the rank that the others waited for most often, in what share of the steps, and its host."""
    share = case.shares.get(0)
    if share is None or case.world == 1:
        return None
    ranks, counts = np.unique(share.slowest, return_counts=True)
    rank = int(ranks[counts.argmax()])
    host = case.shares[rank].host if rank in case.shares else ""
    return rank, float(counts.max() / counts.sum()), host


def ten_times(case: Case) -> float:
    """Return the step's seconds on a link ten times as fast: what overlaps with computing stays hidden."""
    exposed, link, sent = case.parts["transfer"], case.link, case.steady_column("bytes_sent")
    if link is None or not len(sent):
        return case.step_seconds - 0.9 * exposed
    latency, rate = link
    now, then = latency + sent.mean() / rate, latency + sent.mean() / rate / 10
    return case.step_seconds - exposed + max(0.0, exposed - float(now - then))


def _added(total: Column, more: Column) -> Column:
    if not len(total):
        return more
    # A rank that took part in fewer steps has fewer blocks; they count as blocks of their own.
    return total + more if len(total) == len(more) else np.concatenate([total, more])


def _largest_wait(case: Case) -> tuple[str, float]:
    shares = {name: share_of(case.parts, name) for name in WAITS}
    reason = max(shares, key=lambda name: shares[name])
    return reason, shares[reason]


def _network_summary(
    case: Case, evidence: dict[str, Any], transfer: Interval, reason: str, largest: float
) -> str:
    summary = (
        f"transfer that nothing hid took {transfer.value:.0%} of a step "
        f"(95 % within {transfer.low:.0%} and {transfer.high:.0%})"
    )
    if reason != "transfer" and largest > MUCH:
        summary += f"; {WAITS[reason]} took {largest:.0%}"
        if reason == "straggler" and evidence.get("slowest_rank_share", 0) >= ALWAYS:
            summary += (
                f", nearly always rank {evidence['slowest_rank']} on {evidence['slowest_host'] or 'its host'}"
            )
    if (average := evidence.get("average_use_of_link")) is not None:
        looks = "looks idle" if average < 0.5 else "looks busy"
        summary += f"; on average the link was {average:.0%} busy, which {looks}"
    now, then = evidence["step_seconds"], evidence["step_seconds_with_10x_link"]
    if transfer.value > 0.02 and len(case.hosts) > 1:
        summary += f"; a link 10 times as fast: {now:.3g} → {then:.3g} s per step"
    return summary


def _wait_advice(case: Case, reason: str) -> list[str]:
    if reason == "data":
        return ["data arrive too slowly: put the dataset on a local disk, or free a core for reading"]
    slow = slowest_rank(case)
    if reason == "straggler" and slow is not None and slow[1] >= ALWAYS:
        return [
            f"see what else runs on {slow[2] or 'the host'} of rank {slow[0]}: {slow[1]:.0%} of steps wait for it"
        ]
    if reason == "straggler":
        return ["ranks take turns in being late: smaller train.micro_batch_tokens share the work more evenly"]
    return []


def _traffic(case: Case) -> dict[str, Any]:
    """Return bytes and rates, and what the link can do."""
    sent, seconds = case.steady_column("bytes_sent"), case.steady_column("seconds")
    link, rates = case.link, []
    for samples in case.history.telemetry.values():
        rate = np.fmax(samples.rate("sent"), samples.rate("received"))[_while_training(case, samples["time"])]
        rates += [float(np.nanmean(rate))] if np.isfinite(rate).any() else []
    average = max(rates) if rates else None
    return {
        "world": case.world,
        "hosts": len(case.hosts) or None,
        "bytes_per_step": float(sent.mean()) if len(sent) else None,
        "bytes_per_second_by_steps": float(sent.sum() / seconds.sum())
        if len(sent) == len(seconds) > 0
        else None,
        "interface_bytes_per_second": average,
        "link_bytes_per_second": link[1] if link else None,
        "link_latency_seconds": link[0] if link else None,
        "average_use_of_link": average / link[1] if link and average is not None else None,
    }


def _while_training(case: Case, moments: Column) -> Any:
    track = case.history.leader
    if track is None or not len(track):
        return np.zeros(len(moments), bool)
    return (moments >= track["time"][0]) & (moments <= track["time"][-1])


def _usage(case: Case) -> dict[str, Any]:
    """Return mean use of processors and memory while steps were made."""
    gpu, memory, cpu, host_memory = [], [], [], []
    for samples in case.history.telemetry.values():
        during = _while_training(case, samples["time"])
        for each in samples.gpus:
            gpu.append(each["utilisation"][during])
            memory.append((each["memory_used"] / each["memory_total"])[during])
        if samples.cores:
            cpu.append(samples["cpu"][during] / samples.cores)
        host_memory.append((samples["memory_used"] / samples["memory_total"])[during])

    def mean(columns: list[Column], scale: float = 1.0) -> float | None:
        known = np.concatenate([each[np.isfinite(each)] for each in columns]) if columns else np.zeros(0)
        return float(known.mean()) * scale if len(known) else None

    return {
        "gpu_utilisation": mean(gpu, 0.01),
        "gpu_memory_share": mean(memory),
        "cpu_share": mean(cpu),
        "host_memory_share": mean(host_memory),
    }


def _flops(case: Case) -> tuple[float | None, float]:
    """Return the measured peak of all devices, and what they achieved over steady steps, in FLOP/s."""
    peaks = [number(note.get("peak_flops")) for note in case.starts]
    peak = sum(each for each in peaks if each > 0)
    achieved = 0.0
    for rank, share in case.shares.items():
        track = case.history.tracks[rank]
        flops = track["flops"][np.isin(track["step"], share.step)]
        achieved += float(flops.sum() / share.seconds.sum())
    return (peak or None) if len(peaks) == len(case.shares) else None, achieved if case.shares else math.nan


def _windows(case: Case) -> dict[str, tuple[Column, Column]]:
    """Return step seconds and network rates over windows: by the host's interface, and by what steps sent."""
    track = case.history.leader
    if track is None:
        return {}
    step, moments, seconds, sent = (track[name] for name in ("step", "time", "seconds", "bytes_sent"))
    count = min(60, len(step) // 5)
    if count < 2:
        return {}
    edges = np.linspace(0, len(step), count + 1).astype(int)
    spans = list(pairwise(edges))
    mean_seconds = np.array([float(np.nanmean(seconds[a:b])) if np.isfinite(seconds[a:b]).any() else math.nan
                             for a, b in spans])  # fmt: skip
    found = {}
    samples = case.history.telemetry.get(track.host) or next(iter(case.history.telemetry.values()), None)
    if samples is not None:
        rate, when = samples.rate("sent"), samples["time"]
        means = []
        for a, b in spans:
            inside = rate[(when > moments[a] - np.nan_to_num(seconds[a])) & (when <= moments[b - 1])]
            inside = inside[np.isfinite(inside)]
            means.append(float(inside.mean()) if len(inside) else math.nan)
        found["interface_rate"] = mean_seconds, np.array(means)
    rates = [
        float(sent[a:b].sum() / seconds[a:b].sum()) if seconds[a:b].sum() > 0 else math.nan for a, b in spans
    ]
    found["sent_rate"] = mean_seconds, np.array(rates)
    if (share := case.shares.get(0)) is not None and len(share.step) >= 5 * FEW_WINDOWS:
        blocks = min(60, len(share.step) // 5)
        found["transfer_seconds"] = (
            in_blocks(share.seconds, blocks),
            in_blocks(share.parts["transfer"], blocks),
        )
    return found


def _coefficients(each: Correlation) -> dict[str, Any]:
    return {
        "pearson": as_evidence(each.pearson),
        "spearman": as_evidence(each.spearman),
        "windows": each.points,
        "independent_windows": each.independent_points,
    }


def _mechanism(pearson: Interval, transfer: Correlation | None) -> str:
    """Say what a coefficient can mean, given whether steps vary together with their transfer."""
    follows = transfer is not None and transfer.pearson.low > RELATED
    if follows:
        vary = "steps are longer where their transfer is, so the network is what makes them vary"
    else:
        vary = "what makes steps vary is not their transfer"
    if pearson.low <= 0 <= pearson.high:
        return vary.capitalize()
    if pearson.value < 0:
        return (
            f"A step sends the same bytes however long it takes, so a longer step shows a lower rate; {vary}"
        )
    return f"Longer steps come with a higher rate: they send more, or share the link with others; {vary}"
