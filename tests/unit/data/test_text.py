"""Normalising lines, and hashing pairs."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.data.text import normalise, normalise_lines, pair_hashes


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("  two \t words\u3000\u00a0here ", "two words here"),
        ("bell\x07 and\x00 escape\x1b", "bell and escape"),
        ("soft\u00adhyphen, zero\u200bwidth, \u202aright\u202c", "softhyphen, zerowidth, right"),
        ("line\u2028paragraph\u2029next\x85tab\x0b", "line paragraph next tab"),
        ("u\u0308ber \u212b", "über Å"),
        ("e\u00ad\u0301", "é"),
        ("\u2581word\u2581", "word"),
        ("می\u200cخواهم 👩\u200d🚀", "می\u200cخواهم 👩\u200d🚀"),
        ("one\nline", "one line"),
        ("", ""),
    ],
)
def test_normalise(line, expected):
    assert normalise(line) == expected


@given(st.text())
def test_normalise_is_idempotent_and_leaves_nothing_unwanted(line):
    once = normalise(line)
    assert normalise(once) == once
    assert unicodedata.is_normalized("NFC", once)
    assert once == " ".join(once.split())
    assert not any(unicodedata.category(char) == "Cc" for char in once)


@given(st.lists(st.text(st.characters(exclude_characters="\n"))))
def test_lines_are_normalised_one_by_one(lines):
    assert normalise_lines(lines) == [normalise(line) for line in lines]


def test_a_pair_is_hashed_with_both_sides_and_their_border():
    assert len(set(pair_hashes(["a", "b", "ab", "a"], ["b", "a", "", "c"]).tolist())) == 4
