"""Examining hosts: what lies between them is measured, one link at a time.

Every host runs a measuring process (``measure.py``) for the whole examination, led from here over pipes. It ends
with its input, so whatever ends us ends it too. A measurement that fails is a result like any other: it says which
host or link failed, and why.
"""

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import permutations
from subprocess import Popen
from typing import Any

from dragoman.cluster.hosts import Host, start_on, start_piped
from dragoman.cluster.network import common_address
from dragoman.cluster.survey import MARK, Answer

CLOCK_TRIPS = 5
READY_SECONDS = 60.0  # to start Python on a busy host
ALIVE_SECONDS = 5.0  # for a sign of life
LINK_SECONDS = 60.0
JOIN_SECONDS = 90.0  # a cold file system may take long to load torch
SUM_SECONDS = 30.0  # more than what an all-reduce should take
LEAVE_SECONDS = 2.0
POLL_SECONDS = 0.05
SIZES_MEGABYTES = (1, 16, 256)
LARGE_MEGABYTES = 256  # once is enough
TIMES = 3
LONGEST_SECONDS = 20.0  # a longer all-reduce is not waited for
NOT_MEASURED = "not measured"  # the findings say why
MEASURE = ["-m", "dragoman.cluster.measure"]


class Lost(Exception):
    """A host failed while it was measured: gone, silent, or (``alive``) with an error of its own."""

    def __init__(self, host: str, why: str, *, alive: bool = False) -> None:
        super().__init__(f"host {host} {why}")
        self.host, self.why, self.alive = host, why, alive


@dataclass(frozen=True)
class Link:
    """One direction between two hosts, as measured, or why it could not be."""

    source: str
    target: str
    interface: str = ""  # of the source
    address: str = ""  # of the target
    mbit_per_second: float = 0.0
    latency_ms: float = 0.0
    error: str = ""


@dataclass(frozen=True)
class AllReduce:
    """A sum over all hosts, as measured, or why it was not."""

    megabytes: int
    seconds: float | None = None
    mbit_per_second: float | None = None  # that each host sends meanwhile
    skipped: str = ""


@dataclass
class Measured:
    """All that was measured between hosts."""

    links: list[Link] = field(default_factory=list)
    all_reduce: list[AllReduce] = field(default_factory=list)
    device: str = ""  # that the sums were made on
    lost: list[Lost] = field(default_factory=list)


