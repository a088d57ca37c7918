"""Where pairs come from: text files, or the built-in corpus; and what identifies their content.

A corpus yields chunks, and a chunk decodes itself into source and target lines. Files are identified by the
hash of their bytes, so a file that moves is still the same corpus; hashes are remembered by the file's size,
time and inode, so that only new files are read. What is said *about* a corpus comes from the recipe, or from
the ``sources.json`` that ``dragoman data get`` writes beside the files it fetched.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol

import xxhash

from dragoman import config
from dragoman import corpus as named
from dragoman.corpus import BUILTIN, COMPRESSIONS, SGML, ending
from dragoman.data import builtin, grammar, lexicon, patterns
from dragoman.data.catalogue import SOURCES
from dragoman.data.formats import BLOCK_BYTES, read_chunks, reading
from dragoman.data.testsets import read_sgml, read_xml
from dragoman.data.tmx import read_tmx
from dragoman.errors import UserError
from dragoman.files import read_json, write_json

HASHES = "hashes.json"  # in the directory of datasets
SPLITS = ("train", "dev", "test")
BUILTIN_PAIRS = {"train": 60_000, "dev": 500, "test": 1_000}
BUILTIN_CHUNK_PAIRS = 5_000


@dataclass(frozen=True)
class About:
    """What there is to say about a corpus beside its text."""

    name: str
    src_lang: str = "en"
    tgt_lang: str = "de"
    tag: str | None = None  # the target language that its source lines are to name, in a multilingual dataset
    weight: float = 1.0
    licence: str | None = None
    source: str | None = None

    @property
    def languages(self) -> tuple[str, str]:
        return self.src_lang, self.tgt_lang

    def facts(self) -> dict[str, Any]:
        """Return what the manifest says of it."""
        return {
            "name": self.name,
            "languages": {"src": self.src_lang, "tgt": self.tgt_lang},
            "weight": self.weight,
            "licence": self.licence,
            "source": self.source,
        }


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
    def about(self) -> About:
        """Its name, languages, weight and origin."""

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
    """Two files, or one that holds both sides, of a format that the ending of the first tells."""

    paths: tuple[str, ...]
    about: About
    keep_partial: bool = False  # also units that lack a side, for the rules to drop and count

    def size(self) -> int:
        return os.path.getsize(self.paths[0])

    def chunks(self) -> Iterator[Lines]:
        languages = self.about.languages
        match [ending(path) for path in self.paths]:
            case [".tmx"]:
                return read_tmx(self.paths[0], languages, keep_partial=self.keep_partial)
            case [".xml"]:
                return read_xml(self.paths[0], languages)
            case [src, _] if src in SGML:
                return read_sgml(self.paths)
        return read_chunks(self.paths)

    def identity(self, hashes: "Hashes") -> list[Any]:
        return [hashes.of(path) for path in self.paths]


@dataclass(frozen=True)
class BuiltinLines:
    """A range of the built-in corpus, written where it is decoded."""

    split: str
    first_line: int
    size: int
    reverse: bool = False

    @property
    def label(self) -> str:
        return f"{BUILTIN}/{self.split}"

    def decode(self) -> tuple[list[str], list[str]]:
        pairs = list(builtin.sentences(self.split, self.size, start=self.first_line - 1))
        english, german = [src for src, _ in pairs], [tgt for _, tgt in pairs]
        return (german, english) if self.reverse else (english, german)


@dataclass(frozen=True)
class BuiltinCorpus:
    """The first pairs of a split of the corpus that Dragoman writes itself: English and German, or the reverse."""

    split: str
    pairs: int
    about: About = About(BUILTIN)

    @property
    def paths(self) -> tuple[str, ...]:
        return (f"{BUILTIN}/{self.split}",)

    def size(self) -> int:
        return self.pairs

    def chunks(self) -> Iterator[Lines]:
        reverse = self.about.languages == ("de", "en")
        for start in range(0, self.pairs, BUILTIN_CHUNK_PAIRS):
            pairs = min(BUILTIN_CHUNK_PAIRS, self.pairs - start)
            yield BuiltinLines(self.split, start + 1, pairs, reverse)

    def identity(self, hashes: "Hashes") -> list[Any]:
        return [BUILTIN, self.split, self.pairs, _builtin_hash()]


@cache
def _builtin_hash() -> str:
    sources = [Path(str(module.__file__)).read_bytes() for module in (builtin, patterns, grammar, lexicon)]
    return xxhash.xxh3_128_hexdigest(b"".join(sources))


def corpora(recipe: config.Recipe) -> dict[str, list[Corpus]]:
    """Return the corpora of each split that the recipe names."""
    data = recipe.data
    named = {"train": data.train, "dev": data.dev, "test": data.test or ()}
    return {
        split: [_corpus(split, corpus, _about(corpus, data)) for corpus in each]
        for split, each in named.items()
        if each
    }


def _corpus(split: str, corpus: named.Corpus, about: About) -> Corpus:
    name, _, pairs = corpus.files[0].partition(":")
    if name == BUILTIN:
        return BuiltinCorpus(split, int(pairs) if pairs else BUILTIN_PAIRS[split], about)
    return FileCorpus(corpus.files, about, keep_partial=split == "train")


def _about(corpus: named.Corpus, data: config.Data) -> About:
    known = _known_sources(corpus.files)
    src_lang, tgt_lang = data.languages(corpus)
    return About(
        name=corpus.name or known.get("corpus") or _name(corpus.files),
        src_lang=src_lang,
        tgt_lang=tgt_lang,
        tag=tgt_lang if data.tags else None,
        weight=corpus.weight,
        licence=corpus.licence or known.get("licence"),
        source=corpus.source or known.get("source"),
    )


def _name(files: tuple[str, ...]) -> str:
    """Return the words that the names of the files begin with alike."""
    names = [os.path.basename(path) for path in files]
    for compression in COMPRESSIONS:
        names = [name.removesuffix(compression) for name in names]
    if len(names) == 1:
        return os.path.splitext(names[0].partition(":")[0])[0]
    words = zip(*(re.split(r"([._-])", name) for name in names), strict=False)
    alike = "".join(src for src, _ in takewhile(lambda pair: pair[0] == pair[1], words))
    return alike.rstrip("._-") or names[0]


def _known_sources(files: tuple[str, ...]) -> dict[str, Any]:
    """Return what is on record beside the files about the first that is on record, or nothing."""
    for path in files:
        record = Path(path).parent / SOURCES
        try:
            entry = read_json(record)["files"].get(os.path.basename(path))
        except OSError:  # mostly: there is none
            continue
        except (ValueError, LookupError, TypeError, AttributeError):
            raise UserError(
                f"{SOURCES} cannot be read",
                where=str(record),
                fix="get the corpus again, or delete this file",
            ) from None
        if isinstance(entry, dict):
            return entry
    return {}


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
