"""The passes, chunk by chunk, and the set of hashes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dragoman.config import Filter
from dragoman.data.formats import Chunk
from dragoman.data.overlap import HeldOut
from dragoman.data.passes import HashSet, Seen, clean, encode, sample
from dragoman.data.spool import Frame
from dragoman.data.tokenizer import EOS, Tokenizer, train

QUIET = Filter(max_other_language=1.0)  # loading the model of languages takes a second
ROWS = ["a dog\tein Hund", "\tleer", "same\tsame", " a  dog\tein Hund ", "a cat\teine Katze"]


def spooled(tmp_path, rows, fates=None, settings=QUIET):
    chunk = Chunk(("a.tsv",), 11, ("\n".join(rows).encode(),), 0)
    HeldOut.of(["a held out dog"], ["ein fremder Hund"]).save(tmp_path / "held-out")
    cleaned = clean(chunk, 0, settings, ("en", "de"), tmp_path / "held-out")
    spool = tmp_path / "spool"
    spool.write_bytes(b"before" + cleaned.frame)
    fates = np.array(fates or [0] * cleaned.hashes.shape[1], np.uint8)
    return cleaned, Frame(0, cleaned.label, 6, len(cleaned.frame), cleaned.overlaps, fates), spool


def test_clean_drops_by_text_and_spools_the_rest(tmp_path):
    cleaned, frame, spool = spooled(tmp_path, ROWS)
    assert list(frame.rows(spool)) == [
        ["11", "a dog", "ein Hund"],
        ["14", "a dog", "ein Hund"],
        ["15", "a cat", "eine Katze"],
    ]
    for kind in cleaned.hashes:
        assert kind[0] == kind[1] != kind[2]
    assert cleaned.tally.lines == 5
    assert cleaned.tally.dropped == {"empty": 1, "identical": 1}
    assert cleaned.tally.examples["identical"] == [{"where": "a.tsv:13", "src": "same", "tgt": "same"}]


def test_encode_drops_duplicates_and_long_pairs(tmp_path):
    _, frame, spool = spooled(tmp_path, [*ROWS, "long\t" + "x" * 50], fates=[0, 1, 0, 0])
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


def test_pairs_that_overlap_are_dropped_or_counted(tmp_path):
    rows = ["a cat\teine Katze", "A held out dog!\tein fremder Hund"]
    cleaned, _, _ = spooled(tmp_path, rows)
    assert cleaned.tally.dropped == {"overlap": 1}
    assert cleaned.tally.examples["overlap"][0]["where"] == "a.tsv:12"
    assert cleaned.found.lines == {0: 1}
    assert [example["where"] for example in cleaned.found.examples] == ["a.tsv:12"]
    assert cleaned.overlaps == []

    settings = Filter(max_other_language=1.0, overlap=False)
    open_cleaned, frame, spool = spooled(tmp_path, rows, settings=settings)
    assert open_cleaned.found == cleaned.found
    assert open_cleaned.tally.dropped == {}
    assert frame.overlaps == [1]
    model = tmp_path / "model"
    model.write_bytes(train(["a cat eine Katze A held out dog! ein fremder Hund"], 64))
    assert encode(frame, spool, model, max_length=60).tally.overlapping == 1
    assert encode(frame, spool, model, max_length=4).tally.overlapping == 0  # it is too long


def test_a_pair_that_another_rule_drops_overlaps_with_nothing(tmp_path):
    cleaned, _, _ = spooled(tmp_path, ["A <br> held out dog\tein fremder Hund"])
    assert cleaned.tally.dropped == {"html": 1}
    assert cleaned.found.lines == {}


def test_near_duplicates_differ_in_case_and_punctuation_alone(tmp_path):
    rows = [
        "a dog 1\tein Hund 1",
        "A dog, 1\tein Hund 1!",
        "a dog 2\tein Hund 2",
        "a dog 1\tein Hund 1",
        "§ a\tA",
    ]
    cleaned, _, _ = spooled(tmp_path, [*rows, "!\t?", "?\t!"], settings=Filter(max_nonletters=1.0))
    assert Seen(Filter()).fates(cleaned.hashes).tolist() == [0, 2, 0, 1, 0, 0, 0]
    assert Seen(Filter(near_duplicates=False)).fates(cleaned.hashes).tolist() == [0, 0, 0, 1, 0, 0, 0]
    assert Seen(Filter(duplicates=False)).fates(cleaned.hashes).tolist() == [0] * 7
    seen = Seen(Filter())
    seen.fates(cleaned.hashes[:, :1])
    assert seen.fates(cleaned.hashes[:, 1:]).tolist() == [2, 0, 1, 0, 0, 0]


def test_subwords_that_occur_are_counted(tmp_path):
    _, frame, spool = spooled(tmp_path, ["a cat\teine Katze", "a ☃\teine Katze"])
    model = tmp_path / "model"
    model.write_bytes(train(["a cat", "eine Katze"] * 3, 64))
    encoded = encode(frame, spool, model, max_length=60)
    tokenizer = Tokenizer.load(model)
    used = set(np.flatnonzero(np.unpackbits(encoded.used)).tolist())
    assert used == {piece for line in tokenizer.encode(["a cat", "eine Katze", "a ☃"]) for piece in line}
    assert encoded.tally.unknown == [1, 0]
    assert encoded.tally.words == [4, 4]


def test_a_chunk_of_which_nothing_is_left(tmp_path):
    _, frame, spool = spooled(tmp_path, ["\t", "x\tx"])
    model = tmp_path / "model"
    model.write_bytes(train(["x y"], 64))
    assert list(frame.rows(spool)) == []
    encoded = encode(frame, spool, model, max_length=40)
    assert (encoded.src, encoded.tgt, encoded.lengths.shape) == (b"", b"", (0, 2))


def test_the_sample_is_spread_evenly(tmp_path):
    _, frame, spool = spooled(tmp_path, [f"a{i}\tN{i}" for i in range(100)])
    sources = list(sample([frame, frame], spool, 50))[::2]
    assert sources == [f"a{i}" for i in range(0, 100, 4)] * 2
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
