"""What runs on a host while the doctor measures: ``python -m dragoman.cluster.measure``.

It reads requests from its input, a line of JSON each, and answers each with a marked line. When its input ends,
whoever asked is gone, and it leaves at once, whatever it was doing. A link is measured with bare sockets: what the
network can carry. An all-reduce is measured with the world that trains: what is left of that for gradients.
"""

import json
import os
import queue
import secrets
import select
import socket
import statistics
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dragoman.cluster.network import route_to
from dragoman.cluster.survey import MARK
from dragoman.errors import UserError

if TYPE_CHECKING:
    from dragoman.cluster.world import World

CONNECT_SECONDS = 4.0
STALL_SECONDS = 10.0  # without a byte: the link is dead
WARM_UP_TRIPS = 8
TRIPS = 50
TRIP_SECONDS = 2.0  # for all of them together; a link to the other side of the world has fewer
# A stream is measured once it has found its speed, and ends by time on a slow link and by size on a fast one.
WARM_UP_SECONDS, WARM_UP_BYTES = 0.2, 8 * 10**6
STREAM_SECONDS, STREAM_BYTES = 1.0, 64 * 10**6
CHUNK = bytes(256 * 1024)
UNSENT_BYTES = (
    512 * 1024
)  # that wait in the sender's memory: on a slow link they are all it has to get rid of
TRIP, STREAM = b"t", b"s"  # what the client of a link asks for
RESULT = struct.Struct("!Qd")  # bytes, seconds
TOKEN_BYTES = 16

held: dict[str, Any] = {}  # from one request to the next: the listening token, the world


def listen() -> dict[str, Any]:
    """Open a port for the other hosts; its token proves that they reached this host and not another."""
    listener = _open_listener()
    token = secrets.token_bytes(TOKEN_BYTES)
    threading.Thread(target=_serve, args=(listener, token), daemon=True).start()
    return {"port": listener.getsockname()[1], "token": token.hex()}


def link(addresses: list[str], port: int, token: str, interface: str | None) -> dict[str, Any]:
    """Measure the link to the first of a host's ``addresses`` that leads there."""
    connection, address = _connect(addresses, port, bytes.fromhex(token), interface)
    with connection:
        seconds = _round_trip_seconds(connection)
        size, duration = _stream(connection)
    return {
        "address": address,
        "interface": route_to(address, interface).interface,
        "latency_ms": seconds * 1e3,
        "mbit_per_second": size * 8 / duration / 1e6,
    }


def join(environment: dict[str, str], interface: str | None, timeout_seconds: float) -> dict[str, Any]:
    """Take a place in the world of all hosts, on the device and over the interface that training would use."""
    os.environ.update(environment)
    import torch

    from dragoman.cluster.world import join_world

    world = join_world(timeout_seconds, interface)
    held["world"] = world
    world.sum(torch.zeros(1, device=world.device))  # opens the connections
    return {"interface": world.route.interface, "device": world.device.type}


