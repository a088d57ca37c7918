"""Events: what happened in a run, one JSON object a line and one file a rank. Owns their names.

Every event has ``event`` (its name), ``time`` (Unix seconds) and ``rank``; the rest depends on the name:

    start       the first event of a new run       resume      … of a run that goes on; both with step, world, host,
                device, precision, parameters, interface, peak_flops (of this worker's device, measured)
    link        hosts, latency_seconds, bytes_per_second: what the network between hosts can do, measured at the start
    step        step, loss, nll, tokens, lr, seconds, gradient_norm, world, micro_batches, epoch, bytes_sent,
                exposed_seconds, flops (of this rank), phases: {name: seconds}
    skip        step, why                          rollback    step, to_step, why, rate_scale
    evaluation  step, dev_loss, train_loss, seconds
    sync        step, mode, why, measured, estimates: what `cluster.sync = auto` chose
    checkpoint  step, seconds                      sample      step, source, target, prediction, seconds
    score       a line of scores.jsonl             stop, finish    step
    stall       who holds up the world, and doing what            recovery    seconds
    lost        why this worker gave up

The seconds of a step run from the end of the step before, without evaluations, checkpoints and samples in between.
They are the sum of its phases, each measured on its rank: ``data`` waiting for micro-batches; ``compute`` forward and
backward; ``exchange`` the exposed part of bringing gradients or weights together; ``agree`` adding up losses;
``optimizer`` with clipping; ``logging`` telling of the step before. The rank that waits least in ``exchange`` and
``agree`` is the one the others wait for: its waiting is the transfer, what the others wait longer is for it.

A run that goes back, or goes on from a checkpoint, emits the steps after it again: the last event of a step
counts. JSON knows no NaN and no Infinity: they are written as the strings "nan", "inf" and "-inf", which
``float()`` reads. A line is handed to the system as soon as it is emitted, so a killed worker loses none.
"""

import math
import threading
import time
from pathlib import Path
from typing import Any

from dragoman.files import append_json_line, open_json_lines, read_json_lines

START = "start"
RESUME = "resume"
STEP = "step"
SKIP = "skip"
ROLLBACK = "rollback"
EVALUATION = "evaluation"
CHECKPOINT = "checkpoint"
SAMPLE = "sample"
SYNC = "sync"
SCORE = "score"
STOP = "stop"
FINISH = "finish"
STALL = "stall"
RECOVERY = "recovery"
LOST = "lost"
LINK = "link"

EDGES = (START, RESUME, STOP, FINISH)  # where a launch begins and ends


class EventLog:
    """The events of one rank; appends to what an earlier process of that rank left."""

    def __init__(self, path: Path, rank: int) -> None:
        self._file, self._rank = open_json_lines(path), rank
        self._lock = threading.Lock()  # the watchdog speaks from a thread of its own

    def emit(self, event: str, **values: Any) -> None:
        """Write one event. Costs about 15 microseconds."""
        fields = {"event": event, **values, "time": time.time(), "rank": self._rank}
        with self._lock:
            append_json_line(self._file, {name: plain(value) for name, value in fields.items()})

    def close(self) -> None:
        self._file.close()


def read_events(path: Path, event: str | None = None) -> list[dict[str, Any]]:
    """Return the complete events of a file that may still be growing; all, or those of one name."""
    return [entry for entry in read_json_lines(path) if event in (None, entry["event"])]


def plain(value: Any) -> Any:
    """Replace what JSON cannot say, also inside lists and objects."""
    match value:
        case float():
            return value if math.isfinite(value) else str(value)
        case list() | tuple():
            return [plain(item) for item in value]
        case dict():
            return {name: plain(item) for name, item in value.items()}
    return value
