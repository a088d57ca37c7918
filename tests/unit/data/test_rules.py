"""Which pairs are dropped."""

import pytest

from dragoman.config import Filter
from dragoman.data.rules import FILTERS


def words(number):
    return " ".join(["word"] * number)


@pytest.mark.parametrize(
    ("name", "src", "tgt", "drops"),
    [
        ("empty", "", "a", True),
        ("empty", "a", "", True),
        ("empty", "a", "b", False),
        ("ratio", words(41), words(10), True),
        ("ratio", words(10), words(41), True),
        ("ratio", words(40), words(10), False),
        ("ratio", words(9), words(1), False),  # both short
        ("ratio", words(10), words(1), True),
        ("identical", "a", "a", True),
        ("identical", "a", "A", False),
    ],
)
def test_filters(name, src, tgt, drops):
    assert FILTERS[name](src, tgt, Filter(max_ratio=4.0)) is drops


def test_identical_sides_may_stay():
    assert not FILTERS["identical"]("a", "a", Filter(identical=False))
