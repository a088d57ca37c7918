"""Text as it comes from the world: open it, read it in chunks, normalise it, say which pairs to drop.

Reading is cheap and happens in one process: a ``Chunk`` is undecoded bytes that end at a line end. Everything
that costs time (decoding, normalising, filtering) is a function of one chunk, so that a pool of processes can
share the work and the result does not depend on how many there are. Only ``\\n`` ends a line: U+2028 and its
like occur inside sentences, and a reader that splits there shifts every later pair by one.
"""

import codecs
import io
import lzma
import re
import sys
import unicodedata
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import xxhash
import zstandard

from dragoman.config import Filter
from dragoman.errors import UserError

CHUNK_BYTES = 1 << 20  # of the first side: about 9,000 lines, 0.1 s of work
BLOCK_BYTES = 1 << 18  # read from the disk at a time
MAX_EXAMPLES = 5  # dropped pairs shown of each filter
EXAMPLE_CHARS = 200
RATIO_EXEMPT_WORDS = 10  # "Thanks." may well be "Vielen herzlichen Dank an Sie alle."

# Decompressors of these three libraries share one interface: decompress(), eof, unused_data.
DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    ".gz": lambda: zlib.decompressobj(wbits=31),
    ".xz": lzma.LZMADecompressor,
    ".zst": lambda: zstandard.ZstdDecompressor().decompressobj(),
}


# Reading


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Turn what can go wrong while reading a file into a UserError that names it."""
    try:
        yield
    except FileNotFoundError as error:
        raise UserError(
            "there is no such file", where=path, fix="correct the path in [data] of the recipe"
        ) from error
    except (EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError) as error:
        raise UserError(
            f"the compressed file is damaged or cut off ({error})", where=path, fix="get the file again"
        ) from error
    except OSError as error:
        raise UserError(
            f"cannot read this file ({error.strerror})", where=path, fix="give a readable file"
        ) from error


class _Decompressed(io.RawIOBase):
    """The content of a compressed file, which may be several compressed streams one after another."""

    def __init__(self, file: io.FileIO, new_decompressor: Callable[[], Any]) -> None:
        self._blocks = self._decompress(file, new_decompressor)
        self._rest = memoryview(b"")

    @staticmethod
    def _decompress(file: io.FileIO, new_decompressor: Callable[[], Any]) -> Iterator[bytes]:
        decompressor = None
        while block := file.read(BLOCK_BYTES):
            # Some tools pad the end of a stream with zeros; no stream begins with one.
            while block := block if decompressor else block.lstrip(b"\0"):
                decompressor = decompressor or new_decompressor()
                yield decompressor.decompress(block)
                block = decompressor.unused_data if decompressor.eof else b""
                decompressor = None if decompressor.eof else decompressor
        if decompressor:
            raise EOFError("it ends in the middle")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._rest = memoryview(block)
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


def decompressed(file: io.FileIO, path: str) -> io.BufferedReader:
    """Return a reader of the text of ``file``, decompressing as the ending of ``path`` says."""
    for ending, new_decompressor in DECOMPRESSORS.items():
        if path.endswith(ending):
            return io.BufferedReader(_Decompressed(file, new_decompressor), BLOCK_BYTES)
    return io.BufferedReader(file, BLOCK_BYTES)


@dataclass(frozen=True)
class Chunk:
    """Consecutive lines of a corpus, not decoded yet: of two files side by side, or of one ``.tsv``."""

    paths: tuple[str, ...]
    first_line: int  # counted from 1
    sides: tuple[bytes, ...]
    size: int  # bytes of the file this took, compressed as it is: for progress

    @property
    def label(self) -> str:
        """The name of these lines in examples."""
        return self.paths[0]

    def decode(self) -> tuple[list[str], list[str]]:
        """Return the source and the target lines as they are, without line ends."""
        sides = [
            decode_lines(side, path, self.first_line)
            for path, side in zip(self.paths, self.sides, strict=True)
        ]
        if len(sides) == 2:
            return sides[0], sides[1]
        rows = [line.split("\t") for line in sides[0]]
        for index, row in enumerate(rows):
            if len(row) != 2:
                raise UserError(
                    f"{len(row) - 1} tabs in this line, not one",
                    where=f"{self.paths[0]}, line {self.first_line + index}",
                    fix="a .tsv has two columns, source and target, with one tab between them",
                )
        return [row[0] for row in rows], [row[1] for row in rows]


def decode_lines(data: bytes, path: str, first_line: int) -> list[str]:
    """Return the lines in ``data`` without their ends; what is not UTF-8 is an error that names its line."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = first_line + data.count(b"\n", 0, error.start)
        raise UserError(
            f"not valid UTF-8 (byte 0x{data[error.start]:02x})",
            where=f"{path}, line {line}",
            fix="correct the line, or convert the file, for example with iconv -f LATIN1 -t UTF-8",
        ) from None
    return text.removesuffix("\n").replace("\r\n", "\n").removesuffix("\r").split("\n")


