"""The two passes over the training text, as functions of one chunk: what the workers of the pool run.

    clean    chunk  → normalised pairs that pass the text filters, compressed, and a hash of each
    learn    spool  → the vocabulary, from an even sample of the new pairs
    encode   frame  → token ids of the pairs that are new and not too long

Between the passes the text waits in a spool file on disk, one compressed frame a chunk, for the vocabulary
has to be learned from clean text before any of it can be encoded. What travels between processes is bytes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import zstandard

from dragoman.config import Filter, Vocab
from dragoman.data.corpora import Lines
from dragoman.data.rules import DUPLICATE, FILTERS, TOO_LONG
from dragoman.data.shards import Array
from dragoman.data.tally import Tally
from dragoman.data.text import normalise_lines, pair_hash
from dragoman.data.tokenizer import Tokenizer, train


@dataclass(frozen=True)
class Cleaned:
    """A chunk after the first pass."""

    label: str
    size: int  # as that of the chunk
    frame: bytes  # compressed rows of: line number TAB source TAB target
    hashes: Array  # uint64, one a row
    tally: Tally


@dataclass(frozen=True)
class Frame:
    """Where in the spool the rows of a chunk are, and which of them are new."""

    corpus: int
    label: str
    offset: int
    size: int
    is_new: Array  # bool, one a row; False: the pair occurred before
    tag: str | None = None  # the target language that the source lines are to name

    def rows(self, spool: Path) -> Iterator[list[str]]:
        """Yield the line number, source and target of every row."""
        if len(self.is_new):
            with open(spool, "rb") as file:
                file.seek(self.offset)
                text = zstandard.decompress(file.read(self.size)).decode()
            yield from (row.split("\t") for row in text.split("\n"))


@dataclass(frozen=True)
class Encoded:
    """A frame after the second pass: token ids, sentence after sentence."""

    src: bytes
    tgt: bytes
    lengths: Array  # int32 (n, 2)
    tally: Tally


def clean(chunk: Lines, settings: Filter) -> Cleaned:
    """Normalise the pairs of a chunk and apply the filters that need no more than a pair's text."""
    src_lines, tgt_lines = map(normalise_lines, chunk.decode())
    tally = Tally(lines=len(src_lines))
    rows, hashes = [], []
    for number, (src, tgt) in enumerate(zip(src_lines, tgt_lines, strict=True), chunk.first_line):
        for name, drops in FILTERS.items():
            if drops(src, tgt, settings):
                tally.drop(name, f"{chunk.label}:{number}", src, tgt)
                break
        else:
            rows.append(f"{number}\t{src}\t{tgt}")
            hashes.append(pair_hash(src, tgt))
    frame = zstandard.compress("\n".join(rows).encode(), level=1)
    return Cleaned(chunk.label, chunk.size, frame, np.array(hashes, np.uint64), tally)


def count_new(frames: Sequence[Frame]) -> int:
    """Return the number of pairs that are left to encode."""
    return sum(int(frame.is_new.sum()) for frame in frames)


def learn(frames: Sequence[Frame], spool: Path, settings: Vocab, tags: Sequence[str] = ()) -> bytes:
    """Return the model file of a vocabulary learned from a sample of the spool, with the tags of languages."""
    sentences = sample(frames, spool, settings.sample_pairs)
    return train(sentences, settings.size, settings.character_coverage, tags)


def sample(frames: Sequence[Frame], spool: Path, wanted: int) -> Iterator[str]:
    """Yield both sides of ``wanted`` of the new pairs, spread evenly, or of all if there are fewer."""
    total = count_new(frames)
    index = 0
    for frame in frames:
        for is_new, (_, src, tgt) in zip(frame.is_new.tolist(), frame.rows(spool), strict=True):
            if is_new:
                if index * wanted % total < wanted:
                    yield src
                    yield tgt
                index += 1


def encode(frame: Frame, spool: Path, model: Path, max_length: int) -> Encoded:
    """Encode the new pairs of a frame and drop those that are too long."""
    tokenizer = _tokenizer(model)
    tally = Tally()
    rows = []
    for is_new, row in zip(frame.is_new.tolist(), frame.rows(spool), strict=True):
        if is_new:
            rows.append(row)
        else:
            tally.drop(DUPLICATE, f"{frame.label}:{row[0]}", row[1], row[2])
    src = tokenizer.encode_packed([row[1] for row in rows], frame.tag)
    tgt = tokenizer.encode_packed([row[2] for row in rows])
    lengths = tokenizer.packed_lengths(src, tgt)
    fits = (lengths <= max_length).all(axis=1)
    for index in np.flatnonzero(~fits):
        number, *sides = rows[index]
        tally.drop(TOO_LONG, f"{frame.label}:{number}", *sides)
    kept = np.flatnonzero(fits).tolist()
    lengths = lengths[fits]
    tally.keep([rows[index][1] for index in kept], [rows[index][2] for index in kept], lengths.sum(axis=0))
    packed_src, packed_tgt = (b"".join([side[index] for index in kept]) for side in (src, tgt))
    return Encoded(packed_src, packed_tgt, lengths, tally)


@lru_cache(maxsize=1)
def _tokenizer(path: Path) -> Tokenizer:
    return Tokenizer.load(path)


class HashSet:
    """A set of 64-bit hashes in 8 bytes each: a Python set would take ten times that.

    Sorted runs, each at least twice as long as the next, are searched by bisection; adding merges short ones.
    """

    def __init__(self) -> None:
        self._runs: list[Array] = []

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def contains(self, hashes: Array) -> Array:
        """Return for each hash whether it is in the set."""
        found = np.zeros(len(hashes), bool)
        for run in self._runs:
            places = np.searchsorted(run, hashes)
            found |= run[np.minimum(places, len(run) - 1)] == hashes
        return found

    def add(self, hashes: Array) -> Array:
        """Add hashes; return for each whether it was new, also among those given with it."""
        unique, first_places = np.unique(hashes, return_index=True)
        fresh = ~self.contains(unique)
        is_new = np.zeros(len(hashes), bool)
        is_new[first_places[fresh]] = True
        run = unique[fresh]
        while self._runs and len(self._runs[-1]) < 2 * len(run):
            run = np.sort(np.concatenate((self._runs.pop(), run)), kind="stable")  # merges, in linear time
        if len(run):
            self._runs.append(run)
        return is_new
