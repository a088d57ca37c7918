"""Real runs made on purpose, each with the verdict that it must give."""

import json
import os
import shutil

import pytest

from dragoman.observe.reading import read_run
from tests.integration.conftest import family, kill

KEYS = ["q01_duration", "q02_trained", "q03_overfitting", "q04_devices", "q05_network", "q06_learning_rate", "q07_data",
        "q08_checkpoint_files", "q09_checkpoint_size", "q10_step_time", "q11_correlation", "q12_next"]  # fmt: skip
NO_DROPOUT = ["model.dropout=0.0", "model.attention_dropout=0.0", "model.relu_dropout=0.0"]


def options(*settings):
    return [part for each in settings for part in ("--set", each)]


def explained(toy, run):
    answers = json.loads(toy.call("explain", run, "--json").stdout)
    assert [key for key in answers if key.startswith("q")] == KEYS
    assert {answers[key]["verdict"] for key in KEYS} <= {"yes", "no", "unclear"}
    return answers


def test_a_hundred_pairs_learned_by_heart(toy):
    settings = ["train.steps=400", "evaluate.every_steps=25", "checkpoint.every_steps=400", *NO_DROPOUT]
    settings += ['data.train="builtin:100"', 'schedule.name="constant"', "schedule.learning_rate=0.001"]
    run = toy.train("run", *options(*settings))
    overfits = explained(toy, "run")["q03_overfitting"]
    assert overfits["verdict"] == "yes", overfits
    turned = min(read_run(run.path).evaluations, key=lambda each: each.dev_loss).step
    assert abs(overfits["evidence"]["best_step"] - turned) <= 25
    assert "bootstrap over 40 dev sentences" in overfits["evidence"]["rise_method"]
    assert run.report.is_file()


def test_much_text_and_too_few_steps(toy):
    settings = ["train.steps=240", "evaluate.every_steps=20", "checkpoint.every_steps=240", *NO_DROPOUT]
    toy.train("run", *options(*settings, 'data.train="builtin:3000"'))
    answers = explained(toy, "run")
    assert answers["q02_trained"]["verdict"] == "no", answers["q02_trained"]
    assert answers["q03_overfitting"]["verdict"] == "no", answers["q03_overfitting"]
    assert any("train.steps=480" in advice for advice in answers["q12_next"]["advice"])
    assert answers["q06_learning_rate"]["verdict"] == "yes"


def test_three_steps_are_mostly_unclear(toy):
    toy.train("run", *options("train.steps=3", "schedule.warmup_steps=1"))
    answers = explained(toy, "run")
    assert answers["q01_duration"]["verdict"] == "yes"
    for key in ("q02_trained", "q03_overfitting", "q11_correlation"):
        assert answers[key]["verdict"] == "unclear", answers[key]


def test_a_killed_run_and_its_copy_that_went_on_with_fewer_workers(toy):
    process = toy.start("train", "toy.toml", "--run", "run", "--workers", "2", *options("train.steps=100000"))
    toy.wait_for_step("run", 25, process)
    kill(family(process))
    process.wait()
    killed = explained(toy, "run")
    assert (killed["ending"], killed["q01_duration"]["verdict"]) == ("killed", "no")
    assert killed["q01_duration"]["evidence"]["seconds_to_go"] > 0
    shutil.copytree(toy.path / "run", toy.path / "copy", symlinks=True)
    toy.train("copy", *options("train.steps=60"))
    answers = explained(toy, "copy")
    assert (answers["ending"], answers["q01_duration"]["verdict"]) == ("finished", "yes")
    assert answers["q01_duration"]["evidence"]["restarts"] == 1
    history = read_run(toy.path / "copy")
    assert history.leader["step"].tolist() == list(range(1, 61))
    assert len(history.tracks[1]) < 60
    assert history.launches[-1].world == 1


@pytest.mark.parametrize("garbage", ["events/rank000.jsonl", "run.json", "scores.jsonl", "recipe.toml"])
def test_garbage_in_a_file_is_said_and_the_rest_is_answered(toy, trained, garbage):
    shutil.copytree(trained.path / "run", toy.path / "run", symlinks=True)
    file = toy.path / "run" / garbage
    file.write_bytes(os.urandom(64) + b"\n{\n" + file.read_bytes()[:-5])
    answers = explained(toy, "run")
    assert any(file.name in problem for problem in answers["problems"])
    assert answers["q08_checkpoint_files"]["verdict"] == "yes"