class Session:
    """The measuring process of a host, as seen from here."""

    def __init__(self, answer: Answer, process: "Popen[bytes]") -> None:
        self.answer, self.host, self.process = answer, answer.host, process
        self.port, self.token = 0, ""  # where it listens
        self.replies: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.last_lines: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, do: str, **words: Any) -> None:
        """Ask for something; one that is gone does not mind, and will not answer."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.write(json.dumps({"do": do, **words}).encode() + b"\n")
            self.process.stdin.flush()

    def poll(self, do: str, seconds: float) -> dict[str, Any] | None:
        """Return the answer to a request if it comes in time."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                answer = self.replies.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return None
            if answer is None:
                self.replies.put(None)  # for whoever asks next
                said = " / ".join(self.last_lines) or "its process ended"
                raise Lost(self.host.name, f"stopped measuring: {said}")
            if answer["to"] == do:
                if "error" in answer:
                    raise Lost(self.host.name, answer["error"], alive=True)
                return answer

    def ask(self, do: str, seconds: float, **words: Any) -> dict[str, Any]:
        """Return the answer to a request."""
        self.send(do, **words)
        answer = self.poll(do, seconds)
        if answer is None:
            raise self.silence(seconds)
        return answer

    def silence(self, seconds: float) -> Lost:
        return Lost(self.host.name, f"did not answer within {seconds:.0f} s")

    def close(self) -> None:
        """End its input, and thereby its work."""
        with suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.close()

    def end(self) -> None:
        """Wait until it has left, or make it."""
        try:
            self.process.wait(LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                before, mark, message = line.decode(errors="replace").rstrip("\n").partition(MARK)
                if before.strip():
                    self.last_lines = [*self.last_lines[-2:], before.strip()]
                if mark:
                    self.replies.put(json.loads(message))
        self.replies.put(None)


def start_measuring(host: Host) -> "Popen[bytes]":
    """Start the measuring process of a host."""
    return start_on(host, MEASURE)


def start_here(host: Host) -> "Popen[bytes]":
    """Start a measuring process on this machine, whatever it is called."""
    return start_piped([sys.executable, *MEASURE])


def measure_hosts(
    answers: Sequence[Answer],
    *,
    interface: str | None,
    full: bool,
    say: Callable[[str], None],
    start: Callable[[Host], "Popen[bytes]"] = start_measuring,
) -> Measured:
    """Measure clocks, links and all-reduces of the hosts that answered the survey.

    The clocks go into the facts of the hosts. A host that is asked for alone sums with itself, in two processes.
    """
    measured = Measured()
    alone = len(answers) == 1
    found = [answer for answer in answers if not answer.problem]
    with measuring(found * 2 if alone else found, start) as sessions:
        living = [session for session in sessions if _is_ready(session, measured)]
        if not alone:
            measured.links = measure_links(living, interface, measured.lost, say)
        lost = {each.host for each in measured.lost}
        living = [session for session in living if session.host.name not in lost]
        if len(living) < 2 or any(link.error for link in measured.links):
            measured.all_reduce = [AllReduce(size, skipped=NOT_MEASURED) for size in SIZES_MEGABYTES]
        else:
            rates = [each.mbit_per_second for each in measured.links]
            measure_all_reduce(living, measured, interface, min(rates, default=None), full=full, say=say)
    return measured


@contextmanager
def measuring(answers: Sequence[Answer], start: Callable[[Host], "Popen[bytes]"]) -> Iterator[list[Session]]:
    """Have a measuring process on each host, and end all of them in every case."""
    sessions: list[Session] = []
    try:
        for answer in answers:
            sessions.append(Session(answer, start(answer.host)))
        yield sessions
    finally:
        for session in sessions:
            session.close()
        for session in sessions:
            session.end()


def _is_ready(session: Session, measured: Measured) -> bool:
    """Whether a host measures: it has told the time, and listens."""
    try:
        _compare_clock(session)
        answer = session.ask("listen", ALIVE_SECONDS)
    except Lost as lost:
        measured.lost.append(lost)
        return False
    session.port, session.token = answer["port"], answer["token"]
    return True


def _compare_clock(session: Session) -> None:
    """Note how far a host's clock is from ours; the quickest question leaves the least doubt."""
    trips = []
    for _ in range(CLOCK_TRIPS):
        asked, began = time.time(), time.perf_counter()
        told = session.ask("clock", READY_SECONDS)["time"]
        half = (time.perf_counter() - began) / 2
        trips.append((half, told - (asked + half)))
    session.answer.facts["clock_doubt_seconds"], session.answer.facts["clock_offset_seconds"] = min(trips)


def measure_links(
    sessions: Sequence[Session], interface: str | None, lost: list[Lost], say: Callable[[str], None]
) -> list[Link]:
    """Measure both directions between all hosts, one after the other: a link that is shared looks slow."""
    links: list[Link] = []
    for source, target in permutations(sessions, 2):
        names = source.host.name, target.host.name
        if any(each.host in names for each in lost):
            continue
        say(f"measuring {names[0]} → {names[1]} …")
        ways = {
            "addresses": addresses_to_try(target.answer, source.answer, interface),
            "interface": interface,
        }
        try:
            found = source.ask("link", LINK_SECONDS, port=target.port, token=target.token, **ways)
        except Lost as failure:
            links.append(Link(*names, error=failure.why))
            if not failure.alive:
                lost.append(failure)
            continue
        del found["to"]
        links.append(Link(*names, **found))
    return links


def addresses_to_try(target: Answer, source: Answer, interface: str | None) -> list[str]:
    """Return the addresses at which ``source`` may reach ``target``, the best first."""
    if interface is not None:
        return [address.partition("/")[0] for address in target.facts["interfaces"].get(interface, [])[:1]]
    shared = common_address(target.addresses, [source.addresses])
    if shared is not None:
        return [shared]
    own = {"127.0.0.1", "::1", *(address.partition("/")[0] for address in source.addresses)}
    others = [address.partition("/")[0] for address in target.addresses]
    return [target.host.name.rpartition("@")[2], *(address for address in others if address not in own)]


def measure_all_reduce(
    sessions: Sequence[Session],
    measured: Measured,
    interface: str | None,
    mbit_per_second: float | None,
    *,
    full: bool,
    say: Callable[[str], None],
) -> None:
    """Sum tensors of growing size over the hosts, as training does; what would take too long is skipped.

    ``mbit_per_second`` is the rate of the slowest link, if there is one.
    """

    def predict(megabytes: int) -> float:
        by_rate = 0.0 if mbit_per_second is None else share * megabytes * 8 / mbit_per_second
        before = [each.seconds / each.megabytes for each in measured.all_reduce if each.seconds]
        return max([by_rate, *(seconds * megabytes for seconds in before[-1:])])

    # Around the ring of hosts, each sends every part but its own twice: once to be summed, once summed.
    share = 2 * (len(sessions) - 1) / len(sessions)
    timeout = JOIN_SECONDS + 4 * predict(SIZES_MEGABYTES[-1])
    try:
        say("loading torch …")
        places = [
            {"environment": each, "interface": interface, "timeout_seconds": timeout}
            for each in _environments(sessions, measured.links, interface)
        ]
        measured.device = ask_all(sessions, "join", JOIN_SECONDS, places)[0]["device"]
        for megabytes in SIZES_MEGABYTES:
            seconds = predict(megabytes)
            if seconds > LONGEST_SECONDS and not full:
                skipped = f"skipped: would take about {seconds:.0f} s"
                measured.all_reduce.append(AllReduce(megabytes, skipped=skipped))
                continue
            say(f"measuring an all-reduce of {megabytes} MB …")
            times = 1 if megabytes >= LARGE_MEGABYTES or TIMES * seconds > LONGEST_SECONDS else TIMES
            wishes = [{"megabytes": megabytes, "times": times}] * len(sessions)
            answers = ask_all(sessions, "all_reduce", SUM_SECONDS + times * 4 * seconds, wishes)
            slowest = max(answer["seconds"] for answer in answers)
            measured.all_reduce.append(AllReduce(megabytes, slowest, share * megabytes * 8 / slowest))
    except Lost as lost:
        measured.lost.append(lost)
        for megabytes in SIZES_MEGABYTES[len(measured.all_reduce) :]:
            measured.all_reduce.append(AllReduce(megabytes, skipped=NOT_MEASURED))


def _environments(
    sessions: Sequence[Session], links: Sequence[Link], interface: str | None
) -> Iterator[dict[str, str]]:
    """Yield each host's place in a world of one worker per host, as torchrun would tell it."""
    first, others = sessions[0], sessions[1:]
    alone = first.host.name == others[0].host.name
    address = "127.0.0.1"
    if not alone:
        by_links = (link.address for link in links if link.target == first.host.name and link.address)
        shared = common_address(first.answer.addresses, [each.answer.addresses for each in others])
        address = next(by_links) if interface is not None or shared is None else shared
    # NCCL needs a GPU for each process; otherwise all sum on the CPU.
    needed = len(sessions) if alone else 1
    hide = (
        {}
        if all(len(each.answer.facts["devices"]) >= needed for each in sessions)
        else {"CUDA_VISIBLE_DEVICES": ""}
    )
    for rank in range(len(sessions)):
        yield {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(sessions)),
            "LOCAL_RANK": str(rank if alone else 0),
            "LOCAL_WORLD_SIZE": str(len(sessions) if alone else 1),
            "MASTER_ADDR": address,
            "MASTER_PORT": str(first.answer.facts["free_port"]),
            **hide,
        }


