"""What a lab decides before it makes anything: rates, cores, names, words; and what it says when it cannot."""

import os
import shutil
import socket
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.cluster.lab import client, hosts, namespaces, run
from dragoman.cluster.lab.client import LAB, ask, format_status, parse_words
from dragoman.cluster.lab.hosts import (
    find_tool,
    format_rate,
    host_addresses,
    hosts_file,
    parse_rate,
    queue,
    run_tool,
    share_cores,
)
from dragoman.cluster.lab.run import Settings, open_directory, run_lab, warn_about_cores
from dragoman.errors import UserError


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("20mbit", 20_000_000),
        ("1gbit", 10**9),
        ("1Gbit", 10**9),
        ("1.5gbit", 1_500_000_000),
        ("512kbit", 512_000),
        ("9600bit", 9600),
        ("1 Gbit/s", 10**9),
        ("none", None),
        ("None", None),
    ],
)
def test_rates_are_written_as_for_tc(text, bits):
    assert parse_rate(text, "here") == bits


@pytest.mark.parametrize(
    "text", ["", "fast", "100", "100mbps", "-1mbit", "0mbit", "1.mbit", "1mbit2", "mbit"]
)
def test_what_is_no_rate_is_said(text):
    with pytest.raises(UserError) as caught:
        parse_rate(text, "--network")
    assert str(caught.value) == (
        f"error: {text!r} is not the rate of a network\n"
        "  where: --network\n"
        "  fix:   write it like 20mbit, 100mbit or 1.5gbit (bits per second), or none for no limit"
    )


@given(st.none() | st.integers(min_value=1, max_value=10**11))
def test_a_rate_is_written_as_it_is_read(bits):
    assert parse_rate(format_rate(bits), "here") == bits


def test_a_bucket_is_large_enough_for_its_rate():
    assert queue(None) == ["noqueue"]
    assert queue(10**8) == ["tbf", "rate", "100000000bit", "burst", "73728", "latency", "50ms"]
    assert queue(10**9)[4] == "500000"


@pytest.mark.parametrize(
    ("usable", "number", "per_host", "shares"),
    [
        ([0, 1, 2, 3], 2, 2, [[0, 1], [2, 3]]),
        ([2, 5], 2, 1, [[2], [5]]),
        ([0, 1], 3, 1, [[0], [1], [0]]),
        ([0, 1, 2], 2, 2, [[0, 1], [0, 2]]),
        ([0, 1], 2, 8, [[0, 1], [0, 1]]),
        ([0, 1], 2, None, [[], []]),
    ],
)
def test_cores_go_round(usable, number, per_host, shares):
    assert share_cores(usable, number, per_host) == shares


def test_too_few_cores_are_said_once(capsys):
    warn_about_cores(Settings(["true"], hosts=4, cores_per_host=2), usable=6)
    assert capsys.readouterr().err == (
        "warning: 4 hosts of 2 cores need 8, and 6 can be used here: hosts share cores, "
        "and are slower than real ones when they work at the same time\n"
    )
    warn_about_cores(Settings(["true"], hosts=3, cores_per_host=2), usable=6)
    warn_about_cores(Settings(["true"], hosts=3), usable=1)
    assert capsys.readouterr().err == ""


def test_names_of_the_lab_replace_those_of_the_machine():
    old = "# a comment\n127.0.0.1 localhost box\n::1 ip6-localhost # six\n\n192.168.1.5 host1 files\n127.0.1.1 box\n"
    assert hosts_file(old, "box", host_addresses(2)) == (
        "127.0.0.1 localhost\n::1 ip6-localhost\n10.77.0.254 box\n10.77.0.254 lab\n10.77.0.1 host1\n10.77.0.2 host2\n"
    )
    assert "10.77.0.254 host1" not in hosts_file(old, "host1", host_addresses(2))


def test_words_are_a_command_or_a_line_for_a_shell(monkeypatch):
    monkeypatch.setenv("SHELL", "/bin/zsh")
    assert parse_words(["--", "echo", "a b"]) == ["echo", "a b"]
    assert parse_words(["echo", "a b", ";", "--", "x"]) == ["/bin/sh", "-c", "echo a b ; -- x"]
    assert parse_words([]) == parse_words(["--"]) == ["/bin/zsh"]
    monkeypatch.delenv("SHELL")
    assert parse_words([]) == ["/bin/sh"]


@pytest.fixture
def labs(tmp_path, monkeypatch):
    """A directory of labs, and a function that makes one that listens, and is otherwise dead."""
    root = tmp_path / "labs"
    monkeypatch.setattr(client, "labs_directory", lambda: str(root))
    monkeypatch.setattr(run, "labs_directory", lambda: str(root))
    monkeypatch.delenv(LAB, raising=False)
    listening = []

    def make(name: str) -> socket.socket:
        root.mkdir(mode=0o700, exist_ok=True)
        (root / name).mkdir()
        listening.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        listening[-1].bind(str(root / name / "control"))
        listening[-1].listen()
        return listening[-1]

    yield root, make
    for each in listening:
        each.close()


