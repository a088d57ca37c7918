"""What a person sees during training: a live bar on a terminal, plain aligned lines anywhere else.

    step   1,250/40,000    3.1%  loss 4.213  lr 3.12e-04    5,120 tok/s  0.812 s/step  eta 8h42m

Whatever is said also goes to log.txt with a time stamp, and samples to samples.txt. Both are appended to, so
a resumed run goes on in the same files. The leader has a ``Console``, every other worker is ``Silent``.
"""

import io
import os
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any, TextIO

import rich.console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

RECENT_STEPS = 1000  # by which the time to go is judged: enough to hold evaluations in their right proportion
SECONDS_BETWEEN_FRAMES = 0.25
NARROWEST_BAR = 10  # columns
DISPENSABLE = ("lr", "seconds", "speed", "percent", "loss", "eta")  # what a narrow terminal loses first


class Console:
    """Talks to the person who watches. Text is shown as it is: brackets in a sentence are never markup."""

    def __init__(
        self,
        log_path: Path,
        samples_path: Path,
        *,
        total_steps: int,
        start_step: int,
        stream: TextIO | None = None,
    ) -> None:
        """``start_step`` is the last step already done; ``stream`` is standard output if not given."""
        stream = stream or sys.stdout
        if isinstance(stream, io.TextIOWrapper):
            # A sentence that the locale cannot write must not end the run.
            stream.reconfigure(errors="replace")
        self._log, self._samples = _open_appending(log_path), _open_appending(samples_path)
        self._status = Status(total_steps, start_step)
        is_terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._screen: _Bar | _Lines = _Bar(stream, self._status) if is_terminal else _Lines(stream)

    def say(self, text: str) -> None:
        self._note(text)
        self._screen.show(text)

    def warn(self, text: str) -> None:
        self._note(f"warning: {text}")
        self._screen.show(f"warning: {text}", style="yellow")

    def tick(self, step: int) -> None:
        """Note that ``step`` is done: after each step, at next to no cost."""
        self._status.tick(step, time.monotonic())
        self._screen.tick()

    def progress(
        self, step: int, *, loss: float, learning_rate: float, tokens_per_second: float, step_seconds: float
    ) -> None:
        """Tell how training goes: a line, or new numbers beside the bar."""
        self._status.step = step
        self._status.numbers = {
            "loss": f"loss {_five_characters(loss)}",
            "lr": f"lr {learning_rate:.2e}",
            "speed": f"{tokens_per_second:>7,.0f} tok/s",
            "seconds": f"{_five_characters(step_seconds)} s/step",
        }
        line = "step " + "  ".join(self._status.fields().values())
        self._note(line)
        self._screen.progress(line)

    def evaluation(self, step: int, dev_loss: float, train_loss: float, seconds: float) -> None:
        losses = f"dev loss {dev_loss:.3f}, train loss {train_loss:.3f}"
        self.say(f"evaluation at step {step:,}: {losses} ({format_duration(seconds)})")

    def score(self, entry: dict[str, Any]) -> None:
        """Tell a line of scores.jsonl."""
        low, high = entry["ci95"]
        bleu = f"BLEU {entry['bleu']:.2f} (95 % within {low:.2f} – {high:.2f})"
        self.say(f"{entry['set']} score at step {entry['step']:,}: {bleu}, chrF {entry['chrf']:.2f}")

    def sample(self, step: int, source: str, target: str, prediction: str) -> None:
        sentences = {"source": source, "target": target, "prediction": prediction}
        lines = [f"sample at step {step:,}", *(f"  {name:<12}{text}" for name, text in sentences.items())]
        self._samples.write("\n".join(lines) + "\n\n")
        self._samples.flush()
        self.say("\n".join(lines))

    def close(self) -> None:
        self._screen.close()
        self._log.close()
        self._samples.close()

    def _note(self, text: str) -> None:
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        self._log.writelines(f"{now}  {line}\n" for line in text.splitlines())
        self._log.flush()


