"""Counting."""

from dragoman.data import tally as counting
from dragoman.data.tally import Tally


def test_tallies_add_up_and_keep_the_first_examples():
    total = Tally()
    for part in range(3):
        tally = Tally(lines=10)
        tally.keep(["größe", "b"], ["c", "d"], (5, 7))
        for index in range(3):
            tally.drop("ratio", f"a.en:{part * 10 + index}", "x" * 1000, "y")
        total.add(tally)
    assert total.counts() == {
        "lines": 30,
        "pairs": 6,
        "chars": [18, 6],
        "bytes": [24, 6],
        "tokens": [15, 21],
        "dropped": {"ratio": 9},
    }
    places = [each["where"].removeprefix("a.en:") for each in total.examples["ratio"]]
    assert places == ["0", "1", "2", "10", "11"]
    assert len(total.examples["ratio"][0]["src"]) == counting.EXAMPLE_CHARS
