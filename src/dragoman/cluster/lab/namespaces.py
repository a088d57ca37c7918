"""Linux namespaces: leaving the machine for a world of one's own, and entering one that exists.

A namespace lives as long as a process is in it or holds it as an open file, so there is nothing to clean up: the
kernel removes it when its last process is gone, however that ended. Such a file can be handed to another process,
which enters with no need for numbers of processes. Namespaces belong to a thread: who calls this has one.
"""

import ctypes
import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from dragoman.errors import UserError

Namespaces = dict[str, int]  # kind, as in /proc/PID/ns, to an open file

# In the order to enter them: rights first, the file system (and with it /proc) last.
KINDS = {"user": 0x10000000, "pid": 0x20000000, "net": 0x40000000, "uts": 0x04000000, "mnt": 0x00020000}
NEW_KINDS = ("pid", "net", "uts", "mnt")  # what a lab has of its own
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_SLAVE = 0x2, 0x4, 0x8, 0x1000, 0x4000, 0x80000
PR_SET_PDEATHSIG = 1

# What systems set to keep users from making namespaces: the file, the value that forbids, what allows.
LOCKS = [
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "sysctl kernel.apparmor_restrict_unprivileged_userns=0",
    ),
    ("/proc/sys/user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=10000"),
]

libc = ctypes.CDLL(None, use_errno=True)


def call(function: str, *arguments: object) -> None:
    """Call a function of the C library that returns 0, or raise its error."""
    if getattr(libc, function)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")


def unshare(*kinds: str) -> None:
    """Move this process into new namespaces; a new pid namespace is for its children only."""
    call("unshare", sum(KINDS[kind] for kind in kinds))


def mount(source: str, target: str, kind: str | None = None, *, flags: int) -> None:
    """Mount ``source`` on ``target`` in this mount namespace."""
    file_system = kind.encode() if kind else None
    call("mount", source.encode(), target.encode(), file_system, ctypes.c_ulong(flags), None)


def mount_proc() -> None:
    """Let /proc show the processes of this pid namespace."""
    mount("proc", "/proc", "proc", flags=MS_NOSUID | MS_NODEV | MS_NOEXEC)


def mount_file(source: str, target: str) -> None:
    """Let a file appear in the place of another."""
    mount(source, target, flags=MS_BIND)


def isolate() -> None:
    """Move this process into namespaces of its own, where it has every right; its children are processes 1, 2, …"""
    user, group = os.geteuid(), os.getegid()
    try:
        try:
            unshare(*NEW_KINDS)
        except PermissionError:
            unshare("user", *NEW_KINDS)
            for name, text in (
                ("setgroups", "deny"),
                ("uid_map", f"0 {user} 1"),
                ("gid_map", f"0 {group} 1"),
            ):
                with open(f"/proc/self/{name}", "w") as file:
                    file.write(text)
        # What is mounted outside later appears inside as well, and nothing the other way.
        mount("none", "/", flags=MS_REC | MS_SLAVE)
    except OSError as error:
        raise forbidden(error, is_root=user == 0) from error


def forbidden(error: OSError, *, is_root: bool) -> UserError:
    """Return the error that says why the kernel lets us make no namespaces."""
    fixes = [] if is_root else ["run as root"]
    for path, value, fix in LOCKS:
        if os.path.exists(path):
            with open(path) as file:
                fixes += [f"allow it with {fix}"] if file.read().strip() == value else []
    fixes += ["in a container: start it with --privileged"]
    what = f"this system does not let you make network namespaces ({error.strerror})"
    return UserError(what, where="dragoman lab", fix="; or ".join(fixes))


def open_namespaces(*kinds: str) -> Namespaces:
    """Return the namespaces this process is in."""
    return {kind: os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in kinds}


def identity(namespace: int | str) -> tuple[int, int]:
    """Return what is the same for two files of one namespace."""
    status = os.stat(namespace)
    return status.st_dev, status.st_ino


def enter(namespaces: Namespaces) -> list[str]:
    """Move this process into the namespaces it is not in yet, and return their kinds.

    As with ``unshare``, a pid namespace is for the children. The working directory keeps its path if that exists.
    """
    path = os.getcwd()
    # Looked at before the first move: afterwards /proc may show another world.
    new = [
        kind
        for kind in KINDS
        if kind in namespaces and identity(namespaces[kind]) != identity(f"/proc/self/ns/{kind}")
    ]
    for kind in new:
        call("setns", namespaces[kind], KINDS[kind])
    if "mnt" in new:
        try:
            os.chdir(path)
        except OSError:
            os.chdir("/")
    return new


@contextmanager
def coming_back(*kinds: str) -> Iterator[None]:
    """Return to the namespaces of today at the end."""
    home = open_namespaces(*kinds)
    try:
        yield
    finally:
        enter(home)
        for file in home.values():
            os.close(file)


def processes_in(namespaces: Namespaces) -> list[int]:
    """Return the processes that are in one of the namespaces. Zombies are in none."""
    wanted = {kind: identity(file) for kind, file in namespaces.items()}
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if any(identity(f"/proc/{name}/ns/{kind}") == wanted[kind] for kind in wanted):
                found.append(int(name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it ended while we looked
    return found


def fork_a_mortal() -> int:
    """Fork a child that the kernel kills when this process dies, however it dies."""
    lifeline, held = os.pipe()
    child = os.fork()
    if child:
        os.close(lifeline)  # the other end stays open until we die
        return child
    os.close(held)
    call("prctl", PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    # A parent that died before this call sends no signal; but then its end of the pipe is closed.
    if select.select([lifeline], [], [], 0)[0]:
        os._exit(1)
    os.close(lifeline)
    return 0
