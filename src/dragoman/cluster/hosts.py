"""Hosts: how they are named, and how a command is started on one.

``--hosts a:2,b:2`` names hosts and their workers. A host is reached by ``ssh`` with the user's own keys and
configuration, or, in a lab, through the namespaces that stand for it. Either way a command's input and output
are pipes: what we tell it goes in, what it says comes out, and its input ends when we do.
"""

import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from dragoman.cluster.lab.client import HOSTS, LAB, exec_line
from dragoman.errors import UserError

CONNECT_SECONDS = 10


@dataclass(frozen=True)
class Host:
    """A machine that takes part: how to reach it, and how many workers it gets."""

    name: str
    workers: int = 1
    port: int | None = None  # of its sshd
    python: str | None = None  # the interpreter that has dragoman, if it is another than here
    directory: str | None = None  # to work in, if it is another than here

    def place(self, path: Path) -> Path:
        """Return where a path of ours is on this host."""
        return Path(self.directory or os.getcwd()) / path


def parse_hosts(text: str, ssh_port: int | None = None) -> list[Host]:
    """Read ``a:2,b:2``, or a file with one host a line, into hosts; every mistake is named."""
    path = Path(text)
    if path.is_file():
        lines = path.read_text("utf-8").splitlines()
        parsed = [_parse_line(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]
        hosts = [host for host in parsed if host is not None]
        where = str(path)
    else:
        where = f"--hosts {text}"
        hosts = [_parse_name(item.strip(), where) for item in text.split(",") if item.strip()]
    if not hosts:
        raise UserError("there is no host", where=where, fix="name at least one, such as --hosts a:2,b:2")
    names = [host.name for host in hosts]
    for name in names:
        if names.count(name) > 1:
            raise UserError(
                f"host {name} is named twice", where=where, fix=f"name it once: {name}:2 gives it two workers"
            )
    return [replace(host, port=host.port or ssh_port) for host in hosts]


def choose_hosts(given: str | None, ssh_port: int | None, workers: int | None) -> list[Host]:
    """Return the hosts that were asked for, by --hosts or in the environment; none means this machine alone."""
    text = given or os.environ.get(HOSTS, "")
    if given and workers:
        raise UserError(
            "--workers is for one machine, and --hosts gives each host its own",
            where=f"--workers {workers} --hosts {given}",
            fix=f"leave out --workers and write --hosts {','.join(f'{h.name}:{workers}' for h in parse_hosts(given))}",
        )
    return parse_hosts(text, ssh_port) if text and not workers else []


def start_on(host: Host, arguments: list[str]) -> "subprocess.Popen[bytes]":
    """Start ``python ARGUMENTS`` on a host, in the same directory as here, with pipes to it.

    It gets a session of its own: a Ctrl-C in our terminal reaches us alone, and we tell it.
    """
    python, directory = host.python or sys.executable, host.directory or os.getcwd()
    command = ["env", "PYTHONUNBUFFERED=1", "TORCH_CPP_LOG_LEVEL=ERROR", python, *arguments]
    if LAB in os.environ:
        return start_piped(exec_line(host.name, command), directory)
    if shutil.which("ssh") is None:
        raise UserError(
            "the program ssh is missing, by which other hosts are reached",
            where=f"host {host.name}",
            fix="install it, on Debian and Ubuntu: apt install openssh-client",
        )
    remote = f"cd {shlex.quote(directory)} && exec {shlex.join(command)}"
    options = {
        "BatchMode": "yes",  # ask nothing: there may be nobody to answer
        "ConnectTimeout": str(CONNECT_SECONDS),
        "ServerAliveInterval": "5",  # a link that is cut is noticed within 20 seconds
        "ServerAliveCountMax": "4",
    }
    port = [] if host.port is None else ["-p", str(host.port)]
    flags = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    return start_piped(["ssh", *flags, *port, host.name, remote])


def start_piped(command: list[str], directory: str | None = None) -> "subprocess.Popen[bytes]":
    """Start a command in a session of its own, with pipes to it."""
    return subprocess.Popen(
        command, cwd=directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip


def _parse_name(item: str, where: str) -> Host:
    """Read ``name``, ``name:workers`` or ``[fe80::1]:workers``."""
    name, colon, workers = item.rpartition(":") if not item.endswith("]") else (item, "", "")
    if not colon:
        name, workers = item, "1"
    name = name.strip("[]")
    if not name or not workers.isdigit() or int(workers) < 1:
        raise UserError(
            f"{item} is not a host with its number of workers",
            where=where,
            fix="write NAME or NAME:WORKERS, as in a:2,b:2",
        )
    return Host(name, int(workers))


def _parse_line(line: str, where: str) -> Host | None:
    """Read a line of a hosts file: ``name[:workers] [slots=2] [port=22] [python=PATH] [directory=PATH]``."""
    words = shlex.split(line, comments=True)
    if not words:
        return None
    host = _parse_name(words[0], where)
    for word in words[1:]:
        key, _, value = word.partition("=")
        if key in ("slots", "workers", "port") and value.isdigit() and int(value) > 0:
            host = replace(host, **{"workers" if key == "slots" else key: int(value)})  # type: ignore[arg-type]
        elif key in ("python", "directory") and value:
            host = replace(host, **{key: value})  # type: ignore[arg-type]
        else:
            raise UserError(
                f"{word} is not understood",
                where=where,
                fix="after the host's name write slots=2, port=22, python=PATH or directory=PATH",
            )
    return host