def open_lines(path: Path | None) -> Iterator[str]:
    """Yield the lines of a file, or of standard input, as they come."""
    name = "standard input" if path is None else str(path)
    with reading(name), ExitStack() as stack:
        reader: Iterable[bytes] = sys.stdin.buffer
        if path is not None:
            reader = decompressed(stack.enter_context(open(path, "rb", buffering=0)), name)
        for number, line in enumerate(reader, 1):
            yield decode_lines(line.removeprefix(codecs.BOM_UTF8) if number == 1 else line, name, number)[0]


def read_chunks(paths: tuple[str, ...], chunk_bytes: int = CHUNK_BYTES) -> Iterator[Chunk]:
    """Yield the lines of one file, or of two in step, in chunks; two files must have as many lines."""
    with ExitStack() as stack:
        files, readers = [], []
        for path in paths:
            with reading(path):
                files.append(stack.enter_context(open(path, "rb", buffering=0)))
                readers.append(decompressed(files[-1], path))
        first_line, position = 1, 0
        while True:
            sides: list[list[bytes]] = []
            for path, reader in zip(paths, readers, strict=True):
                with reading(path):
                    if not sides:
                        lines = reader.readlines(chunk_bytes)
                    else:  # asked for a line even where the first file has ended, to find it longer
                        lines = list(islice(reader, len(sides[0]) or 1))
                if first_line == 1:
                    if not lines:
                        raise UserError("the file is empty", where=path, fix="give a file with text")
                    lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)
                sides.append(lines)
            if len({len(lines) for lines in sides}) > 1:
                totals = [first_line - 1 + len(lines) for lines in sides]
                raise _unequal(paths, totals, readers)
            if not sides[0]:
                return
            last_position, position = position, files[0].tell()
            yield Chunk(paths, first_line, tuple(map(b"".join, sides)), position - last_position)
            first_line += len(sides[0])


def _unequal(paths: tuple[str, ...], totals: list[int], readers: list[io.BufferedReader]) -> UserError:
    counts = []
    for path, total, reader in zip(paths, totals, readers, strict=True):
        with reading(path):
            counts.append(f"{path} has {total + sum(1 for _ in reader):,} lines")
    return UserError(
        "the two sides have different numbers of lines",
        where=", ".join(counts),
        fix="line n of one file must translate line n of the other; get or align the files again",
    )


# Normalising

# Control characters, white space other than " " and "\n", invisible marks (soft hyphen, zero-width space,
# byte-order mark, direction marks), and U+2581, which SentencePiece writes for a space. The joiners U+200C
# and U+200D stay: Persian, Indic scripts and emoji need them. One class is much faster than alternatives.
_UNWANTED = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\xa0\xad\u1680\u2000-\u200b\u200e\u200f\u2028-\u202f\u205f\u2060\u2066-\u2069"
    "\u2581\u3000\ufeff]"
)
_SPACES = re.compile(" {2,}")


def normalise(line: str) -> str:
    """Return the line in NFC, without control characters, its words parted by single spaces."""
    return normalise_lines([line.replace("\n", " ")])[0]


