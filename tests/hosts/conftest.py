"""A lab for tests: hosts made of namespaces, with links that can be slowed, cut and restored.

The fixture ``lab`` is one of two hosts with fast links; ``make_lab`` makes others.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman.cluster.lab.client import HOSTS, LAB, ask, exec_line

SECONDS = 30  # no command in these tests needs half of it
SSH_PORT = 2222


class Lab:
    """A running lab whose COMMAND waits for our word to end. To be used in a ``with``."""

    def __init__(
        self,
        hosts: int = 2,
        network: str | None = None,
        cores_per_host: int | None = None,
        workers_per_host: int = 1,
    ) -> None:
        options = {"network": network, "cores-per-host": cores_per_host, "workers-per-host": workers_per_host}
        given = [f"--{name}={value}" for name, value in options.items() if value is not None]
        # COMMAND says what it finds in its environment, and then lives as long as its input.
        command = ["sh", "-c", f'echo "${LAB}"; echo "${HOSTS}"; exec cat']
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dragoman", "lab", f"--hosts={hosts}", *given, "--", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.directory = self.process.stdout.readline().strip()
        if not self.directory:
            message = self.process.communicate()[1]
            reason = f"no lab can be made here:\n{message}"
            # Root can make a lab on any Linux: what keeps it from doing so is a failure.
            pytest.fail(reason) if os.geteuid() == 0 else pytest.skip(reason)
        self.name = os.path.basename(self.directory)
        self.environment = {**os.environ, LAB: self.directory, HOSTS: self.process.stdout.readline().strip()}
        self.started: list[subprocess.Popen[str]] = []

    def popen(self, host: str, command: list[str], **options: Any) -> "subprocess.Popen[str]":
        """Start a command on a host."""
        settings = {"text": True, "env": self.environment, **options}
        self.started.append(subprocess.Popen(exec_line(host, command), **settings))
        return self.started[-1]

    def run(self, host: str, command: list[str], **options: Any) -> "subprocess.CompletedProcess[str]":
        """Run a command on a host to its end."""
        settings = {
            "text": True,
            "env": self.environment,
            "capture_output": True,
            "timeout": SECONDS,
            **options,
        }
        return subprocess.run(exec_line(host, command), **settings)

    def output(self, host: str, command: list[str], **options: Any) -> str:
        """Return what a command says on a host, which must end well."""
        result = self.run(host, command, **options)
        assert result.returncode == 0, f"{command} on {host}: {result}"
        return result.stdout.strip()

    def inside(self, command: list[str], **options: Any) -> "subprocess.CompletedProcess[str]":
        """Run a command where COMMAND runs: next to the hosts, and on none of them."""
        return self.run("lab", command, **options)

    def cut(self, host: str) -> None:
        ask("cut", host=host, lab=self.directory)

    def restore(self, host: str) -> None:
        ask("restore", host=host, lab=self.directory)

    def slow(self, host: str, rate: str) -> None:
        ask("slow", host=host, rate=rate, lab=self.directory)

    def kill(self, host: str) -> str:
        return ask("kill", host=host, lab=self.directory)["message"]

    def status(self) -> dict[str, Any]:
        """Return the hosts by their names."""
        return {host["name"]: host for host in ask("status", lab=self.directory)["status"]["hosts"]}

    def __enter__(self) -> "Lab":
        return self

    def __exit__(self, *_: object) -> None:
        """End the lab, and with it all that runs in it."""
        self.process.stdin.close()
        try:
            self.process.wait(SECONDS)
        finally:
            self.process.send_signal(signal.SIGKILL)
            for each in (self.process, *self.started):
                each.wait(SECONDS)
                for stream in (each.stdin, each.stdout, each.stderr):
                    if stream is not None:
                        stream.close()


def wait_until(condition: Callable[[], bool], what: str, seconds: float = SECONDS) -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.01)


@pytest.fixture
def lab():
    """Two hosts."""
    with Lab() as lab:
        yield lab


@pytest.fixture
def make_lab():
    """A function that makes labs, which end with the test."""
    made = []

    def make(**settings: Any) -> Lab:
        made.append(Lab(**settings))
        return made[-1]

    yield make
    for each in made:
        each.__exit__()


def needs(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


@pytest.fixture
def ssh(lab, tmp_path):
    """Hosts reached by ssh as a user does: a real sshd on each, keys, known hosts, names in the configuration."""
    needs("sshd", "ssh", "ssh-keygen")
    directory = tmp_path / "ssh"
    directory.mkdir(mode=0o700)
    for name in ("host_key", "user_key"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)], check=True
        )
    shutil.copy(directory / "user_key.pub", directory / "authorized_keys")
    (directory / "sshd_config").write_text(
        f"Port {SSH_PORT}\nHostKey {directory}/host_key\nAuthorizedKeysFile {directory}/authorized_keys\n"
        f"PidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n"
        f"SetEnv PYTHONPATH={Path(dragoman.__file__).parents[1]}\n"
    )
    (directory / "config").write_text(
        f"IdentityFile {directory}/user_key\nUserKnownHostsFile /dev/null\nStrictHostKeyChecking no\nLogLevel ERROR\n"
        "Host alpha\n  HostName 10.77.0.1\nHost beta\n  HostName 10.77.0.2\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    for host in ("host1", "host2"):
        lab.popen(host, [shutil.which("sshd") or "", "-D", "-e", "-f", str(directory / "sshd_config")],
                  stderr=subprocess.PIPE)  # fmt: skip
    # The user's own ssh, told where its configuration is.
    wrapper = directory / "ssh"
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {directory}/config "$@"\n')
    wrapper.chmod(0o755)
    probe = [str(wrapper), "-o", "BatchMode=yes", "-p", str(SSH_PORT), "beta", "true"]
    wait_until(lambda: lab.inside(probe).returncode == 0, "sshd to answer")
    return str(directory)
