"""The passes, chunk by chunk, and the set of hashes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dragoman.config import Filter
from dragoman.data.formats import Chunk
from dragoman.data.passes import Frame, HashSet, clean, encode, sample
from dragoman.data.tokenizer import EOS, Tokenizer, train

ROWS = ["a dog\tein Hund", "\tleer", "same\tsame", " a  dog\tein Hund ", "a cat\teine Katze"]


def spooled(tmp_path, rows, is_new=None):
    chunk = Chunk(("a.tsv",), 11, ("\n".join(rows).encode(),), 0)
    cleaned = clean(chunk, Filter())
    spool = tmp_path / "spool"
    spool.write_bytes(b"before" + cleaned.frame)
    is_new = np.ones(len(cleaned.hashes), bool) if is_new is None else np.array(is_new)
    return cleaned, Frame(0, cleaned.label, 6, len(cleaned.frame), is_new), spool


def test_clean_drops_by_text_and_spools_the_rest(tmp_path):
    cleaned, frame, spool = spooled(tmp_path, ROWS)
    assert list(frame.rows(spool)) == [
        ["11", "a dog", "ein Hund"],
        ["14", "a dog", "ein Hund"],
        ["15", "a cat", "eine Katze"],
    ]
    assert cleaned.hashes[0] == cleaned.hashes[1] != cleaned.hashes[2]
    assert cleaned.tally.lines == 5
    assert cleaned.tally.dropped == {"empty": 1, "identical": 1}
    assert cleaned.tally.examples["identical"] == [{"where": "a.tsv:13", "src": "same", "tgt": "same"}]


def test_encode_drops_duplicates_and_long_pairs(tmp_path):
    _, frame, spool = spooled(tmp_path, [*ROWS, "long\t" + "x" * 50], is_new=[True, False, True, True])
    model = tmp_path / "model"
    model.write_bytes(train(["a dog ein Hund", "a cat eine Katze", "long x"], 64))
    encoded = encode(frame, spool, model, max_length=40)
    tokenizer = Tokenizer.load(model)
    expected = tokenizer.encode(["ein Hund", "eine Katze"])
    assert np.frombuffer(encoded.tgt, tokenizer.dtype).tolist() == expected[0] + expected[1]
    assert encoded.lengths[:, 1].tolist() == [len(expected[0]), len(expected[1])]
    assert encoded.tally.dropped == {"duplicate": 1, "too_long": 1}
    assert encoded.tally.examples["duplicate"][0]["where"] == "a.tsv:14"
    assert encoded.tally.examples["too_long"][0]["where"] == "a.tsv:16"
    assert encoded.tally.pairs == 2
    assert np.frombuffer(encoded.src, tokenizer.dtype)[-1] == EOS


def test_a_chunk_of_which_nothing_is_left(tmp_path):
    _, frame, spool = spooled(tmp_path, ["\t", "x\tx"])
    model = tmp_path / "model"
    model.write_bytes(train(["x y"], 64))
    assert list(frame.rows(spool)) == []
    encoded = encode(frame, spool, model, max_length=40)
    assert (encoded.src, encoded.tgt, encoded.lengths.shape) == (b"", b"", (0, 2))


def test_the_sample_is_spread_evenly(tmp_path):
    _, frame, spool = spooled(tmp_path, [f"{i}\tN{i}" for i in range(100)])
    sources = list(sample([frame, frame], spool, 50))[::2]
    assert sources == [str(i) for i in range(0, 100, 4)] * 2
    assert len(list(sample([frame], spool, 1000))) == 200
    assert len(list(sample([frame], spool, 99))) == 198


@given(st.lists(st.lists(st.integers(0, 40) | st.sampled_from([0, 2**64 - 1]), max_size=20)))
def test_a_hash_set_is_a_set(batches):
    hashes, seen = HashSet(), set()
    for batch in batches:
        assert hashes.contains(np.array(batch, np.uint64)).tolist() == [value in seen for value in batch]
        expected = [value not in seen and value not in batch[:place] for place, value in enumerate(batch)]
        assert hashes.add(np.array(batch, np.uint64)).tolist() == expected
        seen.update(batch)
        assert len(hashes) == len(seen)
    assert len(hashes._runs) <= 8
