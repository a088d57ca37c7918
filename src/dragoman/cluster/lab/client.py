"""Finding a lab, asking it for something, and running commands on its hosts.

A lab is a directory with a socket. It answers a request of one JSON line with one line, and for ``exec`` it also hands
over the host's namespaces as open files: a process that has them can enter, wherever it runs. This is how Dragoman
and ``mpirun`` reach the hosts of a lab, so it must start fast: nothing heavy is imported.
"""

import json
import os
import signal
import socket
import sys
from typing import Any

from dragoman.cluster.lab.namespaces import Namespaces, enter, fork_a_mortal
from dragoman.errors import UserError

LAB = "DRAGOMAN_LAB"  # in the environment of what runs in a lab: its directory
HOSTS = "DRAGOMAN_HOSTS"  # likewise: the hosts and their workers, as --hosts takes them
UNREACHABLE = 255  # as ssh ends when it cannot reach a host
NOT_EXECUTABLE, NOT_FOUND = 126, 127  # as a shell ends when it cannot run a command
CONTROL, STATE = "control", "lab.json"  # the files of a lab's directory
ANSWER_SECONDS = 60
SENT_BY_TERMINAL = 0x80  # SI_KERNEL: Ctrl-C, as opposed to a signal sent by a process


def require_linux() -> None:
    """Refuse other systems."""
    if sys.platform != "linux":
        raise UserError(
            "a lab needs Linux: its hosts are network namespaces",
            where=f"dragoman lab on {sys.platform}",
            fix="use a Linux machine, or a virtual one",
        )


def labs_directory() -> str:
    """Return where this user's labs are. The path is short, as the address of a socket has to be."""
    return f"/tmp/dragoman-lab-{os.geteuid()}"


