"""A conversation: lines in, translations out, and commands that say what they changed."""

import pytest

from dragoman.decode.prompt import converse
from dragoman.decode.translator import Hypothesis, Translation


class Echo:
    """A translator that shouts."""

    card = {"src_lang": "en", "tgt_lang": "de"}  # noqa: RUF012

    def __init__(self):
        self.asked = []

    def translate(self, lines, **options):
        self.asked.append(options)
        for line in lines:
            yield Translation(
                tuple(Hypothesis(line.upper() + "!" * n, -1.5 - n, 2) for n in range(options["nbest"]))
            )


def talk(*typed, **options):
    """Return what is said in answer to what is typed, and the translator; an exception is what happens instead."""
    said, translator, lines = [], Echo(), iter(typed)

    def read(prompt):
        assert prompt == "> "
        line = next(lines, EOFError())
        if isinstance(line, BaseException):
            raise line
        return line

    converse(translator, {"beam": None, "nbest": 1}, read=read, say=said.append, **options)
    return said, translator.asked


def test_it_says_what_it_does_and_translates_until_the_end():
    said, _ = talk("hello", "", "  ", "bye")
    assert "en → de" in said[0]
    assert ":help" in said[0]
    assert said[1:] == ["HELLO", "BYE", ""]


def test_alternatives_beam_and_scores_can_be_asked_for():
    said, asked = talk(":n 3", "a", ":beam 8", ":n 1", ":scores", "b", ":beam", "c", ":scores", "d")
    assert said[1:-1] == [
        "translations of each line: 3", "1. A", "2. A!", "3. A!!", "beam: 8", "translations of each line: 1",
        "log-probabilities are shown", "B  (-1.50)", "beam: the model's own", "C  (-1.50)",
        "log-probabilities are not shown", "D",
    ]  # fmt: skip
    assert asked == [{"beam": b, "nbest": n} for b, n in ((None, 3), (8, 1), (None, 1), (None, 1))]


@pytest.mark.parametrize("end", [":quit", ":q"])
def test_it_can_be_ended(end):
    said, asked = talk(end, "a")
    assert len(said) == 1
    assert not asked


def test_what_makes_no_sense_is_answered_and_changes_nothing():
    said, asked = talk(":n many", ":n 0", ":n", ":dance", ":help", "a")
    assert said[1:4] == [":n takes a number from 1 to 100, such as :n 5"] * 3
    assert said[4].startswith("there is no command :dance\n:n 5 ")
    assert asked == [{"beam": None, "nbest": 1}]


def test_ctrl_c_gives_up_the_line_only():
    said, _ = talk(KeyboardInterrupt(), "a")
    assert said[1:] == ["", "A", ""]
