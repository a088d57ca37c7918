"""The two passes over the training text, as functions of one chunk: what the workers of the pool run.

    clean    chunk  → normalised pairs that pass the rules on text, compressed, and hashes of each
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
from dragoman.data.overlap import Found, HeldOut
from dragoman.data.rules import DUPLICATE, NEAR_DUPLICATE, OVERLAP, TOO_LONG, Pairs, first_to_drop, is_off
from dragoman.data.shards import Array
from dragoman.data.spool import Cleaned, Frame
from dragoman.data.tally import Tally
from dragoman.data.text import normalise_lines
from dragoman.data.tokenizer import Tokenizer, train

FATES = ("", DUPLICATE, NEAR_DUPLICATE)  # of a row of the spool: it is encoded, or dropped by this rule
NEW = 0


@dataclass(frozen=True)
class Encoded:
    """A frame after the second pass: token ids, sentence after sentence."""

    src: bytes
    tgt: bytes
    lengths: Array  # int32 (n, 2)
    used: Array  # uint8: one bit for each subword, whether it occurs
    tally: Tally


def clean(chunk: Lines, corpus: int, settings: Filter, languages: tuple[str, str], held_out: Path) -> Cleaned:
    """Normalise the pairs of a chunk, and apply the rules that need no more than them, dev and test."""
    src, tgt = map(normalise_lines, chunk.decode())
    pairs = Pairs(src, tgt, languages)
    dropped = first_to_drop(pairs, settings)
    found, overlapping = Found(), set()
    for match in HeldOut.load(held_out).matches(pairs):
        if match.row not in dropped:
            found.note(match)
            if match.row not in overlapping:
                place = f"{chunk.label}:{chunk.first_line + match.row}"
                found.show(match, place, src[match.row], tgt[match.row])
                overlapping.add(match.row)
    if settings.overlap:
        dropped |= dict.fromkeys(overlapping, OVERLAP)
    tally = Tally(lines=len(pairs))
    for row, name in sorted(dropped.items()):
        tally.drop(name, f"{chunk.label}:{chunk.first_line + row}", src[row], tgt[row])
    kept = [row for row in range(len(pairs)) if row not in dropped]
    text = "\n".join([f"{chunk.first_line + row}\t{src[row]}\t{tgt[row]}" for row in kept])
    return Cleaned(
        corpus=corpus,
        label=chunk.label,
        size=chunk.size,
        frame=zstandard.compress(text.encode(), level=1),
        hashes=np.stack((pairs.exact_hashes, pairs.near_hashes))[:, kept],
        overlaps=[place for place, row in enumerate(kept) if row in overlapping],
        tally=tally,
        found=found,
    )


class Seen:
    """The pairs of all chunks so far: says of those of the next one which are new."""

    def __init__(self, settings: Filter) -> None:
        self._settings = settings
        self._exact, self._near = HashSet(), HashSet()

    def fates(self, hashes: Array) -> Array:
        """Return what is to become of each row of a chunk, as an index of FATES: uint8."""
        exact, near = hashes
        fates = np.zeros(len(exact), np.uint8)
        if not is_off(NEAR_DUPLICATE, self._settings):
            fates[~self._near.add(near) & (near != 0)] = FATES.index(NEAR_DUPLICATE)
        if not is_off(DUPLICATE, self._settings):
            fates[~self._exact.add(exact)] = FATES.index(DUPLICATE)
        return fates


def count_new(frames: Sequence[Frame]) -> int:
    """Return the number of pairs that are left to encode."""
    return sum(int((frame.fates == NEW).sum()) for frame in frames)


def learn(frames: Sequence[Frame], spool: Path, settings: Vocab, tags: Sequence[str] = ()) -> bytes:
    """Return the model file of a vocabulary learned from a sample of the spool, with the tags of languages."""
    sentences = sample(frames, spool, settings.sample_pairs)
    return train(sentences, settings.size, settings.character_coverage, tags)


def sample(frames: Sequence[Frame], spool: Path, wanted: int) -> Iterator[str]:
    """Yield both sides of ``wanted`` of the new pairs, spread evenly, or of all if there are fewer."""
    total = count_new(frames)
    index = 0
    for frame in frames:
        for fate, (_, src, tgt) in zip(frame.fates.tolist(), frame.rows(spool), strict=True):
            if fate == NEW:
                if index * wanted % total < wanted:
                    yield src
                    yield tgt
                index += 1


def encode(frame: Frame, spool: Path, model: Path, max_length: int) -> Encoded:
    """Encode the new pairs of a frame and drop those that are too long."""
    tokenizer = _tokenizer(model)
    tally = Tally()
    rows: list[list[str]] = []
    overlaps, overlapping = set(), set(frame.overlaps)
    for place, (fate, row) in enumerate(zip(frame.fates.tolist(), frame.rows(spool), strict=True)):
        if fate == NEW:
            if place in overlapping:
                overlaps.add(len(rows))
            rows.append(row)
        else:
            tally.drop(FATES[fate], f"{frame.label}:{row[0]}", row[1], row[2])
    src = tokenizer.encode_packed([row[1] for row in rows], frame.tag)
    tgt = tokenizer.encode_packed([row[2] for row in rows])
    lengths = tokenizer.packed_lengths(src, tgt)
    fits = (lengths <= max_length).all(axis=1)
    for index in np.flatnonzero(~fits):
        number, *sides = rows[index]
        tally.drop(TOO_LONG, f"{frame.label}:{number}", *sides)
    kept = np.flatnonzero(fits).tolist()
    tally.overlapping = len(overlaps.intersection(kept))
    packed_src, packed_tgt = (b"".join([side[index] for index in kept]) for side in (src, tgt))
    counts = tokenizer.count(packed_src), tokenizer.count(packed_tgt)
    src_text, tgt_text = ([rows[index][side] for index in kept] for side in (1, 2))
    tally.keep(src_text, tgt_text, lengths[fits], list(map(tokenizer.count_unknown, counts)), max_length)
    return Encoded(packed_src, packed_tgt, lengths[fits], np.packbits(counts[0] + counts[1] > 0), tally)


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
