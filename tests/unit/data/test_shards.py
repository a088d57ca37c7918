"""Shards hold any tokens; a dataset that is not whole is never opened."""

import ctypes
import json
import mmap
import os
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.data import shards
from dragoman.data.shards import Dataset, ShardWriter, Split, write_manifest, write_text
from dragoman.errors import UserError
from dragoman.files import disk_errors


def add(writer, pairs):
    src, tgt = (
        b"".join(np.array(side, writer.dtype).tobytes() for side in sides)
        for sides in zip(*pairs, strict=True)
    )
    writer.add(src, tgt, np.array([list(map(len, pair)) for pair in pairs], np.int32))


def sentences(largest):
    tokens = st.lists(st.integers(0, largest), min_size=1, max_size=6)
    return st.lists(st.lists(st.tuples(tokens, tokens), min_size=1, max_size=5), min_size=1, max_size=6)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
@settings(max_examples=30)
@given(data=st.data())
def test_what_is_written_is_read(tmp_path_factory, dtype, data):
    chunks = data.draw(sentences(np.iinfo(dtype).max))
    directory = tmp_path_factory.mktemp("shards")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "SHARD_PAIRS", 4)
        patch.setattr(shards, "SHARD_TOKENS", 20)
        writer = ShardWriter(directory, dtype)
        for chunk in chunks:
            add(writer, chunk)
        written = writer.close()
    pairs = [pair for chunk in chunks for pair in chunk]
    split = Split(directory, len(written))
    assert len(split) == sum(shard["pairs"] for shard in written) == len(pairs)
    assert split.lengths.dtype == np.int32
    assert split.lengths.tolist() == [list(map(len, pair)) for pair in pairs]
    order = data.draw(st.lists(st.integers(0, len(pairs) - 1)))
    for side in (0, 1):
        gathered = split.gather(np.array(order, int), side)
        assert [ids.tolist() for ids in gathered] == [pairs[place][side] for place in order]
        tokens = sum(len(pair[side]) for pair in pairs)
        assert sum(shard["tokens"][side] for shard in written) == tokens


def test_full_shards_are_written_before_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "SHARD_PAIRS", 2)
    writer = ShardWriter(tmp_path, np.uint16)
    for _ in range(3):
        add(writer, [([1, 3], [2, 3]), ([3], [3])])
    assert len(list(tmp_path.iterdir())) == 9
    assert writer.close() == [{"pairs": 2, "tokens": [3, 3]}] * 3


def test_tokens_are_mapped_not_read(tmp_path):
    writer = ShardWriter(tmp_path, np.uint16)
    add(writer, [([1, 3], [2, 3])])
    writer.close()
    (ids,) = Split(tmp_path, 1).gather(np.array([0]), 0)
    assert not ids.flags.owndata
    assert not ids.flags.writeable


@pytest.mark.skipif(sys.platform != "linux", reason="mincore is asked in Linux' way")
def test_a_batch_reads_its_own_pages_only(tmp_path):
    """The lengths of all pairs are needed for the plan; the tokens of a pair only when its turn comes."""
    tokens = np.zeros(4 * 2**20, np.uint16)
    writer = ShardWriter(tmp_path / "train", np.uint16)
    writer.add(tokens.tobytes(), tokens.tobytes(), np.full((2**14, 2), 256, np.int32))
    write_manifest(tmp_path, {"fingerprint": "abc", "splits": {"train": {"shards": writer.close()}}})
    src, tgt = tmp_path / "train/00000.src.npy", tmp_path / "train/00000.tgt.npy"
    forget(src)
    forget(tgt)
    if pages_in_memory(src):
        pytest.skip("this file system is memory itself")
    split = Dataset.open(tmp_path).split("train")
    assert (
        pages_in_memory(src) + pages_in_memory(tgt) <= 2 * 8
    )  # the header of an array is read with what follows
    before = pages_in_memory(src)
    ids = split.gather(np.arange(100, 2**14, 2**9), 0)
    assert sum(int(each.sum()) for each in ids) == 0
    assert (
        32 <= pages_in_memory(src) - before <= 64
    )  # 32 sentences of half a kilobyte, each in one or two pages
    assert pages_in_memory(tgt) <= 8
    assert split.lengths.nbytes == 2 * 4 * len(split)  # all that every worker has in memory of its own


