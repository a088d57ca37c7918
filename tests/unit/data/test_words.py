"""Words as numbers: equal where the words are, and nowhere else."""

import re

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dragoman.data.words import Words, paired

TEXT = st.lists(st.text(st.sampled_from("abAB Ä.1é\u0301中ßह\u093f"), max_size=12), max_size=8)


def plain_words(line):
    """The words of a line, the slow way."""
    return re.findall("中?[a-zäéßह\u0301\u093f]+|中", line.lower())


@given(TEXT)
def test_lines_have_the_same_hash_when_they_have_the_same_words(lines):
    words = Words.of(lines)
    assert len(words) == max(1, len(lines))  # no lines at all are one empty one
    expected = [plain_words(line) for line in lines]
    assert words.counts.tolist() == [len(each) for each in expected] or not lines
    hashes = words.line_hashes()
    for i, first in enumerate(expected):
        assert (hashes[i] == 0) == (not first)
        for j, second in enumerate(expected):
            assert (hashes[i] == hashes[j]) == (first == second)


def test_case_digits_and_punctuation_do_not_matter():
    one, other, swapped = Words.of(["The Cat, 12 sat!", "the cat (sat)", "cat the sat"]).line_hashes()
    assert one == other != swapped


def test_runs_of_words_stay_inside_a_line():
    words = Words.of(["a b c d", "b c", "", "x b c d"])
    runs, lines = words.runs(3)
    assert lines.tolist() == [0, 0, 3, 3]
    assert runs[1] == runs[3]
    assert len(set(runs.tolist())) == 3
    assert [len(each) for each in Words.of(["a b"]).runs(3)] == [0, 0]
    assert [len(each) for each in Words.of([""]).runs(3)] == [0, 0]


def test_scripts_without_spaces_have_a_word_a_letter():
    assert Words.of(["这是一个句子。", "ภาษาไทย", "abc def"]).counts.tolist() == [6, 7, 2]


def test_a_pair_is_not_the_same_when_its_sides_are_swapped():
    src, tgt = Words.of(["a", "b"]).line_hashes(), Words.of(["b", "a"]).line_hashes()
    assert len(np.unique(paired(src, tgt))) == 2
