"""One host's part of a run: ``python -m dragoman.train.agent`` is started on every host by the fleet.

The fleet tells it what to do in lines of JSON on its input, and it answers in marked lines among its output. When
its input ends, whoever started it is gone, and it stops as if asked to: nothing goes on without its terminal.
"""

import fcntl
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from dragoman.cluster.launch import Meeting, Result, is_stop, read_outcome, start_workers
from dragoman.cluster.network import route_to
from dragoman.cluster.survey import say
from dragoman.data.shards import Dataset
from dragoman.errors import ExitCode, UserError
from dragoman.machine import end_process
from dragoman.recipe import parse_recipe
from dragoman.rundir import RunDir
from dragoman.train.command import conclude, summarise
from dragoman.train.start import open_run

MEETING_SECONDS = 30


def tell(**message: Any) -> None:
    """Say something to the fleet."""
    say(message)


def obey(go: "queue.Queue[bool]") -> None:
    """Follow the fleet's words until they end: go, stop (a signal's number), or abandon everything at once."""
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "go":
            go.put(True)
        elif order["do"] == "stop":
            os.kill(os.getpid(), order["signal"])
        else:
            os._exit(ExitCode.BUG)  # the workers die with us
    os.kill(os.getpid(), signal.SIGTERM)


def announce(run: RunDir, launch: str) -> None:
    """Tell how the run ended as soon as that is decided: torch's agent still waits for those of other hosts."""
    while True:
        outcome = read_outcome(run, launch)
        if outcome is not None and not is_stop(outcome["exit_code"]):
            message, summary = outcome["message"], summarise(run, outcome["message"])
            tell(
                code=outcome["exit_code"],
                decided=True,
                message=message,
                error=outcome["error"],
                summary=summary,
            )
            return
        time.sleep(1)


@contextmanager
def only_agent(run: RunDir) -> Iterator[None]:
    """Be the only agent of this run on this host: one that lost its terminal but lives on is ended."""
    run.path.mkdir(parents=True, exist_ok=True)
    with open(run.path / f".agent-{socket.gethostname()}.lock", "a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            with suppress(ProcessLookupError, ValueError):
                os.kill(int(lock.read()), signal.SIGKILL)
            fcntl.flock(lock, fcntl.LOCK_EX)
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def require_meeting(meeting: Meeting) -> None:
    """Return once the host of the meeting answers; raise ConnectionError if it does not for a while."""
    address, _, port = meeting.endpoint.rpartition(":")
    deadline = time.monotonic() + MEETING_SECONDS
    while True:
        try:
            socket.create_connection((address, int(port)), timeout=5).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise ConnectionError(
                    f"{socket.gethostname()} cannot reach {meeting.endpoint} ({error})"
                ) from error
            time.sleep(0.5)


def watch_meeting(meeting: Meeting) -> None:
    """End this host's part when it is cut off: torch's agent would wait for the store for ever."""
    while True:
        try:
            require_meeting(meeting)
        except ConnectionError as error:
            tell(code=ExitCode.BUG, decided=False, message=str(error), error=None, summary=None)
            os._exit(ExitCode.BUG)  # the workers die with us
        time.sleep(5)


def main() -> ExitCode:
    request = json.loads(sys.stdin.readline())
    run = RunDir(Path(request["run"]))
    go: queue.Queue[bool] = queue.Queue()
    threading.Thread(target=obey, args=(go,), daemon=True).start()
    with only_agent(run):
        try:
            recipe = parse_recipe(request["recipe"], source=str(run.recipe))
            if not run.recipe.is_file() or run.recipe.read_text("utf-8") != request["recipe"]:
                # The disk is not the one where the run was opened.
                open_run(recipe, run.path, Dataset.open(Path(request["dataset"])))
            cluster = recipe.cluster
            import torch  # noqa: F401 - takes seconds; all hosts shall have it before they meet

            tell(ready=True)
            go.get()
            meeting = Meeting(**request["meeting"])
            if not meeting.is_host:
                require_meeting(meeting)
                threading.Thread(target=watch_meeting, args=(meeting,), daemon=True).start()
            threading.Thread(target=announce, args=(run, meeting.launch), daemon=True).start()
            route = route_to(meeting.endpoint.rpartition(":")[0], cluster.interface)
            meeting = replace(meeting, address=route.address)
            result = start_workers(run, request["workers"], cluster, meeting, quiet=request["quiet"])
        except ConnectionError as error:
            result = Result(ExitCode.BUG, str(error), decided=False)
        except UserError as error:
            parts = {"what": error.what, "where": error.where, "fix": error.fix}
            tell(code=ExitCode.USER, decided=True, message=error.what, error=parts, summary=None)
            return ExitCode.USER
    report(run, result)
    if run.events(0).is_file():  # whoever started us may not see this disk
        conclude(run, led_by=socket.gethostname())
    return result.code


def report(run: RunDir, result: Result) -> None:
    summary = summarise(run, result.message) if result.decided else None
    tell(code=result.code, decided=result.decided, message=result.message, error=None, summary=summary)


if __name__ == "__main__":
    end_process(main())
