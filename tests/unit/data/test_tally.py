"""Counting."""

import json

import numpy as np

from dragoman.data import tally as counting
from dragoman.data.tally import Tally


def made(parts):
    total = Tally()
    for part in range(parts):
        tally = Tally(lines=10, overlapping=part)
        tally.keep(
            ["große b", "b", ""], ["c", "d", "e"], np.array([[5, 1], [8, 9], [1, 70]]), (1, 2), max_length=20
        )
        for index in range(3):
            tally.drop("ratio", f"a.en:{part * 10 + index}", "x" * 1000, "y")
        total.add(tally)
    return total


def test_tallies_add_up_and_keep_the_first_examples():
    total = made(3)
    assert total.counts() == {
        "lines": 30,
        "pairs": 9,
        "chars": [24, 9],
        "bytes": [27, 9],
        "words": [9, 9],
        "tokens": [42, 240],
        "unknown": [3, 6],
        "lengths": [[9, 0, 0], [3, 3, 3]],  # 1 to 8, 9 to 16, more
        "dropped": {"ratio": 9},
    }
    assert total.overlapping == 3
    places = [each["where"].removeprefix("a.en:") for each in total.examples["ratio"]]
    assert places == ["0", "1", "2", "10", "11"]
    assert len(total.examples["ratio"][0]["src"]) == counting.EXAMPLE_CHARS


def test_a_tally_survives_json():
    total = made(2)
    again = Tally.from_dict(json.loads(json.dumps(total.as_dict())))
    assert again == total
    again.add(total)
    assert again.pairs == 2 * total.pairs


def test_nothing_can_be_counted_too():
    tally = Tally()
    tally.keep([], [], np.zeros((0, 2), int), (0, 0), max_length=8)
    assert tally.lengths == [[0], [0]]