def forget(path):
    """Have the system forget what it knows of a file."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def pages_in_memory(path):
    """Return how many pages of a file the system has read."""
    content = np.memmap(path, np.uint8, "r")
    states = (ctypes.c_ubyte * -(-content.nbytes // mmap.PAGESIZE))()
    place, size = ctypes.c_void_p(content.ctypes.data), ctypes.c_size_t(content.nbytes)
    assert ctypes.CDLL(None).mincore(place, size, states) == 0
    return sum(state & 1 for state in states)


@pytest.fixture
def dataset(tmp_path):
    path = tmp_path / "set"
    facts = {}
    for name in ("train", "dev"):
        writer = ShardWriter(path / name, np.uint16)
        add(writer, [([5, 3], [6, 7, 3])])
        facts[name] = {"pairs": 1, "shards": writer.close()}
    write_text(path, "dev", ["a\u2028b"], [" untouched\x85 \r "])
    (path / shards.TOKENIZER).write_bytes(b"model")
    write_manifest(path, {"fingerprint": "abc", "vocab": {"size": 16}, "splits": facts})
    return Dataset.open(path)


def error_of(function, *arguments):
    with pytest.raises(UserError) as caught:
        function(*arguments)
    return str(caught.value)


def test_a_dataset_gives_its_facts_its_pairs_and_its_text(dataset):
    assert (dataset.fingerprint, dataset.vocab_size) == ("abc", 16)
    assert dataset.tokenizer_path.read_bytes() == b"model"
    assert dataset.split("train").gather(np.array([0]), 1)[0].tolist() == [6, 7, 3]
    assert dataset.text("dev") == (["a\u2028b"], [" untouched\x85 \r "])
    dataset.verify()


def test_a_split_that_was_not_prepared_is_an_error(dataset):
    assert "the dataset has no test set" in error_of(dataset.split, "test")
    assert "name test files in [data]" in error_of(dataset.text, "test")


def test_what_is_no_dataset_is_an_error(tmp_path):
    error = error_of(Dataset.open, tmp_path)
    assert "this is not a dataset (it has no manifest.json)" in error
    assert "dragoman data prepare" in error


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda path: (path / "train/00000.src.npy").unlink(), "train/00000.src.npy is missing"),
        (lambda path: os.truncate(path / "dev/ref.txt", 3), "dev/ref.txt has 3 bytes, not 16"),
        (lambda path: (path / "manifest.json").write_text('{"format":'), "manifest.json cannot be read"),
        (lambda path: (path / "manifest.json").write_text("[]"), "manifest.json cannot be read"),
        (
            lambda path: (path / "manifest.json").write_text(json.dumps({"format": 99, "files": {}})),
            f"the dataset has format 99, this Dragoman reads format {shards.FORMAT}",
        ),
    ],
)
def test_a_dataset_that_is_not_whole_is_not_opened(dataset, damage, what):
    damage(dataset.path)
    error = error_of(Dataset.open, dataset.path)
    assert f"error: {what}\n  where: {dataset.path}" in error
    assert "delete this directory and run `dragoman data prepare` again" in error


def test_verify_finds_a_changed_byte(dataset):
    path = dataset.path / "train/00000.tgt.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert "the checksum of train/00000.tgt.npy is wrong" in error_of(Dataset.open(dataset.path).verify)


def test_a_full_disk_says_so():
    def write_to_full_disk():
        with disk_errors("/dev/full"):
            shards._write_array("/dev/full", np.zeros(100_000, np.uint16))

    assert "the disk is full" in error_of(write_to_full_disk)
