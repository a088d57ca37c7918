"""The machine we run on."""

import os


def usable_cores() -> int:
    """Return the cores this process may run on: in containers and under taskset fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
