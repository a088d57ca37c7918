"""Runs on hosts that were slowed on purpose: the explanation must name what the test did, and blame nothing else."""

import json
import subprocess
import sys

import pytest

from tests.hosts.conftest import Lab
from tests.hosts.test_training import Training
from tests.integration.conftest import ENVIRONMENT, TOY

# A step computes a fifth of a second on a core, and its gradients are a megabyte.
HEAVIER = [
    "model.layers=2", "model.d_model=64", "model.feed_forward=256", "train.tokens_per_step=4096",
    "train.micro_batch_tokens=1024", "train.steps=30", "evaluate.every_steps=30", "checkpoint.every_steps=30",
    "log.samples_every=0",
]  # fmt: skip
BUSY = "while True: pass"
# Every read of the dataset takes as long as one from a disk that is far away and overloaded.
SLOW_READS = """
import time
from dragoman.data.shards import Split

gather = Split.gather

def slow_gather(*arguments):
    time.sleep(0.2)
    return gather(*arguments)

Split.gather = slow_gather
"""


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    return tmp_path_factory.mktemp("datasets")


@pytest.fixture
def explained(tmp_path, datasets):
    """A function that trains on a lab's hosts and returns the explanation."""

    def explain(lab: Lab) -> dict:
        (tmp_path / "toy.toml").write_text(TOY.format(datasets=datasets))
        settings = [part for each in HEAVIER for part in ("--set", each)]
        training = Training(lab, tmp_path, *settings)
        try:
            training.end()
        finally:
            training.kill()
        command = [sys.executable, "-m", "dragoman", "explain", "run", "--json"]
        said = subprocess.run(
            command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=60
        )
        assert said.returncode == 0, said.stderr
        return json.loads(said.stdout)

    return explain


def why(answers: dict) -> str:
    return json.dumps({key: answers[key] for key in ("q04_devices", "q05_network", "q12_next")}, indent=1)


def test_a_slow_link_is_the_bottleneck(make_lab, explained):
    answers = explained(make_lab(network="30mbit", cores_per_host=1))
    network = answers["q05_network"]
    assert network["verdict"] == "yes", why(answers)
    assert network["evidence"]["largest_wait"] == "transfer"
    assert network["evidence"]["step_seconds_with_10x_link"] < 0.8 * network["evidence"]["step_seconds"]
    assert answers["q04_devices"]["verdict"] == "no"
    assert answers["q12_next"]["verdict"] == "yes", why(answers)
    assert any("cluster.sync" in advice for advice in answers["q12_next"]["advice"]), why(answers)


def test_a_fast_link_is_not(make_lab, explained):
    answers = explained(make_lab(cores_per_host=1))
    assert answers["q05_network"]["verdict"] == "no", why(answers)


def test_a_host_with_other_work_is_a_straggler_and_no_slow_link(make_lab, explained):
    lab = make_lab(cores_per_host=1)
    for _ in range(3):  # its worker has a quarter of the core
        lab.popen("host2", [sys.executable, "-c", BUSY])
    answers = explained(lab)
    network = answers["q05_network"]
    assert network["verdict"] == "no", why(answers)
    assert network["evidence"]["largest_wait"] == "straggler"
    assert network["evidence"]["slowest_host"] == "host2"


def test_slow_reading_is_neither(make_lab, explained, tmp_path, monkeypatch):
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "sitecustomize.py").write_text(SLOW_READS)
    monkeypatch.setitem(ENVIRONMENT, "PYTHONPATH", str(tmp_path / "slow"))
    answers = explained(make_lab(cores_per_host=1))
    network = answers["q05_network"]
    assert network["verdict"] == "no", why(answers)
    assert network["evidence"]["largest_wait"] == "data"
    assert network["evidence"]["shares"]["data"] > 0.3
