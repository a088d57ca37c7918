"""The lab itself: a process outside that waits, and process 1 inside, which runs COMMAND and obeys requests.

Everything lives in namespaces that belong to process 1: bridge, hosts, processes. When it ends, or the process
outside dies in whatever way, the kernel ends and removes all of it. So there is nothing to clean up but a directory,
which the next lab removes if this one cannot.
"""

import fcntl
import json
import os
import selectors
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from dragoman.cluster.lab.client import (
    CONTROL,
    HOSTS,
    LAB,
    STATE,
    awaited_signals,
    in_foreground,
    labs_directory,
    require_linux,
    running_labs,
    shell_code,
    wait_for,
)
from dragoman.cluster.lab.hosts import (
    INSIDE,
    INSIDE_ADDRESS,
    Host,
    find_tool,
    format_rate,
    host_addresses,
    hosts_file,
    kill_all,
    make_bridge,
    make_host,
    parse_rate,
    plug,
    shape,
    share_cores,
)
from dragoman.cluster.lab.namespaces import (
    KINDS,
    Namespaces,
    forbidden,
    fork_a_mortal,
    isolate,
    mount_file,
    mount_proc,
    open_namespaces,
    processes_in,
)
from dragoman.errors import ExitCode, UserError
from dragoman.files import disk_errors, write_json

STATES = {"up": "is up", "cut": "has its cable cut", "off": "is powered off"}

Request = dict[str, Any]
Answer = tuple[dict[str, Any], Namespaces]  # what to say, and the files to hand over


@dataclass(frozen=True)
class Settings:
    """What was asked for."""

    command: list[str]
    hosts: int = 2
    bits_per_second: int | None = None
    cores_per_host: int | None = None
    workers_per_host: int = 1


@dataclass
class Lab:
    """What process 1 knows."""

    directory: Path
    settings: Settings
    namespaces: Namespaces
    hosts: dict[str, Host] = field(default_factory=dict)
    started: float = field(default_factory=time.time)

    @property
    def environment(self) -> dict[str, str]:
        """What a program in the lab finds in its environment."""
        hosts = ",".join(f"{name}:{self.settings.workers_per_host}" for name in self.hosts)
        return {HOSTS: hosts, LAB: str(self.directory)}


def run_lab(settings: Settings) -> int:
    """Make a lab, run COMMAND in it, and return its exit code. This process is then fit for nothing else."""
    require_linux()
    for tool in ("ip", "tc"):
        find_tool(tool)
    if shutil.which(settings.command[0]) is None:
        raise cannot_run(settings.command, "there is no such program")
    warn_about_cores(settings, len(os.sched_getaffinity(0)))
    in_front = in_foreground()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, awaited_signals())
    directory, control = open_directory()
    try:
        isolate()
        child = fork_a_mortal()
        if child == 0:
            live_inside(settings, directory, control, mask, own_group=not in_front)
        control.close()
        return wait_for(child, in_same_group=in_front)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def cannot_run(command: list[str], reason: str) -> UserError:
    """Return the error that says why COMMAND cannot be started."""
    where = f"dragoman lab -- {' '.join(command)}"
    return UserError(f"cannot run {command[0]}: {reason}", where=where, fix="check the command after --")


def warn_about_cores(settings: Settings, usable: int) -> None:
    """Say it once if hosts have to share cores."""
    needed = settings.hosts * (settings.cores_per_host or 0)
    if needed > usable:
        print(
            f"warning: {settings.hosts} hosts of {settings.cores_per_host} cores need {needed}, and {usable} can be "
            "used here: hosts share cores, and are slower than real ones when they work at the same time",
            file=sys.stderr,
        )


