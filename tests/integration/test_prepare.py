"""`dragoman data prepare` in real processes: killed, interrupted, run twice at once, on a full disk."""

import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys

import psutil
import pytest

from dragoman.data import formats, shards
from dragoman.data.corpora import HASHES
from dragoman.data.prepare import LOCK, prepare
from dragoman.data.shards import Dataset
from dragoman.files import TEMPORARY
from dragoman.recipe import load_recipe, parse_recipe
from tests.integration.conftest import ENVIRONMENT, family, wait_until

RECIPE = """
[data]
train = ["train.en", "train.de"]
dev = "builtin:40"
directory = "{datasets}"
[filter]
max_other_language = 1.0  # it is in no language
[vocab]
size = 4000
[train]
steps = 1
tokens_per_step = 1
"""
PAIRS = 30_000


@pytest.fixture(scope="session")
def text():
    """Source and target lines of several chunks: enough that every stage takes its time."""
    draw = random.Random(7)
    syllables = [a + b for a in "bdfgklmnprst" for b in ("a", "e", "i", "o", "ü")]
    words = ["".join(draw.choices(syllables, k=draw.randint(1, 5))) for _ in range(20_000)]
    return ["".join(" ".join(draw.choices(words, k=10)) + "\n" for _ in range(PAIRS)) for _ in range(2)]


@pytest.fixture
def work(toy, text):
    """A directory with text and a recipe, in which commands run."""
    for lang, lines in zip(("en", "de"), text, strict=True):
        (toy.path / f"train.{lang}").write_text(lines, encoding="utf-8")
    (toy.path / "data.toml").write_text(RECIPE.format(datasets="datasets"))
    return toy


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory, text):
    """The checksums of the dataset when nothing goes wrong, made here and alone."""
    path = tmp_path_factory.mktemp("undisturbed")
    for lang, lines in zip(("en", "de"), text, strict=True):
        (path / f"train.{lang}").write_text(lines, encoding="utf-8")
    files = f'data.train=["{path}/train.en", "{path}/train.de"]'
    recipe = parse_recipe(RECIPE.format(datasets=path / "datasets"), "data.toml", [files])
    return prepare(recipe, workers=0, progress=False).manifest["files"]


def made(path):
    """Return what is in a directory of datasets besides our own books."""
    return {entry.name for entry in path.glob("*")} - {LOCK, HASHES}


def start(work):
    return work.start("data", "prepare", "data.toml", "--workers", "2")


def wait_for_stage(process, finished):
    """Return when the process says that it has finished a stage."""
    for line in process.stderr:
        if line.startswith(f"{finished}: "):
            return
    pytest.fail(f"ended before the end of {finished}")


def wait_for_workers(process):
    """Return the worker processes, once there are any."""

    def workers():
        return [each for each in family(process)[1:] if "spawn_main" in " ".join(each.cmdline())]

    wait_until(lambda: len(workers()) >= 2, "two workers")
    return workers()


@pytest.mark.parametrize("finished", ["read dev and test", "clean", "vocabulary"])
def test_killed_at_any_stage_the_next_one_makes_the_same_dataset(work, undisturbed, finished):
    process = start(work)
    wait_for_stage(process, finished)
    workers = wait_for_workers(process)
    process.kill()
    process.wait()
    assert psutil.wait_procs(workers, timeout=60)[1] == []
    for name in made(work.path / "datasets"):  # what has its final name is whole
        assert name.startswith(TEMPORARY) or Dataset.open(work.path / "datasets" / name).verify() is None

    result = work.call("data", "prepare", "data.toml", "--json")
    dataset = Dataset.open(work.path / "datasets" / json.loads(result.stdout)["fingerprint"])
    assert dataset.manifest["files"] == undisturbed
    dataset.verify()
    assert made(work.path / "datasets") == {dataset.fingerprint}


@pytest.mark.parametrize("finished", ["read dev and test", "clean"])
def test_ctrl_c_ends_it_at_once_and_the_next_one_goes_on(work, undisturbed, finished):
    process = start(work)
    wait_for_stage(process, finished)
    workers = wait_for_workers(process)
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert "stopped: the same command goes on from here" in errors
    assert output == ""
    assert psutil.wait_procs(workers, timeout=60)[1] == []
    (unfinished,) = made(work.path / "datasets")
    assert unfinished.startswith(TEMPORARY)

    result = work.call("data", "prepare", "data.toml", "--json")
    assert ("going on after 30,000 pairs" in result.stderr) == (finished == "clean")
    dataset = Dataset.open(work.path / "datasets" / json.loads(result.stdout)["fingerprint"])
    assert dataset.manifest["files"] == undisturbed


