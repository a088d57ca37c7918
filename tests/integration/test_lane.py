"""The lane as the trainer has it: a process that watches the run, obeys a pipe, and never outlives its trainer."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from dragoman.data.prepare import prepare
from dragoman.decode.lane import Lane
from dragoman.files import read_json_lines
from tests.integration.conftest import wait_until
from tests.unit.decode.conftest import make_recipe, make_run

TRAINER = """
import sys, time
from pathlib import Path
from dragoman.decode.lane import Lane
from dragoman.rundir import RunDir
lane = Lane.start(RunDir(Path(sys.argv[1])))
print(lane._process.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    recipe = make_recipe(tmp_path_factory.mktemp("task") / "text")
    return recipe, prepare(recipe, workers=0, progress=False)


@pytest.fixture
def run(tmp_path, task):
    return make_run(tmp_path / "run", *task)


@pytest.fixture
def lane(run):
    lane = Lane.start(run.directory)
    yield lane
    lane.stop()


def scored(run):
    return [(line["set"], line["step"]) for line in read_json_lines(run.directory.scores)]


def wait_for_score(run, lane, line):
    wait_until(lambda: line in scored(run) or lane.poll_failure() is not None, f"the score {line}")
    assert lane.poll_failure() is None, lane.poll_failure()


def has_ended(pid):
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_checkpoints_are_scored_as_they_appear_and_test_at_the_end(run, lane, capfd):
    run.save(10)
    wait_for_score(run, lane, ("dev", 10))
    wait_until(run.directory.best.is_symlink, "the best model")  # comes right after the score
    assert run.directory.best.readlink().as_posix() == "models/step-00000010"
    process = psutil.Process(lane._process.pid)
    assert process.nice() == psutil.Process().nice() + 10
    run.save(20)
    wait_for_score(run, lane, ("dev", 20))
    run.save(30)
    waits = []
    lane.finish(on_wait=lambda: waits.append(1))
    assert lane.poll_failure() is None
    assert scored(run)[:3] == [("dev", 10), ("dev", 20), ("dev", 30)]
    (test,) = [line for line in read_json_lines(run.directory.scores) if line["set"] == "test"]
    assert test["model"] == run.directory.best.readlink().as_posix()
    assert "step-00000030: dev BLEU" in run.directory.lane_log.read_text()
    assert capfd.readouterr() == ("", "")


def test_the_lane_ends_at_once_when_its_trainer_is_killed(run):
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER, str(run.directory.path)], stdout=subprocess.PIPE, text=True
    )
    with trainer:
        lane_pid = int(trainer.stdout.readline())
        run.save(1)
        wait_until(lambda: bool(scored(run)), "the first score")
        run.save(2)  # so that it is likely in the middle of something
        trainer.kill()
        wait_until(lambda: has_ended(lane_pid), "the end of the lane", seconds=10)


def test_stop_ends_the_lane_even_while_it_starts_and_the_next_one_goes_on(run):
    run.save(1)
    lane = Lane.start(run.directory)
    lane.stop()
    assert lane.poll_failure() is None
    lane = Lane.start(run.directory)
    lane.finish()
    assert lane.poll_failure() is None
    assert scored(run) == [("dev", 1), ("test", 1)]


def test_ctrl_c_is_the_trainers_business(run, lane):
    run.save(1)
    wait_for_score(run, lane, ("dev", 1))
    os.kill(lane._process.pid, signal.SIGINT)
    run.save(2)
    wait_for_score(run, lane, ("dev", 2))
    assert os.getpgid(lane._process.pid) != os.getpgid(0)


def test_a_lane_that_died_tells_its_last_words(run):
    run.directory.facts.write_text('{"dataset": "/nowhere"}')
    lane = Lane.start(run.directory)
    lane.finish()
    failure = lane.poll_failure()
    assert "ended with exit code 2" in failure
    assert "error: this is not a dataset" in failure
    assert "where: /nowhere" in failure
    lane.stop()


def test_a_lane_that_was_killed_is_a_failure_too(run):
    run.save(1)
    lane = Lane.start(run.directory)
    os.kill(lane._process.pid, signal.SIGKILL)
    wait_until(lambda: lane.poll_failure() is not None, "the failure")
    assert "ended with exit code -9" in lane.poll_failure()
    lane.finish()  # returns although nobody listens