class Silent:
    """Has the face of a ``Console`` and says nothing."""

    def say(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...

    def tick(self, step: int) -> None: ...

    def progress(
        self, step: int, *, loss: float, learning_rate: float, tokens_per_second: float, step_seconds: float
    ) -> None: ...

    def evaluation(self, step: int, dev_loss: float, train_loss: float, seconds: float) -> None: ...

    def score(self, entry: dict[str, Any]) -> None: ...

    def sample(self, step: int, source: str, target: str, prediction: str) -> None: ...

    def close(self) -> None: ...


class Status:
    """Where a run stands, and how long it will take."""

    def __init__(self, total_steps: int, start_step: int) -> None:
        self.total_steps, self.step = total_steps, start_step
        self.numbers: dict[str, str] = {}  # the latest of each, as they are shown
        self._ticks: deque[tuple[int, float]] = deque(maxlen=RECENT_STEPS + 1)

    def tick(self, step: int, now: float) -> None:
        if self._ticks and step <= self._ticks[-1][0]:
            self._ticks.clear()  # the run went back
        self.step = step
        self._ticks.append((step, now))

    def fields(self) -> dict[str, str]:
        """Return all that is known, ready to be joined to one line of even columns."""
        total = f"{self.total_steps:,}"
        fields = {
            "step": f"{self.step:>{len(total)},}/{total}",
            "percent": f"{self.step / self.total_steps:>6.1%}",
            **self.numbers,
        }
        seconds = self.seconds_to_go()
        return fields if seconds is None else fields | {"eta": f"eta {format_duration(seconds)}"}

    def seconds_to_go(self) -> float | None:
        """Judge by the wall clock of recent steps and all between them; None before there are two."""
        if len(self._ticks) < 2:
            return None
        (first_step, began), (last_step, ended) = self._ticks[0], self._ticks[-1]
        return (self.total_steps - self.step) * (ended - began) / (last_step - first_step)


class _Lines:
    """A pipe or a file: plain lines, one after the other."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, text: str, style: str = "") -> None:
        print(text, file=self._stream, flush=True)

    def tick(self) -> None: ...

    def progress(self, line: str) -> None:
        self.show(line)

    def close(self) -> None: ...


class _Bar:
    """A terminal: a bar that moves, and lines that scroll away above it.

    Frames are drawn by the training thread when a step ends, at most four a second: no thread of ours takes
    time from the steps.
    """

    def __init__(self, stream: TextIO, status: Status) -> None:
        self._status, self._next_frame = status, 0.0
        self._terminal = rich.console.Console(
            file=stream, force_terminal=True, markup=False, emoji=False, highlight=False
        )
        self._live = Live(get_renderable=self._frame, console=self._terminal, auto_refresh=False)
        self._live.start()

    def show(self, text: str, style: str = "") -> None:
        self._terminal.print(text, style=style)

    def tick(self) -> None:
        now = time.monotonic()
        if now >= self._next_frame:
            self._next_frame = now + SECONDS_BETWEEN_FRAMES
            self._live.refresh()

    def progress(self, line: str) -> None:
        self._live.refresh()

    def close(self) -> None:
        self._live.stop()

    def _frame(self) -> Table:
        fields, width = self._status.fields(), self._terminal.width
        for name in DISPENSABLE:
            if NARROWEST_BAR + _width(fields) > width:
                fields.pop(name, None)
        bar = ProgressBar(
            total=self._status.total_steps,
            completed=self._status.step,
            width=max(NARROWEST_BAR, width - _width(fields)),
        )
        frame = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
        for _ in range(1 + len(fields)):
            frame.add_column(no_wrap=True)
        frame.add_row(bar, *fields.values())
        return frame


def format_duration(seconds: float) -> str:
    """Return a duration in its two largest units: 12s, 3m05s, 8h42m, 2d03h."""
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    if days:
        return f"{days}d{h:02d}h"
    if hours:
        return f"{hours}h{m:02d}m"
    return f"{minutes}m{s:02d}s" if minutes else f"{s}s"


def _five_characters(number: float) -> str:
    """Return 0.812, 4.213, 10.41 or 123.4: columns stay even while a number changes its size."""
    return f"{number:.3f}"[:5].rjust(5)


def _width(fields: dict[str, str]) -> int:
    return sum(len(text) + 2 for text in fields.values())


def _open_appending(path: Path) -> TextIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    return open(path, "a", encoding="utf-8")
