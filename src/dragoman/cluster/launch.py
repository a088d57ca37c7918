"""Starting workers on this host under torchrun's elastic agent, and learning how they ended.

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
from dataclasses import dataclass, field
from typing import Any

from dragoman.config import Cluster
from dragoman.errors import ExitCode, UserError
from dragoman.files import read_json, write_json
from dragoman.machine import usable_cores
from dragoman.rundir import RunDir

LAUNCH = "DRAGOMAN_LAUNCH"  # in the environment of workers: which launch they belong to
QUIET = "DRAGOMAN_QUIET"  # in the environment of workers: standard output belongs to somebody else
JOIN_SECONDS = 600  # for min_hosts to come together
SHUTDOWN_SECONDS = 300  # for the current step and a last checkpoint after Ctrl-C
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Meeting:
    """Where and how the agents of one launch come together; the default is an agent alone."""

    launch: str = field(default_factory=lambda: uuid.uuid4().hex)
    endpoint: str = "localhost:0"
    is_host: bool = True  # of the store at the endpoint; a host may not recognise its own address
    min_hosts: int = 1
    max_hosts: int = 1
    address: str | None = None  # of this host, for the others

    def rendezvous(self) -> dict[str, Any]:
        """Return torch's settings: a lost host is noticed in 15 seconds, a late one waited for 5."""
        return {
            "is_host": self.is_host,
            "join_timeout": JOIN_SECONDS,
            "last_call_timeout": 5,
            "read_timeout": 20,
            "keep_alive_interval": 3,
            "keep_alive_max_attempt": 5,
        }


@dataclass(frozen=True)
class Result:
    """How the workers of one host ended. What is not ``decided`` may be tried again."""

    code: ExitCode
    message: str
    decided: bool = True


def start_workers(
    run: RunDir, workers: int, cfg: Cluster, meeting: Meeting | None = None, *, quiet: bool = False
) -> Result:
    """Train ``run`` with workers on this host, together with those of the other hosts of the meeting."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in logging.root.manager.loggerDict:
        if name.startswith("torch.distributed"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # we say it ourselves
    meeting = meeting or Meeting()
    settings = {
        LAUNCH: meeting.launch,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, usable_cores() // workers))),
        # A store shared by all attempts still holds the addresses of the dead one, and restarted workers may
        # try to connect to them: docs/decisions/0002.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        **({QUIET: "1"} if quiet else {}),
    }
    config = LaunchConfig(
        min_nodes=meeting.min_hosts,
        max_nodes=meeting.max_hosts,
        nproc_per_node=workers,
        run_id=meeting.launch,
        rdzv_backend="c10d",
        rdzv_endpoint=meeting.endpoint,
        rdzv_configs=meeting.rendezvous(),
        local_addr=meeting.address,
        max_restarts=cfg.max_restarts,
        shutdown_timeout=SHUTDOWN_SECONDS,
    )
    result = Result(ExitCode.BUG, "the workers ended without saying why", decided=False)
    try:
        with environment(settings):
            elastic_launch(config, sys.executable)("-m", "dragoman.train.run", str(run.path))
        if meeting.max_hosts > 1:  # another host leads, and knows how it ended
            result = Result(ExitCode.DONE, "this host has done its part", decided=False)
    except SignalException as error:
        code = ExitCode.INTERRUPTED if error.sigval == signal.SIGINT else ExitCode.TERMINATED
        # On many hosts the one that leads knows how far it came.
        result = Result(code, "stopped before the first step was finished", decided=meeting.max_hosts == 1)
    except ChildFailedError as error:
        first = error.get_first_failure()[1]
        message = (
            f"worker {first.local_rank} (process {first.pid}) ended with exit code {first.exitcode}, "
            f"and the {cfg.max_restarts} allowed restarts are used up; run the same command to go on"
        )
        result = Result(ExitCode.BUG, message)
    except RendezvousError as error:
        result = Result(ExitCode.BUG, f"lost contact with the other hosts ({error})", decided=False)
    outcome = read_outcome(run, meeting.launch)
    if outcome is None:
        return result
    if outcome["error"]:
        raise UserError(**outcome["error"])
    return Result(ExitCode(outcome["exit_code"]), str(outcome["message"]))


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