def normalise_lines(lines: list[str]) -> list[str]:
    """Normalise many lines, which contain no line ends: as one text, since most need no change."""
    text = _UNWANTED.sub(_space_or_nothing, "\n".join(lines))
    if "  " in text:
        text = _SPACES.sub(" ", text)
    # Last, for removing a character can bring a letter and its accent together.
    text = unicodedata.normalize("NFC", text)
    return [line.strip(" ") for line in text.split("\n")] if lines else []


def _space_or_nothing(match: re.Match[str]) -> str:
    return " " if match[0].isspace() or match[0] == "\u2581" else ""


def pair_hash(src: str, tgt: str) -> int:
    """Return 64 bits that stand for a pair. Two of 10 million agree by chance in one corpus of 370,000."""
    return xxhash.xxh3_64_intdigest(f"{src}\t{tgt}".encode())


# Filtering


def is_empty(src: str, tgt: str, settings: Filter) -> bool:
    """One side says nothing."""
    return not src or not tgt


def is_lopsided(src: str, tgt: str, settings: Filter) -> bool:
    """One side has many times the words of the other, and at least ten.

    Words are what spaces part: for a language written without them, raise ``max_ratio``.
    """
    fewer, more = sorted((src.count(" ") + 1, tgt.count(" ") + 1))
    return more >= RATIO_EXEMPT_WORDS and more > settings.max_ratio * fewer


def is_identical(src: str, tgt: str, settings: Filter) -> bool:
    """The translation is the sentence itself."""
    return settings.identical and src == tgt


# Filters that look at the normalised text of one pair, in the order they are applied; True drops it. Two more
# need other knowledge and come after: "duplicate" (all pairs before) and "too_long" (the vocabulary).
FILTERS: dict[str, Callable[[str, str, Filter], bool]] = {
    "empty": is_empty,
    "ratio": is_lopsided,
    "identical": is_identical,
}
DUPLICATE, TOO_LONG = "duplicate", "too_long"
FILTER_NAMES = (*FILTERS, DUPLICATE, TOO_LONG)


# Counting


@dataclass
class Tally:
    """What became of the lines of a corpus, or of a part: tallies of parts add up to that of the whole."""

    lines: int = 0
    pairs: int = 0  # kept
    chars: list[int] = field(default_factory=lambda: [0, 0])  # of kept pairs, by side, as the next two
    bytes: list[int] = field(default_factory=lambda: [0, 0])
    tokens: list[int] = field(default_factory=lambda: [0, 0])
    dropped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[dict[str, str]]] = field(default_factory=dict)

    def keep(self, src: list[str], tgt: list[str], tokens: Sequence[int]) -> None:
        """Count pairs that stay, with the sums of their tokens by side."""
        self.pairs += len(src)
        for side, lines in enumerate((src, tgt)):
            text = "".join(lines)
            self.chars[side] += len(text)
            self.bytes[side] += len(text.encode())
            self.tokens[side] += int(tokens[side])

    def drop(self, name: str, place: str, src: str, tgt: str) -> None:
        """Count a pair that the filter ``name`` dropped, and keep it if it is among the first."""
        self.dropped[name] += 1
        self._keep_examples(name, [{"where": place, "src": src[:EXAMPLE_CHARS], "tgt": tgt[:EXAMPLE_CHARS]}])

    def add(self, other: "Tally") -> None:
        """Add what comes after in the corpus."""
        self.lines += other.lines
        self.pairs += other.pairs
        for side in (0, 1):
            self.chars[side] += other.chars[side]
            self.bytes[side] += other.bytes[side]
            self.tokens[side] += other.tokens[side]
        self.dropped += other.dropped
        for name, examples in other.examples.items():
            self._keep_examples(name, examples)

    def counts(self) -> dict[str, Any]:
        """Return the numbers by name."""
        names = ("lines", "pairs", "chars", "bytes", "tokens")
        return {**{name: getattr(self, name) for name in names}, "dropped": dict(self.dropped)}

    def _keep_examples(self, name: str, examples: list[dict[str, str]]) -> None:
        kept = self.examples.setdefault(name, [])
        kept += examples[: MAX_EXAMPLES - len(kept)]
