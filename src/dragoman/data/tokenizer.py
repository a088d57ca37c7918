"""Subwords: one SentencePiece BPE vocabulary for both languages.

Text is normalised before it comes here (``text.normalise``), so SentencePiece's own normalisation is off. The
first four pieces are the same in every vocabulary, and the number of pieces that a model sees is a multiple
of 8, which matrix multiplication likes: what is missing is filled up with pieces that never occur.

The vocabulary of a multilingual model has a piece for each target language, the tag. A source line names its
target by beginning with the word ``<2de>``; nothing else that reads like a tag becomes one.
"""

import io
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import sentencepiece

from dragoman.errors import UserError

PAD, UNK, BOS, EOS = 0, 1, 2, 3
MULTIPLE = 8
# Unknown characters are spelled in bytes, so that any text can be translated. That takes 256 pieces: too many
# of a small vocabulary, which is a toy anyway.
BYTE_FALLBACK_SIZE = 4000
MAX_CACHED_WORDS = 1 << 19  # about 100 MB


def tag(language: str) -> str:
    """Return the word that a source line begins with to be translated into ``language``."""
    return f"<2{language}>"


def language_of(tag: str) -> str:
    """Return the language of a tag."""
    return tag.removeprefix("<2").removesuffix(">")


def tagged(lines: list[str], language: str | None) -> list[str]:
    """Put the tag of a language before each line, or nothing where there is no need to name it."""
    return lines if language is None else [f"{tag(language)} {line}" for line in lines]


def train(
    sentences: Iterable[str], size: int, character_coverage: float = 1.0, tags: Sequence[str] = ()
) -> bytes:
    """Learn a vocabulary of at most ``size`` pieces (rounded up to a multiple of 8); return the model file.

    The result depends on the sentences, their order and the languages to make ``tags`` for. A small text gives
    a smaller vocabulary.
    """
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            model_type="bpe",
            vocab_size=padded(size),
            hard_vocab_limit=False,
            byte_fallback=size >= BYTE_FALLBACK_SIZE,
            character_coverage=character_coverage,
            normalization_rule_name="identity",
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            control_symbols=list(map(tag, tags)),  # such symbols are never made from text
            num_threads=1,  # BPE gains nothing from more, and the number would be written into the model
            minloglevel=3,
        )
    except RuntimeError as error:
        raise UserError(
            f"SentencePiece cannot learn a vocabulary of {size:,} pieces: {_message(error)}",
            where="[vocab] size",
            fix="raise vocab.size above the number of different characters, or lower character_coverage",
        ) from error
    return model.getvalue()


def _message(error: RuntimeError) -> str:
    """Return what SentencePiece says without the place in its source."""
    text = re.sub(r"^.*?\.cc\(\d+\) \[.*?\]\s+", "", str(error) + " ").strip()
    return text.split(" Increase ")[0] or "there is no text of usual length"


def padded(size: int) -> int:
    """Round up to the next multiple of 8."""
    return -(-size // MULTIPLE) * MULTIPLE


class _Words(dict[str, bytes]):
    """The packed ids of words, computed when a word is first asked for."""

    def __init__(self, encode: Callable[[str], bytes]) -> None:
        self._encode = encode

    def __missing__(self, word: str) -> bytes:
        packed = self[word] = self._encode(word)
        return packed


class Tokenizer:
    """A trained vocabulary: text to ids or pieces, and back."""

    def __init__(self, model: bytes) -> None:
        self._model = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.num_pieces: int = self._model.get_piece_size()
        self.size = padded(self.num_pieces)
        self._padding = [f"<unused{i}>" for i in range(self.size - self.num_pieces)]
        self.dtype: type[np.unsignedinteger] = np.uint16 if self.size <= 1 << 16 else np.uint32
        # The pieces after the first four: tags, which are control symbols, then bytes, then text.
        controls = takewhile(self._model.is_control, range(EOS + 1, self.num_pieces))
        self._tag_ids = {self._model.id_to_piece(id_): id_ for id_ in controls}
        self.tags = tuple(map(language_of, self._tag_ids))
        self.byte_fallback = bool(self._model.is_byte(EOS + 1 + len(self.tags)))
        self._unknown = [i for i in range(self.num_pieces) if i == UNK or self._model.is_byte(i)]
        self._words = _Words(lambda word: np.array(self._model.encode(word), self.dtype).tobytes())

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Read a ``sentencepiece.model``."""
        return cls(path.read_bytes())

    def pieces(self) -> list[str]:
        """Return the text of every id, the unused ones at the end included."""
        return [self._model.id_to_piece(i) for i in range(self.num_pieces)] + self._padding

    def split_tag(self, line: str) -> tuple[str, str]:
        """Return the tag that a source line begins with, or nothing, and the rest of the line."""
        word, _, rest = line.partition(" ")
        return (word, rest) if word in self._tag_ids else ("", line)

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each source line with end-of-sentence."""
        split = [self.split_tag(line) for line in lines]
        texts = [text for _, text in split]
        ids: list[list[int]] = self._model.encode(texts, out_type=int, add_eos=True, num_threads=1)
        for (word, _), each in zip(split, ids, strict=True):
            if word:
                each.insert(0, self._tag_ids[word])
        return ids

    def encode_packed(self, lines: Sequence[str], language: str | None = None) -> list[bytes]:
        """Return the ids of lines of text with end-of-sentence, as bytes of arrays of ``dtype``.

        This is faster than ``encode`` the longer the text. With a ``language``, each line gets its tag; the
        lines themselves have none, and what reads like one is text.

        No piece reaches over a space, so a line is encoded word by word, and most words were seen before.
        """
        words = self._words.__getitem__
        begin = np.array([self._tag_ids[tag(language)]] if language else [], self.dtype).tobytes()
        end = np.array([EOS], self.dtype).tobytes()
        packed = [b"".join([begin, *map(words, line.split(" ")), end]) for line in lines]
        if len(self._words) > MAX_CACHED_WORDS:
            self._words.clear()  # the frequent ones are back after one chunk
        return packed

    def packed_lengths(self, src: Sequence[bytes], tgt: Sequence[bytes]) -> npt.NDArray[np.int32]:
        """Return the number of ids of packed lines: (n, 2), source and target."""
        num_bytes = np.array([list(map(len, src)), list(map(len, tgt))], np.int32).T
        return num_bytes // np.dtype(self.dtype).itemsize

    def count(self, packed: bytes) -> npt.NDArray[np.int64]:
        """Return how often each id occurs in packed lines."""
        return np.bincount(np.frombuffer(packed, self.dtype), minlength=self.size)

    def count_unknown(self, counts: npt.NDArray[np.int64]) -> int:
        """Return how many of counted ids stand for something unknown: unknown itself, or a byte of it."""
        return int(counts[self._unknown].sum())

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without what is not text (padding, end-of-sentence, unused pieces)."""
        text: str = self._model.decode([int(i) for i in ids if i < self.num_pieces])
        return text
