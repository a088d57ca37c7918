"""Naming hosts: on the command line, in a file, in the environment."""

import pytest

from dragoman.cluster.hosts import Host, choose_hosts, parse_hosts
from dragoman.cluster.lab.client import HOSTS
from dragoman.errors import UserError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:2,b:2", [Host("a", 2), Host("b", 2)]),
        ("a", [Host("a", 1)]),
        (" a:2 , b ", [Host("a", 2), Host("b", 1)]),
        ("student@10.0.0.1:4", [Host("student@10.0.0.1", 4)]),
        ("[fd00::2]:2", [Host("fd00::2", 2)]),
        ("[fd00::2]", [Host("fd00::2", 1)]),
    ],
)
def test_hosts_are_named_with_their_workers(text, expected):
    assert parse_hosts(text) == expected


def test_the_port_of_the_command_line_is_for_hosts_without_one(tmp_path):
    file = tmp_path / "hosts"
    file.write_text(
        "# the lab\na slots=2 port=2200\n\nb:3 python=/opt/v/bin/python directory='/data/my run'  # slow\n"
    )
    assert parse_hosts(str(file), 2222) == [
        Host("a", 2, 2200),
        Host("b", 3, 2222, "/opt/v/bin/python", "/data/my run"),
    ]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a:0", "a:0 is not a host"),
        ("a:two", "a:two is not a host"),
        (":2", ":2 is not a host"),
        (",", "there is no host"),
        ("a:1,a:2", "host a is named twice"),
    ],
)
def test_mistakes_are_named(text, what):
    with pytest.raises(UserError, match=what):
        parse_hosts(text)


def test_a_mistake_in_a_file_has_its_line(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("a\nb color=red\n")
    with pytest.raises(UserError, match="color=red is not understood") as caught:
        parse_hosts(str(file))
    assert caught.value.where == f"{file}, line 2"


def test_the_environment_names_hosts_unless_the_command_line_does(monkeypatch):
    monkeypatch.setenv(HOSTS, "h1:1,h2:1")
    assert [host.name for host in choose_hosts(None, None, None)] == ["h1", "h2"]
    assert [host.name for host in choose_hosts("a:2", None, None)] == ["a"]
    assert choose_hosts(None, None, 2) == []  # --workers asks for this machine
    monkeypatch.delenv(HOSTS)
    assert choose_hosts(None, None, None) == []


def test_workers_and_hosts_exclude_each_other():
    with pytest.raises(UserError, match="gives each host its own") as caught:
        choose_hosts("a,b", None, 2)
    assert "--hosts a:2,b:2" in caught.value.fix
