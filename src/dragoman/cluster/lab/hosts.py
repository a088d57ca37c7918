"""The hosts of a lab and their links.

A host is a network, a name and mounts of its own; files, users and process numbers belong to the whole lab. A cable
leads from each host to a bridge, and both its ends are shaped: what the host sends, and what it receives.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass

from dragoman.cluster.lab.namespaces import (
    Namespaces,
    coming_back,
    enter,
    open_namespaces,
    processes_in,
    unshare,
)
from dragoman.errors import UserError

NETWORK = "10.77.0"
INSIDE = "lab"  # the name of the place where COMMAND runs, next to the bridge
INSIDE_ADDRESS = f"{NETWORK}.254"
OWN_KINDS = ("net", "uts", "mnt")
KILL_SECONDS = 20

BITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
# TCP hands over up to 64 KB in one piece; a smaller bucket would have the processor cut it into packets.
SMALLEST_BURST_BYTES = 72 * 1024
QUEUE_MILLISECONDS = 50  # how long a packet may wait for its turn before it is dropped


@dataclass
class Host:
    """A host and the state of its link."""

    name: str
    address: str
    cores: list[int]  # none named: all
    namespaces: Namespaces
    bits_per_second: int | None = None
    state: str = "up"


def host_addresses(hosts: int) -> dict[str, str]:
    """Return the names and addresses of so many hosts."""
    return {f"host{number}": f"{NETWORK}.{number}" for number in range(1, hosts + 1)}


def make_bridge() -> None:
    """Make the bridge that connects the hosts with each other and with COMMAND."""
    run_tool("ip", "link", "set", "lo", "up")
    run_tool("ip", "link", "add", "name", "br0", "type", "bridge")
    run_tool("ip", "address", "add", f"{INSIDE_ADDRESS}/24", "dev", "br0")
    run_tool("ip", "link", "set", "br0", "up")


def make_host(name: str, address: str, cores: list[int]) -> Host:
    """Make a host with a cable to the bridge; the bridge's end has the name of the host."""
    with coming_back(*OWN_KINDS):
        unshare(*OWN_KINDS)
        socket.sethostname(name)
        host = Host(name, address, cores, open_namespaces(*OWN_KINDS))
    network = f"/proc/{os.getpid()}/fd/{host.namespaces['net']}"
    run_tool("ip", "link", "add", "name", name, "type", "veth", "peer", "name", "eth0", "netns", network)
    run_tool("ip", "link", "set", name, "master", "br0", "up")
    with coming_back("net"):
        enter({"net": host.namespaces["net"]})
        run_tool("ip", "link", "set", "lo", "up")
        run_tool("ip", "address", "add", f"{address}/24", "dev", "eth0")
        run_tool("ip", "link", "set", "eth0", "up")
    return host


def plug(host: Host, state: str) -> None:
    """Put the bridge's end of a cable ``up``, or ``down`` as if it were pulled out."""
    run_tool("ip", "link", "set", host.name, state)


def shape(host: Host, bits_per_second: int | None) -> None:
    """Limit what a host sends, and what it receives, to a rate; None is no limit."""
    run_tool("tc", "qdisc", "replace", "dev", host.name, "root", *queue(bits_per_second))
    with coming_back("net"):
        enter({"net": host.namespaces["net"]})
        run_tool("tc", "qdisc", "replace", "dev", "eth0", "root", *queue(bits_per_second))
    host.bits_per_second = bits_per_second


def queue(bits_per_second: int | None) -> list[str]:
    """Return what tc puts on an end of a cable: a token bucket that holds 4 ms of the rate, or nothing."""
    if bits_per_second is None:
        return ["noqueue"]
    burst_bytes = max(SMALLEST_BURST_BYTES, bits_per_second // 8 // 250)
    latency = f"{QUEUE_MILLISECONDS}ms"
    return ["tbf", "rate", f"{bits_per_second}bit", "burst", str(burst_bytes), "latency", latency]


def kill_all(host: Host) -> int:
    """Kill the processes of a host until none is left; return how many that were."""
    killed: set[int] = set()
    deadline = time.monotonic() + KILL_SECONDS
    while alive := processes_in(host.namespaces):
        for process in alive:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        killed.update(alive)
        if time.monotonic() > deadline:
            raise UserError(
                f"processes {', '.join(map(str, alive))} do not die",
                where=f"dragoman lab kill {host.name}",
                fix=f"see what they wait for: dragoman lab exec {INSIDE} -- ps -eo pid,stat,wchan,args",
            )
        time.sleep(0.005)
    return len(killed)


def hosts_file(old: str, machine: str, addresses: dict[str, str]) -> str:
    """Return /etc/hosts for the lab: ``localhost`` as before, the hosts, and the machine's name for COMMAND."""
    lines = []
    for line in old.splitlines():
        address, *names = line.partition("#")[0].split() or [""]
        lines += (
            [" ".join([address, *kept])] if (kept := [name for name in names if "localhost" in name]) else []
        )
    named = {machine: INSIDE_ADDRESS, INSIDE: INSIDE_ADDRESS, **addresses}
    lines += [f"{address} {name}" for name, address in named.items()]
    return "\n".join(lines) + "\n"


def share_cores(usable: list[int], hosts: int, cores_per_host: int | None) -> list[list[int]]:
    """Return the cores of each host; when all are given out, begin again with the first."""
    wanted = min(cores_per_host or 0, len(usable))
    return [sorted(usable[(host * wanted + i) % len(usable)] for i in range(wanted)) for host in range(hosts)]


def parse_rate(text: str, where: str) -> int | None:
    """Return the bits per second of ``20mbit``, ``1.5Gbit`` or ``1 Gbit/s``; None for ``none``."""
    if text.lower() == "none":
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kmg]?)bit(?:/s)?", text.lower())
    bits = round(float(match[1]) * BITS[match[2]]) if match else 0
    if not bits:
        fix = "write it like 20mbit, 100mbit or 1.5gbit (bits per second), or none for no limit"
        raise UserError(f"{text!r} is not the rate of a network", where=where, fix=fix)
    return bits


def format_rate(bits_per_second: int | None) -> str:
    """Return a rate as ``parse_rate`` reads it."""
    if bits_per_second is None:
        return "none"
    unit = max((unit for unit in BITS if BITS[unit] <= bits_per_second), key=lambda unit: BITS[unit])
    return f"{bits_per_second / BITS[unit]:.12g}{unit}bit"


def find_tool(name: str) -> str:
    """Return the path of a program of iproute2, also for users whose PATH lacks the system's programs."""
    path = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if path is None:
        fix = "install iproute2; on Debian and Ubuntu: apt install iproute2"
        raise UserError(f"the program {name} is missing", where="dragoman lab", fix=fix)
    return path


def run_tool(name: str, *words: str) -> None:
    """Run a program of iproute2."""
    result = subprocess.run([find_tool(name), *words], capture_output=True, text=True)
    if result.returncode:
        raise UserError(
            f"the system refused to make or change a link: {result.stderr.strip()}",
            where=" ".join([name, *words]),
            fix="load what the kernel needs, as root: modprobe -a veth bridge sch_tbf",
        )
