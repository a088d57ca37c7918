"""The live view on a terminal."""

import io
import json
import time

import numpy as np
import pytest
from rich.console import Console

from dragoman.errors import UserError
from dragoman.observe import watch
from dragoman.observe.reading import read_run
from dragoman.observe.watch import Watched, find_runs, seconds_to_go, sparkline, watch_terminal
from dragoman.rundir import RunDir


def printed(path, **settings):
    stream = io.StringIO()
    watch_terminal(path, Console(file=stream, width=120, **settings))
    return stream.getvalue()


def test_a_finished_run_is_printed_once(tmp_path, make_run):
    text = printed(make_run(tmp_path / "run", steps=80))
    assert "80/80  100.0%" in text
    assert "dev BLEU" in text
    assert all(f"rank {rank}" in text for rank in range(4))
    assert "Was the network the bottleneck?" in text


def test_without_a_terminal_a_running_run_is_printed_once(tmp_path, make_run):
    text = printed(make_run(tmp_path / "run", steps=40, planned=400, ending=None, start=time.time() - 70))
    assert "running" in text
    assert "to go" in text


def test_on_a_terminal_it_follows_until_the_run_ends(tmp_path, make_run, monkeypatch):
    path = make_run(tmp_path / "run", steps=40, ranks=1, ending=None, start=time.time() - 90)
    looks = []

    def sleep(seconds):
        looks.append(seconds)
        with open(RunDir(path).events(0), "a") as file:
            file.write(json.dumps({"event": "finish", "step": 40, "time": time.time(), "rank": 0}) + "\n")

    monkeypatch.setattr(watch.time, "sleep", sleep)
    monkeypatch.setenv("TERM", "xterm")
    text = printed(path, force_terminal=True)
    assert looks == [1.0]
    assert "finished" in text


def test_questions_are_asked_again_only_when_something_happened(tmp_path, make_run, monkeypatch):
    asked = []
    monkeypatch.setattr(watch, "explain", lambda history: asked.append(history.ending) or [])
    path = make_run(tmp_path / "run", steps=20, ranks=1)
    watched = Watched(path)
    watched.look()
    assert asked == ["finished"]
    with open(RunDir(path).events(0), "a") as file:
        file.write(
            json.dumps({"event": "skip", "step": 20, "why": "nan", "time": time.time(), "rank": 0}) + "\n"
        )
    watched.look()
    assert len(asked) == 2


def test_several_runs_are_listed(tmp_path, make_run):
    for name in ("one", "two"):
        make_run(tmp_path / name, steps=30, ranks=1)
    text = printed(tmp_path)
    assert "one" in text
    assert "two" in text


def test_a_directory_without_runs_is_an_error(tmp_path):
    with pytest.raises(UserError, match="there is no run here"):
        find_runs(tmp_path)


def test_a_sparkline_goes_from_the_lowest_to_the_highest():
    assert sparkline(np.arange(8.0), 8) == "▁▂▃▄▅▆▇█"
    assert sparkline(np.array([1.0, np.nan, 1.0]), 5) == "▁▁"
    assert sparkline(np.array([np.nan]), 5) == ""
    assert len(sparkline(np.arange(1000.0), 40)) == 40


def test_the_time_to_go_is_judged_since_the_last_start(tmp_path, make_run):
    history = read_run(make_run(tmp_path / "run", steps=100, planned=200, ranks=1, ending=None))
    leader = history.leader
    after = leader["step"] > 50
    pace = np.diff(leader["time"][after][[0, -1]])[0] / 49
    assert seconds_to_go(history) == pytest.approx(100 * pace)