def connect(directory: str) -> socket.socket | None:
    """Return a connection to a lab, or None if it is no longer there."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.settimeout(ANSWER_SECONDS)
    try:
        client.connect(os.path.join(directory, CONTROL))
    except OSError:
        client.close()
        return None
    return client


def running_labs() -> list[str]:
    """Return the names of the labs that answer."""
    root = labs_directory()
    found = []
    for name in sorted(os.listdir(root)) if os.path.isdir(root) else []:
        client = connect(os.path.join(root, name))
        if client is not None:
            client.close()
            found.append(name)
    return found


def open_lab(name: str | None, where: str) -> socket.socket:
    """Return a connection to a lab: the one named, or that of DRAGOMAN_LAB, or the only one there is."""
    require_linux()
    chosen = name or os.environ.get(LAB)
    if chosen is None:
        running = running_labs()
        if not running:
            fix = "start one: dragoman lab --hosts 2 -- COMMAND"
            raise UserError("no lab is running", where=where, fix=fix)
        if len(running) > 1:
            raise UserError(
                f"{len(running)} labs are running: {', '.join(running)}",
                where=where,
                fix=f"choose one, such as --lab {running[0]}",
            )
        chosen = running[0]
    client = connect(os.path.join(labs_directory(), chosen))  # a whole path stays as it is
    if client is None:
        running = running_labs()
        fix = (
            f"choose one of: {', '.join(running)}"
            if running
            else "start one: dragoman lab --hosts 2 -- COMMAND"
        )
        raise UserError(
            f"lab {os.path.basename(chosen)} is not running",
            where=f"--lab {chosen}" if name else f"{LAB}={chosen}",
            fix=fix if name else f"unset {LAB}, or {fix}",
        )
    return client


def ask(do: str, *, lab: str | None = None, **request: str) -> dict[str, Any]:
    """Ask a lab to do something and return its answer."""
    where = " ".join(["dragoman lab", do, *request.values()])
    with open_lab(lab, where) as client:
        return converse(client, {"do": do, **request})[0]


def converse(client: socket.socket, request: dict[str, str]) -> tuple[dict[str, Any], Namespaces]:
    """Send a request; return the answer, and the namespaces that came with it."""
    try:
        client.send(json.dumps(request).encode() + b"\n")
        line, files, _, _ = socket.recv_fds(client, 1 << 20, 16, socket.MSG_CMSG_CLOEXEC)
        answer: dict[str, Any] = json.loads(line)
    except (OSError, ValueError) as error:
        raise UserError(
            "the lab does not answer", where=f"dragoman lab {request['do']}", fix="see if it has ended"
        ) from error
    if "error" in answer:
        raise UserError(**answer["error"])
    return answer, dict(zip(answer["kinds"], files, strict=True))


def exec_line(host: str, command: list[str]) -> list[str]:
    """Return the command line that runs ``command`` on a host."""
    return [sys.executable, "-m", "dragoman.cluster.lab", "exec", host, "--", *command]


def parse_words(words: list[str]) -> list[str]:
    """Return the command that the words after HOST mean.

    After ``--`` it is run as it is. Without, the words are joined for a shell, in ssh's way, which those who
    would call ssh (mpirun) rely on. No word at all asks for a shell.
    """
    if words[:1] == ["--"]:
        command = words[1:]
    else:
        command = ["/bin/sh", "-c", " ".join(words)] if words else []
    return command or [os.environ.get("SHELL", "/bin/sh")]


def exec_on_host(host: str, words: list[str], *, lab: str | None = None) -> int:
    """Become the command on a host, or, started outside of the lab, run it there and return its exit code."""
    command = parse_words(words)
    request = {"do": "exec", "host": host}
    with open_lab(lab, f"dragoman lab exec {host}") as client:
        answer, namespaces = converse(client, request)
        if "unreachable" in answer:
            return refuse(answer["unreachable"])
        lab_itself = {kind: namespaces.pop(kind) for kind in ("user", "pid")}
        if not enter(lab_itself):
            return become(command, client, request, answer, namespaces)
        # Only a child can be in the lab's pid namespace.
        in_front = in_foreground()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, awaited_signals())
        child = fork_a_mortal()
        if child:
            return wait_for(child, in_same_group=in_front)
        code = NOT_EXECUTABLE
        try:
            if not in_front:
                os.setpgid(0, 0)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            code = become(command, client, request, answer, namespaces)
        except UserError as error:
            print(error, file=sys.stderr, flush=True)
        finally:
            os._exit(code)


def become(
    command: list[str],
    client: socket.socket,
    request: dict[str, str],
    answer: dict[str, Any],
    namespaces: Namespaces,
) -> int:
    """Enter a host and turn into the command; return an exit code if that is impossible."""
    enter(namespaces)
    if answer["cores"]:
        os.sched_setaffinity(0, answer["cores"])
    # A host that was killed since we asked has not killed us: we were not there yet. It would now.
    again, _ = converse(client, request)
    if "unreachable" in again:
        return refuse(again["unreachable"])
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them, and the command would inherit that
    try:
        os.execvpe(command[0], command, {**os.environ, **answer["environment"]})
    except OSError as error:
        print(f"dragoman lab: {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE


def refuse(reason: str) -> int:
    """Say why a host cannot be reached."""
    print(f"dragoman lab: {reason}", file=sys.stderr, flush=True)
    return UNREACHABLE


def in_foreground() -> bool:
    """Return whether Ctrl-C in a terminal reaches this process and its children."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY)
        try:
            return os.tcgetpgrp(terminal) == os.getpgrp()
        finally:
            os.close(terminal)
    except OSError:
        return False


def awaited_signals() -> set[signal.Signals]:
    """Return the signals to wait for: the end of a child, and what is to be passed on to it.

    What this process was told to ignore (``nohup``) is ignored by the child as well.
    """
    to_pass_on = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    return {signal.SIGCHLD} | {each for each in to_pass_on if signal.getsignal(each) != signal.SIG_IGN}


def wait_for(child: int, *, in_same_group: bool) -> int:
    """Pass signals on to a child until it ends; return its exit code. They have been blocked since before it began.

    A child in the same group has a Ctrl-C already: it must not get it twice.
    """
    awaited = awaited_signals()
    while True:
        received = signal.sigwaitinfo(awaited)
        if received.si_signo == signal.SIGCHLD:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return shell_code(os.waitstatus_to_exitcode(status))
        elif not (in_same_group and received.si_code == SENT_BY_TERMINAL):
            os.kill(child, received.si_signo)


def shell_code(returncode: int) -> int:
    """Return an exit code as shells give it: 128 + n for signal n."""
    return 128 - returncode if returncode < 0 else returncode


def format_status(status: dict[str, Any]) -> str:
    """Return the status of a lab as a table."""
    rows = [("HOST", "ADDRESS", "STATE", "NETWORK", "CORES", "PROCESSES")]
    for host in status["hosts"]:
        cores = ",".join(map(str, host["cores"])) or "all"
        rows.append(
            (host["name"], host["address"], host["state"], host["network"], cores, str(host["processes"]))
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    command = " ".join(status["command"]).replace("\n", " ")
    title = f"lab {status['name']}: {command if len(command) <= 80 else command[:79] + '…'}"
    return "\n".join([title, *lines])
