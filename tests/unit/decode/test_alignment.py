"""Attention between pieces becomes shares between words."""

import numpy as np
import pytest

from dragoman.decode.alignment import UNIT, Aligned, Attention, texts_of


@pytest.mark.parametrize(
    ("pieces", "texts"),
    [
        (["▁The", "▁c", "at", "."], ["The", " c", "at", "."]),
        (["▁a", "<0xC3>", "<0xA4>", "b"], ["a", "ä", "", "b"]),
        (["▁", "<0xFF>"], ["", "\ufffd"]),
        ([], []),
    ],
)
def test_what_pieces_stand_for(pieces, texts):
    assert texts_of(pieces) == texts


def test_a_tag_stands_for_nothing():
    assert texts_of(["<2de>", "▁A", "▁cat"], skipped=1) == ["", "A", " cat"]


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("Don't go, 5 m2!", ["Don't", "go", ",", "5", "m", "2", "!"]),
        ("今日は。ok", ["今", "日", "は", "。", "ok"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
    ],
)
def test_words_and_marks(text, units):
    assert UNIT.findall(text) == units


def test_shares_follow_attention_over_several_sentences():
    first = Attention(["a", " b", "c"], ["X", "x", " Y"], np.array([[0, 1, 1], [0, 1, 1], [0.9, 0.1, 0]]))
    aligned = Aligned([("a bc", " ", "Xx Y", first), ("d e", "", "D E", None)])
    assert aligned.text == "Xx Y D E"
    assert [aligned.text[start:end] for start, end in aligned.units] == ["Xx", "Y", "D", "E"]
    shares = {position: aligned.before(position).round(2).tolist() for position in (0, 1, 2, 3, 4, 5, 6, 8)}
    assert shares == {
        0: [0, 0, 0, 0], 1: [0, 0.9, 0, 0], 2: [0, 0.9, 0, 0], 3: [0.5, 1, 0, 0], 4: [1, 1, 0, 0],
        5: [1, 1, 0, 0], 6: [1, 1, 1, 0], 8: [1, 1, 1, 1],
    }  # fmt: skip


@pytest.mark.parametrize("weights", [[], [[0.0, 0.0]]])
def test_without_attention_words_keep_their_order(weights):
    aligned = Aligned(
        [("a b", "", "X Y", Attention(["a", " b"], ["X Y"] * len(weights), np.zeros((len(weights), 2))))]
    )
    assert aligned.before(2).tolist() == [1, 0]
