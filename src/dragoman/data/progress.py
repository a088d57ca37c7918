"""What a long piece of work shows of itself on stderr: bars on a terminal, one line per stage elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)


class Stages:
    """Shows stages one after another and remembers how long each took."""

    def __init__(self, shown: bool) -> None:
        self.seconds: dict[str, float] = {}
        self._console = Console(stderr=True, quiet=not shown)
        self._has_bars = shown and self._console.is_terminal

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def stage(self, name: str, total: float = 0) -> Iterator[Callable[[float], None]]:
        """Time a stage; call what this gives with each amount of ``total`` that is done, if that is known."""
        columns = (
            TextColumn("{task.description:<20}"),
            BarColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        started = time.monotonic()
        with Progress(*columns, console=self._console, disable=not self._has_bars) as bars:
            task = bars.add_task(name, total=total or None)
            yield partial(bars.advance, task)
            bars.update(task, total=1, completed=1)
        self.seconds[name] = round(time.monotonic() - started, 2)
        if not self._has_bars:
            self.say(f"{name}: {self.seconds[name]:.1f} s")

    @contextmanager
    def bars(self) -> Iterator[Callable[[str, int, int | None], None]]:
        """Show the bytes of several files at once; call what this gives with name, bytes so far and in all."""
        columns = (
            TextColumn("{task.description:<20}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self._console, disable=not self._has_bars) as bars:
            tasks: dict[str, TaskID] = {}

            def show(name: str, so_far: int, total: int | None) -> None:
                if name not in tasks:
                    tasks[name] = bars.add_task(name, total=None)
                bars.update(tasks[name], completed=so_far, total=total)

            yield show
