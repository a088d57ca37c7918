"""The machine we run on, and leaving it."""

import ctypes
import os
import sys
from typing import NoReturn

# glibc's malloc.h: parameters of mallopt.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
TOP_PAD_BYTES = 64 * 2**20


def usable_cores() -> int:
    """Return the cores this process may run on: in containers and under taskset fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def keep_memory() -> None:
    """Keep freed memory for the next step instead of giving it back to the system.

    glibc maps every large tensor anew, and the kernel fills each page with zeros when it is first touched: measured,
    6 % of a training step on a CPU. The process stays as large as its largest step.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
        if mallopt is not None:
            mallopt(M_MMAP_MAX, 0)
            mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
            mallopt(M_TOP_PAD, TOP_PAD_BYTES)


def end_process(code: int) -> NoReturn:
    """Leave at once, with everything printed.

    The interpreter's own way out takes the process down under the feet of torch's communication threads: one
    that then lets go of a Python object aborts the process ("terminate called without an active exception").
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
