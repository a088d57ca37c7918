"""The interface is chosen by the route, and both libraries are told."""

import ipaddress
import os
import socket

import pytest

from dragoman.cluster.network import Route, common_address, free_port, interfaces, route_to, use_interface
from dragoman.errors import UserError


def test_the_way_to_oneself_is_the_loopback():
    route = route_to("127.0.0.1")
    assert route.address == "127.0.0.1"
    assert f"{route.address}/8" in interfaces()[route.interface]


def test_every_interface_has_addresses_with_a_prefix():
    for addresses in interfaces().values():
        for address in addresses:
            assert ipaddress.ip_interface(address)


def test_an_own_address_gives_the_interface_that_holds_it_and_not_the_loopback():
    for name, addresses in interfaces().items():
        address = addresses[0].partition("/")[0]
        assert route_to(address) == Route(name, address)


def test_a_wanted_interface_is_taken_as_it_is():
    name = route_to("127.0.0.1").interface
    assert route_to("192.0.2.77", wanted=name) == route_to("127.0.0.1")


def test_an_unknown_interface_is_refused_with_the_known_ones():
    with pytest.raises(UserError) as caught:
        route_to("127.0.0.1", wanted="nosuch0")
    assert "no interface nosuch0" in caught.value.what
    assert route_to("127.0.0.1").interface in caught.value.fix


def test_a_name_that_leads_nowhere_is_named(monkeypatch):
    def fail(*arguments, **options):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(UserError, match="finds no way to nowhere"):
        route_to("nowhere")


@pytest.mark.parametrize(
    ("own", "others", "expected"),
    [
        (["127.0.0.1/8", "10.0.0.1/24"], [["127.0.0.1/8", "10.0.0.2/24"]], "10.0.0.1"),
        (["172.17.0.1/16", "10.0.0.1/24"], [["172.17.0.1/16", "10.0.0.2/24"], ["10.0.0.3/24"]], "10.0.0.1"),
        (["10.0.0.1/24"], [["10.0.1.2/24"]], None),
        (["127.0.0.1/8"], [["127.0.0.1/8"]], None),
        # Every host has its own bridge of this name and address, which leads to no other host.
        (["172.17.0.1/16", "10.0.0.1/24"], [["172.17.0.1/16", "10.0.0.2/24"]], "10.0.0.1"),
        (["172.17.0.1/16", "10.0.0.1/32"], [["172.17.0.1/16", "10.0.0.2/32"]], None),
        # Another process of this host has the same addresses.
        (["10.0.0.1/24"], [["10.0.0.1/24"], ["10.0.0.2/24"]], "10.0.0.1"),
    ],
)
def test_a_network_is_common_when_all_hosts_are_on_it(own, others, expected):
    assert common_address(own, others) == expected


def test_both_libraries_use_the_interface_and_what_the_user_set_stays(monkeypatch):
    monkeypatch.setattr(os, "environ", {"NCCL_SOCKET_IFNAME": "ib0"})
    use_interface("eth7")
    assert os.environ["GLOO_SOCKET_IFNAME"] == "eth7"
    assert os.environ["NCCL_SOCKET_IFNAME"] == "ib0"


def test_a_free_port_can_be_listened_on():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port()))
