"""The process around the application: sockets, signals, slow clients, and newer models.

SIGTERM and Ctrl-C stop listening, let what was accepted finish, and end with exit code 0. SIGHUP looks for newer models
and keys at once; without it a newer model is noticed within seconds.
"""

import asyncio
import ipaddress
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dragoman.errors import UserError
from dragoman.serve.app import build_app
from dragoman.serve.limits import Keys, Limits
from dragoman.serve.models import Models
from dragoman.serve.service import Service, Settings

logger = logging.getLogger(__name__)

POLL_SECONDS = 2.0  # between two looks for a newer model
HEAD_BYTES = 32_768
DRAIN_SECONDS = 20.0  # for accepted requests, once we were told to end
MOST_CONNECTIONS = 1000
KEEP_SECONDS = 20  # for an idle connection
OPEN_FIX = "give --keys FILE to ask for API keys, or --open to answer everybody"


class Guarded(HttpToolsProtocol):
    """HTTP that closes a connection whose request's head is too slow or too large."""

    head_seconds = Limits().client_seconds

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._in_head, self._head_bytes = True, 0
        self._timer = self.loop.call_later(self.head_seconds, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES and not self._ends_soon(data):
                self._refuse(b"431 Request Header Fields Too Large", b"the head of the request is too large")
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._timer.cancel()
        self._in_head, self._head_bytes = True, 0
        self._timer = self.loop.call_later(self.head_seconds, self._give_up)

    def on_headers_complete(self) -> None:
        self._timer.cancel()
        self._in_head = False
        super().on_headers_complete()

    def _ends_soon(self, data: bytes) -> bool:
        """Whether the head ends within its bound: the rest of what came is the body."""
        return -1 < data.find(b"\r\n\r\n") <= HEAD_BYTES and self._head_bytes == len(data)

    def _give_up(self) -> None:
        self._refuse(b"408 Request Timeout", b"the head of the request took too long")

    def _refuse(self, status: bytes, text: bytes) -> None:
        body = b'{"error":"' + text + b'"}'
        head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        if not self.transport.is_closing():
            self.transport.write(head % (status, len(body)) + body)
            self.transport.close()


class Server(uvicorn.Server):
    """Uvicorn with our signals, which calls back with its address once it listens."""

    def __init__(self, service: Service, app: Any, proxy: str | None = None) -> None:
        seconds = service.settings.limits.client_seconds
        super().__init__(
            uvicorn.Config(
                app,
                http=type("Guarded", (Guarded,), {"head_seconds": seconds}),
                ws="none",
                lifespan="off",
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=proxy is not None,
                forwarded_allow_ips=proxy,
                limit_concurrency=MOST_CONNECTIONS,
                timeout_keep_alive=KEEP_SECONDS,
                timeout_graceful_shutdown=int(DRAIN_SECONDS),
            )
        )
        self._service = service

    def listen(self, listener: socket.socket, ready: Callable[[str], None]) -> None:
        """Serve until asked to end, then finish what was accepted."""
        host, port = listener.getsockname()[:2]
        ready(f"http://{f'[{host}]' if ':' in host else host}:{port}/")
        self.run(sockets=[listener])
        self._service.models.close(DRAIN_SECONDS)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._reloading = asyncio.create_task(self._reload())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        self._reloading.cancel()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals ourselves: uvicorn would end with the signal that it got, and we end with 0."""
        self._wake = asyncio.Event()
        self._hung_up = False
        loop = asyncio.get_running_loop()
        handlers = {signal.SIGTERM: self._stop, signal.SIGINT: self._stop, signal.SIGHUP: self._look}
        handled = []
        for number, handler in handlers.items():
            with suppress(ValueError, RuntimeError, NotImplementedError):  # not the main thread: a test
                loop.add_signal_handler(number, handler)
                handled.append(number)
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)

    def _stop(self) -> None:
        self.force_exit = self.should_exit  # the second time, at once
        self.should_exit = True

    def _look(self) -> None:
        self._hung_up = True
        self._wake.set()

    async def _reload(self) -> None:
        """Look for newer models every few seconds; and, after SIGHUP, at once and for keys as well."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._wake.wait()
            self._wake.clear()
            if self._hung_up and self._service.settings.keys is not None:
                self._hung_up = False
                try:
                    self._service.settings.keys.reload()
                except UserError as error:
                    logger.warning("the keys stay as they were: %s", error)
            for path in await self._service.models.refresh():
                self._service.metrics.reloads.inc()
                logger.warning("%s: a newer model has taken over", path)


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[:2], family=family, backlog=512)
    except OSError as error:
        number = error.errno or 0  # negative of a name that has no address
        reason = os.strerror(number) if number > 0 else error.strerror
        raise UserError(
            f"{host} port {port} cannot be used ({reason})",
            where=f"--host {host} --port {port}",
            fix="choose another port, or --port 0 for a free one",
        ) from error
    return listener


def open_log(path: Path) -> IO[str]:
    """Open the access log, which goes on where it ended."""
    try:
        return open(path, "a", encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"the access log cannot be written ({error.strerror})",
            where=f"--log {path}",
            fix="choose a file in a directory that exists and that you may write to",
        ) from error


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def serve(
    paths: Sequence[Path],
    *,
    host: str,
    port: int,
    ready: Callable[[str, list[str]], None],
    limits: Limits,
    keys: Path | None = None,
    is_open: bool = False,
    allow_origin: str | None = None,
    proxy: str | None = None,
    log: IO[str] | None = None,
    device: str = "cpu",
    threads: int | None = None,
) -> None:
    """Serve models until told to end. Other machines reach it only with keys, or when everybody may."""
    if not is_loopback(host) and keys is None and not is_open:
        raise UserError(
            "anybody who reaches this address could translate", where=f"--host {host}", fix=OPEN_FIX
        )
    settings = Settings(
        limits=limits,
        keys=Keys(keys) if keys else None,
        own_names_only=keys is None and not is_open,
        allow_origin=allow_origin,
        log=log,
    )
    with bind(host, port) as listener:
        models = Models(paths, limits, device=device, threads=threads)
        app, service = build_app(models, settings)
        pairs = [f"{source} → {target}" for source, target in models.by_pair]
        Server(service, app, proxy).listen(listener, lambda address: ready(address, pairs))
