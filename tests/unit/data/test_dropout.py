"""BPE-dropout: SentencePiece's own segmentation where nothing is skipped, and the same draws whoever asks."""

import io
import random
from itertools import pairwise

import numpy as np
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from dragoman.data import dropout
from dragoman.data.builtin import sentences
from dragoman.data.dropout import VARIANTS, Dropout, Merges, merge, word_starts
from dragoman.data.text import normalise
from dragoman.data.tokenizer import EOS, UNK, Tokenizer, train

PAIRS = list(sentences("train", 300))
LINES = [line for pair in PAIRS for line in pair]
ALL = range(len(PAIRS))
WORDS = sorted({word for line in LINES for word in line.split()})


@pytest.fixture(scope="module", params=[300, 4000])  # without and with bytes for unknown characters
def model(request):
    return train(LINES, request.param)


@pytest.fixture(scope="module")
def merges(model):
    return Merges(model)


@pytest.fixture(scope="module")
def tokenizer(model):
    return Tokenizer(model)


class ListSplit:
    """A split in memory."""

    dtype = np.dtype(np.uint16)

    def __init__(self, lines):
        self.sides = [[np.array(ids, np.uint16) for ids in side] for side in lines]

    def gather(self, indices, side):
        return [self.sides[side][index] for index in indices]


@pytest.fixture(scope="module")
def split(tokenizer):
    return ListSplit([tokenizer.encode(side) for side in zip(*PAIRS, strict=True)])


def drawn(split, model, probability=0.1, *, seed=1, epoch=0, side=0, indices=ALL, max_length=999):
    pairs = Dropout(split, model, probability=probability, seed=seed, max_length=max_length).epoch(epoch)
    return [ids.tolist() for ids in pairs.gather(np.array(indices), side)]


def merged_again(merges, ids):
    """Take ids apart into letters, word by word, and merge them without skipping."""
    tokens, again = np.array(ids), []
    for word in np.split(tokens, word_starts(tokens, np.array([len(ids)]), merges)[1:]):
        pieces = merge(merges.letters(word), merges.ranks, lambda: False)
        again += [merges.ids[text] for text in pieces] or word.tolist()
    return again


def test_merging_without_skipping_is_what_sentencepiece_does(merges, tokenizer):
    for ids in tokenizer.encode(LINES):
        assert merged_again(merges, ids) == ids


@given(st.lists(st.text() | st.sampled_from(WORDS), min_size=1).map("".join).map(normalise))
def test_so_it_is_for_any_text(merges, tokenizer, line):
    (ids,) = tokenizer.encode([line])
    assert merged_again(merges, ids) == ids


@pytest.mark.parametrize("line", ["日本 für 100 €", "a▁b ▁▁ c", "<s> </s> <unk> <0xE6>", "ab" * 200, "😀"])
def test_so_it_is_for_strange_text(merges, tokenizer, line):
    (ids,) = tokenizer.encode([line])
    assert merged_again(merges, ids) == ids


def test_symbols_that_are_not_merged_are_left_alone():
    parts = {"control_symbols": ["<2de>"], "user_defined_symbols": ["@@"], "unk_id": 1, "pad_id": 0,
             "bos_id": 2, "eos_id": 3}  # fmt: skip
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=file, model_type="bpe", vocab_size=300, minloglevel=3,
        normalization_rule_name="identity", **parts,
    )  # fmt: skip
    model = file.getvalue()
    read = sentencepiece.SentencePieceProcessor(model_proto=model)
    tag = read.piece_to_id("<2de>")
    lines = [[tag, *read.encode(f"{line} @@ die@@Ω"), EOS] for line in LINES[:50]]
    assert UNK in lines[0]
    merges = Merges(model)
    for ids in lines:
        assert merged_again(merges, ids) == ids
    for new, old in zip(drawn(ListSplit([lines]), model, 0.9, indices=range(50)), lines, strict=True):
        assert new[0] == tag
        assert new != old
        assert new.count(UNK) == old.count(UNK)
        assert read.decode(new) == read.decode(old)


