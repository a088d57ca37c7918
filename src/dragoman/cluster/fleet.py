"""The hosts of one run, led from one terminal.

Every host runs an agent (``train/agent.py``); the agents meet at the first host and keep each other's workers in
step, also when a host is lost or comes back. What is left to do here: look at the hosts before anything trains,
start the agents, print what they say, pass on a Ctrl-C, start the agent of a lost host again when the host
answers, and meet anew elsewhere when the host of the meeting itself is lost.
"""

import json
import queue
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from subprocess import Popen, TimeoutExpired
from typing import Any

from dragoman.cluster.hosts import Host, start_on
from dragoman.cluster.launch import SHUTDOWN_SECONDS, Meeting, is_stop
from dragoman.cluster.network import common_address
from dragoman.cluster.send import send_dataset
from dragoman.cluster.send_view import View
from dragoman.cluster.survey import Answer, Question, compare, heard, require_answers, survey
from dragoman.config import Cluster
from dragoman.data.shards import Dataset
from dragoman.errors import ExitCode, UserError

RETRY_SECONDS = 5  # between looks at a lost host
RESEND_SECONDS = 60  # between attempts to send the dataset to one
LAST_SECONDS = 60  # for the other hosts, once one has said how the run ended
READY_SECONDS = 180  # for an agent to load torch
ALONE_SECONDS = 60  # that the run waits with fewer than min_hosts


@dataclass(frozen=True)
class Errand:
    """What the hosts are to train."""

    recipe: str  # text
    run: str
    dataset: str
    disk_bytes: int  # that a host should have free
    quiet: bool


@dataclass
class Agent:
    """A host's agent as seen from here; ``process`` is None while the host is lost."""

    host: Host
    process: "Popen[bytes] | None" = None
    ready: bool = False
    ended: dict[str, Any] | None = None  # its last word
    retry_at: float = 0.0
    last_lines: list[str] = field(default_factory=list)

    def order(self, **words: Any) -> None:
        """Tell the agent something; one that is gone does not mind."""
        if self.process is not None and self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.write(json.dumps(words).encode() + b"\n")
                self.process.stdin.flush()


