import inspect
import io
import re

import pytest

from dragoman.observe.console import RECENT_STEPS, Console, Silent, Status, format_duration


class Terminal(io.StringIO):
    """A stream that claims to be a terminal and remembers what was written."""

    def isatty(self) -> bool:
        return True

    def text(self) -> str:
        """Return what was written without the control sequences."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.getvalue())


@pytest.fixture
def open_console(tmp_path):
    opened = []

    def open_on(stream: io.StringIO, total_steps: int = 40_000, start_step: int = 0) -> Console:
        log, samples = tmp_path / "log.txt", tmp_path / "samples.txt"
        opened.append(Console(log, samples, total_steps=total_steps, start_step=start_step, stream=stream))
        return opened[-1]

    yield open_on
    for console in opened:
        console.close()


def tell_everything(console: Console | Silent) -> None:
    console.say("begin [bold]here[/bold] [/] :smile:")
    console.tick(1249)
    console.tick(1250)
    console.progress(1250, loss=4.2134, learning_rate=3.12e-4, tokens_per_second=5120.4, step_seconds=0.8123)
    console.evaluation(1250, 3.9, 3.75, 4.2)
    console.score({"set": "dev", "step": 1250, "bleu": 23.4, "ci95": [22.1, 24.9], "chrf": 51.2})
    console.sample(1250, "A [small] house", "Ein [kleines] Haus", "Ein [/kleines] Haus")
    console.warn("the lane failed")
    console.close()


LINES = """\
begin [bold]here[/bold] [/] :smile:
step  1,250/40,000    3.1%  loss 4.213  lr 3.12e-04    5,120 tok/s  0.812 s/step  eta 0s
evaluation at step 1,250: dev loss 3.900, train loss 3.750 (4s)
dev score at step 1,250: BLEU 23.40 (95 % within 22.10 – 24.90), chrF 51.20
sample at step 1,250
  source      A [small] house
  target      Ein [kleines] Haus
  prediction  Ein [/kleines] Haus