def open_directory() -> tuple[Path, socket.socket]:
    """Make the directory of this lab, with the socket it listens on; remove those of dead labs."""
    root = Path(labs_directory())
    with disk_errors(root):
        root.mkdir(mode=0o700, exist_ok=True)
        status = root.lstat()
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077 or not root.is_dir():
            raise UserError(
                "somebody else could control the lab",
                where=str(root),
                fix="it must be a directory of yours that only you can enter: remove it, or chmod 700",
            )
        with open(root / "lock", "w") as lock:
            # Held while a lab has a directory but does not listen yet, which looks like a dead one.
            fcntl.flock(lock, fcntl.LOCK_EX)
            alive = running_labs()
            for each in root.iterdir():
                if each.is_dir() and each.name not in alive:
                    shutil.rmtree(each, ignore_errors=True)
            directory = root / str(os.getpid())
            directory.mkdir()
            control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            control.bind(str(directory / CONTROL))
            control.listen(64)
    return directory, control


def live_inside(
    settings: Settings,
    directory: Path,
    control: socket.socket,
    mask: set[Any],
    *,
    own_group: bool,
) -> NoReturn:
    """Be process 1 of a lab: make the hosts, run COMMAND, and end with its exit code."""
    code: int = ExitCode.BUG
    try:
        lab = make_lab(settings, directory)
        names, network = list(lab.hosts), format_rate(settings.bits_per_second)
        span = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        print(f"lab {directory.name}: {span}, network {network}; see dragoman lab status", file=sys.stderr)
        code = run_command(lab, control, mask, own_group=own_group)
    except UserError as error:
        print(error, file=sys.stderr)
        code = ExitCode.USER
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)  # the kernel ends all other processes with process 1, and then there is no lab


def make_lab(settings: Settings, directory: Path) -> Lab:
    """Make the bridge and the hosts around this process, which is isolated already."""
    addresses = host_addresses(settings.hosts)
    try:
        mount_proc()
        names = directory / "hosts"
        names.write_text(hosts_file(Path("/etc/hosts").read_text(), socket.gethostname(), addresses))
        names.chmod(0o644)  # for every user in the lab, whatever the umask is
        mount_file(str(names), "/etc/hosts")
    except OSError as error:
        raise forbidden(error, is_root=os.geteuid() == 0) from error
    lab = Lab(directory, settings, open_namespaces(*KINDS))
    make_bridge()
    shares = share_cores(sorted(os.sched_getaffinity(0)), settings.hosts, settings.cores_per_host)
    for (name, address), cores in zip(addresses.items(), shares, strict=True):
        lab.hosts[name] = make_host(name, address, cores)
        if settings.bits_per_second is not None:
            shape(lab.hosts[name], settings.bits_per_second)
    save(lab)
    return lab


def run_command(lab: Lab, control: socket.socket, mask: set[Any], *, own_group: bool) -> int:
    """Run COMMAND to its end while obeying requests; return its exit code."""
    wakeup, signalled = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(signalled)
    for each in awaited_signals():
        signal.signal(each, lambda *_: None)  # the number goes into the pipe
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        command = subprocess.Popen(
            lab.settings.command,
            env={**os.environ, **lab.environment},
            process_group=0 if own_group else None,
        )
    except OSError as error:
        raise cannot_run(lab.settings.command, str(error.strerror)) from error
    # COMMAND is in the terminal's foreground and we leave it: a Ctrl-C there reaches COMMAND once, and what
    # reaches us was sent by the process outside, to be passed on.
    os.setpgid(0, 0)
    selector = selectors.DefaultSelector()
    selector.register(wakeup, selectors.EVENT_READ)
    selector.register(control, selectors.EVENT_READ)
    while command.returncode is None:
        for key, _ in selector.select():
            if key.fileobj == wakeup:
                for number in os.read(wakeup, 4096):
                    reap(command) if number == signal.SIGCHLD else command.send_signal(number)
            elif key.fileobj is control:
                selector.register(control.accept()[0], selectors.EVENT_READ)
            elif isinstance(key.fileobj, socket.socket) and not obey(lab, key.fileobj):
                selector.unregister(key.fileobj)
                key.fileobj.close()
    return shell_code(command.returncode)


