"""Who may ask, how often, and how much: everything that is refused is refused here or with what is here."""

import asyncio
import hashlib
import hmac
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request

from dragoman.errors import UserError

MOST_BUCKETS = 50_000
SHORTEST_KEY = 8
DRAIN_BYTES, DRAIN_SECONDS = 16_000_000, 1.0


class Refusal(Exception):
    """An answer other than 200: ``{"error": text}``."""

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status, self.text, self.headers = status, text, dict(headers or {})


@dataclass(frozen=True)
class Limits:
    """The bounds of one request, and of all together."""

    characters: int = 20_000  # of one request
    sentences: int = 2_000  # of one request
    alternatives: int = 10
    queue_characters: int = 400_000  # waiting or at work, for each model
    seconds: float = 60.0  # of one request, from its last byte to the answer
    client_seconds: float = 20.0  # for a client to send the head of its request, and again for the body
    requests_per_minute: int = 0  # of one key or address; 0: any number

    @property
    def body_bytes(self) -> int:
        """A character may take 12 bytes in JSON (two escaped surrogates); and there are other fields."""
        return 12 * self.characters + 16_384


class Keys:
    """API keys of a file: one a line, then perhaps a name for the log. Only their hashes are kept."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names = self._read()

    def reload(self) -> None:
        """Read the file again; if it cannot be read, the error leaves the old keys in place."""
        self._names = self._read()

    def name(self, key: str) -> str | None:
        """Return the name of a key, or None. Takes the same time whichever it is, or none."""
        digest = _digest(key)
        found = None
        for known, name in self._names.items():
            if hmac.compare_digest(known, digest):
                found = name
        return found

    def _read(self) -> dict[bytes, str]:
        where = f"--keys {self._path}"
        try:
            lines = self._path.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise UserError(
                f"the file of keys cannot be read ({reason})", where=where, fix="correct the path"
            ) from error
        names = {}
        for number, line in enumerate(lines, 1):
            key, _, name = line.split("#")[0].strip().partition(" ")
            if not key:
                continue
            if len(key) < SHORTEST_KEY:
                raise UserError(
                    f"the key in line {number} is shorter than {SHORTEST_KEY} characters",
                    where=where,
                    fix="make keys with `openssl rand -hex 16`",
                )
            names[_digest(key)] = name.strip() or hashlib.sha256(key.encode()).hexdigest()[:8]
        if not names:
            raise UserError("there is no key in this file", where=where, fix="write one key a line")
        return names


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


class Buckets:
    """A rate for each caller: a bucket holds a minute's worth of requests and fills up steadily."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # requests left, at that time

    def take(self, caller: str, now: float | None = None) -> None:
        """Count a request, or refuse it."""
        if not self._per_minute:
            return
        now = time.monotonic() if now is None else now
        left, then = self._buckets.pop(caller, (float(self._per_minute), now))
        left = min(self._per_minute, left + (now - then) * self._per_minute / 60)
        refused = left < 1
        self._buckets[caller] = (left if refused else left - 1, now)
        if len(self._buckets) > MOST_BUCKETS:
            self._buckets.popitem(last=False)  # who asked least recently, so probably full again
        if refused:
            seconds = int((1 - left) * 60 / self._per_minute) + 1
            raise Refusal(
                429,
                f"Slowdown: {self._per_minute} requests per minute",
                {"Retry-After": str(seconds)},
            )


def network(address: str) -> str:
    """Return the address that a rate is counted for: of IPv6 the /64, which one customer has all of."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 6:
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return address


async def read_body(request: Request, limits: Limits) -> bytes:
    """Return the body, refusing it as soon as it is too large or takes too long."""
    chunks: list[bytes] = []
    size, more = 0, True
    try:
        async with asyncio.timeout(limits.client_seconds):
            while more:
                body, more = await _receive(request)
                chunks.append(body)
                size += len(body)
                if size > limits.body_bytes:
                    chunks.clear()
                    await _drain(request, more)
                    raise Refusal(
                        413, f"the body is larger than {limits.body_bytes:,} bytes", {"Connection": "close"}
                    )
    except TimeoutError:
        raise Refusal(
            408, f"the body took longer than {limits.client_seconds:g} s", {"Connection": "close"}
        ) from None
    return b"".join(chunks)


async def _receive(request: Request) -> tuple[bytes, bool]:
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise Refusal(400, "the client left before the body was complete")
    return message.get("body", b""), message.get("more_body", False)


async def _drain(request: Request, more: bool) -> None:
    """Read on for a while and forget it: a client that still writes when we close never sees our answer."""
    left = DRAIN_BYTES
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while more and left > 0:
                body, more = await _receive(request)
                left -= len(body)
