"""Files that are whole or absent: written beside, fsynced, renamed.

A reader never sees half a file under its final name, whenever the writer is killed. Directories follow the
same way: fill a temporary one, then ``publish_directory``.
"""

import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from dragoman.errors import UserError

TEMPORARY = ".tmp-"  # every unfinished file or directory of ours carries this in its name


def beside(path: Path) -> Path:
    """Return a name for the unfinished ``path``: hidden, in the same directory, unique to this process."""
    return path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}")


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn a full or unwritable disk into a UserError that names ``path``."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                "the disk is full", where=str(path), fix="free some space or choose another directory"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            raise UserError(
                f"cannot write here ({os.strerror(error.errno)})",
                where=str(path),
                fix="choose a directory you may write to, or change its permissions",
            ) from error
        raise


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path``, as ``write_bytes`` does."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` so that the file is either the old one or the new one, never a part."""
    with written(path, "wb") as file:
        file.write(data)


@contextmanager
def written(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a file for writing, beside ``path``; it takes that name when the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = beside(path)
    try:
        with open(temporary, mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
            fsync_file(file)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    fsync_directory(path.parent)


def write_json(path: Path, value: object) -> None:
    """Write ``value`` as indented JSON, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def fsync_file(file: IO[Any]) -> None:
    """Push what was written to ``file`` to the disk."""
    file.flush()
    os.fsync(file.fileno())


def fsync_directory(path: Path) -> None:
    """Push the names in a directory to the disk; a rename is not durable before this."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish_directory(temporary: Path, path: Path) -> None:
    """Give a finished directory its final name. ``path`` must not exist; its content is fsynced first."""
    for file in sorted(temporary.rglob("*")):
        if file.is_dir():
            fsync_directory(file)
        else:
            with open(file, "rb") as opened:
                os.fsync(opened.fileno())
    fsync_directory(temporary)
    os.rename(temporary, path)
    fsync_directory(path.parent)


def remove_unfinished(directory: Path, *, keep: Path | None = None) -> None:
    """Remove what killed writers left behind in ``directory``, all but ``keep``; others may be doing the same."""
    for leftover in directory.glob(f"{TEMPORARY}*"):
        if leftover == keep:
            continue
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)


@contextmanager
def locked(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file ``path`` alone; calls ``waiting`` once if another process has it, then waits for that."""
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, read in pieces."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def append_json_line(file: IO[str], value: dict[str, Any]) -> None:
    """Append one object to an open JSON Lines file and hand it to the system."""
    file.write(json.dumps(value, ensure_ascii=False) + "\n")
    file.flush()


def open_json_lines(path: Path) -> IO[str]:
    """Open a JSON Lines file for appending, first cutting off a line that a killed writer left unfinished."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab+") as file:
        tail_start, tail = file.seek(0, os.SEEK_END), b""
        while tail_start > 0 and b"\n" not in tail:
            tail_start = max(0, tail_start - 65536)
            file.seek(tail_start)
            tail = file.read()
        file.truncate(tail_start + tail.rfind(b"\n") + 1)
    return open(path, "a", encoding="utf-8")


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Read the complete lines of a JSON Lines file that may still be growing; absent means empty."""
    if not path.exists():
        return []
    whole_lines = path.read_bytes().rpartition(b"\n")[0]
    return [json.loads(line) for line in whole_lines.splitlines() if line.strip()]
