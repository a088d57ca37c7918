"""Subword regularisation: BPE-dropout (Provilkov et al. 2020), drawn anew for every pair in every epoch.

BPE merges adjacent symbols, the best pair first, until no two of them make a piece. With dropout every possible merge
is passed over with some probability each time the best is looked for: the same word is cut in many ways, and the
model learns from all of them.

What a pair looks like depends on (vocabulary, seed, epoch, pair) alone: not on the worker that reads it, nor on what
was read before. SentencePiece samples too, but from one generator for the whole process, so merging is done here, in
the order SentencePiece has. No piece reaches over a space, so a word is the unit: it has ``VARIANTS`` segmentations,
each found when first drawn and remembered, and a sentence is a draw for each of its words.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from hashlib import shake_128
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt
import sentencepiece

from dragoman.data.shards import Array, Split

VARIANTS = 32  # of a word, a power of two; with a probability of 0.1 about half are the ordinary one
MAX_CACHED_VARIANTS = 1 << 19  # about 120 MB
NEVER = 1 << 62  # rank of what is no piece
SPACE = "▁"  # how SentencePiece writes the space before a word

Hashes = npt.NDArray[np.uint64]
# Of a merge: the rank of the piece it makes, the place of the left symbol, and its length.
Candidate = tuple[int, int, int]


def merge(letters: str, ranks: Mapping[str, int], skip: Callable[[], bool]) -> list[str]:
    """Merge letters into pieces, the lowest rank first and of equals the leftmost; return what is left.

    Each candidate that comes up is skipped if ``skip`` says so, and comes back after the next merge; when all are
    skipped, that is the end.
    """
    symbols = list(letters)
    found = [ranks.get(left + right, NEVER) for left, right in pairwise(symbols)]
    skipped: list[int] = []
    while found and (best := min(found)) != NEVER:
        place = found.index(best)
        if skip():
            found[place] = NEVER
            skipped.append(place)
            continue
        symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]
        del found[place]
        for other in (place - 1, place, *(each - (each > place) for each in skipped)):
            if 0 <= other < len(found):
                found[other] = ranks.get(symbols[other] + symbols[other + 1], NEVER)
        skipped.clear()
    return symbols


class Merges:
    """A SentencePiece BPE vocabulary as merging needs it."""

    def __init__(self, model: bytes) -> None:
        """``model`` is the content of a ``sentencepiece.model``."""
        read = sentencepiece.SentencePieceProcessor(model_proto=model)
        numbers = range(read.get_piece_size())
        self.texts: list[str] = [read.id_to_piece(i) for i in numbers]
        special = (read.is_control, read.is_unknown, read.is_byte, read.is_unused)
        ordinary = [i for i in numbers if not any(test(i) for test in special)]
        by_text = {self.texts[i]: i for i in ordinary}
        # What no merge can make (a symbol that the user defined) is never taken apart either.
        self.ids = {text: i for text, i in by_text.items() if _can_be_merged(text, by_text)}
        best_first = sorted(self.ids.values(), key=lambda i: (-read.get_score(i), i))
        self.ranks = {self.texts[i]: rank for rank, i in enumerate(best_first) if len(self.texts[i]) > 1}
        # An id that is no ordinary piece (end-of-sentence, a tag, an unknown character, a byte) is a word of its own.
        known = set(self.ids.values())
        self.is_alone = np.array([i not in known for i in numbers])
        self.begins_word = self.is_alone | [text.startswith(SPACE) for text in self.texts]

    def letters(self, word: Sequence[int]) -> str:
        """Return the text of a word, given as ids, if it can be merged of letters; nothing if not."""
        return "" if self.is_alone[word[0]] else "".join(map(self.texts.__getitem__, word))


def _can_be_merged(text: str, pieces: Mapping[str, int]) -> bool:
    """Whether a text is a letter, or two pieces beside each other, of letters that are pieces."""
    cuts = range(1, len(text))
    return len(text) == 1 or (
        all(letter in pieces for letter in text)
        and any(text[:cut] in pieces and text[cut:] in pieces for cut in cuts)
    )


class Variants(dict[tuple[bytes, int], bytes]):
    """The segmentations of words, by the word's ids and the variant's number: pure functions of both, remembered."""

    def __init__(self, merges: Merges, probability: float, dtype: np.dtype[np.unsignedinteger]) -> None:
        self._merges, self._threshold = merges, round(probability * 2**32)
        self._type: Literal["H", "I"] = "H" if dtype.itemsize == 2 else "I"

    def __missing__(self, key: tuple[bytes, int]) -> bytes:
        packed = self[key] = self.segment(*key)
        return packed

    def segment(self, packed: bytes, variant: int) -> bytes:
        """Return a variant of a word; both are the bytes of ids."""
        word = memoryview(packed).cast(self._type)
        letters = self._merges.letters(word)
        if len(letters) < 2:
            return packed
        # Before the merge that leaves k symbols there are at most k candidates, and each comes up at most once.
        most_draws = len(letters) * (len(letters) - 1) // 2
        draws = memoryview(shake_128(packed + bytes([variant])).digest(4 * most_draws)).cast("I")
        skips = list(map(self._threshold.__gt__, draws))
        if not any(skips[: len(letters) - len(word)]):
            return packed  # every merge is made as it comes up: the ordinary segmentation
        pieces = merge(letters, self._merges.ranks, iter(skips).__next__)
        return array(self._type, map(self._merges.ids.__getitem__, pieces)).tobytes()


class Dropout:
    """Training pairs, each epoch with other segmentations."""

    def __init__(self, split: Split, model: bytes, *, probability: float, seed: int, max_length: int) -> None:
        """A side that would be longer than ``max_length`` keeps its ordinary segmentation."""
        self.split, self.seed, self.max_length = split, seed, max_length
        self.merges = Merges(model)
        self.variants = Variants(self.merges, probability, split.dtype)

    def epoch(self, number: int) -> "Epoch":
        """Return the pairs as they are in an epoch."""
        return Epoch(self, number)


class Epoch:
    """The pairs of a split as one epoch sees them; can be read as the split itself can."""

    def __init__(self, dropout: Dropout, number: int) -> None:
        self._dropout, self._number = dropout, number

    def gather(self, indices: Array, side: int) -> list[Array]:
        """Return token ids of these pairs on a side (0 source, 1 target), segmented for this epoch."""
        dropout = self._dropout
        ordinary = dropout.split.gather(indices, side)
        tokens = np.concatenate(ordinary)
        ends = np.cumsum([len(each) for each in ordinary])
        starts = word_starts(tokens, ends, dropout.merges)
        # Of every sentence: its first word's number. Then of every word: its sentence, and its place there.
        first_words = np.searchsorted(starts, [0, *ends])
        counts = np.diff(first_words)
        places = np.arange(len(starts)) - np.repeat(first_words[:-1], counts)
        seed = np.random.SeedSequence([dropout.seed, self._number, side]).generate_state(1, np.uint64)
        sentences = scramble(seed.astype(np.uint64) + indices.astype(np.uint64))
        draws = scramble(np.repeat(sentences, counts) + places.astype(np.uint64)) % np.uint64(VARIANTS)

        if len(dropout.variants) > MAX_CACHED_VARIANTS:
            dropout.variants.clear()  # the frequent ones are soon back
        packed, size = tokens.tobytes(), tokens.itemsize
        edges = (np.append(starts, len(tokens)) * size).tolist()
        words = [packed[start:end] for start, end in pairwise(edges)]
        drawn = list(map(dropout.variants.__getitem__, zip(words, draws.tolist(), strict=True)))
        sampled = [
            np.frombuffer(b"".join(drawn[start:end]), tokens.dtype)
            for start, end in pairwise(first_words.tolist())
        ]
        return [
            new if len(new) <= dropout.max_length else old for new, old in zip(sampled, ordinary, strict=True)
        ]


def word_starts(tokens: Array, ends: Array, merges: Merges) -> Array:
    """Return where words begin in the tokens of sentences that end at ``ends``, one after another."""
    begins = merges.begins_word[tokens]
    begins[1:] |= merges.is_alone[tokens[:-1]]
    begins[0] = True
    begins[ends[:-1]] = True
    return np.flatnonzero(begins)


def scramble(numbers: Hashes) -> Hashes:
    """Return 64 well-mixed bits for each number (the finaliser of SplitMix64, Steele et al. 2014)."""
    mixed = numbers + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
