"""Following a run: what is read piece by piece equals what is read at once."""

import json
import random

import numpy as np
import pytest

from dragoman.observe.reading import Follower, read_run
from dragoman.rundir import RunDir


def assert_same(found, expected):
    assert found.ending == expected.ending
    assert found.notes == expected.notes
    assert found.launches == expected.launches
    assert found.evaluations == expected.evaluations
    assert found.scores == expected.scores
    assert (found.repeated_steps, found.problems) == (expected.repeated_steps, expected.problems)
    assert found.repeated_seconds == pytest.approx(expected.repeated_seconds)
    assert found.tracks.keys() == expected.tracks.keys()
    for mine, theirs in [(found.tracks, expected.tracks), (found.telemetry, expected.telemetry)]:
        assert mine.keys() == theirs.keys()
        for key in theirs:
            assert mine[key].host == theirs[key].host
            for name, column in theirs[key].columns.items():
                np.testing.assert_array_equal(mine[key][name], column, err_msg=name)


def grow(path, parts, seed=3):
    """Empty the growing files of a run and yield after each of several uneven pieces is put back, cut anywhere."""
    files = [*path.glob("events/*.jsonl"), *path.glob("telemetry/*.jsonl"), path / "scores.jsonl"]
    whole = {file: file.read_bytes() for file in files}
    dice = random.Random(seed)
    cuts = {
        file: [*sorted(dice.sample(range(len(text)), parts - 1)), len(text)] for file, text in whole.items()
    }
    for piece in range(parts):
        for file, text in whole.items():
            file.write_bytes(text[: cuts[file][piece]])
        yield


def test_a_growing_run_is_read_as_if_at_once(tmp_path, make_run):
    path = make_run(tmp_path / "run", steps=300, ranks=2)
    follower = Follower(path)
    for _ in grow(path, parts=7):
        last = follower.read()
    assert_same(last, read_run(path))


def test_going_back_forgets_what_was_undone(tmp_path, make_run):
    path = make_run(tmp_path / "run", steps=100, ranks=2, ending=None)
    follower = Follower(path)
    assert len(follower.read().tracks[0]) == 100
    for rank in range(2):
        events = RunDir(path).events(rank)
        lines = events.read_text("utf-8").splitlines(keepends=True)
        again = [line for line in lines if json.loads(line).get("step") in (81, 82)]
        resume = json.loads(lines[0]) | {"event": "resume", "step": 80, "time": json.loads(lines[-1])["time"]}
        events.write_text("".join([*lines, json.dumps(resume) + "\n", *again]), "utf-8")
    found = follower.read()
    assert found.tracks[0]["step"].tolist() == list(range(1, 83))
    assert found.repeated_steps == 20
    assert_same(found, read_run(path))


def test_garbage_is_counted_and_left_out(tmp_path, make_run):
    path = make_run(tmp_path / "run", steps=40, ranks=1)
    with open(RunDir(path).events(0), "a") as file:
        file.write('{"event": \n[1]\n')
    assert_same(Follower(path).read(), read_run(path))
    assert any("2 of" in problem for problem in read_run(path).problems)


def test_a_run_that_was_removed_and_begun_again_is_read_anew(tmp_path, make_run):
    path = make_run(tmp_path / "run", steps=60, ranks=1)
    follower = Follower(path)
    follower.read()
    make_run(path, steps=20, ranks=1, seed=2)
    assert_same(follower.read(), read_run(path))