def all_reduce(megabytes: int, times: int) -> dict[str, Any]:
    """Sum ``megabytes`` of float32 over the world, and return the median of the seconds it takes."""
    import torch

    world: World = held["world"]
    values = torch.empty(megabytes * 10**6 // 4, device=world.device).fill_(0.0)
    seconds = []
    for _ in range(times):
        world.sum(torch.zeros(1))  # all begin together
        _finish(world)
        began = time.perf_counter()
        world.sum(values)
        _finish(world)
        seconds.append(time.perf_counter() - began)
    return {"seconds": statistics.median(seconds)}


def clock() -> dict[str, Any]:
    """Tell the time. Answered at once, whatever is being measured: also a sign of life."""
    return {"time": time.time()}


REQUESTS: dict[str, Callable[..., dict[str, Any]]] = {
    "clock": clock,
    "listen": listen,
    "link": link,
    "join": join,
    "all_reduce": all_reduce,
}


def answer(request: dict[str, Any]) -> None:
    """Do what a request asks for, and say what came out of it."""
    name = request.pop("do")
    try:
        message = REQUESTS[name](**request)
    except (UserError, OSError, RuntimeError, ValueError) as error:
        message = {"error": str(getattr(error, "what", error)) or type(error).__name__}
    # In one piece: libraries write to the same stream.
    sys.stdout.write(f"{MARK}{json.dumps({'to': name, **message})}\n")
    sys.stdout.flush()


def main() -> None:
    """Answer requests until the input ends."""
    requests: queue.Queue[dict[str, Any]] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            request = json.loads(line)
            answer(request) if request["do"] == "clock" else requests.put(request)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    while True:
        answer(requests.get())


def _open_listener() -> socket.socket:
    if socket.has_dualstack_ipv6():
        with suppress(OSError):  # IPv6 may be there and switched off
            return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def _serve(listener: socket.socket, token: bytes) -> None:
    """Answer one client after the other: trips come back, a stream is timed where it arrives."""
    while True:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.settimeout(STALL_SECONDS)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(token)
            while (wish := connection.recv(1)) == TRIP:
                connection.sendall(TRIP)
            if wish == STREAM:
                connection.sendall(RESULT.pack(*_receive(connection)))
                while connection.recv(len(CHUNK)):
                    pass  # what was on its way: the link is quiet when the client hears that we closed


def _receive(connection: socket.socket) -> tuple[int, float]:
    """Take a stream as it comes; return the bytes and seconds after its warm-up."""
    buffer = memoryview(bytearray(len(CHUNK)))
    size = connection.recv_into(buffer)
    began = time.perf_counter()
    from_size, from_time = 0, 0.0  # where the warm-up ended
    while True:
        received = connection.recv_into(buffer)
        if not received:
            raise ConnectionError("the stream ended early")
        size, now = size + received, time.perf_counter()
        if not from_time:
            if now - began >= WARM_UP_SECONDS or size >= WARM_UP_BYTES:
                from_size, from_time = size, now
        elif now - from_time >= STREAM_SECONDS or size - from_size >= STREAM_BYTES:
            return size - from_size, now - from_time


def _connect(
    addresses: list[str], port: int, token: bytes, interface: str | None
) -> tuple[socket.socket, str]:
    """Connect to the first address where the host with this token answers."""
    failures = []
    for address in addresses:
        try:
            source = None if interface is None else (route_to(address, interface).address, 0)
            connection = socket.create_connection((address, port), CONNECT_SECONDS, source)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(STALL_SECONDS)
            if _read(connection, TOKEN_BYTES) == token:
                return connection, address
            failures.append(f"{address}: another host answers there")
            connection.close()
        except OSError as error:
            failures.append(f"{address}: {error.strerror or error}")
    raise OSError("; ".join(failures) or "it has no address there")


def _round_trip_seconds(connection: socket.socket) -> float:
    """Return the median of the times that one byte takes there and back."""
    seconds: list[float] = []
    ends = time.perf_counter() + TRIP_SECONDS
    while len(seconds) < WARM_UP_TRIPS + TRIPS and (
        len(seconds) <= WARM_UP_TRIPS or time.perf_counter() < ends
    ):
        began = time.perf_counter()
        connection.sendall(TRIP)
        _read(connection, 1)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[WARM_UP_TRIPS:])


def _stream(connection: socket.socket) -> tuple[int, float]:
    """Send without end until the other side says what it got: bytes and seconds."""
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    connection.sendall(STREAM)
    connection.setblocking(False)
    while True:
        readable, writable, _ = select.select([connection], [connection], [], STALL_SECONDS)
        if readable:
            break
        if not writable:
            raise TimeoutError(f"nothing got through for {STALL_SECONDS:.0f} s")
        with suppress(BlockingIOError):
            connection.send(CHUNK)
    connection.settimeout(STALL_SECONDS)
    size, seconds = RESULT.unpack(_read(connection, RESULT.size))
    connection.shutdown(socket.SHUT_WR)
    while connection.recv(1):
        pass
    return int(size), float(seconds)


def _read(connection: socket.socket, size: int) -> bytes:
    """Read exactly ``size`` bytes."""
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the connection was closed")
        data += part
    return data


def _finish(world: "World") -> None:
    """Wait for the device: what was asked of it is only then done."""
    if world.device.type == "cuda":
        import torch

        torch.cuda.synchronize(world.device)


if __name__ == "__main__":
    main()
