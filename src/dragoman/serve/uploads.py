"""Files that are sent to be translated, and what became of them until it is fetched.

Both are kept in memory and nowhere else, under names that nobody can guess, for a short time.
"""

import re
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator
from typing import NamedTuple
from urllib.parse import quote

import python_multipart  # noqa: F401  (Starlette misses it only once the first form comes)
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from dragoman.serve.limits import Refusal

FORMATS = {".txt": "text", ".html": "html", ".htm": "html"}
KEPT_SECONDS = 600.0
KEPT_BYTES = 64_000_000  # of all together; then the oldest goes
_UNWANTED = re.compile(r"[^\w-]+")
_BOUNDARY = re.compile(r"""boundary="?([^\s";,]{1,70})""")


class Sent(NamedTuple):
    """A file of a form."""

    name: str
    content: bytes


async def read_multipart(body: bytes, content_type: str) -> dict[str, str | Sent]:
    """Return the fields of a form; its size was bounded before it came here."""
    boundary = _BOUNDARY.search(content_type)
    if not boundary:
        raise Refusal(400, "Invalid request: the form has no boundary")

    async def stream() -> AsyncGenerator[bytes, None]:
        yield body

    # Nothing else of the header: it could name an encoding that takes forever to read.
    headers = Headers({"Content-Type": f"multipart/form-data; boundary={boundary[1]}"})
    parser = MultiPartParser(headers, stream(), max_files=1, max_fields=50, max_part_size=len(body))
    parser.spool_max_size = len(body) + 1  # never on disk
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise Refusal(400, f"Invalid request: the form cannot be read ({error.message})") from None
    values = {
        field: Sent(value.filename or "", await value.read()) if isinstance(value, UploadFile) else value
        for field, value in form.items()
    }
    await form.close()
    return values


def text_of(file: object) -> tuple[str, str]:
    """Return the name and the text of a file that can be translated."""
    if not isinstance(file, Sent):
        raise Refusal(400, "Invalid request: missing file parameter")
    if _ending(file.name) not in FORMATS:
        raise Refusal(400, f"Invalid request: file format not supported (only {', '.join(FORMATS)})")
    try:
        text = file.content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Refusal(400, f"Invalid request: the file is not UTF-8 (byte {error.start})") from None
    if not text:
        raise Refusal(400, "Invalid request: empty file")
    return file.name, text


def format_of(name: str) -> str:
    return FORMATS[_ending(name)]


def name_of_translation(name: str, target: str) -> str:
    """Return a harmless name: letters, digits, hyphens and underscores of what the client called the file."""
    stem = re.split(r"[/\\]", name)[-1].rpartition(".")[0]
    return _UNWANTED.sub("_", stem)[:60] + "_" + _UNWANTED.sub("_", target) + _ending(name)


def _ending(name: str) -> str:
    stem, dot, ending = name.rpartition(".")
    return (dot + ending).lower() if stem else ""


class Kept(NamedTuple):
    until: float
    name: str
    content: bytes

    @property
    def headers(self) -> dict[str, str]:
        """What makes a browser save it, and never show it as a page of ours."""
        return {
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(self.name)}",
            "Content-Security-Policy": "sandbox; default-src 'none'",
            "Cache-Control": "no-store",
        }

    @property
    def media_type(self) -> str:
        return f"text/{'plain' if self.name.endswith('.txt') else 'html'}; charset=utf-8"


class Downloads:
    """Translated files, by a word that nobody can guess."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Kept] = OrderedDict()  # the oldest first
        self._bytes = 0

    def keep(self, name: str, text: str, now: float | None = None) -> str:
        """Keep a file; return the last part of its address."""
        now = time.monotonic() if now is None else now
        word, content = secrets.token_urlsafe(24), text.encode()
        self._kept[word] = Kept(now + KEPT_SECONDS, name, content)
        self._bytes += len(content)
        while len(self._kept) > 1 and (
            self._bytes > KEPT_BYTES or next(iter(self._kept.values())).until < now
        ):
            self._bytes -= len(self._kept.popitem(last=False)[1].content)
        return f"{word}.{quote(name)}"

    def find(self, address: str, now: float | None = None) -> Kept:
        self._forget(time.monotonic() if now is None else now)
        kept = self._kept.get(address.partition(".")[0])
        if kept is None:
            raise Refusal(404, "there is no such file, or no longer")
        return kept

    def _forget(self, now: float) -> None:
        while self._kept and (self._bytes > KEPT_BYTES or next(iter(self._kept.values())).until < now):
            self._bytes -= len(self._kept.popitem(last=False)[1].content)
