"""A host tells about itself; what keeps it from training is named with its fix."""

from importlib.metadata import version
from pathlib import Path

import pytest

from dragoman import __version__
from dragoman.cluster.hosts import Host
from dragoman.cluster.survey import Answer, Question, compare, facts, heard, require_answers, say
from dragoman.data.shards import Dataset, unfinished, write_manifest
from dragoman.errors import UserErrors

DATASET = Dataset(
    Path("/data/abc"), {"fingerprint": "abc", "files": {"x": {"bytes": 5 * 10**8, "sha256": "0"}}}
)
DATA = {
    "fingerprint": "abc",
    "content": DATASET.content,
    "damage": "",
    "arrived_bytes": 0,
    "is_on_disk_of_run": True,
}
NO_DATA = {**DATA, "fingerprint": None, "content": None}
GOOD = {
    "dragoman": __version__,
    "torch": version("torch"),
    "dataset": DATA,
    "disk_free_bytes": 10**9,
}


def problem_of(**changes):
    answer = Answer(Host("b", 2), {**GOOD, **changes})
    compare([answer], DATASET, 10**8)
    return answer


def test_a_host_knows_its_versions_cores_and_addresses(tmp_path):
    found = facts(Question(dataset=str(tmp_path / "none"), run=str(tmp_path / "runs" / "x")))
    assert found["dragoman"] == __version__
    assert found["cores"] >= 1
    assert found["disk_free_bytes"] > 0
    assert found["dataset"] == NO_DATA
    assert "devices" not in found  # would load torch


def test_a_host_that_fits_has_no_problem():
    assert problem_of().problem == ""


@pytest.mark.parametrize(
    ("changes", "what", "fix"),
    [
        ({"dragoman": "9.9"}, "host b has dragoman 9.9", f"pip install dragoman=={__version__}"),
        ({"torch": "1.0"}, "host b has torch 1.0", "pip install torch=="),
        (
            {"dataset": {**DATA, "fingerprint": "xyz"}},
            "host b has another dataset (xyz, not abc)",
            "on b: remove /data/abc if nobody needs it",
        ),
        (
            {"dataset": {**DATA, "content": "other"}},
            "the dataset abc of host b has other files than the one here",
            "and ours will be sent",
        ),
        (
            {"dataset": NO_DATA, "disk_free_bytes": 5 * 10**8},
            "host b has 500 MB free where the run is written, and its checkpoints need about 100 MB, "
            "the dataset 500 MB",
            "make room",
        ),
        ({"disk_free_bytes": 10**6}, "host b has 1 MB free", "make room"),
    ],
)
def test_what_keeps_a_host_from_training_is_named(changes, what, fix):
    answer = problem_of(**changes)
    assert what in answer.problem
    assert fix in answer.fix


@pytest.mark.parametrize(
    ("data", "free"),
    [
        (NO_DATA, 10**9),
        ({**DATA, "damage": "x is missing"}, 10**9),
        ({**NO_DATA, "is_on_disk_of_run": False}, 2 * 10**8),
        ({**NO_DATA, "arrived_bytes": 4 * 10**8}, 2 * 10**8),
    ],
)
def test_a_host_without_the_dataset_fits_and_will_be_sent_it(data, free):
    answer = problem_of(dataset=data, disk_free_bytes=free)
    assert answer.problem == ""
    assert answer.lacks_dataset
    assert not problem_of().lacks_dataset


def test_a_host_knows_what_it_has_of_a_dataset(tmp_path):
    (tmp_path / "abc").mkdir()
    (tmp_path / "abc" / "x").write_bytes(b"content")
    write_manifest(tmp_path / "abc", {"fingerprint": "abc"})
    question = Question(dataset=str(tmp_path / "abc"), run=str(tmp_path))
    content = Dataset.open(tmp_path / "abc").content
    size = sum(path.stat().st_size for path in (tmp_path / "abc").iterdir())
    assert facts(question)["dataset"] == {**DATA, "content": content, "arrived_bytes": size}
    (tmp_path / "abc" / "x").write_bytes(b"cont")
    unfinished(tmp_path / "abc").mkdir()
    (unfinished(tmp_path / "abc") / "x").write_bytes(b"contents")
    damaged = {**DATA, "content": None, "damage": "x has 4 bytes, not 7", "arrived_bytes": size - 3 + 8}
    assert facts(question)["dataset"] == damaged


def test_builds_of_the_same_version_train_together():
    assert problem_of(torch=version("torch").partition("+")[0] + "+cu130").problem == ""


def test_all_problems_are_raised_at_once():
    bad = [Answer(Host(name), problem=f"{name} is down", fix="start it") for name in ("a", "b")]
    with pytest.raises(UserErrors) as caught:
        require_answers([*bad, Answer(Host("c"), GOOD)])
    assert "a is down" in str(caught.value)
    assert "where: host b" in str(caught.value)
    require_answers([Answer(Host("c"), GOOD)])


@pytest.mark.parametrize(
    ("before", "after"), [("", ""), ("", "a warning"), ("half a line", ""), ("a", "b {")]
)
def test_a_message_is_heard_among_what_others_write_to_the_same_pipe(capsys, before, after):
    say({"ready": True})
    message = capsys.readouterr().out
    assert message.endswith("\n")
    assert heard(before + message.rstrip("\n") + after) == ({"ready": True}, before + after)


def test_a_line_without_a_message_is_for_people():
    assert heard('step 5 {"a": 1}') == (None, 'step 5 {"a": 1}')


def test_a_message_is_written_in_one_piece(monkeypatch):
    written = []
    monkeypatch.setattr("sys.stdout.write", written.append)
    say({"ended": 1})
    assert written == ['\x02{"ended": 1}\n']
