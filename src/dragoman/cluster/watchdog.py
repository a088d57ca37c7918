"""The watchdog: names the ranks that hold up the world and what they do, and lets nothing wait for ever.

The main thread only marks where it is (``at``). A thread tells this to all other ranks once a second (a beat), over
UDP: it gets through while a collective hangs, and has no connection that could break. From the beats that came,
``diagnosis.py`` says who is to blame and when to give up; here is the side channel and the thread.
"""

import json
import os
import queue
import socket
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from dragoman.cluster.diagnosis import (
    PHASES,
    Beat,
    Diagnosis,
    Limits,
    judge,
    name_ranks,
    reason_to_give_up,
)

RECENT = 50  # steps that make up the history
STACK_FRAMES = 8
# Fits any path in one piece. Where a network drops fragments, longer beats would make a stuck rank look dead.
DATAGRAM_BYTES = 1200
LIBRARIES = (os.path.dirname(os.__file__), "<")  # "<": frozen modules


class Peer(NamedTuple):
    rank: int
    host: str
    address: tuple[str, int]  # numeric


class Watchdog:
    """The watch of one rank: ``start`` it once all know each other's ``address``, mark with ``at``, ``stop`` it.

    ``bind`` is a numeric address of this host that the others can reach; a world of one needs none and watches
    itself. ``token`` is the same on all ranks, and another in each attempt.

    ``on_lost`` is called at most once and should end the process, whose main thread may be stuck for ever. It has
    another thread than the other listeners: a disk that hangs may hold up those who write, but not the end.
    """

    def __init__(
        self,
        rank: int,
        host: str,
        limits: Limits,
        *,
        token: str,
        bind: str | None,
        on_stall: Callable[[Diagnosis], None],
        on_recovery: Callable[[float], None],
        on_lost: Callable[[str], None],
        warn: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rank, self._hosts, self._limits, self._token = rank, {rank: host}, limits, token
        self._on_stall, self._on_recovery, self._on_lost, self._warn = on_stall, on_recovery, on_lost, warn
        self._clock = clock
        self._socket = None if bind is None else _open_socket(bind)
        self._peers: dict[int, Peer] = {}
        self._heard: dict[int, tuple[Beat, float]] = {}  # the last beat of each peer, and when it came
        # Where the main thread is: phase, step, micro-batch, since when there, since when in this step or rare
        # phase. One assignment replaces it whole, so no lock is needed.
        self._mark: tuple[str, int | None, int | None, float, float] = ("start", None, None, clock(), clock())
        measured = ["step", *(name for name, phase in PHASES.items() if phase.rare)]
        self._history: dict[str, deque[float]] = {name: deque(maxlen=RECENT) for name in measured}
        self._last_round = self._counts_from = clock()
        self._said: tuple[set[tuple[str, int]], float] | None = None  # (kind, rank) of the suspects, and when
        self._stalled_since = 0.0
        self._warned: set[str] = set()
        self._gave_up = False
        self._stopping = threading.Event()
        self._sayings: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def address(self) -> tuple[str, int]:
        """Return where this rank listens."""
        if self._socket is None:
            return "", 0
        host, port = self._socket.getsockname()[:2]
        return str(host), int(port)

    def at(self, phase: str, step: int | None = None, micro_batch: int | None = None) -> None:
        """Mark where the main thread is; without a step, still in the last one. Costs under a microsecond."""
        now = self._clock()
        before, last_step, _, _, began = self._mark
        if phase != before and (PHASES[phase].rare or PHASES[before].rare):
            if PHASES[before].rare:
                self._history[before].append(now - began)
            began = now
        self._mark = (phase, last_step if step is None else step, micro_batch, now, began)

    def step_done(self, seconds: float) -> None:
        """Mark that a step is complete, and how long it took."""
        now = self._clock()
        self._history["step"].append(seconds)
        self._mark = (*self._mark[:3], now, now)

    def start(self, peers: Sequence[Peer] = ()) -> None:
        """Begin to beat, listen and judge."""
        self.meet(peers)
        for target in (self._watch, self._speak):
            thread = threading.Thread(target=target, daemon=True, name=f"watchdog{target.__name__}")
            self._threads.append(thread)
            thread.start()

    def meet(self, peers: Sequence[Peer]) -> None:
        """Learn who else is there; ``peers`` may include this rank."""
        self._hosts |= tell_hosts_apart(peers)
        self._peers = {peer.rank: peer for peer in peers if peer.rank != self._rank}
        self._last_round = self._counts_from = self._clock()

    def stop(self) -> None:
        """Say goodbye and end."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._sayings.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=2.0)  # a listener may hang; it shall not hold up the end
        self.at("left")
        self._send(self._own_beat(self._clock()))
        if self._socket is not None:
            self._socket.close()

    def round(self) -> None:
        """Listen, beat, judge and act: what the thread does every second."""
        now = self._clock()
        if now - self._last_round > self._limits.beat_seconds + self._limits.gap_seconds:
            # This process was stopped, and could not hear anybody. All that lasts is counted from here.
            self._counts_from = now
        self._last_round = now
        self._listen(now)
        own = self._own_beat(now)
        self._send(own)
        others = (beat.aged(now - max(came, self._counts_from)) for beat, came in self._heard.values())
        beats = sorted((own, *others), key=lambda beat: beat.rank)
        self._guarded(lambda: self._report(beats, now))
        self._guarded(lambda: self._give_up(beats))

    def _watch(self) -> None:
        while not self._stopping.is_set():
            self._guarded(self.round)
            self._stopping.wait(self._limits.beat_seconds)

    def _speak(self) -> None:
        while (saying := self._sayings.get()) is not None:
            self._guarded(saying)

    def _say(self, saying: Callable[[], None]) -> None:
        if self._threads:
            self._sayings.put(saying)
        else:
            self._guarded(saying)

    def _warn_once(self, about: str, text: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            self._say(lambda: self._warn(text))

    def _guarded(self, action: Callable[[], None]) -> None:
        """Do it; a failure is said once, and the watch goes on."""
        try:
            action()
        except Exception as error:
            self._warn_once("failure", f"the watchdog failed, and goes on: {error!r}")

    def _listen(self, now: float) -> None:
        if self._socket is None:
            return
        # An error mostly means that there is no more to read; what is left is read in the next round.
        with suppress(OSError):
            for _ in range(10_000):  # strangers cannot hold it up for ever
                beat = read_datagram(self._socket.recv(65536), self._token)
                if beat is not None and beat.rank in self._peers:
                    self._heard[beat.rank] = replace(beat, host=self._hosts[beat.rank]), now

    def _send(self, beat: Beat) -> None:
        if self._socket is None:
            return
        data = write_datagram(beat, self._token)
        for peer in self._peers.values():
            # No route, a link that is down, a full queue: the others notice that they hear nothing.
            with suppress(OSError):
                self._socket.sendto(data, peer.address)

    def _own_beat(self, now: float) -> Beat:
        phase, step, micro_batch, since, began = self._mark
        history = list(self._history[phase if PHASES[phase].rare else "step"])
        median = statistics.median(history) if history else None
        seconds, lasting = (max(0.0, now - max(start, self._counts_from)) for start in (since, began))
        # From a little before it is too long, so that the others have the stack when they judge.
        is_long = lasting > 0.8 * self._limits.of(phase, median, behind=True)
        stack = current_stack(phase) if is_long else ()
        host = self._hosts[self._rank]
        return Beat(self._rank, phase, step, micro_batch, seconds, lasting, median, stack, host)

    def _report(self, beats: Sequence[Beat], now: float) -> None:
        """Call the listeners when something has changed, and now and then while it lasts."""
        unheard = sorted(self._peers.keys() - self._heard.keys())
        if unheard and now - self._counts_from > self._limits.lost_host_seconds:
            text = f"no beat ever came from {name_ranks(unheard)}: is UDP to {self.address()} blocked?"
            self._warn_once("unheard", f"{text} If they hang, nobody can say why")
        found = judge(beats, self._rank, self._limits, unheard)
        if found is None:
            if self._said is not None:
                self._said = None
                self._say(partial(self._on_recovery, now - self._stalled_since))
            return
        suspects = {(kind, beat.rank) for kind, beat in found.suspects()}
        if self._said is None:
            self._stalled_since = now - found.longest.lasting
        elif suspects == self._said[0] and now - self._said[1] < self._limits.repeat_seconds:
            return
        self._said = suspects, now
        self._say(partial(self._on_stall, found))

    def _give_up(self, beats: Sequence[Beat]) -> None:
        reason = reason_to_give_up(beats, self._rank, self._limits)
        if reason and not self._gave_up and not self._stopping.is_set():
            self._gave_up = True
            self._on_lost(reason)


def write_datagram(beat: Beat, token: str) -> bytes:
    """Return a beat as JSON; a stack that is too long loses its outermost frames."""
    said = {"token": token, **asdict(beat)}
    while len(data := json.dumps(said).encode()) > DATAGRAM_BYTES and said["stack"]:
        said["stack"] = said["stack"][:-1]
    return data


def read_datagram(data: bytes, token: str) -> Beat | None:
    """Return the beat, or None if it is none, or one of another run or attempt."""
    try:
        said = json.loads(data)
        if said["token"] != token or said["phase"] not in PHASES:
            return None
        return Beat(
            rank=int(said["rank"]),
            phase=said["phase"],
            step=None if said["step"] is None else int(said["step"]),
            micro_batch=None if said["micro_batch"] is None else int(said["micro_batch"]),
            seconds=float(said["seconds"]),
            lasting=float(said["lasting"]),
            median=None if said["median"] is None else float(said["median"]),
            stack=tuple(map(str, said["stack"])),
        )
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
        return None


def tell_hosts_apart(peers: Sequence[Peer]) -> dict[int, str]:
    """Return each rank's host. One name at several addresses is several hosts, as containers often are."""
    addresses: dict[str, set[str]] = {}
    for peer in peers:
        addresses.setdefault(peer.host, set()).add(peer.address[0])
    return {
        peer.rank: f"{peer.host} ({peer.address[0]})" if len(addresses[peer.host]) > 1 else peer.host
        for peer in peers
    }


def current_stack(phase: str) -> tuple[str, ...]:
    """Return where the main thread is, innermost first, and the thread named like the phase, if there is one."""
    frames = sys._current_frames()
    lines = brief_stack(frames.get(threading.main_thread().ident or 0))
    for thread in threading.enumerate():
        if thread.name == phase:
            lines += [f"thread {phase}:", *brief_stack(frames.get(thread.ident or 0))]
    return tuple(lines)


def brief_stack(frame: FrameType | None) -> list[str]:
    """Return ``file:line function`` of the innermost frames; of libraries only the very innermost."""
    lines: list[str] = []
    while frame is not None and len(lines) < STACK_FRAMES:
        path = Path(frame.f_code.co_filename)
        is_library = "site-packages" in path.parts or str(path).startswith(LIBRARIES)
        if not lines or not is_library or "dragoman" in path.parts:
            lines.append(f"{'/'.join(path.parts[-3:])}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return lines


def _open_socket(address: str) -> socket.socket:
    family, kind, protocol, _, where = socket.getaddrinfo(address, 0, type=socket.SOCK_DGRAM)[0]
    opened = socket.socket(family, kind, protocol)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)  # all beats of a large world's second
    opened.bind(where)
    opened.setblocking(False)
    return opened