class Fleet:
    """All agents of one launch, and the loop that looks after them."""

    def __init__(self, hosts: Sequence[Host], errand: Errand, dataset: Dataset, cfg: Cluster) -> None:
        self.agents = {host.name: Agent(host) for host in hosts}
        self.errand, self.dataset, self.cfg = errand, dataset, cfg
        self.said: queue.Queue[tuple[Agent, Popen[bytes], str | None]] = queue.Queue()
        self.back: queue.Queue[Answer] = queue.Queue()
        self.launch = uuid.uuid4().hex
        self.meeting_host = ""
        self.endpoint = ""
        self.stopping: set[int] = set()
        self.width = max(len(host.name) for host in hosts)

    def run(self) -> tuple[ExitCode, dict[str, Any] | None]:
        """Train to the end; return the exit code and the leader's summary."""
        answers = self.look([agent.host for agent in self.agents.values()])
        require_answers(answers)
        with View(None if sys.stderr.isatty() else self.say) as view:
            self.supply(answers, view)
        require_answers(answers)
        with self.signals():
            try:
                self.meet(answers)
                return self.follow()
            finally:
                for agent in self.agents.values():
                    agent.order(do="abandon")
                    end(agent)

    def look(self, hosts: Sequence[Host]) -> list[Answer]:
        """Ask hosts about themselves, and note what keeps them from training."""
        answers = survey(hosts, Question(dataset=self.errand.dataset, run=self.errand.run))
        compare(answers, self.dataset, self.errand.disk_bytes)
        return answers

    def supply(self, answers: Sequence[Answer], view: View) -> None:
        """Send the dataset to the hosts that lack it, and note a problem where that failed."""
        lacking = {each.host.name: each for each in answers if not each.problem and each.lacks_dataset}
        if not lacking:
            return
        size = f"{self.dataset.num_bytes / 1e6:,.1f} MB"
        self.say(f"sending the dataset {self.dataset.fingerprint} ({size}) to {', '.join(lacking)}")
        for delivery in send_dataset(self.dataset, [each.host for each in lacking.values()], view):
            if delivery.problem is not None:
                answer, error = lacking[delivery.host.name], delivery.problem
                answer.problem, answer.where, answer.fix = error.what, error.where, error.fix

    def meet(self, answers: Sequence[Answer]) -> None:
        """Start the agents of hosts that answered; they meet at the first of them."""
        first = answers[0]
        self.launch = uuid.uuid4().hex
        self.meeting_host = first.host.name
        address = meeting_address(first, answers[1:], self.cfg.interface)
        self.endpoint = f"{address}:{first.facts['free_port']}"
        who = "1 host meets" if len(answers) == 1 else f"{len(answers)} hosts meet"
        self.say(f"{who} at {first.host.name} ({self.endpoint})")
        for answer in answers:
            self.start(answer)
        started = [self.agents[answer.host.name] for answer in answers]
        deadline = time.monotonic() + READY_SECONDS
        while not all(agent.ready or agent.process is None for agent in started) and not self.stopping:
            self.listen()
            if time.monotonic() > deadline:
                slow = next(agent.host.name for agent in started if not agent.ready)
                raise UserError(
                    f"host {slow} was not ready within {READY_SECONDS} s",
                    where=f"host {slow}",
                    fix="look at its load and its disk, or leave it out of --hosts",
                )
        for agent in started:
            agent.order(do="go")

    def start(self, answer: Answer) -> None:
        """Start the agent of one host."""
        agent = self.agents[answer.host.name]
        agent.process = start_on(agent.host, ["-m", "dragoman.train.agent"])
        agent.ready, agent.ended = False, None
        meeting = Meeting(
            launch=self.launch,
            endpoint=self.endpoint,
            is_host=answer.host.name == self.meeting_host,
            min_hosts=min(self.cfg.min_hosts, len(self.agents)),
            max_hosts=len(self.agents),
        )
        agent.order(workers=agent.host.workers, meeting=asdict(meeting), **asdict(self.errand))
        threading.Thread(target=self.read, args=(agent, agent.process), daemon=True).start()

    def read(self, agent: Agent, process: "Popen[bytes]") -> None:
        """Put every line that an agent says into the queue, and None when it has ended."""
        assert process.stdout is not None
        for line in process.stdout:
            self.said.put((agent, process, line.decode(errors="replace").rstrip("\n")))
        process.wait()
        self.said.put((agent, process, None))

    def listen(self, seconds: float = 0.2) -> None:
        """Take one thing that an agent said."""
        try:
            agent, process, line = self.said.get(timeout=seconds)
        except queue.Empty:
            return
        if process is not agent.process:
            return  # an earlier agent of that host
        message, words = (None, "") if line is None else heard(line)
        if line is None:
            agent.process = None
            if agent.ended is None or (not agent.ended["decided"] and agent.ended["code"] != ExitCode.DONE):
                why = agent.ended["message"] if agent.ended else " / ".join(agent.last_lines[-2:])
                agent.ended, agent.retry_at = None, time.monotonic() + RETRY_SECONDS
                if not self.stopping:
                    self.warn(f"host {agent.host.name} is lost: {why or 'its agent ended'}")
        elif message is not None:
            if "ready" in message:
                agent.ready = True
            else:
                agent.ended = message
        if words or (line is not None and message is None):
            agent.last_lines = [*agent.last_lines[-4:], words]
            self.print(f"{agent.host.name:{self.width}} | {words}")

    def follow(self) -> tuple[ExitCode, dict[str, Any] | None]:
        """Look after the agents until the run has ended."""
        restarts, alone_since = 0, None
        while True:
            self.listen()
            living = [agent for agent in self.agents.values() if agent.process is not None]
            ending = next((a.ended for a in self.agents.values() if a.ended and a.ended["decided"]), None)
            if ending is not None and (not is_stop(ending["code"]) or self.stopping):
                return self.finish(ending)
            if self.stopping and not living:
                code = ExitCode.INTERRUPTED if signal.SIGINT in self.stopping else ExitCode.TERMINATED
                return code, {"run": self.errand.run, "message": "stopped before the first step was finished"}
            if self.stopping:
                continue
            host = self.agents[self.meeting_host]
            if host.process is None and (host.ended is None or not living):
                restarts += 1
                self.meet_elsewhere(restarts)
                alone_since = None
                continue
            self.take_back()
            enough = len(living) >= min(self.cfg.min_hosts, len(self.agents))
            alone_since = None if enough else alone_since or time.monotonic()
            if alone_since is not None and time.monotonic() - alone_since > ALONE_SECONDS:
                self.give_up(len(living))

    def finish(self, ending: dict[str, Any]) -> tuple[ExitCode, dict[str, Any] | None]:
        """Let the other hosts come to their end, and return how the run ended.

        After an error they would only try again.
        """
        if ending["error"]:
            raise UserError(**ending["error"])
        deadline = time.monotonic() + (SHUTDOWN_SECONDS if self.stopping else LAST_SECONDS)
        while any(agent.process for agent in self.agents.values()) and time.monotonic() < deadline:
            self.listen()
        return ExitCode(ending["code"]), ending["summary"]

    def take_back(self) -> None:
        """Look at lost hosts now and then, without waiting for them, and start the agents of those that answer."""
        for agent in self.agents.values():
            if agent.process is None and agent.ended is None and 0 < agent.retry_at < time.monotonic():
                agent.retry_at = 0.0

                def look(host: Host = agent.host) -> None:
                    answers = self.look([host])
                    self.supply(answers, View(self.say))
                    self.back.put(answers[0])

                threading.Thread(target=look, daemon=True).start()
        with suppress(queue.Empty):
            answer = self.back.get_nowait()
            agent = self.agents[answer.host.name]
            if answer.problem:
                agent.retry_at = time.monotonic() + (RESEND_SECONDS if answer.where else RETRY_SECONDS)
            else:
                self.say(f"host {answer.host.name} is back")
                self.start(answer)
                agent.order(do="go")

    def meet_elsewhere(self, restarts: int) -> None:
        """The host of the meeting is lost, and with it the meeting: those that are left meet anew."""
        if restarts > self.cfg.max_restarts:
            raise UserError(
                f"host after host was lost: {restarts} meetings ended",
                where=self.errand.run,
                fix="see what the hosts said above; run the same command to go on",
            )
        for agent in self.agents.values():
            agent.order(do="abandon")
        while any(agent.process for agent in self.agents.values()):
            self.listen()
        deadline = time.monotonic() + ALONE_SECONDS
        while not self.stopping:
            answers = [
                answer
                for answer in self.look([a.host for a in self.agents.values()])
                # One that lost its dataset gets it when it is taken back; the others do not wait for that.
                if not answer.problem and not answer.lacks_dataset
            ]
            if answers and len(answers) >= min(self.cfg.min_hosts, len(self.agents)):
                self.meet(answers)
                for agent in self.agents.values():
                    agent.retry_at = agent.retry_at or time.monotonic() + RETRY_SECONDS
                return
            if time.monotonic() > deadline:
                self.give_up(len(answers))
            time.sleep(RETRY_SECONDS)

    def give_up(self, living: int) -> None:
        raise UserError(
            f"only {living} of {len(self.agents)} hosts are left, and cluster.min_hosts is {self.cfg.min_hosts}",
            where=self.errand.run,
            fix="bring the lost hosts back and run the same command to go on, or lower cluster.min_hosts",
        )

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Pass SIGINT and SIGTERM on to all hosts; the second one ends everything at once."""

        def stop(number: int, frame: object) -> None:
            again = bool(self.stopping)
            self.stopping.add(number)
            for agent in self.agents.values():
                agent.order(do="abandon") if again else agent.order(do="stop", signal=number)
            if not again:
                self.warn("stopping all hosts after the current step; once more to stop at once")

        previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def say(self, text: str) -> None:
        self.print(f"{'':{self.width}} | {text}")

    def warn(self, text: str) -> None:
        print(f"{'':{self.width}} | warning: {text}", file=sys.stderr, flush=True)

    def print(self, line: str) -> None:
        print(line, file=sys.stderr if self.errand.quiet else sys.stdout, flush=True)


def meeting_address(first: Answer, others: Sequence[Answer], interface: str | None) -> str:
    """Return the address at which the other hosts reach the first: on a network that all share, or by its name."""
    if not others:
        return "localhost"
    found: dict[str, list[str]] = first.facts["interfaces"]
    if interface is not None and found.get(interface):
        return found[interface][0].partition("/")[0]
    shared = common_address(first.addresses, [other.addresses for other in others])
    return shared or first.host.name.rpartition("@")[2]


def end(agent: Agent, seconds: float = 10) -> None:
    """End the way to a host, if it has not ended by itself."""
    if agent.process is None:
        return
    if agent.process.stdin is not None:
        with suppress(OSError):
            agent.process.stdin.close()
    try:
        agent.process.wait(seconds)
    except TimeoutExpired:
        agent.process.kill()
        agent.process.wait()
