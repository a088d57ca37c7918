"""Which network interface leads to the other hosts.

A machine has several (a management port, Docker's bridge, the fast one), and communication libraries left alone
may take one that leads nowhere. We look at the route to the other hosts, say what we chose, and tell both Gloo
and NCCL.
"""

import ipaddress
import os
import socket
from dataclasses import dataclass

import psutil

from dragoman.errors import UserError

ANY_PORT = 9  # connecting a datagram socket sends nothing: it only asks the kernel for the route


@dataclass(frozen=True)
class Route:
    """The way out of this host: an interface, and our address there."""

    interface: str
    address: str


def interfaces() -> dict[str, list[str]]:
    """Return the addresses of this host's interfaces, IPv4 before IPv6, each with its prefix length."""
    found: dict[str, list[str]] = {}
    for name, entries in psutil.net_if_addrs().items():
        for family in (socket.AF_INET, socket.AF_INET6):
            for entry in entries:
                address = entry.address.partition("%")[0]
                if entry.family == family and not ipaddress.ip_address(address).is_link_local:
                    found.setdefault(name, []).append(f"{address}/{_prefix_length(entry.netmask)}")
    return found


def route_to(target: str, wanted: str | None = None) -> Route:
    """Return the route to ``target``, which may be this host itself; a ``wanted`` interface is taken as it is."""
    owned = {
        address.partition("/")[0]: name for name, addresses in interfaces().items() for address in addresses
    }
    if wanted is not None:
        for address, name in owned.items():
            if name == wanted:
                return Route(name, address)
        raise UserError(
            f"host {socket.gethostname()} has no interface {wanted} with an address",
            where="[cluster] interface",
            fix=f"choose one of: {', '.join(sorted(set(owned.values())))}",
        )
    try:
        family, kind, _, _, found = socket.getaddrinfo(target, ANY_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(found)
            source = str(probe.getsockname()[0])
    except OSError as error:
        raise UserError(
            f"host {socket.gethostname()} finds no way to {target} ({error.strerror or error})",
            where=f"the network of {socket.gethostname()}",
            fix=f"check that {target} is the other host's name or address, and that the link is up",
        ) from None
    destination = str(found[0])
    if (
        destination in owned
    ):  # our own address: the interface that holds it, though the kernel would loop back
        return Route(owned[destination], destination)
    return Route(owned.get(source, ""), source)


def common_address(addresses: list[str], others: list[list[str]]) -> str | None:
    """Return the first of our ``addresses`` on a network that all the other hosts are on too, if there is one.

    A bridge inside each host (Docker's, libvirt's) looks like one network of them all, and leads nowhere; but there
    two hosts have the same address. Others with all our addresses are no other hosts, but processes of this one.
    """
    hosts = [list(map(ipaddress.ip_interface, other)) for other in others if set(other) != set(addresses)]
    for own in map(ipaddress.ip_interface, addresses):
        is_ours_alone = not any(own.ip == theirs.ip for host in hosts for theirs in host)
        if own.is_loopback or not is_ours_alone:
            continue
        if all(any(own.network == theirs.network for theirs in host) for host in hosts):
            return str(own.ip)
    return None


def use_interface(name: str) -> None:
    """Make Gloo and NCCL communicate over this interface; what the user has set already stays."""
    if name:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")


def free_port() -> int:
    """Return a port that nobody listens on at this moment."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])


def _prefix_length(netmask: str | None) -> int:
    if netmask is None:
        return 128
    if ":" in netmask:
        return bin(int(ipaddress.IPv6Address(netmask))).count("1")
    return ipaddress.ip_network(f"0.0.0.0/{netmask}").prefixlen