def test_which_lab_is_meant(labs, monkeypatch):
    root, make = labs

    def error(**request: str) -> str:
        with pytest.raises(UserError) as caught:
            ask("cut", host="host1", **request)
        return str(caught.value)

    none = "  fix:   start one: dragoman lab --hosts 2 -- COMMAND"
    assert error() == f"error: no lab is running\n  where: dragoman lab cut host1\n{none}"
    make("7").close()  # one that died without removing its directory
    assert error() == f"error: no lab is running\n  where: dragoman lab cut host1\n{none}"
    assert error(lab="7") == f"error: lab 7 is not running\n  where: --lab 7\n{none}"
    make("8"), make("9")
    assert client.running_labs() == ["8", "9"]
    assert error() == (
        "error: 2 labs are running: 8, 9\n  where: dragoman lab cut host1\n  fix:   choose one, such as --lab 8"
    )
    assert error(lab="7") == "error: lab 7 is not running\n  where: --lab 7\n  fix:   choose one of: 8, 9"
    monkeypatch.setenv(LAB, str(root / "7"))
    assert error() == (
        f"error: lab 7 is not running\n  where: {LAB}={root}/7\n  fix:   unset {LAB}, or choose one of: 8, 9"
    )
    monkeypatch.setenv(LAB, str(root / "8"))
    client.open_lab(None, "").close()
    client.open_lab("9", "").close()


def test_a_lab_that_goes_away_is_said(labs, monkeypatch):
    _, make = labs
    make("7")
    monkeypatch.setattr(client, "ANSWER_SECONDS", 0.05)
    with pytest.raises(UserError, match="the lab does not answer"):
        ask("status")


def test_a_new_lab_removes_what_dead_ones_left(labs):
    root, make = labs
    make("7").close()
    make("8")
    directory, control = open_directory()
    control.close()
    assert directory == root / str(os.getpid())
    assert sorted(path.name for path in root.iterdir()) == sorted(["8", directory.name, "lock"])


def test_a_directory_that_others_can_enter_is_refused(labs):
    root, _ = labs
    root.mkdir()
    root.chmod(0o755)
    with pytest.raises(UserError) as caught:
        open_directory()
    assert str(caught.value) == (
        f"error: somebody else could control the lab\n  where: {root}\n"
        "  fix:   it must be a directory of yours that only you can enter: remove it, or chmod 700"
    )


def test_other_systems_are_refused(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    for call in (lambda: run_lab(Settings(["true"])), lambda: ask("status")):
        with pytest.raises(UserError) as caught:
            call()
        assert str(caught.value) == (
            "error: a lab needs Linux: its hosts are network namespaces\n  where: dragoman lab on darwin\n"
            "  fix:   use a Linux machine, or a virtual one"
        )


def test_a_missing_program_is_named(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(UserError) as caught:
        find_tool("tc")
    assert str(caught.value) == (
        "error: the program tc is missing\n  where: dragoman lab\n"
        "  fix:   install iproute2; on Debian and Ubuntu: apt install iproute2"
    )


def test_a_kernel_that_refuses_is_quoted(monkeypatch, tmp_path):
    tool = tmp_path / "tc"
    tool.write_text("#!/bin/sh\necho 'Error: Specified qdisc kind is unknown.' >&2; exit 2\n")
    tool.chmod(0o755)
    monkeypatch.setattr(hosts, "find_tool", lambda name: str(tool))
    with pytest.raises(UserError) as caught:
        run_tool("tc", "qdisc", "replace")
    assert str(caught.value) == (
        "error: the system refused to make or change a link: Error: Specified qdisc kind is unknown.\n"
        "  where: tc qdisc replace\n"
        "  fix:   load what the kernel needs, as root: modprobe -a veth bridge sch_tbf"
    )


def test_what_forbids_namespaces_is_named(monkeypatch, tmp_path):
    lock = tmp_path / "unprivileged_userns_clone"
    lock.write_text("0\n")
    monkeypatch.setattr(
        namespaces, "LOCKS", [(str(lock), "0", "sysctl a=1"), (str(tmp_path / "no"), "0", "b")]
    )
    refused = PermissionError(1, "unshare: Operation not permitted")
    what = "error: this system does not let you make network namespaces (unshare: Operation not permitted)\n"
    container = "in a container: start it with --privileged"
    assert str(namespaces.forbidden(refused, is_root=False)) == (
        f"{what}  where: dragoman lab\n  fix:   run as root; or allow it with sysctl a=1; or {container}"
    )
    lock.write_text("1\n")
    assert str(namespaces.forbidden(refused, is_root=True)) == (
        f"{what}  where: dragoman lab\n  fix:   {container}"
    )


def test_a_long_command_does_not_hide_the_table():
    status = {"name": "7", "command": ["sh", "-c", "x\n" * 100], "hosts": []}
    assert format_status(status).splitlines() == [
        "lab 7: sh -c " + "x " * 36 + "x…",
        "HOST  ADDRESS  STATE  NETWORK  CORES  PROCESSES",
    ]
