"""Archives of others: take out the members we asked for, as streams, and nothing else.

Where a member goes is the caller's decision, never the archive's: names in it are only compared, so none can lead
outside. Links and devices are refused, and what unpacks to very much more than it was is stopped: memory stays
constant, the disk is not filled by a few kilobytes.
"""

import bz2
import gzip
import hashlib
import html
import io
import lzma
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import zstandard

from dragoman.data.formats import decompressed
from dragoman.errors import UserError
from dragoman.files import disk_errors, fsync_file

BLOCK_BYTES = 1 << 20
MEGABYTE = 1e6
LARGEST_RATIO = 200  # of unpacked to packed size; text packs to a third, at most to a thirtieth
LARGEST_SGML = 64 << 20  # read as a whole: WMT's test sets have about 1 MB
ALWAYS_ALLOWED = 16 << 20  # a small archive may hold a few very repetitive lines


class _Sips(io.FileIO):
    """A file that is read a little at a time, so that what a sip decompresses to fits into memory: 32 MB at worst."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(1024) or b""


# How each kind begins, and how to read it; gzip, bz2 and lzma decompress no more than is asked for.
MAGIC = {
    ".gz": b"\x1f\x8b",
    ".bz2": b"BZh",
    ".xz": b"\xfd7zXZ\x00",
    ".zst": b"\x28\xb5\x2f\xfd",
    ".zip": b"PK",
}
READERS: dict[str, Callable[[Any], Any]] = {
    ".gz": lambda file: gzip.GzipFile(fileobj=file),
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".zst": lambda file: decompressed(
        _Sips(file.fileno(), closefd=False), ".zst"
    ),  # its own reader overlooks a cut end
}
SHORT = {".tgz": ".tar.gz", ".tbz2": ".tar.bz2", ".txz": ".tar.xz", ".tzst": ".tar.zst"}


class ArchiveError(UserError):
    """An archive, or what was in it, is not what it should be: another origin may do better."""


@dataclass(frozen=True)
class Facts:
    """What was written."""

    lines: int
    bytes: int
    sha256: str


def wrong_kind(name: str, head: bytes) -> str | None:
    """Say so if a file that begins with ``head`` cannot be what its name promises: a page of excuses, for example."""
    expected = MAGIC.get("." + _long(name).rpartition(".")[2], b"")
    if head.startswith(expected):
        return None
    is_page = head.lstrip()[:1] == b"<"
    return f"not a {_long(name).rpartition('.')[2]} file" + (", but a web page" if is_page else "")


def unpack(archive: Path, name: str, wanted: dict[str, Path]) -> dict[str, Facts]:
    """Write members of ``archive`` to files; return lines, bytes and hash of each.

    ``name`` says by its ending what the archive is. The member "" is the content of a single compressed file. An SGML
    member is written as plain text, one segment a line, unless its file is called so too.
    """
    long_name = _long(name)
    with _damage(name):
        room = _Room(name, max(ALWAYS_ALLOWED, LARGEST_RATIO * archive.stat().st_size))
        if "" in wanted:
            with _decompressed(archive, long_name) as reader:
                return {"": write(_text(reader, name, wanted[""]), wanted[""], room)}
        if long_name.endswith(".zip"):
            facts = _unpack_zip(archive, name, wanted, room)
        else:
            facts = _unpack_tar(archive, long_name, wanted, room)
    if missing := wanted.keys() - facts.keys():
        raise ArchiveError(
            f"{', '.join(sorted(missing))} is not in the archive",
            where=name,
            fix="correct the catalogue entry",
        )
    return facts


def copy(source: Path, path: Path) -> Facts:
    """Copy a file; return its lines, bytes and hash."""
    with open(source, "rb") as reader:
        return write(iter(lambda: reader.read(BLOCK_BYTES), b""), path)


def write(blocks: Iterable[bytes], path: Path, room: "_Room | None" = None) -> Facts:
    """Write blocks to ``path``, counting."""
    lines, size, digest, last = 0, 0, hashlib.sha256(), b"\n"
    with disk_errors(path.parent), open(path, "wb") as file:
        for block in blocks:
            if room:
                room.take(len(block))
            file.write(block)
            digest.update(block)
            lines += block.count(b"\n")
            size += len(block)
            last = block[-1:] or last
        fsync_file(file)
    return Facts(lines + (last != b"\n"), size, digest.hexdigest())


@dataclass
class _Room:
    """How much an archive may still unpack to."""

    name: str
    bytes_left: int

    def take(self, size: int) -> None:
        self.bytes_left -= size
        if self.bytes_left < 0:
            raise ArchiveError(
                f"it unpacks to more than {LARGEST_RATIO} times its size",
                where=self.name,
                fix="do not trust this file; unpack it by hand if you know better, and use --from",
            )


def _long(name: str) -> str:
    for short, long in SHORT.items():
        name = name.removesuffix(short) + long if name.endswith(short) else name
    return name


@contextmanager
def _decompressed(archive: Path, name: str) -> Iterator[Any]:
    with open(archive, "rb") as file:
        kind = next((ending for ending in READERS if name.endswith(ending)), None)
        yield READERS[kind](file) if kind else file


def _unpack_tar(archive: Path, name: str, wanted: dict[str, Path], room: _Room) -> dict[str, Facts]:
    facts: dict[str, Facts] = {}
    skipped = _Room(room.name, room.bytes_left)
    with _decompressed(archive, name) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            skipped.take(member.size)  # what is passed over is decompressed too
            inside = member.name.removeprefix("./")
            if inside in wanted and inside not in facts:
                if not member.isreg():
                    raise _not_a_file(inside, name)
                reader = tar.extractfile(member)
                assert reader is not None
                facts[inside] = write(_text(reader, inside, wanted[inside]), wanted[inside], room)
                if len(facts) == len(wanted):
                    break
    return facts


def _unpack_zip(archive: Path, name: str, wanted: dict[str, Path], room: _Room) -> dict[str, Facts]:
    facts: dict[str, Facts] = {}
    with zipfile.ZipFile(archive) as zipped:
        for member in zipped.infolist():
            inside = member.filename.removeprefix("./")
            if inside in wanted and inside not in facts:
                kind = stat.S_IFMT(member.external_attr >> 16)
                if member.is_dir() or kind not in (0, stat.S_IFREG):
                    raise _not_a_file(inside, name)
                with zipped.open(member) as reader:
                    facts[inside] = write(_text(reader, inside, wanted[inside]), wanted[inside], room)
    return facts


def _not_a_file(member: str, archive: str) -> ArchiveError:
    return ArchiveError(
        f"{member} is not a plain file in the archive",
        where=archive,
        fix="do not trust this file; get it elsewhere",
    )


def _text(reader: IO[bytes], member: str, path: Path) -> Iterable[bytes]:
    """Return the blocks to write for a member."""
    is_sgml = re.search(r"\.sgml?(\.\w+)?$", member) and not re.search(r"\.sgml?$", path.name)
    return segments(reader) if is_sgml else iter(lambda: reader.read(BLOCK_BYTES), b"")


def segments(reader: IO[bytes]) -> Iterator[bytes]:
    """Yield the segments of an SGML test set, one a line, as the text they stand for."""
    data = reader.read(LARGEST_SGML + 1)
    if len(data) > LARGEST_SGML:
        raise EOFError("a test set of this size is none")
    for segment in re.findall(r"<seg\b[^>]*>(.*?)</seg>", data.decode("utf-8"), re.DOTALL | re.IGNORECASE):
        yield re.sub(r"[ \t\r\n]+", " ", html.unescape(segment)).strip(" ").encode() + b"\n"


@contextmanager
def _damage(name: str) -> Iterator[None]:
    """Turn what a damaged archive does to its reader into an ArchiveError that names it."""
    try:
        yield
    except (
        EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError, tarfile.TarError,
        zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError, RuntimeError,
    ) as error:  # fmt: skip
        raise _damaged(name, error) from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise _damaged(name, error) from error  # gzip and bz2 say so in this way


def _damaged(name: str, error: Exception) -> ArchiveError:
    return ArchiveError(
        f"the archive is damaged or not what its name says ({error})", where=name, fix="get the file again"
    )
