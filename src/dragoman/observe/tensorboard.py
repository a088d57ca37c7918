"""TensorBoard curves, written with TensorBoard's own records and without torch.

Every start of a run writes one file, which begins by dropping the points that lie beyond the step it starts
from. So TensorBoard shows one line where a run was killed and its steps were done again.

The records are written here and now and not by TensorBoard's EventFileWriter: that one starts a thread, loads
TensorFlow where it is installed, and names files to the second, so that two quick starts may be read in the
wrong order.
"""

import socket
import time
from pathlib import Path


class Curves:
    """The curves of one start of a run. A point is on disk when ``add`` returns; it costs about 20 µs."""

    def __init__(self, directory: Path, *, resume_step: int) -> None:
        """``resume_step`` is the last step that stands; points beyond it are dropped."""
        # Takes a quarter of a second, and reports that never draw import this module.
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._session, self._summary = event_pb2.Event, event_pb2.SessionLog, summary_pb2.Summary
        directory.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads files in the order of their names.
        name = f"events.out.tfevents.{time.time_ns():020d}.{socket.gethostname()}"
        self._file = RecordWriter(open(directory / name, "wb"))  # noqa: SIM115 (closed by close)
        self._write(file_version="brain.Event:2")
        self.go_back(resume_step)

    def add(self, tag: str, value: float, step: int) -> None:
        """Add the point (``step``, ``value``) to the curve ``tag``."""
        point = self._summary.Value(tag=tag, simple_value=value)
        self._write(step=step, summary=self._summary(value=[point]))

    def go_back(self, step: int) -> None:
        """Drop the points beyond ``step``: they will be drawn again."""
        self._write(step=step + 1, session_log=self._session(status=self._session.START))

    def close(self) -> None:
        self._file.close()

    def _write(self, **fields: object) -> None:
        self._file.write(self._event(wall_time=time.time(), **fields).SerializeToString())
        self._file.flush()


class NoCurves:
    """Stands in for ``Curves`` where none are wanted."""

    def add(self, tag: str, value: float, step: int) -> None: ...

    def go_back(self, step: int) -> None: ...

    def close(self) -> None: ...
