"""Receiving a dataset: ``python -m dragoman.cluster.receive`` runs on a host, led by ``send.py`` over pipes.

In comes a line of JSON that says where the dataset belongs, then its manifest, then pieces of files, each a line of
JSON and the bytes that it announces. Out go marked lines: what is wanted, how far it is, how it ended. Files arrive
in a hidden directory beside the dataset's. When the sending is cut off, they stay there, and the next sending goes
on where this one was. Every file is compared with its checksum before the directory gets its name.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import select
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import zstandard

from dragoman import __version__
from dragoman.cluster.survey import say
from dragoman.data.shards import LOCK, MANIFEST, Dataset, unfinished
from dragoman.errors import ExitCode, UserError
from dragoman.files import beside, disk_errors, fsync_file, publish_directory

VERSION = 1  # of what is said between the two
PIECE_BYTES = 1 << 18  # of a file: about a second of a link of 2 Mbit/s
READ_BYTES = 1 << 20
SILENCE_SECONDS = 120.0  # after which a sender is taken for dead, and the directory let go
SIGN_SECONDS = 5.0  # between signs of life
TIMES = 2  # that a file is sent at most

Tell = Callable[..., None]


class SenderGone(Exception):
    """Nothing comes any more; what has arrived stays."""


class Input:
    """What the sender says: lines and raw bytes, on one stream, which does not stay silent for long."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._buffer = descriptor, bytearray()

    def line(self) -> Any:
        """Read a line of JSON."""
        while b"\n" not in self._buffer:
            self._fill()
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def exactly(self, count: int) -> bytes:
        """Read so many bytes."""
        while len(self._buffer) < count:
            self._fill()
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def wait(self, seconds: float) -> None:
        """Wait, though not for a sender that is gone: one that waits for an answer says nothing else."""
        if select.select([self._descriptor], [], [], seconds)[0]:
            self._fill()

    def _fill(self) -> None:
        if not select.select([self._descriptor], [], [], SILENCE_SECONDS)[0]:
            raise SenderGone(f"nothing came for {SILENCE_SECONDS:.0f} s")
        came = os.read(self._descriptor, READ_BYTES)
        if not came:
            raise SenderGone("the sender is gone")
        self._buffer += came


def receive(incoming: Input, tell: Tell) -> None:
    """Receive one dataset, or find that it is there already."""
    request = incoming.line()
    if request["version"] != VERSION:
        raise UserError(
            f"the dragoman that sends speaks version {request['version']}, this one ({__version__}) version {VERSION}",
            where=request["directory"],
            fix="install the same version of dragoman on all hosts",
        )
    path, manifest = Path(request["directory"]), incoming.exactly(request["bytes"])
    files: dict[str, dict[str, Any]] = json.loads(manifest)["files"]
    for name in files:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise ValueError(f"a dataset has no file {name}")
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.parent, incoming, tell):
            if not _is_whole(path, files):
                arriving = Arriving(unfinished(path), files, tell)
                arriving.adopt(path)
                arriving.take_stock()
                while arriving.missing:
                    piece = incoming.line()
                    content = incoming.exactly(piece.get("packed", piece["bytes"]))
                    if "packed" in piece:
                        content = zstandard.ZstdDecompressor().decompress(
                            content, max_output_size=PIECE_BYTES
                        )
                    arriving.add(piece["file"], piece["offset"], content)
                arriving.publish(path, manifest)
    tell(done=True)