warning: the lane failed
"""


def test_a_pipe_gets_plain_lines(open_console, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    stream = io.StringIO()
    tell_everything(open_console(stream))
    assert re.sub(r"eta \S+", "eta 0s", stream.getvalue()) == LINES


def test_all_that_is_said_is_in_the_log_with_its_time(open_console, tmp_path):
    tell_everything(open_console(io.StringIO()))
    open_console(io.StringIO()).say("once more")
    *lines, last = (tmp_path / "log.txt").read_text(encoding="utf-8").splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ", line) for line in [*lines, last])
    assert [re.sub(r"eta \S+", "eta 0s", line[21:]) for line in lines] == LINES.splitlines()
    assert last[21:] == "once more"


def test_samples_are_kept(open_console, tmp_path):
    for step in (500, 1000):
        console = open_console(io.StringIO())
        console.sample(step, "a", "b", "c")
        console.close()
    assert (tmp_path / "samples.txt").read_text() == (
        "sample at step 500\n  source      a\n  target      b\n  prediction  c\n\n"
        "sample at step 1,000\n  source      a\n  target      b\n  prediction  c\n\n"
    )


def test_a_terminal_gets_a_bar_and_the_same_words(open_console, monkeypatch, tmp_path):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    tell_everything(open_console(stream))
    for line in LINES.splitlines():
        if not line.startswith("step "):
            assert line in stream.text()
    last_frame = stream.text().rstrip("\n").rsplit("\r", 1)[-1]
    assert re.search(
        r"━ +1,250/40,000 +3.1% +loss 4.213 +lr 3.12e-04 +5,120 tok/s +0.812 s/step +eta ", last_frame
    )
    assert "step  1,250/40,000    3.1%  loss 4.213" in (tmp_path / "log.txt").read_text(), (
        "the log has the lines"
    )


@pytest.mark.parametrize(
    ("columns", "shown", "lost"),
    [(80, "loss 4.213", "lr 3.12e-04"), (60, "eta", "s/step"), (30, "1,250/40,000", "loss")],
)
def test_a_narrow_terminal_loses_numbers_and_keeps_one_line(open_console, monkeypatch, columns, shown, lost):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = Terminal()
    console = open_console(stream)
    console.tick(1249)
    console.tick(1250)
    console.progress(1250, loss=4.2134, learning_rate=3.12e-4, tokens_per_second=5120.4, step_seconds=0.8123)
    console.close()
    last_frame = stream.text().rstrip("\n").rsplit("\r", 1)[-1]
    assert shown in last_frame
    assert lost not in last_frame
    assert len(last_frame) <= columns


def test_a_dumb_terminal_gets_plain_lines(open_console, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    tell_everything(open_console(stream))
    assert re.sub(r"eta \S+", "eta 0s", stream.getvalue()) == LINES


def test_a_locale_that_cannot_write_a_sentence_does_not_end_the_run(open_console):
    buffer = io.BytesIO()
    console = open_console(io.TextIOWrapper(buffer, encoding="ascii"))
    console.say("größer 猫")
    assert buffer.getvalue() == b"gr??er ?\n"


def test_columns_stay_even(open_console):
    stream = io.StringIO()
    console = open_console(stream, total_steps=1000)
    for step, loss, seconds in (
        (1, 10.4111, 12.3456),
        (50, 4.2, 0.0123),
        (1000, 0.91239, 1.0),
        (1000, 123.456, 2),
    ):
        console.progress(
            step, loss=loss, learning_rate=1e-3, tokens_per_second=99_999 * loss, step_seconds=seconds
        )
    assert stream.getvalue() == (
        "step     1/1,000    0.1%  loss 10.41  lr 1.00e-03  1,041,100 tok/s  12.34 s/step\n"
        "step    50/1,000    5.0%  loss 4.200  lr 1.00e-03  419,996 tok/s  0.012 s/step\n"
        "step 1,000/1,000  100.0%  loss 0.912  lr 1.00e-03   91,238 tok/s  1.000 s/step\n"
        "step 1,000/1,000  100.0%  loss 123.4  lr 1.00e-03  12,345,477 tok/s  2.000 s/step\n"
    )


def test_time_to_go_is_that_of_recent_steps_with_what_lies_between():
    status = Status(total_steps=10_000, start_step=4000)
    assert status.seconds_to_go() is None
    now = 0.0
    for step in range(4001, 6001):
        now += 1.0 if step <= 4500 else 0.5
        now += 20.0 if step % 500 == 0 else 0.0  # an evaluation
        status.tick(step, now)
    assert status.seconds_to_go() == pytest.approx(4000 * (RECENT_STEPS * 0.5 + 2 * 20.0) / RECENT_STEPS)


def test_time_to_go_starts_anew_when_the_run_goes_back():
    status = Status(total_steps=100, start_step=0)
    for step, now in ((10, 0.0), (20, 100.0), (15, 101.0)):
        status.tick(step, now)
    assert status.seconds_to_go() is None
    status.tick(16, 103.0)
    assert status.seconds_to_go() == pytest.approx(84 * 2.0)


def test_silent_has_the_face_of_a_console_and_says_nothing(capsys):
    for name, method in inspect.getmembers(Console, inspect.isfunction):
        if not name.startswith("_"):
            assert inspect.signature(method) == inspect.signature(getattr(Silent, name))
    tell_everything(Silent())
    assert capsys.readouterr() == ("", "")


def test_standard_output_is_the_stream_if_none_is_given(tmp_path, capsys):
    console = Console(tmp_path / "log.txt", tmp_path / "samples.txt", total_steps=1, start_step=0)
    console.say("hello")
    console.close()
    assert capsys.readouterr().out == "hello\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.4, "0s"),
        (12.4, "12s"),
        (59.6, "1m00s"),
        (185, "3m05s"),
        (3599.6, "1h00m"),
        (8 * 3600 + 42 * 60 + 31, "8h42m"),
        (86_400 * 2 + 3 * 3600 + 59, "2d03h"),
    ],
)
def test_durations(seconds, text):
    assert format_duration(seconds) == text
