import json
import math
import os
import signal
import subprocess
import sys
import time

from dragoman.observe import events
from dragoman.observe.events import EventLog, read_events


def test_an_event_is_one_json_line_with_its_name_first(tmp_path):
    path = tmp_path / "events" / "rank003.jsonl"
    log = EventLog(path, rank=3)
    log.emit(events.STEP, step=7, loss=4.5, nll=4.25, tokens=100, lr=0.001, seconds=0.5, gradient_norm=1.5)
    log.emit(events.SAMPLE, step=7, source="Der größte Bär\n„groß“", target="", prediction="")
    log.close()
    first, second = path.read_text(encoding="utf-8").splitlines()
    assert first.startswith('{"event": "step", "step": 7, "loss": 4.5, ')
    entry = json.loads(first)
    assert entry.pop("time") <= time.time()
    assert entry == {
        "event": "step",
        "step": 7,
        "loss": 4.5,
        "nll": 4.25,
        "tokens": 100,
        "lr": 0.001,
        "seconds": 0.5,
        "gradient_norm": 1.5,
        "rank": 3,
    }
    assert "größte Bär\\n„groß“" in second


def test_a_line_can_be_read_before_the_log_is_closed(tmp_path):
    log = EventLog(tmp_path / "a.jsonl", rank=0)
    log.emit(events.START, step=0)
    assert [entry["event"] for entry in read_events(tmp_path / "a.jsonl")] == ["start"]
    log.close()


def test_events_are_read_by_name(tmp_path):
    log = EventLog(tmp_path / "a.jsonl", rank=0)
    for name in (events.START, events.STEP, events.STEP, events.FINISH):
        log.emit(name)
    log.close()
    assert len(read_events(tmp_path / "a.jsonl")) == 4
    assert len(read_events(tmp_path / "a.jsonl", events.STEP)) == 2
    assert read_events(tmp_path / "absent.jsonl") == []


def test_what_json_cannot_say_becomes_text(tmp_path):
    log = EventLog(tmp_path / "a.jsonl", rank=0)
    values = [math.nan, math.inf, -math.inf]
    log.emit(
        events.SKIP, loss=math.nan, nested={"values": values}, pair=(1.0, math.inf), flag=True, none=None
    )
    log.close()
    (entry,) = read_events(tmp_path / "a.jsonl")
    assert entry["loss"] == "nan"
    assert entry["nested"]["values"] == ["nan", "inf", "-inf"]
    assert entry["pair"] == [1.0, "inf"]
    assert (entry["flag"], entry["none"]) == (True, None)
    assert math.isnan(float(entry["loss"]))


def test_names_differ():
    names = [value for name, value in vars(events).items() if name.isupper()]
    assert len(names) == len(set(names)) > 10


def test_a_killed_writer_loses_nothing_it_has_said(tmp_path):
    path = tmp_path / "a.jsonl"
    program = (
        "import pathlib, sys, time\n"
        "from dragoman.observe.events import EventLog\n"
        "log = EventLog(pathlib.Path(sys.argv[1]), 0)\n"
        "for step in range(100): log.emit('step', step=step)\n"
        'log._file.write(\'{"event": "st\'); log._file.flush()\n'
        "print('said', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, path], stdout=subprocess.PIPE) as writer:
        assert writer.stdout.readline() == b"said\n"
        os.kill(writer.pid, signal.SIGKILL)
    log = EventLog(path, rank=0)
    log.emit(events.RESUME, step=50)
    log.close()
    assert [entry.get("step") for entry in read_events(path)] == [*range(100), 50]