def test_a_skipped_merge_comes_back_after_the_next_one():
    ranks = {"ab": 0, "cd": 1, "abcd": 2}
    answers = iter([True, False, False, False])  # not ab; cd; ab after all; and then both
    assert merge("abcd", ranks, answers.__next__) == ["abcd"]
    answers = iter([True, False, True])  # not ab; cd; again not ab, and nothing else is left
    assert merge("abcd", ranks, answers.__next__) == ["a", "b", "cd"]
    assert merge("abcd", ranks, lambda: True) == ["a", "b", "c", "d"]
    assert merge("abab", {"ab": 0, "ba": 1}, iter([True, False, True]).__next__) == ["a", "b", "ab"]
    assert merge("a", ranks, lambda: False) == ["a"]


@given(st.text("abc", max_size=12), st.integers(0, 99))
def test_merging_agrees_with_the_paper_step_by_step(word, seed):
    ranks = {text: rank for rank, text in enumerate(["ab", "bc", "abc", "ca", "cab", "aa", "abca", "bb"])}
    told, asked = random.Random(seed), random.Random(seed)
    symbols = list(word)
    while True:  # among all candidates, the best that is not dropped
        candidates = sorted((ranks[a + b], i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in ranks)
        place = next((i for _, i in candidates if told.random() >= 0.4), None)
        if place is None:
            break
        symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]
    assert merge(word, ranks, lambda: asked.random() < 0.4) == symbols


@pytest.mark.parametrize("side", [0, 1])
def test_every_segmentation_says_the_same_and_more_dropout_makes_more_pieces(split, model, tokenizer, side):
    lengths = []
    for probability in (0.0, 0.05, 0.2, 0.6):
        lines = drawn(split, model, probability, side=side)
        assert [tokenizer.decode(ids) for ids in lines] == [pair[side] for pair in PAIRS]
        assert all(ids[-1] == EOS and EOS not in ids[:-1] for ids in lines)
        lengths.append(sum(map(len, lines)))
    assert drawn(split, model, 0.0, side=side) == [ids.tolist() for ids in split.sides[side]]
    assert lengths == sorted(set(lengths))


def test_a_merge_is_skipped_with_the_given_probability(merges):
    words = [np.array([i], np.uint16).tobytes() for text, i in merges.ids.items() if len(text) == 2]
    variants = dropout.Variants(merges, 0.3, np.dtype(np.uint16))
    cut = [len(variants[word, v]) == 4 for word in words for v in range(VARIANTS)]
    assert len(cut) > 1000
    assert np.mean(cut) == pytest.approx(0.3, abs=0.05)


def test_a_draw_depends_on_seed_epoch_and_pair_alone(split, model):
    first = drawn(split, model)
    assert drawn(split, model) == first
    assert drawn(split, model, indices=[7]) == [first[7]]
    shuffled = np.random.default_rng(0).permutation(len(PAIRS))
    assert drawn(split, model, indices=shuffled) == [first[i] for i in shuffled]
    pairs = Dropout(split, model, probability=0.1, seed=1, max_length=999)
    for epoch in (3, 1, 2):  # what was read before does not matter
        pairs.epoch(epoch).gather(np.arange(50), 1)
    assert [ids.tolist() for ids in pairs.epoch(0).gather(np.arange(len(PAIRS)), 0)] == first
    for other in (drawn(split, model, epoch=1), drawn(split, model, seed=2)):
        assert np.mean([a != b for a, b in zip(first, other, strict=True)]) > 0.5
    twice = ListSplit([[split.sides[0][0]] * 20])
    assert len(set(map(tuple, drawn(twice, model, indices=range(20))))) > 2  # the same line as another pair


def test_a_side_that_would_be_too_long_stays_as_it_is(split, model):
    limit = max(map(len, split.sides[0]))
    longer, bounded = drawn(split, model, 0.5), drawn(split, model, 0.5, max_length=limit)
    assert max(map(len, longer)) > limit
    for new, free, old in zip(bounded, longer, split.sides[0], strict=True):
        assert new == (free if len(free) <= limit else old.tolist())


def test_the_memory_of_words_is_bounded_and_does_not_show(monkeypatch, split, model):
    expected = drawn(split, model, indices=range(20))
    monkeypatch.setattr(dropout, "MAX_CACHED_VARIANTS", 5)
    pairs = Dropout(split, model, probability=0.1, seed=1, max_length=999)
    got = [pairs.epoch(0).gather(np.array([i]), 0)[0].tolist() for i in range(20)]
    assert got == expected
    assert len(pairs.variants) < 100
