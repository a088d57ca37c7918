"""Where the time of a step went, on every rank, from all ranks' measurements together.

Every rank measures how long it waits in exchanges, but not for what: bytes that travel, or a rank that is not there
yet. An exchange ends for all at once, so the rank that came last waited least, and all it waited for is the transfer.
What the others waited longer, they waited for it. That needs durations only: clocks of hosts need not agree.
"""

from dataclasses import dataclass

import numpy as np

from dragoman.observe.history import Column, History, Track

PARTS = ("data", "compute", "transfer", "straggler", "optimizer", "logging")
WARM_UP_STEPS = 3  # after a start: memory is claimed, caches are cold


@dataclass(frozen=True)
class Share:
    """Where one rank's steps went; only steps that every rank of their world told of."""

    rank: int
    host: str
    step: Column
    time: Column
    seconds: Column
    parts: dict[str, Column]  # seconds by PARTS; they sum to ``seconds``
    slowest: Column  # the rank all waited for in that step


def attribute(history: History) -> dict[int, Share]:
    """Return the shares of every rank that took part in a step known from all its ranks."""
    found: dict[int, list[Share]] = {}
    worlds = {int(world) for track in history.tracks.values() for world in track["world"] if world >= 1}
    for world in worlds:
        if all(rank in history.tracks for rank in range(world)):
            for share in _of_world([history.tracks[rank] for rank in range(world)], world):
                found.setdefault(share.rank, []).append(share)
    return {rank: _joined(shares) for rank, shares in sorted(found.items())}


def steady(history: History, step: Column) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which of the steps are not among the first after a start."""
    keep = np.ones(len(step), bool)
    for begun in {launch.step for launch in history.launches} | ({0} if not history.launches else set()):
        keep &= ~((step > begun) & (step <= begun + WARM_UP_STEPS))
    return keep


def _of_world(tracks: list[Track], world: int) -> list[Share]:
    """Return the shares of the steps that these ranks made together; none if there is no such step."""
    phases = [_phases(track) for track in tracks]
    known = [
        set(track["step"][(track["world"] == world) & np.isfinite(sum(each.values()))])
        for track, each in zip(tracks, phases, strict=True)
    ]
    steps = np.array(sorted(set.intersection(*known)), np.float64)
    if not len(steps):
        return []
    rows = [np.searchsorted(track["step"], steps) for track in tracks]
    waits = np.stack([each["wait"][row] for each, row in zip(phases, rows, strict=True)])
    transfer = waits.min(0)
    shares = []
    for track, each, row, wait in zip(tracks, phases, rows, waits, strict=True):
        parts = {name: each[name][row] for name in ("data", "compute")}
        parts |= {"transfer": transfer, "straggler": wait - transfer}
        parts |= {name: each[name][row] for name in ("optimizer", "logging")}
        seconds = np.sum(list(parts.values()), axis=0)
        slowest = waits.argmin(0).astype(np.float64)
        shares.append(Share(track.rank, track.host, steps, track["time"][row], seconds, parts, slowest))
    return shares


def _phases(track: Track) -> dict[str, Column]:
    """Return a rank's seconds by what it did, NaN where that is not known.

    Runs that did not record phases yet knew how long they waited: all else then counts as computing.
    """
    recorded = np.isfinite(track["compute"])
    waited = np.nan_to_num(track["exchange"]) + np.nan_to_num(track["agree"])
    phases = {
        name: np.where(recorded, np.nan_to_num(track[name]), 0.0) for name in ("data", "optimizer", "logging")
    }
    phases["wait"] = np.where(recorded, waited, track["exposed_seconds"])
    phases["compute"] = np.where(recorded, track["compute"], track["seconds"] - track["exposed_seconds"])
    return phases


def _joined(shares: list[Share]) -> Share:
    """Return one rank's shares in worlds of different size as one, by step."""
    order = np.argsort(np.concatenate([share.step for share in shares]))

    def column(*pieces: Column) -> Column:
        return np.concatenate(pieces)[order]

    return Share(
        shares[0].rank,
        shares[0].host,
        column(*(share.step for share in shares)),
        column(*(share.time for share in shares)),
        column(*(share.seconds for share in shares)),
        {name: column(*(share.parts[name] for share in shares)) for name in PARTS},
        column(*(share.slowest for share in shares)),
    )
