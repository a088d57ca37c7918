"""A host tells about itself; what keeps it from training is named with its fix."""

from importlib.metadata import version
from pathlib import Path

import pytest

from dragoman import __version__
from dragoman.cluster.hosts import Host
from dragoman.cluster.survey import Answer, Question, compare, facts, require_answers
from dragoman.errors import UserErrors

DATASET = Path("/data/datasets/abc")
GOOD = {
    "dragoman": __version__,
    "torch": version("torch"),
    "dataset": {"fingerprint": "abc", "damage": "", "others": []},
    "disk_free_bytes": 10**9,
}


def problem_of(**changes):
    answer = Answer(Host("b", 2), {**GOOD, **changes})
    compare([answer], "abc", DATASET, 10**8)
    return answer


def test_a_host_knows_its_versions_cores_and_addresses(tmp_path):
    found = facts(Question(dataset=str(tmp_path / "none"), run=str(tmp_path / "runs" / "x")))
    assert found["dragoman"] == __version__
    assert found["cores"] >= 1
    assert found["disk_free_bytes"] > 0
    assert found["dataset"] == {"fingerprint": None, "damage": "", "others": []}
    assert "devices" not in found  # would load torch


def test_a_host_that_fits_has_no_problem():
    assert problem_of().problem == ""


@pytest.mark.parametrize(
    ("changes", "what", "fix"),
    [
        ({"dragoman": "9.9"}, "host b has dragoman 9.9", f"pip install dragoman=={__version__}"),
        ({"torch": "1.0"}, "host b has torch 1.0", "pip install torch=="),
        (
            {"dataset": {"fingerprint": None, "damage": "", "others": ["xyz"]}},
            "host b does not have the dataset abc; there are others: xyz",
            "rsync -a /data/datasets/abc/ b:",
        ),
        (
            {"dataset": {"fingerprint": "xyz", "damage": "", "others": []}},
            "host b has another dataset (xyz, not abc)",
            "rsync",
        ),
        (
            {"dataset": {"fingerprint": "abc", "damage": "train.bin is missing", "others": []}},
            "the dataset on host b is damaged: train.bin is missing",
            "rsync",
        ),
        ({"disk_free_bytes": 10**6}, "host b has 1 MB free", "make room"),
    ],
)
def test_what_keeps_a_host_from_training_is_named(changes, what, fix):
    answer = problem_of(**changes)
    assert what in answer.problem
    assert fix in answer.fix


def test_builds_of_the_same_version_train_together():
    assert problem_of(torch=version("torch").partition("+")[0] + "+cu130").problem == ""


def test_all_problems_are_raised_at_once():
    bad = [Answer(Host(name), problem=f"{name} is down", fix="start it") for name in ("a", "b")]
    with pytest.raises(UserErrors) as caught:
        require_answers([*bad, Answer(Host("c"), GOOD)])
    assert "a is down" in str(caught.value)
    assert "where: host b" in str(caught.value)
    require_answers([Answer(Host("c"), GOOD)])
