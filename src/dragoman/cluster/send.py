"""Sending a dataset to the hosts that lack it, over the same way by which things are started there.

Each host runs ``receive.py`` and asks for what it misses; a thread here reads, packs and sends it, one piece at a time,
so memory does not grow with the dataset. Hosts are independent of each other: one that fails has its reason, and the
others get theirs to the end.
"""

import json
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from subprocess import Popen
from typing import Any

import zstandard

from dragoman.cluster.hosts import Host, start_on
from dragoman.cluster.receive import PIECE_BYTES, VERSION
from dragoman.cluster.survey import MARK
from dragoman.data.shards import MANIFEST, Dataset
from dragoman.errors import UserError

RECEIVE = ["-m", "dragoman.cluster.receive"]
SILENCE_SECONDS = 60.0  # after which a host is taken for dead
END_SECONDS = 5.0
LOOK_SECONDS = 0.1  # between looks at all hosts
MEMORY = 1 / 8  # weight of the newest piece in a rate: pipes take one at once and the next after a while
PROBE_PIECES = 16  # one of so many is packed in any case, to see what that would give

Start = Callable[[Host, list[str]], "Popen[bytes]"]


class Packer:
    """Packs pieces while that is worth it: on a slow link it is, on a fast one the processor would be the limit.

    Token arrays shrink to 0.75 of their size, offsets to 0.15. Rates are measured while sending.
    """

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdCompressor(level=1)
        self._pieces = 0
        self._send = self._pack = 0.0  # seconds for a byte
        self._share = 0.7  # of a piece that is left

    def pack(self, piece: bytes) -> bytes:
        """Return the piece, packed if that is faster to send."""
        self._pieces += 1
        pays = self._pack + self._share * self._send < self._send
        if not pays and self._pieces % PROBE_PIECES != 1:
            return piece
        began = time.perf_counter()
        packed: bytes = self._zstd.compress(piece)
        self._pack += MEMORY * ((time.perf_counter() - began) / len(piece) - self._pack)
        self._share += MEMORY * (len(packed) / len(piece) - self._share)
        return min(packed, piece, key=len)

    def sent(self, count: int, seconds: float) -> None:
        """Note how long the link took for so many bytes."""
        self._send += MEMORY * (seconds / count - self._send)


