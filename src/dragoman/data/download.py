"""Files from servers: whole and verified under their names, or not there at all.

A file grows under ``NAME.part``, with a note beside it of where the bytes came from. Whatever ends a download (a
server, a network, Ctrl-C, kill -9), the next attempt asks for the rest only, and in a way (``If-Range``) that glues no
file which changed in between to the old half. Mirrors are tried in turn, and in rounds with growing pauses; a round
that brought new bytes does not count as a failure, so a bad line only takes longer.
"""

import hashlib
import http.client
import queue
import random
import re
import shutil
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from email.message import Message
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from dragoman import __version__
from dragoman.data.catalogue import Download
from dragoman.data.progress import Stages
from dragoman.errors import UserError
from dragoman.files import disk_errors, fsync_directory, read_json, sha256, write_json

AT_ONCE = 4  # downloads that run at the same time
BLOCK_BYTES = 1 << 18
MEGABYTE = 1e6
TRY_AGAIN = (408, 425, 429, 500, 502, 503, 504)  # answers that another day may be different

Show = Callable[[str, int, int | None], None]  # name, bytes so far, bytes in all
Check = Callable[[bytes], str | None]  # of a file's first bytes: what is wrong with them, if anything


@dataclass(frozen=True)
class Patience:
    """How long to wait for what."""

    stall_seconds: float = 30  # without a single byte
    rounds: int = 5  # over all mirrors without a new byte
    first_pause_seconds: float = 1
    longest_pause_seconds: float = 60

    def pause(self, round: int) -> float:
        """Return the seconds before the next round: doubling, and spread so that not all clients come at once."""
        seconds = min(self.longest_pause_seconds, self.first_pause_seconds * float(2**round))
        return seconds * random.uniform(0.5, 1)


@dataclass(frozen=True)
class Fetched:
    """A file that is there, whole."""

    path: Path
    url: str
    bytes: int
    sha256: str


class DownloadError(UserError):
    """No mirror gave the file."""


class _Failure(Exception):
    """One attempt at one mirror came to nothing; ``final`` if it makes no sense to ask that mirror again."""

    def __init__(self, what: str, *, final: bool = False, pause_seconds: float = 0) -> None:
        super().__init__(what)
        self.what, self.final, self.pause_seconds = what, final, pause_seconds


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a few redirects, and only to other web servers: none may point into this machine's files."""

    max_redirections = 5

    def redirect_request(self, request: Any, fp: Any, code: int, msg: str, headers: Any, url: str) -> Any:
        if urlsplit(url).scheme not in ("http", "https"):
            raise HTTPError(request.full_url, code, msg, headers, fp)
        return super().redirect_request(request, fp, code, msg, headers, url)


def fetch(
    wanted: dict[str, Download],
    directory: Path,
    *,
    stages: Stages,
    check: Callable[[str, bytes], str | None] = lambda name, head: None,
    patience: Patience | None = None,
) -> dict[str, Fetched | UserError]:
    """Download files into ``directory``, several at once; return for each what came of it.

    ``check`` is asked with the first bytes of a file, and may say what is wrong with them. What cannot be put right by
    another server (a full disk) is raised at once.
    """
    with disk_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        _need_space(wanted, directory)
    waiting: queue.SimpleQueue[tuple[str, Download]] = queue.SimpleQueue()
    for item in wanted.items():
        waiting.put(item)
    done: queue.SimpleQueue[tuple[str, Fetched | BaseException]] = queue.SimpleQueue()
    stop = threading.Event()
    results: dict[str, Fetched | UserError] = {}
    with stages.bars() as show:

        def work() -> None:
            with suppress(queue.Empty):
                while not stop.is_set():
                    name, download = waiting.get_nowait()
                    transfer = _Transfer(
                        name,
                        download,
                        directory / name,
                        partial(check, name),
                        show,
                        stages,
                        stop,
                        patience or Patience(),
                    )
                    try:
                        done.put((name, transfer.run()))
                    except BaseException as error:
                        done.put((name, error))

        # Threads that end with the process: Ctrl-C does not wait for a server that is silent.
        for _ in range(min(AT_ONCE, len(wanted))):
            threading.Thread(target=work, daemon=True).start()
        try:
            while len(results) < len(wanted):
                name, result = done.get()
                if not isinstance(result, Fetched | DownloadError):
                    raise result
                results[name] = result
        finally:
            stop.set()
    return results


