"""Files of text as they come from the world: open them, decompress them, cut them into chunks of lines.

Reading is cheap and happens in one process: a ``Chunk`` is undecoded bytes that end at a line end, and decoding
it is part of the work that a pool of processes shares. Only ``\\n`` ends a line: U+2028 and its like occur
inside sentences, and a reader that splits there shifts every later pair by one.
"""

import bz2
import codecs
import io
import lzma
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import zstandard

from dragoman.data.catalogue import how_to_get
from dragoman.errors import UserError

CHUNK_BYTES = 1 << 20  # of the first side: about 9,000 lines, 0.1 s of work
BLOCK_BYTES = 1 << 18  # read from the disk at a time

# Decompressors of these libraries share one interface: decompress(), eof, unused_data.
DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    ".gz": lambda: zlib.decompressobj(wbits=31),
    ".xz": lzma.LZMADecompressor,
    ".bz2": bz2.BZ2Decompressor,
    ".zst": lambda: zstandard.ZstdDecompressor().decompressobj(),
}


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Turn what can go wrong while reading a file into a UserError that names it."""
    try:
        yield
    except FileNotFoundError as error:
        command = how_to_get(path)
        fix = (
            f"run `{command}` in this directory"
            if command
            else "correct its path (of a corpus: in [data] of the recipe)"
        )
        raise UserError("there is no such file", where=path, fix=fix) from error
    except (EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError) as error:
        raise _damaged(path, error) from error
    except OSError as error:
        if error.errno is None:  # bz2's own
            raise _damaged(path, error) from error
        raise UserError(
            f"cannot read this file ({error.strerror})", where=path, fix="give a readable file"
        ) from error


def _damaged(path: str, error: Exception) -> UserError:
    return UserError(
        f"the compressed file is damaged or cut off ({error})", where=path, fix="get the file again"
    )


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


def decode_text(data: bytes, path: str, first_line: int) -> str:
    """Return ``data`` as text; what is not UTF-8 is an error that names its line."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = first_line + data.count(b"\n", 0, error.start)
        raise UserError(
            f"not valid UTF-8 (byte 0x{data[error.start]:02x})",
            where=f"{path}, line {line}",
            fix="correct the line, or convert the file, for example with iconv -f LATIN1 -t UTF-8",
        ) from None


def decode_lines(data: bytes, path: str, first_line: int) -> list[str]:
    """Return the lines in ``data`` without their ends."""
    text = decode_text(data, path, first_line)
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
