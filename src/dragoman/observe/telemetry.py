"""Telemetry: a small process beside the workers of a host that looks at the machine once a second.

``telemetry/HOST.jsonl`` gets a line each time: ``time``, ``host``, ``interface``; ``cpu``, percent of each core that
the run may use; ``cpu_run``, cores that the run's processes use; ``memory_used``, ``memory_total`` and ``memory_run`` in
bytes, the last without pages that processes share; ``received``, ``sent``, ``read``, ``written``, bytes through the run's
interface and all disks since boot; ``gpus``, a list with ``utilisation`` in percent, ``memory_used``, ``memory_total``,
``power_watts`` and ``clock_mhz`` of each GPU of the run. What a machine does not tell is null.

It ends with the worker that started it, however that ended, and never disturbs training: a line that does not fit on
the disk is left out, any other failure ends it with one line in the log.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import psutil

from dragoman.files import open_json_lines

PERIOD_SECONDS = 1.0
FIRST_SECONDS = 0.25  # a percentage needs two looks; a short run wants one soon
FAMILY_SECONDS = 30.0  # between looks for new processes of the run: costs more than all the rest
STOP_SECONDS = 2.0
NICENESS = 10


class Sampler:
    """A worker's hold on the sampler of its host."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    @classmethod
    def start(
        cls,
        path: Path,
        log: Path,
        *,
        host: str,
        interface: str,
        workers: Sequence[int],
        gpus: Sequence[str],
    ) -> "Sampler":
        """Sample into ``path`` what the machine and the processes ``workers`` do; say in ``log`` what goes wrong."""
        settings = {"path": str(path), "host": host, "interface": interface, "workers": workers, "gpus": gpus}
        with open(log, "ab") as said:
            return cls(
                subprocess.Popen(
                    [sys.executable, "-m", __name__, json.dumps(settings)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=said,
                    start_new_session=True,  # Ctrl-C is the trainer's
                )
            )

    def stop(self) -> None:
        """End the sampler."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Meter:
    """Reads what the machine counts."""

    def __init__(self, host: str, interface: str, workers: Sequence[int], gpus: Sequence[str]) -> None:
        self._host, self._interface, self._workers = host, interface, workers
        self._gpus = open_gpus(gpus)
        self._family: list[psutil.Process] = []
        self._family_until = 0.0
        self._used: dict[int, float] = {}  # seconds of CPU that each process had used at the last look
        self._looked = time.monotonic()
        psutil.cpu_percent(percpu=True)  # percentages are since the last call
        self._look_at_processes()

    def sample(self) -> dict[str, Any]:
        """Return one line. Costs one or two milliseconds."""
        cores, memory = psutil.cpu_percent(percpu=True), psutil.virtual_memory()
        cpu_run, memory_run = self._look_at_processes()
        link = psutil.net_io_counters(pernic=True, nowrap=False).get(self._interface)
        disks = psutil.disk_io_counters(nowrap=False)
        return {
            "time": round(time.time(), 3),
            "host": self._host,
            "interface": self._interface,
            "cpu": [round(cores[core]) for core in usable(len(cores))],
            "cpu_run": round(cpu_run, 3),
            "memory_used": memory.used,
            "memory_total": memory.total,
            "memory_run": memory_run,
            "received": None if link is None else link.bytes_recv,
            "sent": None if link is None else link.bytes_sent,
            "read": None if disks is None else disks.read_bytes,
            "written": None if disks is None else disks.write_bytes,
            "gpus": [read() for read in self._gpus],
        }

    def _look_at_processes(self) -> tuple[float, int]:
        """Return the cores that the run has used since the last look, and the memory that is its own."""
        now = time.monotonic()
        if now >= self._family_until:
            self._family, self._family_until = list(find_family(self._workers)), now + FAMILY_SECONDS
        used, memory = {}, 0
        for process in self._family:
            with suppress(psutil.Error), process.oneshot():
                times, pages = process.cpu_times(), process.memory_info()
                used[process.pid] = times.user + times.system
                memory += pages.rss - getattr(pages, "shared", 0)
        grown = sum(seconds - self._used.get(pid, seconds) for pid, seconds in used.items())
        elapsed, self._looked, self._used = now - self._looked, now, used
        return grown / elapsed if elapsed > 0 else 0.0, memory


def usable(cores: int) -> list[int]:
    """Return the numbers of the cores that we may use, of so many."""
    if hasattr(os, "sched_getaffinity"):
        return [core for core in sorted(os.sched_getaffinity(0)) if core < cores]
    return list(range(cores))


def find_family(workers: Sequence[int]) -> Iterator[psutil.Process]:
    """Find the processes of the run on this host: workers and what they started, such as the lane, but not us."""
    for pid in workers:
        with suppress(psutil.Error):
            worker = psutil.Process(pid)
            yield worker
            yield from (child for child in worker.children(recursive=True) if child.pid != os.getpid())


def open_gpus(names: Sequence[str]) -> list[Callable[[], dict[str, float | None]]]:
    """Return a function for each GPU that reads it; none where NVML does not know it."""
    if not names:
        return []
    try:
        import pynvml

        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByUUID(name) for name in names]
    except (
        Exception
    ) as error:  # no driver, another one, a part of a GPU: the rest of telemetry does not need them
        complain(f"the GPUs are not sampled: {error!r}")
        return []

    def asked(question: Callable[[], float]) -> float | None:
        try:
            return question()
        except pynvml.NVMLError:  # this model does not tell
            return None

    def read(handle: Any) -> dict[str, float | None]:
        return {
            "utilisation": asked(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            "memory_used": asked(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).used),
            "memory_total": asked(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).total),
            "power_watts": asked(lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / 1000),
            "clock_mhz": asked(lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
        }

    return [lambda handle=handle: read(handle) for handle in handles]  # type: ignore[misc]


def append_whole(file: IO[bytes], line: bytes) -> None:
    """Append a line to an unbuffered file, or nothing at all where the disk is full."""
    size = os.fstat(file.fileno()).st_size
    try:
        written = file.write(line)
    except OSError:
        written = 0
    if written != len(line):
        with suppress(OSError):
            os.truncate(file.fileno(), size)


def complain(text: str) -> None:
    print(time.strftime("%Y-%m-%d %H:%M:%S"), f" telemetry: {text}", file=sys.stderr, flush=True)


def main(path: str, host: str, interface: str, workers: Sequence[int], gpus: Sequence[str]) -> None:
    """Sample until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    try:
        meter = Meter(host, interface, workers, gpus)
        open_json_lines(Path(path)).close()  # a killed one before us may have left half a line
        with open(path, "ab", buffering=0) as file:
            due = time.monotonic() + FIRST_SECONDS
            while not select.select([sys.stdin], [], [], max(0.0, due - time.monotonic()))[0]:
                append_whole(file, json.dumps(meter.sample()).encode() + b"\n")
                due = max(due + PERIOD_SECONDS, time.monotonic())
    except Exception as error:
        complain(f"ended: {error!r}")


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
