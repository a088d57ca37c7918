"""Processes that share the work on a stream of items and give the results back in its order.

Each worker has its own pipe and one item at a time, handed out in turn: no queue, no lock that a killed
worker could hold for ever, and at most one item a worker in memory. Workers never outlive us: they are
terminated when the pool is left by an exception, and the kernel ends them when we are killed.
"""

import fcntl
import gc
import itertools
import multiprocessing
import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Any, TypeVar

from dragoman.errors import UserError

Item = TypeVar("Item")
Result = TypeVar("Result")


class WorkerDied(UserError):
    """A worker was killed: no fault of the work, so what is done of it is good."""


class Pool:
    """``workers`` processes; none at all does the work right here, for small things and for debuggers."""

    def __init__(self, workers: int) -> None:
        self._workers: list[tuple[SpawnProcess, Connection]] = []
        spawn = multiprocessing.get_context("spawn")  # a fork would copy the locks that our threads hold
        resource_tracker.ensure_running()  # a helper of multiprocessing, which unblocks SIGINT as it starts
        # Ctrl-C goes to every process of a terminal. Workers inherit this mask; only we shall hear it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for _ in range(workers):
                ours, theirs = spawn.Pipe()
                process = spawn.Process(target=_work, args=(theirs,), daemon=True)
                process.start()
                theirs.close()
                self._workers.append((process, ours))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def __enter__(self) -> "Pool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process, connection in self._workers:
            connection.close()  # a worker that waits for an item ends at this
            if error is not None:
                process.terminate()
        for process, _ in self._workers:
            process.join()

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Yield ``function`` of each item, in order. Item and result are read while the workers work."""
        if not self._workers:
            yield from map(function, items)
            return
        busy: deque[tuple[SpawnProcess, Connection]] = deque()
        for worker, item in zip(itertools.cycle(self._workers), items, strict=False):
            finished = [_receive(busy.popleft())] if len(busy) == len(self._workers) else []
            _, connection = worker
            try:
                connection.send((function, item))
            except BrokenPipeError:
                _receive(worker)
            busy.append(worker)
            yield from finished
        yield from map(_receive, busy)


def _receive(worker: tuple[SpawnProcess, Connection]) -> Any:
    process, connection = worker
    try:
        result, error = connection.recv()
    except (EOFError, ConnectionResetError):
        process.join()
        raise WorkerDied(
            f"a worker process died (exit code {process.exitcode})",
            where=f"process {process.pid}",
            fix="-9 means that memory ran out: free some, or use fewer workers",
        ) from None
    if error is not None:
        raise error
    return result


def _work(connection: Connection) -> None:
    """The life of a worker: apply what comes until nothing comes any more."""
    _die_with_parent()
    gc.disable()  # results hold no cycles, and looking for some walks through all that a worker remembers
    while True:
        try:
            function, item = connection.recv()
        except EOFError:
            return
        try:
            answer: tuple[Any, Exception | None] = function(item), None
        except Exception as error:
            if not isinstance(error, UserError):
                error.add_note("in a worker:\n" + traceback.format_exc())
            answer = None, error
        connection.send(answer)


def _die_with_parent() -> None:
    """Have the kernel end this process when its parent dies, even in the middle of a long call into C.

    The sentinel is a pipe of which the parent alone holds the other end. SIGIO comes when that end closes,
    and ends a process that has no handler for it.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    fcntl.fcntl(parent.sentinel, fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(parent.sentinel, fcntl.F_GETFL)
    fcntl.fcntl(parent.sentinel, fcntl.F_SETFL, flags | os.O_ASYNC)
    if not parent.is_alive():
        os._exit(1)
