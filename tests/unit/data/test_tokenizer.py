"""The vocabulary: special pieces, padding, both ways of encoding, and what cannot be learned."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.data import tokenizer
from dragoman.data.text import normalise
from dragoman.data.tokenizer import BOS, EOS, PAD, UNK, Tokenizer, language_of, padded, tag, tagged, train
from dragoman.errors import UserError

SENTENCES = [f"the {size} {animal} sleeps {place} , schläft der Hund {n} ?"
             for n, size in enumerate(["small", "big", "grey"])
             for animal in ["dog", "cat", "mouse", "elephant"]
             for place in ["here", "there", "under the table", "über dem Dach"]]  # fmt: skip


@pytest.fixture(scope="module")
def small():
    return Tokenizer(train(SENTENCES, 100))


@pytest.fixture(scope="module")
def with_bytes():
    return Tokenizer(train(SENTENCES, 4000))


def test_the_first_pieces_are_the_same_everywhere(small, with_bytes):
    assert (PAD, UNK, BOS, EOS) == (0, 1, 2, 3)
    assert small.pieces()[:4] == with_bytes.pieces()[:4] == ["<pad>", "<unk>", "<s>", "</s>"]


def test_the_size_is_a_multiple_of_eight(small, with_bytes):
    assert padded(100) == padded(104) == 104
    assert small.num_pieces == small.size == 104  # asked for 100
    assert with_bytes.num_pieces < 4000  # there is not more to learn
    assert with_bytes.size % 8 == 0
    assert 0 <= with_bytes.size - with_bytes.num_pieces < 8
    assert len(with_bytes.pieces()) == len(set(with_bytes.pieces())) == with_bytes.size


def test_large_vocabularies_spell_unknown_characters(small, with_bytes):
    assert with_bytes.byte_fallback
    assert not small.byte_fallback
    assert UNK not in with_bytes.encode(["日本"])[0]
    assert UNK in small.encode(["日本"])[0]


def test_encode_ends_sentences_and_decode_forgets_what_is_not_text(small):
    (ids,) = small.encode(["the big dog"])
    assert ids[-1] == EOS
    assert small.decode([BOS, *ids, PAD, PAD]) == "the big dog"
    assert small.decode(np.array(ids, np.uint16)) == "the big dog"
    assert small.encode([""]) == [[EOS]]
    assert small.decode([]) == ""


def test_unused_pieces_decode_to_nothing(with_bytes):
    unused = range(with_bytes.num_pieces, with_bytes.size)
    assert unused
    assert with_bytes.decode([*with_bytes.encode(["a dog"])[0], *unused]) == "a dog"


@given(st.lists(st.text()))
def test_ids_come_back_as_text(with_bytes, lines):
    lines = list(map(normalise, lines))
    assert [with_bytes.decode(ids) for ids in with_bytes.encode(lines)] == lines


@given(st.lists(st.text() | st.lists(st.sampled_from(" ".join(SENTENCES).split())).map(" ".join)))
def test_packed_encoding_gives_the_same_ids(small, with_bytes, lines):
    lines = list(map(normalise, lines))
    for each in (small, with_bytes):
        packed = each.encode_packed(lines)
        assert [np.frombuffer(line, each.dtype).tolist() for line in packed] == each.encode(lines)
        lengths = each.packed_lengths(packed, packed)
        assert lengths[:, 0].tolist() == lengths[:, 1].tolist() == [len(ids) for ids in each.encode(lines)]


@pytest.fixture(scope="module", params=[100, 4000])
def multilingual(request):
    return Tokenizer(
        train([*SENTENCES, *["write <2de> and x<2fr>y there"] * 9], request.param, tags=["de", "fr"])
    )


def test_a_multilingual_vocabulary_has_tags_after_the_first_pieces(multilingual, small):
    assert multilingual.tags == ("de", "fr")
    assert multilingual.pieces()[4:6] == [tag("de"), tag("fr")] == ["<2de>", "<2fr>"]
    assert multilingual.byte_fallback == (multilingual.num_pieces > 300)
    assert len(set(multilingual.pieces())) == multilingual.size
    assert small.tags == ()


def test_only_a_known_tag_at_the_beginning_is_one(multilingual, small):
    plain, german, french, other, later, glued = multilingual.encode(
        ["the dog", "<2de> the dog", "<2fr> the dog", "<2it> the dog", "the <2de> dog", "<2de>the dog"]
    )
    assert german == [4, *plain]
    assert french == [5, *plain]
    assert not {4, 5} & {*other, *later, *glued}
    assert multilingual.encode(["<2de>", "<2de> <2fr> the"])[0] == [4, EOS]
    assert multilingual.encode(["<2de> <2fr> the"])[0].count(5) == 0
    assert multilingual.decode(german) == "the dog"
    assert small.encode(["<2de> the dog"])[0] != small.encode(["the dog"])[0]
    assert multilingual.split_tag("<2fr> a b") == ("<2fr>", "a b")
    assert multilingual.split_tag("a <2fr> b") == ("", "a <2fr> b")


def test_packed_lines_get_the_tag_that_is_asked_for_and_no_other(multilingual):
    lines = ["the dog", "<2fr> the dog", ""]
    text, tagged_text = multilingual.encode_packed(lines), multilingual.encode_packed(lines, "de")
    assert [np.frombuffer(line, multilingual.dtype)[0] for line in tagged_text] == [4, 4, 4]
    assert [line[np.dtype(multilingual.dtype).itemsize :] for line in tagged_text] == text
    assert not any({4, 5} & set(np.frombuffer(line, multilingual.dtype).tolist()) for line in text)
    packed = multilingual.encode_packed(["the dog"], "de")
    assert (
        np.frombuffer(packed[0], multilingual.dtype).tolist()
        == multilingual.encode(tagged(["the dog"], "de"))[0]
    )


def test_lines_are_tagged_where_there_is_a_need():
    assert tagged(["a", ""], "de") == ["<2de> a", "<2de> "]
    assert tagged(["a", ""], None) == ["a", ""]
    assert language_of(tag("pt-BR")) == "pt-BR"


def test_the_memory_of_words_is_bounded(monkeypatch, small):
    monkeypatch.setattr(tokenizer, "MAX_CACHED_WORDS", 5)
    assert small.encode_packed(SENTENCES) == small.encode_packed(SENTENCES)
    assert len(small._words) <= 5


def test_training_depends_on_the_sentences_alone():
    assert train(SENTENCES, 100) == train(iter(SENTENCES), 100)
    assert train(SENTENCES, 100) != train(SENTENCES[:-1], 100)


def test_a_vocabulary_smaller_than_the_alphabet_is_an_error(capfd):
    alphabet = ["".join(map(chr, range(start, start + 50))) for start in (0x400, 0x500)]
    with pytest.raises(UserError) as caught:
        train(alphabet, 64)
    assert "SentencePiece cannot learn a vocabulary of 64 pieces: Vocabulary size is smaller" in str(
        caught.value
    )
    assert "[vocab] size" in str(caught.value)
    assert "raise vocab.size" in str(caught.value)
    assert capfd.readouterr().err == ""  # SentencePiece is quiet


def test_text_that_is_all_too_long_is_an_error():
    with pytest.raises(UserError, match="there is no text of usual length"):
        train(["word " * 5000], 64)