def ask_all(
    sessions: Sequence[Session], do: str, seconds: float, words: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Ask all hosts to do something together, and return their answers; or raise the host that is to blame."""
    for session, each in zip(sessions, words, strict=True):
        session.send(do, **each)
    answers: dict[int, dict[str, Any]] = {}
    failures: dict[int, Lost] = {}
    deadline = time.monotonic() + seconds
    while len(answers) + len(failures) < len(sessions) and time.monotonic() < deadline:
        for rank, session in enumerate(sessions):
            if rank in answers or rank in failures:
                continue
            try:
                answer = session.poll(do, POLL_SECONDS)
            except Lost as lost:
                failures[rank] = lost
                # Whoever caused this will be noticed soon; the others may wait for it without end.
                deadline = min(deadline, time.monotonic() + (ALIVE_SECONDS if lost.alive else 0.0))
            else:
                answers |= {} if answer is None else {rank: answer}
    if len(answers) == len(sessions):
        return [answers[rank] for rank in range(len(sessions))]
    silent = {rank: sessions[rank].silence(seconds) for rank in range(len(sessions)) if rank not in answers}
    raise _to_blame([(sessions[rank], lost) for rank, lost in (silent | failures).items()], do)


def _to_blame(failures: Sequence[tuple[Session, Lost]], do: str) -> Lost:
    """Return the failure that caused the others: who waits for a lost host fails too, but still tells the time."""
    waiting = []
    for session, lost in failures:
        if lost.alive:
            continue
        try:
            session.ask("clock", ALIVE_SECONDS)
            waiting.append(lost)
        except Lost:
            return lost
    if waiting:
        names = ", ".join(dict.fromkeys(lost.host for lost in waiting))
        return Lost(names, f"{waiting[0].why} to {do.replace('_', '-')}, but is alive", alive=True)
    return failures[0][1]
