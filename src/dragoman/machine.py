"""The machine we run on, and leaving it."""

import os
import sys
from typing import NoReturn


def usable_cores() -> int:
    """Return the cores this process may run on: in containers and under taskset fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def end_process(code: int) -> NoReturn:
    """Leave at once, with everything printed.

    The interpreter's own way out takes the process down under the feet of torch's communication threads: one
    that then lets go of a Python object aborts the process ("terminate called without an active exception").
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