def reap(command: "subprocess.Popen[bytes]") -> None:
    """Collect the processes that ended, orphans too: they are children of process 1."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == command.pid:
                command.returncode = os.waitstatus_to_exitcode(ended[1])


def obey(lab: Lab, client: socket.socket) -> bool:
    """Answer one request; False if the client has gone."""
    answer: dict[str, Any]
    files: Namespaces = {}
    try:
        line = client.recv(1 << 16)
        if not line:
            return False
        request = json.loads(line)
        answer, files = REQUESTS[request["do"]](lab, request)
    except UserError as error:
        answer = {"error": {"what": error.what, "where": error.where, "fix": error.fix}}
    except OSError:
        return False
    with suppress(OSError):
        line = json.dumps({**answer, "kinds": list(files)}).encode() + b"\n"
        socket.send_fds(client, [line], list(files.values()))
        return True
    return False


def host_of(lab: Lab, request: Request) -> Host:
    """Return the host a request is about."""
    name = request["host"]
    if name not in lab.hosts:
        where = f"dragoman lab {request['do']} {name}"
        raise UserError(f"there is no host {name}", where=where, fix=f"choose one of: {', '.join(lab.hosts)}")
    return lab.hosts[name]


def answer_exec(lab: Lab, request: Request) -> Answer:
    """Hand over the namespaces of a host, unless nothing can reach it."""
    if request["host"] == INSIDE:
        return {"environment": lab.environment, "cores": []}, lab.namespaces
    host = host_of(lab, request)
    if host.state != "up":
        reason = f"no route to {host.name}, it {STATES[host.state]}: dragoman lab restore {host.name}"
        return {"unreachable": reason}, {}
    answer = {"environment": lab.environment, "cores": host.cores}
    return answer, {**lab.namespaces, **host.namespaces}


def answer_cut(lab: Lab, request: Request) -> Answer:
    """Pull the cable of a host out of the bridge."""
    host = host_of(lab, request)
    if host.state == "up":
        plug(host, "down")
        host.state = "cut"
    return changed(lab, host, STATES[host.state])


def answer_restore(lab: Lab, request: Request) -> Answer:
    """Put the cable in again, and the power on."""
    host = host_of(lab, request)
    plug(host, "up")
    host.state = "up"
    return changed(lab, host, STATES[host.state])


def answer_slow(lab: Lab, request: Request) -> Answer:
    """Give a link another rate."""
    host = host_of(lab, request)
    rate = request["rate"]
    shape(host, parse_rate(rate, where=f"dragoman lab slow {host.name} {rate}"))
    return changed(lab, host, f"has network {format_rate(host.bits_per_second)}")


def answer_kill(lab: Lab, request: Request) -> Answer:
    """Take the power away: no link, no process."""
    host = host_of(lab, request)
    plug(host, "down")
    # Before the first look at the processes: who enters later asks again, and is refused (client.become).
    host.state = "off"
    killed = kill_all(host)
    return changed(lab, host, f"{STATES[host.state]}, {killed} process{'' if killed == 1 else 'es'} killed")


def answer_status(lab: Lab, request: Request) -> Answer:
    """Tell all there is to know."""
    status = describe(lab)
    for host in status["hosts"]:
        host["processes"] = len(processes_in(lab.hosts[host["name"]].namespaces))
    return {"status": status}, {}


REQUESTS: dict[str, Callable[[Lab, Request], Answer]] = {
    "exec": answer_exec,
    "cut": answer_cut,
    "restore": answer_restore,
    "slow": answer_slow,
    "kill": answer_kill,
    "status": answer_status,
}


def changed(lab: Lab, host: Host, message: str) -> Answer:
    """Save the new state and say what was done."""
    save(lab)
    return {"message": f"{host.name} {message}"}, {}


def save(lab: Lab) -> None:
    """Write lab.json, for programs that look without asking."""
    write_json(lab.directory / STATE, describe(lab))


def describe(lab: Lab) -> dict[str, Any]:
    """Return the lab as JSON."""
    hosts = [
        {
            "name": host.name,
            "address": host.address,
            "state": host.state,
            "network": format_rate(host.bits_per_second),
            "bits_per_second": host.bits_per_second,
            "cores": host.cores,
            "workers": lab.settings.workers_per_host,
        }
        for host in lab.hosts.values()
    ]
    return {
        "name": lab.directory.name,
        "directory": str(lab.directory),
        "command": lab.settings.command,
        "started": lab.started,
        "address": INSIDE_ADDRESS,
        "hosts": hosts,
    }