def _need_space(wanted: dict[str, Download], directory: Path) -> None:
    missing = 0
    for name, download in wanted.items():
        part = _part(directory / name)
        missing += max(0, (download.bytes or 0) - (part.stat().st_size if part.exists() else 0))
    free = shutil.disk_usage(directory).free
    if missing > free:
        raise UserError(
            f"the download needs {missing / MEGABYTE:,.0f} MB and {free / MEGABYTE:,.0f} MB are free",
            where=str(directory),
            fix="free some space or choose another directory with --to",
        )


def _part(path: Path) -> Path:
    return path.with_name(path.name + ".part")


@dataclass
class _Transfer:
    """One file on its way."""

    name: str
    download: Download
    path: Path
    check: Check
    show: Show
    stages: Stages
    stop: threading.Event
    patience: Patience

    def __post_init__(self) -> None:
        self.part = _part(self.path)
        self.note_path = self.path.with_name(self.path.name + ".part.json")
        # Proxies come from the environment, as for other programs.
        self.opener = urllib.request.build_opener(_Redirects)
        self.opener.addheaders = [("User-Agent", f"dragoman/{__version__}")]

    def run(self) -> Fetched:
        """Go over the mirrors, in rounds, until the file is whole or nobody is left to ask."""
        urls = sorted(self.download.urls, key=lambda url: url != self._note().get("url"))  # who began, first
        problems: dict[str, str] = {}
        most, rounds, started = self._size(), 0, time.monotonic()
        while urls and rounds < self.patience.rounds:
            pause = 0.0
            for url in list(urls):
                try:
                    digest = self._attempt(url)
                except _Failure as failure:
                    problems[url] = failure.what
                    pause = max(pause, failure.pause_seconds)
                    if failure.final:
                        urls.remove(url)
                    continue
                return self._publish(url, digest, time.monotonic() - started)
            rounds = 0 if self._size() > most else rounds + 1
            most = max(most, self._size())
            if urls and rounds < self.patience.rounds:
                pause = max(pause, self.patience.pause(rounds))
                self.stages.say(f"{self.name}: {problems[urls[0]]}; trying again in {pause:.1f} s")
                if self.stop.wait(pause):
                    break
        raise DownloadError(
            f"cannot download {self.name}",
            where="; ".join(f"{url} ({what})" for url, what in problems.items()),
            fix="try again later (what has arrived is kept), or get the file in another way and give its "
            "directory with --from",
        )

    def _attempt(self, url: str) -> str:
        """Bring the part to its end from one mirror and verify it; return its SHA-256."""
        began_at = self._size()
        if not (began_at and self._note().get("total") == began_at):  # else killed just before the rename
            began_at = self._receive(url)
        digest, wrong = verify(self.part, self.download, self.check)
        if wrong:
            self._start_over()
            # Bytes of two origins may be to blame; bytes of one are this mirror's own.
            raise _Failure(f"wrong file ({wrong})", final=began_at == 0)
        return digest

    def _receive(self, url: str) -> int:
        """Append what is missing to the part; return how many of its bytes were there before."""
        request = urllib.request.Request(url)
        offset = self._resume(request)
        try:
            response = self.opener.open(request, timeout=self.patience.stall_seconds)
        except (OSError, http.client.HTTPException) as error:
            raise self._explain(error) from error
        with response:
            offset = self._check_answer(response, offset)
            length = response.headers.get("Content-Length") or ""
            total = offset + int(length) if length.isdigit() else None
            if self.download.bytes and total not in (None, self.download.bytes):
                raise _Failure(f"wrong file ({total:,} bytes, not {self.download.bytes:,})", final=True)
            if offset == 0:
                self._start_over()
            note = {"url": url, "validator": _validator(response.headers), "total": total}
            with disk_errors(self.path.parent):
                write_json(self.note_path, note)
            self._copy(response, offset, total)
        return offset

    def _resume(self, request: urllib.request.Request) -> int:
        """Ask only for what is missing, where that is safe; return how many bytes are kept."""
        offset, note = self._size(), self._note()
        same_origin = note.get("url") == request.full_url and note.get("validator")
        # With a hash to compare in the end, halves of two mirrors may be joined too.
        if not offset or not (same_origin or self.download.sha256 or self.download.md5):
            return 0
        request.add_header("Range", f"bytes={offset}-")
        if same_origin:
            request.add_header("If-Range", str(note["validator"]))
        return offset

    def _check_answer(self, response: Any, offset: int) -> int:
        """Return the offset at which the answer begins: ours, or 0 if the server sends all of it."""
        if getattr(response, "status", None) != 206:  # ranges are not known here, or the file has changed
            return 0
        start = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
        if not start or int(start[1]) != offset:
            self._start_over()
            raise _Failure("sent another part of the file than asked for")
        return offset

    def _copy(self, response: Any, offset: int, total: int | None) -> None:
        with disk_errors(self.path.parent), open(self.part, "r+b" if offset else "wb", buffering=0) as file:
            file.truncate(offset)
            file.seek(offset)
            while True:
                self.show(self.name, offset, total)
                try:
                    block = response.read1(BLOCK_BYTES)
                except (OSError, http.client.HTTPException) as error:
                    raise self._explain(error) from error
                if self.stop.is_set():
                    raise _Failure("stopped")
                if not block:
                    break
                file.write(block)
                offset += len(block)
                if self.download.bytes is not None and offset > self.download.bytes:
                    raise _Failure(f"wrong file (more than {self.download.bytes:,} bytes)", final=True)
        if total is not None and offset < total:
            raise _Failure(f"the connection ended after {offset:,} of {total:,} bytes")

    def _explain(self, error: Exception) -> _Failure:
        """Say what an exception of the network means, and whether another attempt may go better."""
        if isinstance(error, HTTPError):
            error.close()
            if error.code == 416:  # the part is longer than the file
                self._start_over()
                return _Failure("the file is shorter than the part we have")
            if 300 <= error.code < 400:
                to = error.headers.get("Location", "")
                leaves = urlsplit(to).scheme not in ("", "http", "https")
                where = f"to {to}, which is not a web address" if leaves else "too often, or in a circle"
                return _Failure(f"redirects {where}", final=True)
            after = error.headers.get("Retry-After", "")
            seconds = int(after) if after.isdigit() else 0
            too_long = seconds > self.patience.longest_pause_seconds
            what = f"{error.code} {error.reason}" + (f", come back in {seconds:,} s" if too_long else "")
            return _Failure(what, final=error.code not in TRY_AGAIN or too_long, pause_seconds=seconds)
        reason = error.reason if isinstance(error, URLError) else error
        if isinstance(reason, TimeoutError):
            return _Failure(f"no byte for {self.patience.stall_seconds:g} s")
        if isinstance(reason, http.client.IncompleteRead):
            return _Failure("the connection ended in the middle")
        if isinstance(reason, FileNotFoundError):  # of a file:// address
            return _Failure("there is no such file", final=True)
        if isinstance(reason, OSError):
            return _Failure(reason.strerror or str(reason) or type(reason).__name__)
        return _Failure(str(reason) or type(reason).__name__)

    def _publish(self, url: str, digest: str, seconds: float) -> Fetched:
        size = self._size()
        self.part.replace(self.path)
        fsync_directory(self.path.parent)
        self.note_path.unlink(missing_ok=True)
        self.show(self.name, size, size)
        host = urlsplit(url).hostname or "this machine"
        self.stages.say(f"{self.name}: {size / MEGABYTE:,.1f} MB in {seconds:,.1f} s from {host}")
        return Fetched(self.path, url, size, digest)

    def _size(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _note(self) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            return dict(read_json(self.note_path))
        return {}

    def _start_over(self) -> None:
        self.note_path.unlink(missing_ok=True)
        self.part.unlink(missing_ok=True)


def _validator(headers: Message) -> str | None:
    """Return what identifies this version of a file to its server; a weak ETag does not promise equal bytes."""
    etag = headers.get("ETag", "")
    return etag if etag and not etag.startswith("W/") else headers.get("Last-Modified")


def verify(path: Path, download: Download, check: Check) -> tuple[str, str | None]:
    """Return the SHA-256 of a file, and what is wrong with it if it is not the download we know."""
    digest, size, wrong = sha256(path), path.stat().st_size, None
    with open(path, "rb") as file:
        wrong = check(file.read(16))
    if download.bytes not in (None, size):
        wrong = wrong or f"{size:,} bytes, not {download.bytes:,}"
    if download.sha256 not in (None, digest):
        wrong = wrong or f"its SHA-256 is {digest[:12]}…, not {str(download.sha256)[:12]}…"
    if download.md5 and download.md5 != (md5 := _md5(path)):
        wrong = wrong or f"its MD5 is {md5}, not {download.md5}"
    return digest, wrong


def _md5(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