class Arriving:
    """A dataset that is on its way, in a directory of its own."""

    def __init__(self, directory: Path, files: dict[str, dict[str, Any]], tell: Tell) -> None:
        self.directory, self.files, self.tell = directory, files, tell
        self.missing: set[str] = set()
        self._hashes: dict[str, Any] = {}  # of what is there of files that are missing
        self._times = dict.fromkeys(files, 0)

    def adopt(self, damaged: Path) -> None:
        """Take over what a damaged dataset has, and remove the rest of it."""
        if damaged.exists() and not (damaged / MANIFEST).is_file() and any(damaged.iterdir()):
            raise UserError(
                "this exists already and is not a dataset",
                where=str(damaged),
                fix="move it away there, or name another data.directory in the recipe",
            )
        self.directory.mkdir(exist_ok=True)
        for name in self.files:
            file = self.directory / name
            file.parent.mkdir(parents=True, exist_ok=True)
            if (damaged / name).is_file() and not file.exists():
                os.replace(damaged / name, file)
        if damaged.exists():
            rest = beside(damaged)
            damaged.rename(rest)  # so that it is not seen half deleted
            shutil.rmtree(rest)

    def take_stock(self) -> None:
        """See what is there of each file and tell what is wanted; refuse if the disk has no room for it."""
        wanted = []
        for name, facts in self.files.items():
            if not facts["bytes"]:
                (self.directory / name).touch()  # no piece of it would come
            here, digest = self._read(name, facts["bytes"])
            if here == facts["bytes"] and digest.hexdigest() == facts["sha256"]:
                continue
            if here == facts["bytes"]:
                (self.directory / name).unlink(missing_ok=True)
                here, digest = 0, hashlib.sha256()
            self.missing.add(name)
            self._hashes[name] = digest
            wanted.append((name, here))
        needed = sum(self.files[name]["bytes"] - here for name, here in wanted)
        free = shutil.disk_usage(self.directory).free
        if needed > free:
            raise UserError(
                f"there are {free / 1e6:,.1f} MB free, and the dataset needs {needed / 1e6:,.1f} MB more",
                where=str(self.directory.parent),
                fix="make room there, or name another data.directory in the recipe",
            )
        self.tell(wants=wanted)

    def add(self, name: str, offset: int, content: bytes) -> None:
        """Append a piece; the last one of a file decides whether it came whole."""
        file, facts, digest = self.directory / name, self.files[name], self._hashes[name]
        is_last = offset + len(content) >= facts["bytes"]
        with open(file, "ab") as opened:
            if name not in self.missing or opened.tell() != offset:
                raise ValueError(f"{name} is not wanted at {offset}")
            opened.write(content)
            if is_last:
                fsync_file(opened)  # now, and not all at the end, when it would take long in silence
        digest.update(content)
        self.tell(got=len(content))
        if not is_last:
            return
        if digest.hexdigest() == facts["sha256"]:
            self.missing.remove(name)
            return
        file.unlink()
        self._hashes[name] = hashlib.sha256()
        self._times[name] += 1
        if self._times[name] == TIMES:
            raise UserError(
                f"{name} came {TIMES} times with another checksum than the manifest's",
                where=str(self.directory),
                fix="see if it is right where it comes from: dragoman data show DATASET --verify",
            )
        self.tell(again=name)

    def publish(self, path: Path, manifest: bytes) -> None:
        """Give the dataset its name, with the files of its manifest and no others."""
        for file in list(self.directory.rglob("*")):
            if file.is_file() and file.relative_to(self.directory).as_posix() not in self.files:
                file.unlink()
        (self.directory / MANIFEST).write_bytes(manifest)
        publish_directory(self.directory, path)

    def _read(self, name: str, most: int) -> tuple[int, Any]:
        """Return how many bytes there are of a file, and their hash; one that is too long is begun anew."""
        file, digest = self.directory / name, hashlib.sha256()
        if not file.is_file():
            return 0, digest
        if file.stat().st_size > most:
            file.unlink()
            return 0, digest
        with open(file, "rb") as opened:
            while block := opened.read(READ_BYTES):
                digest.update(block)
        self.tell(checked=file.stat().st_size)
        return file.stat().st_size, digest


def _is_whole(path: Path, files: dict[str, dict[str, Any]]) -> bool:
    """Whether the dataset is there; another one of the same name is not touched."""
    try:
        there = Dataset.open(path)
    except UserError:
        return False
    if there.manifest["files"] != files:
        raise UserError(
            f"there is another dataset of the name {path.name}: its files are others",
            where=str(path),
            fix="remove it there if nobody needs it, and it will be sent",
        )
    return True


@contextlib.contextmanager
def _locked(directory: Path, incoming: Input, tell: Tell) -> Iterator[None]:
    """Hold the directory of datasets alone, as ``prepare`` does; say so while somebody else holds it."""
    with open(directory / LOCK, "a") as file:
        told = 0.0
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() - told > SIGN_SECONDS:
                    tell(waits=True)
                    told = time.monotonic()
                incoming.wait(0.2)
        yield


def main() -> ExitCode:
    def tell(**message: Any) -> None:
        say(message)

    try:
        receive(Input(sys.stdin.fileno()), tell)
    except UserError as error:
        tell(error={"what": error.what, "where": error.where, "fix": error.fix})
        return ExitCode.USER
    except (SenderGone, BrokenPipeError):
        return ExitCode.BUG  # there is nobody to tell
    return ExitCode.DONE


if __name__ == "__main__":
    sys.exit(main())
