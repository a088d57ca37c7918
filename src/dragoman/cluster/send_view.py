"""What the sending of a dataset shows of itself: a bar for each host on a terminal, lines elsewhere."""

import time
from collections.abc import Callable, Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from dragoman.cluster.send import Delivery

LINE_SECONDS = 10.0  # between lines about a host
STATES = {
    "asks": "starting …",
    "waits": "waiting for another process that writes datasets there …",
    "checks": "checking what is there …",
}


class View:
    """Shows deliveries whenever it is called with them, and at the end of its ``with``.

    Lines go to ``say`` if that is given; otherwise bars or lines go to standard error.
    """

    def __init__(self, say: Callable[[str], None] | None = None) -> None:
        console = Console(stderr=True)
        self._say = say or (lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True))
        self._has_bars = say is None and console.is_terminal
        name, text = (
            TextColumn(each, markup=False) for each in ("{task.description}", "{task.fields[text]}")
        )
        self._bars = Progress(name, BarColumn(), text, console=console, disable=not self._has_bars)
        self._tasks: dict[str, TaskID] = {}
        self._told: dict[str, float] = {}  # when each host was last spoken of; for ever once it is over

    def __enter__(self) -> "View":
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()
        if kind is KeyboardInterrupt:
            self._say("stopped; what has arrived stays there, and the same command goes on from it")

    def __call__(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            name, text = delivery.host.name, progress_of(delivery)
            if self._has_bars:
                if name not in self._tasks:
                    self._tasks[name] = self._bars.add_task(name, total=delivery.total_bytes, text="")
                self._bars.update(self._tasks[name], completed=delivery.there_bytes, text=text)
            told = self._told.setdefault(name, time.monotonic())
            if delivery.is_over and told < float("inf"):
                self._told[name] = float("inf")
                self._say(ending_of(delivery))
            elif not self._has_bars and time.monotonic() - told > LINE_SECONDS:
                self._told[name] = time.monotonic()
                self._say(f"host {name}: {text}")


def progress_of(delivery: Delivery) -> str:
    """Return how far a host is."""
    if delivery.state in STATES:
        return STATES[delivery.state]
    megabytes = f"{delivery.there_bytes / 1e6:,.1f} of {delivery.total_bytes / 1e6:,.1f} MB"
    if delivery.state != "gets":
        return megabytes
    rate = (delivery.there_bytes - delivery.before_bytes) / max(time.monotonic() - delivery.began, 1e-3)
    if rate <= 0:
        return megabytes
    left = (delivery.total_bytes - delivery.there_bytes) / rate
    return f"{megabytes}, {rate / 1e6:,.1f} MB/s, {duration(left)} left"


def ending_of(delivery: Delivery) -> str:
    """Return what became of a host, in a line."""
    name = delivery.host.name
    if delivery.problem is not None:
        return f"host {name} failed: {delivery.problem.what}"
    if not delivery.sent_bytes:
        return f"host {name} has the dataset already"
    kept = f"; {delivery.before_bytes / 1e6:,.1f} MB were there already" if delivery.before_bytes else ""
    rate = delivery.sent_bytes / 1e6 / max(delivery.seconds, 1e-3)
    return (
        f"host {name} has the dataset: {delivery.sent_bytes / 1e6:,.1f} MB in {duration(delivery.seconds)} "
        f"({rate:,.1f} MB/s, {delivery.wire_bytes / 1e6:,.1f} MB as sent){kept}"
    )


def duration(seconds: float) -> str:
    """Return seconds in words."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min"