@dataclass(eq=False)
class Delivery:
    """The dataset on its way to one host."""

    host: Host
    dataset: Dataset
    process: "Popen[bytes]"
    state: str = (
        "asks"  # then it waits for others, checks what is there, gets the rest; then it is done, or failed
    )
    before_bytes: int = 0  # of the dataset, on the host when we began
    there_bytes: int = 0  # and now
    sent_bytes: int = 0  # of the dataset, by us
    wire_bytes: int = 0  # the same as it was sent, packed
    seconds: float = 0.0  # that it took
    problem: UserError | None = None

    def __post_init__(self) -> None:
        self.began = self.heard = time.monotonic()
        self._todo: queue.Queue[tuple[str, int] | None] = queue.Queue()
        self._last_lines: list[str] = []
        self._packer = Packer()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._listen, self._feed)]
        for thread in self._threads:
            thread.start()

    @property
    def total_bytes(self) -> int:
        return self.dataset.num_bytes

    @property
    def is_over(self) -> bool:
        return self.state in ("done", "failed")

    @property
    def where(self) -> str:
        return f"{self.host.place(self.dataset.path)} on host {self.host.name}"

    def look(self) -> None:
        """Give up a host that has been silent for too long; it may hold up our writing."""
        if not self.is_over and time.monotonic() - self.heard > SILENCE_SECONDS:
            self._fail(f"said nothing for {SILENCE_SECONDS:.0f} s while it was sent the dataset")
            self.process.kill()

    def end(self) -> None:
        """End the way to the host, if that has not happened."""
        self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join(END_SECONDS)

    def _listen(self) -> None:
        """Hear what the host says, to its end."""
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                before, mark, message = line.decode(errors="replace").rstrip("\n").partition(MARK)
                if before.strip():
                    self._last_lines = [*self._last_lines[-2:], before.strip()]
                if mark:
                    self.heard = time.monotonic()
                    self._obey(json.loads(message))
        code = self.process.wait()
        if not self.is_over:
            self._fail(
                f"stopped receiving the dataset: {' / '.join(self._last_lines) or f'exit code {code}'}"
            )
        self._todo.put(None)

    def _obey(self, message: dict[str, Any]) -> None:
        if "waits" in message:
            self.state = "waits"
        elif "checked" in message:
            self.state = "checks"
        elif "wants" in message:
            self.state = "gets"
            missing = sum(self._size(name) - offset for name, offset in message["wants"])
            self.before_bytes = self.there_bytes = self.total_bytes - missing
            self.began = time.monotonic()
            for name, offset in message["wants"]:
                self._todo.put((name, offset))
        elif "got" in message:
            self.there_bytes += message["got"]
        elif "again" in message:
            self.there_bytes -= self._size(message["again"])
            self._todo.put((message["again"], 0))
        elif "error" in message:
            error = message["error"]
            self.seconds = time.monotonic() - self.began
            where = f"{error['where']} on host {self.host.name}"
            self.problem, self.state = UserError(error["what"], where=where, fix=error["fix"]), "failed"
        elif "done" in message:
            self.before_bytes = self.before_bytes if self.sent_bytes else self.total_bytes
            self.there_bytes, self.seconds = self.total_bytes, time.monotonic() - self.began
            self.state = "done"

    def _feed(self) -> None:
        """Send what the host asks for, until it has all."""
        assert self.process.stdin is not None
        manifest = (self.dataset.path / MANIFEST).read_bytes()
        with suppress(BrokenPipeError), self.process.stdin:  # a host that is gone has said why
            request = {"version": VERSION, "directory": str(self.dataset.path), "bytes": len(manifest)}
            self._write(request, manifest)
            while (wanted := self._todo.get()) is not None:
                try:
                    self._send_file(*wanted)
                except BrokenPipeError:
                    raise
                except OSError as error:
                    self._fail(f"cannot get {wanted[0]}, which cannot be read here ({error.strerror})")
                    return

    def _send_file(self, name: str, offset: int) -> None:
        with open(self.dataset.path / name, "rb") as file:
            file.seek(offset)
            while piece := file.read(PIECE_BYTES):
                packed = self._packer.pack(piece)
                facts: dict[str, Any] = {"file": name, "offset": offset, "bytes": len(piece)}
                if len(packed) < len(piece):
                    facts["packed"] = len(packed)
                began = time.perf_counter()
                self._write(facts, packed)
                self._packer.sent(len(packed), time.perf_counter() - began)
                offset += len(piece)
                self.sent_bytes += len(piece)
                self.wire_bytes += len(packed)

    def _write(self, facts: dict[str, Any], content: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(facts).encode() + b"\n" + content)
        self.process.stdin.flush()

    def _fail(self, why: str) -> None:
        there = f"{self.there_bytes / 1e6:,.0f} of {self.total_bytes / 1e6:,.0f} MB"
        self.seconds = time.monotonic() - self.began
        self.problem = UserError(
            f"host {self.host.name} {why}",
            where=self.where,
            fix=f"look at the host, then run the same command: it goes on where it was ({there})",
        )
        self.state = "failed"

    def _size(self, name: str) -> int:
        return int(self.dataset.manifest["files"][name]["bytes"])


def send_dataset(
    dataset: Dataset,
    hosts: Sequence[Host],
    watch: Callable[[Sequence[Delivery]], None],
    *,
    start: Start = start_on,
) -> list[Delivery]:
    """Send a dataset to hosts, all at once, and return what became of each; ``watch`` is called now and then.

    It goes to the place that it has here, seen from the directory in which a host works.
    """
    deliveries: list[Delivery] = []
    try:
        for host in hosts:
            deliveries.append(Delivery(host, dataset, start(host, RECEIVE)))
        while True:
            for delivery in deliveries:
                delivery.look()
            is_over = all(delivery.is_over for delivery in deliveries)
            watch(deliveries)
            if is_over:
                return deliveries
            time.sleep(LOOK_SECONDS)
    finally:
        for delivery in deliveries:
            delivery.end()
