"""Where pairs come from: text files, or the built-in corpus; and what identifies their content.

A corpus yields chunks, and a chunk decodes itself into source and target lines. Files are identified by the
hash of their bytes, so a file that moves is still the same corpus; hashes are remembered by the file's size,
time and inode, so that only new files are read.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import xxhash

from dragoman.config import BUILTIN, Corpora, Recipe
from dragoman.data import builtin, grammar, lexicon, patterns
from dragoman.data.formats import BLOCK_BYTES, read_chunks, reading
from dragoman.files import read_json, write_json

HASHES = "hashes.json"  # in the directory of datasets
SPLITS = ("train", "dev", "test")
BUILTIN_PAIRS = {"train": 60_000, "dev": 500, "test": 1_000}
BUILTIN_CHUNK_PAIRS = 5_000


class Lines(Protocol):
    """Consecutive pairs of a corpus, as cheap to send to another process as can be."""

    @property
    def label(self) -> str:
        """The name of the corpus in examples."""

    @property
    def first_line(self) -> int:
        """The number of the first pair, counted from 1."""

    @property
    def size(self) -> int:
        """How much of the corpus this is, in the corpus' own unit: for progress."""

    def decode(self) -> tuple[list[str], list[str]]:
        """Return the source and the target lines as they are."""


class Corpus(Protocol):
    """One source of pairs."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The files, or the name, that the user gave."""

    def size(self) -> int:
        """The sum of the sizes of all chunks, or nearly."""

    def chunks(self) -> Iterator[Lines]:
        """Yield the pairs in order; how they are cut never depends on the machine."""

    def identity(self, hashes: "Hashes") -> list[Any]:
        """Return values that differ when the content differs."""


@dataclass(frozen=True)
class FileCorpus:
    """Two aligned files, or one two-column ``.tsv``."""

    paths: tuple[str, ...]

    def size(self) -> int:
        return os.path.getsize(self.paths[0])

    def chunks(self) -> Iterator[Lines]:
        return read_chunks(self.paths)

    def identity(self, hashes: "Hashes") -> list[Any]:
        return [hashes.of(path) for path in self.paths]


@dataclass(frozen=True)
class BuiltinLines:
    """A range of the built-in corpus, written where it is decoded."""

    split: str
    first_line: int
    size: int

    @property
    def label(self) -> str:
        return f"{BUILTIN}/{self.split}"

    def decode(self) -> tuple[list[str], list[str]]:
        pairs = list(builtin.sentences(self.split, self.size, start=self.first_line - 1))
        return [src for src, _ in pairs], [tgt for _, tgt in pairs]


@dataclass(frozen=True)
class BuiltinCorpus:
    """The first pairs of a split of the corpus that Dragoman writes itself."""

    split: str
    pairs: int

    @property
    def paths(self) -> tuple[str, ...]:
        return (f"{BUILTIN}/{self.split}",)

    def size(self) -> int:
        return self.pairs

    def chunks(self) -> Iterator[Lines]:
        for start in range(0, self.pairs, BUILTIN_CHUNK_PAIRS):
            yield BuiltinLines(self.split, start + 1, min(BUILTIN_CHUNK_PAIRS, self.pairs - start))

    def identity(self, hashes: "Hashes") -> list[Any]:
        return [BUILTIN, self.split, self.pairs, _builtin_hash()]


@cache
def _builtin_hash() -> str:
    sources = [Path(str(module.__file__)).read_bytes() for module in (builtin, patterns, grammar, lexicon)]
    return xxhash.xxh3_128_hexdigest(b"".join(sources))


def corpora(recipe: Recipe) -> dict[str, list[Corpus]]:
    """Return the corpora of each split that the recipe names."""
    return {
        split: list(_corpora(split, value))
        for split in SPLITS
        if (value := getattr(recipe.data, split)) is not None
    }


def _corpora(split: str, value: Corpora) -> Iterator[Corpus]:
    if isinstance(value, str):
        pairs = value.partition(":")[2]
        yield BuiltinCorpus(split, int(pairs) if pairs else BUILTIN_PAIRS[split])
        return
    for item in value:
        yield FileCorpus((item,) if isinstance(item, str) else item)


class Hashes:
    """Hashes of files by content, remembered in the directory of datasets."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / HASHES
        self._known: dict[str, list[Any]] = {}
        with suppress(OSError, ValueError):
            self._known = dict(read_json(self._path))
        self._saved = dict(self._known)

    def of(self, path: str) -> str:
        """Return 128 bits of hash of the file's bytes."""
        with reading(path), open(path, "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            signature = [status.st_size, status.st_mtime_ns, status.st_ino]
            key = os.path.abspath(path)
            *known, digest = self._known.get(key, [""])
            if known == signature:
                return str(digest)
            hasher = xxhash.xxh3_128()
            while block := file.read(4 * BLOCK_BYTES):
                hasher.update(block)
        self._known[key] = [*signature, hasher.hexdigest()]
        return hasher.hexdigest()

    def save(self) -> None:
        """Remember the hashes, if the directory is there and can be written to."""
        if self._path.parent.is_dir() and self._known != self._saved:
            with suppress(OSError):
                write_json(self._path, self._known)