SMALL_PARTS = """
import os, signal, sys
from dragoman.data import formats, shards, spool
from dragoman.data.prepare import prepare
from dragoman.recipe import load_recipe

def killing(function, calls):
    def call(*arguments):
        nonlocal calls
        result = function(*arguments)
        calls -= 1
        if calls == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return call

if __name__ == "__main__":
    formats.read_chunks.__defaults__ = (1 << 16,)
    shards.SHARD_PAIRS = 1_500
    if sys.argv[1] == "clean":
        spool.Spool.append = killing(spool.Spool.append, 3)
    if sys.argv[1] == "encode":
        spool.Progress.save = killing(spool.Progress.save, 2)
    prepare(load_recipe("data.toml", ["vocab.size=300"]), workers=2)
"""


def test_killed_in_the_middle_of_a_stage_the_next_one_goes_on(work, text, monkeypatch):
    """Killed while cleaning, and again while encoding: all files and all numbers are those of an undisturbed one."""
    for lang, lines in zip(("en", "de"), text, strict=True):
        (work.path / f"train.{lang}").write_text(
            "".join(lines.splitlines(keepends=True)[:8_000]), encoding="utf-8"
        )
    (work.path / "small.py").write_text(SMALL_PARTS)
    datasets = work.path / "datasets"

    def run(killed_in, code):
        result = subprocess.run(
            [sys.executable, "small.py", killed_in],
            cwd=work.path,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
        )
        assert result.returncode == code, result.stderr
        return result.stderr

    run("clean", -signal.SIGKILL)
    assert "going on after " in run("encode", -signal.SIGKILL)
    assert " encoded pairs\n" in run("", 0)
    (name,) = made(datasets)
    dataset = Dataset.open(datasets / name)
    dataset.verify()

    shutil.rmtree(datasets)
    monkeypatch.chdir(work.path)
    monkeypatch.setattr(formats.read_chunks, "__defaults__", (1 << 16,))
    monkeypatch.setattr(shards, "SHARD_PAIRS", 1_500)
    undisturbed = prepare(load_recipe("data.toml", ["vocab.size=300"]), workers=0, progress=False)
    assert len(undisturbed.manifest["splits"]["train"]["shards"]) > 3
    assert {**dataset.manifest, "made": None} == {**undisturbed.manifest, "made": None}


def test_a_worker_that_is_killed_ends_it_with_an_error(work):
    process = start(work)
    wait_for_stage(process, "read dev and test")
    for worker in wait_for_workers(process):
        worker.kill()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "a worker process died (exit code -9)" in errors
    assert all(name.startswith(TEMPORARY) for name in made(work.path / "datasets"))


def test_of_two_at_once_one_works_and_the_other_waits(work, undisturbed):
    (work.path / "datasets").mkdir()
    with open(work.path / "datasets" / LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        processes = [start(work), start(work)]
        for process in processes:
            line = process.stderr.readline()
            assert line == "another process is preparing data in datasets: waiting for it\n"
    errors = [process.communicate(timeout=240)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert sorted("encode: " in each for each in errors) == [False, True]
    (name,) = made(work.path / "datasets")
    assert Dataset.open(work.path / "datasets" / name).manifest["files"] == undisturbed


def test_a_full_disk_is_an_error_and_is_left_as_it_was(work, small_disk):
    (work.path / "data.toml").write_text(RECIPE.format(datasets=small_disk))
    (small_disk / "other").write_bytes(bytes(7_000_000))
    errors = work.call("data", "prepare", "data.toml", code=2).stderr
    assert "error: the disk is full" in errors
    assert f"where: {small_disk}" in errors
    assert made(small_disk) == {"other"}


def test_the_passport_is_shown(work):
    shown = work.call("data", "prepare", "data.toml")
    assert f"{PAIRS:,}" in shown.stdout
    assert "clean: " in shown.stderr
    (name,) = made(work.path / "datasets")
    again = work.call("data", "show", f"datasets/{name}", "--verify")
    assert again.stdout == shown.stdout
