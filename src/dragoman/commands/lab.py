"""``dragoman lab``: rehearse a cluster on one machine."""

from collections.abc import Callable
from typing import Annotated

import typer

from dragoman.commands.options import JsonOption, print_json

HostArgument = Annotated[str, typer.Argument(metavar="HOST", help="A host of the lab, such as host1.")]
LabOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Which lab, if several are running: the number it said.")
]


def run(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="What to run in the lab.")],
    hosts: Annotated[int, typer.Option(min=1, max=253, help="How many: host1, host2, …")] = 2,
    network: Annotated[
        str, typer.Option(metavar="RATE", help="Of each host's link, both ways: 20mbit, 1gbit, none.")
    ] = "none",
    cores_per_host: Annotated[
        int | None, typer.Option(min=1, help="Cores of each host; all of them if not given.")
    ] = None,
    workers_per_host: Annotated[
        int, typer.Option(min=1, help="Workers of each host, for DRAGOMAN_HOSTS.")
    ] = 1,
) -> None:
    """Make a lab, run COMMAND in it, and end with it. "dragoman lab --hosts 2 -- COMMAND" is the same."""
    from dragoman.cluster.lab.hosts import parse_rate
    from dragoman.cluster.lab.run import Settings, run_lab

    rate = parse_rate(network, where=f"--network {network}")
    raise typer.Exit(run_lab(Settings(command, hosts, rate, cores_per_host, workers_per_host)))


def exec_(
    host: HostArgument,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[--] COMMAND", help="After -- run as it is; else joined for a shell, as ssh does."
        ),
    ] = None,
    lab: LabOption = None,
) -> None:
    """Run a command on a host, as ssh would.

    Input, output and exit code are those of the command; 255 means that the host is cut or off."""
    from dragoman.cluster.lab.client import exec_on_host

    raise typer.Exit(exec_on_host(host, command or [], lab=lab))


def cut(host: HostArgument, lab: LabOption = None) -> None:
    """Cut the link of a host. Its processes go on."""
    from dragoman.cluster.lab.client import ask

    print(ask("cut", host=host, lab=lab)["message"])


def restore(host: HostArgument, lab: LabOption = None) -> None:
    """Repair a host that was cut or killed."""
    from dragoman.cluster.lab.client import ask

    print(ask("restore", host=host, lab=lab)["message"])


def slow(
    host: HostArgument,
    rate: Annotated[str, typer.Argument(metavar="RATE", help="Such as 20mbit; none is no limit.")],
    lab: LabOption = None,
) -> None:
    """Give the link of a host another rate, slower or faster."""
    from dragoman.cluster.lab.client import ask

    print(ask("slow", host=host, rate=rate, lab=lab)["message"])


def kill(host: HostArgument, lab: LabOption = None) -> None:
    """Power a host off. Its link is down, its processes are killed, nothing starts there until it is restored."""
    from dragoman.cluster.lab.client import ask

    print(ask("kill", host=host, lab=lab)["message"])


def status(lab: LabOption = None, json: JsonOption = False) -> None:
    """Show the hosts, their links and how many processes they run."""
    from dragoman.cluster.lab.client import ask, format_status

    status = ask("status", lab=lab)["status"]
    print_json(status) if json else print(format_status(status))


COMMANDS: dict[str, Callable[..., None]] = {
    "run": run,
    "exec": exec_,
    "cut": cut,
    "restore": restore,
    "slow": slow,
    "kill": kill,
    "status": status,
}
