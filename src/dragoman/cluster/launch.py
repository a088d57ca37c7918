"""Starting workers on this machine under torchrun's elastic agent, and learning how they ended.

The agent restarts all workers when one dies. An ending that was decided (finished, stopped on request, an error
the user can fix) must not be restarted: a worker then notes the outcome in the run directory and exits with 0,
and the launcher takes its exit code from there.
"""

import ctypes
import logging
import os
import signal
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dragoman.config import Cluster
from dragoman.errors import ExitCode, UserError
from dragoman.files import read_json, write_json
from dragoman.machine import usable_cores
from dragoman.rundir import RunDir

LAUNCH = "DRAGOMAN_LAUNCH"  # in the environment of workers: which launch they belong to
QUIET = "DRAGOMAN_QUIET"  # in the environment of workers: standard output belongs to somebody else
SHUTDOWN_SECONDS = 300  # for the current step and a last checkpoint after Ctrl-C
PR_SET_PDEATHSIG = 1


def start_workers(run: RunDir, workers: int, cfg: Cluster, *, quiet: bool = False) -> tuple[ExitCode, str]:
    """Train ``run`` with local workers; return the exit code and the last word."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)  # we say it ourselves
    launch_id = uuid.uuid4().hex
    settings = {
        LAUNCH: launch_id,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, usable_cores() // workers))),
        # A store shared by all attempts still holds the addresses of the dead one, and restarted workers may
        # try to connect to them: docs/decisions/0002.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        **({QUIET: "1"} if quiet else {}),
    }
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=workers,
        run_id=launch_id,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=cfg.max_restarts,
        shutdown_timeout=SHUTDOWN_SECONDS,
    )
    received = None
    failure = ""
    try:
        with environment(settings):
            elastic_launch(config, sys.executable)("-m", "dragoman.train.run", str(run.path))
    except SignalException as error:
        received = error.sigval
    except ChildFailedError as error:
        first = error.get_first_failure()[1]
        failure = (
            f"worker {first.local_rank} (process {first.pid}) ended with exit code {first.exitcode}, "
            f"and the {cfg.max_restarts} allowed restarts are used up; run the same command to go on"
        )
    outcome = read_outcome(run, launch_id)
    if outcome is not None:
        if outcome["error"]:
            raise UserError(**outcome["error"])
        return ExitCode(outcome["exit_code"]), str(outcome["message"])
    if received is not None:
        code = ExitCode.INTERRUPTED if received == signal.SIGINT else ExitCode.TERMINATED
        return code, "stopped before the first step was finished"
    return ExitCode.BUG, failure or "the workers ended without saying why"


@contextmanager
def environment(settings: dict[str, str]) -> Iterator[None]:
    """Set variables for the processes that are started meanwhile."""
    before = dict(os.environ)
    os.environ.update(settings)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def note_outcome(run: RunDir, code: ExitCode, message: str, error: UserError | None = None) -> None:
    """Note how this launch ended, for the launcher and for whoever looks at the run later."""
    parts = None if error is None else {"what": error.what, "where": error.where, "fix": error.fix}
    launch_id = os.environ.get(LAUNCH, "")
    write_json(run.outcome, {"launch": launch_id, "exit_code": int(code), "message": message, "error": parts})


def read_outcome(run: RunDir, launch_id: str) -> dict[str, Any] | None:
    """Return how launch ``launch_id`` ended, or None if that is not decided."""
    if not run.outcome.is_file():
        return None
    outcome: dict[str, Any] = read_json(run.outcome)
    return outcome if outcome["launch"] == launch_id else None


def is_stop(code: int) -> bool:
    """Whether an exit code says that somebody asked the run to stop: it may go on."""
    return code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED)


def die_with_parent() -> None:
    """Let the system kill this process when the one that started it dies, however it dies (Linux only)."""
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(ExitCode.BUG)
