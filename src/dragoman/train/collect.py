"""Brings events and telemetry to the leader from hosts that have a disk of their own.

The leader says what the last line of each file is that it has; whoever has more sends what comes after it. Nothing else
is remembered, so it does not matter when anybody is killed: the next launch brings what is missing.
"""

import os
import zlib
from pathlib import Path

from dragoman.cluster.world import World
from dragoman.files import open_json_lines
from dragoman.rundir import RunDir

PIECE_BYTES = 2**22  # of a file at a time: a leader that has lost all shall not hold up the others for long
LONGEST_LINE = 2**20


class Collector:
    """One worker's part; where all workers see what the leader writes there is nothing to do."""

    def __init__(self, run: RunDir, world: World, *, shares_disk: bool) -> None:
        self._run, self._world = run, world
        self._needed = not all(world.gather(shares_disk))
        self._sent: dict[str, int] = {}  # bytes of each file of this worker that the leader has
        self._unsure: dict[str, int] = {}  # bytes of which some may be known, though not the last line
        if not self._needed:
            return
        known = world.share(self._last_lines() if world.leads else None)
        if shares_disk:
            return
        files = [run.events(world.rank), *([run.telemetry(world.host)] if world.local_rank == 0 else [])]
        for file in files:
            name = str(file.relative_to(run.path))
            data = file.read_bytes() if file.exists() else b""
            found = data.rfind(known[name]) if name in known else -1
            self._sent[name] = found + len(known[name]) if found >= 0 else 0
            # A rank that was on another host in between: the last line is that host's.
            self._unsure[name] = len(data) if name in known and found < 0 else 0

    def collect(self) -> bool:
        """Bring over what was written since the last time; return whether there is more. All workers call it."""
        if not self._needed:
            return False
        pieces = {name: self._next_piece(name) for name in self._sent}
        told = self._world.gather(pieces)
        if self._world.leads:
            for each in told:
                for name, (unsure, data) in each.items():
                    self._append(self._run.path / name, zlib.decompress(data), unsure=unsure)
        return any(data != NOTHING for each in told for _, data in each.values())

    def collect_all(self) -> None:
        while self.collect():
            pass

    def _last_lines(self) -> dict[str, bytes]:
        files = [file for name in ("events", "telemetry") for file in (self._run.path / name).glob("*.jsonl")]
        return {str(file.relative_to(self._run.path)): line for file in files if (line := last_line(file))}

    def _next_piece(self, name: str) -> tuple[bool, bytes]:
        start, path = self._sent[name], self._run.path / name
        if not path.exists():
            return False, NOTHING
        with open(path, "rb") as file:
            file.seek(start)
            data = file.read(PIECE_BYTES)
        whole = data[: data.rfind(b"\n") + 1]
        self._sent[name] += len(whole)
        return start < self._unsure[name], zlib.compress(whole)

    def _append(self, path: Path, data: bytes, *, unsure: bool) -> None:
        if not data:
            return
        open_json_lines(path).close()  # makes it, or cuts off half a line
        if unsure:
            known = set(path.read_bytes().splitlines(keepends=True))
            data = b"".join(line for line in data.splitlines(keepends=True) if line not in known)
        with open(path, "ab") as file:
            file.write(data)


NOTHING = zlib.compress(b"")


def last_line(path: Path) -> bytes:
    """Return the last complete line of a file, with its end; nothing if there is none."""
    with open(path, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LONGEST_LINE))
        lines = file.read().rpartition(b"\n")[0].splitlines(keepends=False)
    return lines[-1] + b"\n" if lines else b""
