"""The pool keeps the order, passes errors on, and leaves no process behind."""

import functools
import math
import multiprocessing
import operator
import signal
import time

import pytest

from dragoman.data.pool import Pool
from dragoman.errors import UserError


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_results_come_in_the_order_of_the_items(workers):
    with Pool(workers) as pool:
        assert list(pool.map(operator.neg, range(20))) == [-i for i in range(20)]
        assert list(pool.map(math.sqrt, [])) == []
        assert list(pool.map(len, [b"x" * 3_000_000] * 3)) == [3_000_000] * 3
        assert list(pool.map(bytes, [3_000_000] * 3)) == [bytes(3_000_000)] * 3
    assert multiprocessing.active_children() == []


def test_items_are_taken_as_the_work_goes_on():
    items = iter(range(100))
    with Pool(2) as pool:
        next(pool.map(operator.neg, items))
        assert next(items) == 3  # one a worker, and the one that took the place of the first


def test_an_error_in_a_worker_is_raised_here_with_its_place():
    with pytest.raises(ValueError, match="invalid literal") as caught, Pool(1) as pool:
        list(pool.map(int, ["1", "x"]))
    assert "in a worker" in caught.value.__notes__[0]
    assert multiprocessing.active_children() == []


def test_a_worker_that_is_killed_is_an_error_that_says_so():
    with pytest.raises(UserError) as caught, Pool(2) as pool:
        list(pool.map(signal.raise_signal, [signal.SIGKILL] * 8))
    assert "a worker process died (exit code -9)" in str(caught.value)
    assert "memory ran out" in str(caught.value)
    assert multiprocessing.active_children() == []


def test_workers_that_are_busy_are_ended_by_an_exception():
    def items():
        yield from [100, 100]
        raise KeyboardInterrupt

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt), Pool(2) as pool:
        list(pool.map(time.sleep, items()))
    assert time.monotonic() - started < 50
    assert multiprocessing.active_children() == []


def test_workers_do_not_hear_ctrl_c():
    with Pool(1) as pool:
        (blocked,) = pool.map(functools.partial(signal.pthread_sigmask, signal.SIG_BLOCK), [[]])
        assert signal.SIGINT in blocked
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
