"""Leaving: what was printed arrives, and nothing else runs."""

import subprocess
import sys

from dragoman.machine import usable_cores


def test_some_core_is_usable():
    assert usable_cores() >= 1


def test_leaving_prints_what_is_left_and_runs_no_exit_handler():
    program = (
        "import atexit, sys; from dragoman.machine import end_process\n"
        "atexit.register(print, 'handler'); print('said'); print('warned', file=sys.stderr); end_process(7)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert (result.returncode, result.stdout, result.stderr) == (7, "said\n", "warned\n")
