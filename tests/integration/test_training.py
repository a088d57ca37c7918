"""What training does beyond the step: stopping early, going back, averaging, saving by the clock."""

import json

import pytest

from dragoman.files import read_json_lines
from dragoman.observe.events import read_events
from dragoman.rundir import step_directories


def test_patience_on_dev_loss_ends_a_run_that_no_longer_improves(toy):
    run = toy.train(
        "run", "--set", "train.steps=400", "--set", "evaluate.every_steps=10", "--set", "evaluate.patience=2",
        "--set", "schedule.learning_rate=1e-30",
        "--set", "model.dropout=0.0",
    )  # fmt: skip
    evaluations = read_events(run.events(0), "evaluation")
    losses = [line["dev_loss"] for line in evaluations]
    best = losses.index(min(losses))
    assert len(losses) == best + 3
    assert len(losses) < 40
    assert json.loads(run.outcome.read_text())["message"].startswith("stopped early")
    assert "test" in {line["set"] for line in read_json_lines(run.scores)}
    # Going on would stop again at once: the decision is in the checkpoint.
    again = toy.train("run", "--set", "train.steps=400", "--set", "evaluate.every_steps=10",
                      "--set", "evaluate.patience=2", "--set", "schedule.learning_rate=1e-30",
                      "--set", "model.dropout=0.0")  # fmt: skip
    assert len(read_events(again.events(0), "evaluation")) == len(evaluations)


def test_patience_on_bleu_ends_a_run(toy):
    run = toy.train(
        "run", "--set", "train.steps=3000", "--set", "evaluate.every_steps=100", "--set", "evaluate.patience=1",
        "--set", "evaluate.patience_metric=bleu", "--set", "schedule.learning_rate=1e-30",
    )  # fmt: skip
    assert json.loads(run.outcome.read_text())["message"].startswith("stopped early")


def test_a_diverging_run_skips_goes_back_and_gives_up_with_advice(toy):
    wild = ("--set", "schedule.learning_rate=1e30", "--set", "schedule.warmup_steps=20",
            "--set", "schedule.name=constant", "--set", "checkpoint.every_steps=1",
            "--set", "guard.max_skips=2", "--set", "guard.max_rollbacks=2", "--set", "train.clip_norm=0")  # fmt: skip
    errors = toy.call("train", "toy.toml", "--run", "run", "--workers", "2", *wild, code=2).stderr
    assert "training diverged at step" in errors
    assert "lower schedule.learning_rate" in errors
    run = toy.run_dir("run")
    for rank in (0, 1):
        rollbacks = read_events(run.events(rank), "rollback")
        assert [line["rate_scale"] for line in rollbacks] == [0.5, 0.25]
        assert len(read_events(run.events(rank), "skip")) >= 1


def test_a_run_survives_a_spike_by_going_back(toy):
    # The rate rises until training breaks; each rollback divides it by ten.
    run = toy.train(
        "run", "--set", "schedule.learning_rate=1.0", "--set", "schedule.warmup_steps=150",
        "--set", "schedule.name=constant", "--set", "checkpoint.every_steps=10", "--set", "guard.max_skips=2",
        "--set", "guard.max_rollbacks=10", "--set", "guard.rollback_rate=0.1",
        "--set", "guard.spike_nats=0.5", "--set", "train.steps=120",
    )  # fmt: skip
    rollbacks = read_events(run.events(0), "rollback")
    assert rollbacks
    assert all(line["to_step"] % 10 == 0 for line in rollbacks)
    assert json.loads(run.outcome.read_text())["message"] == "finished at step 120"


@pytest.mark.parametrize("kind", ["ema", "checkpoints"])
def test_averaged_weights_are_what_is_scored(toy, kind):
    run = toy.train("run", "--set", f"train.average={kind}", "--set", "train.average_last=3")
    scores = read_json_lines(run.scores)
    newest = list(step_directories(run.checkpoints).values())[-1]
    if kind == "ema":
        assert (newest / "average.safetensors").is_file()
    else:
        assert any(line.get("averaged") == [20, 25, 30] for line in scores)
    assert scores[-1]["set"] == "test"


def test_checkpoints_are_also_written_by_the_clock(toy):
    run = toy.train(
        "run", "--set", "checkpoint.every_steps=1000", "--set", "evaluate.every_steps=1000",
        "--set", "checkpoint.every_minutes=0.0001", "--set", "train.steps=20",
    )  # fmt: skip
    assert len(read_events(run.events(0), "checkpoint")) > 2


def test_only_the_wanted_checkpoints_are_kept(toy):
    run = toy.train("run", "--set", "checkpoint.keep_last=2", "--set", "checkpoint.keep_best=1",
                    "--set", "checkpoint.every_steps=3", "--set", "train.steps=60")  # fmt: skip
    steps = list(step_directories(run.checkpoints))
    best = read_json_lines(run.scores)[-1]["step"]
    assert steps[-2:] == [57, 60]
    assert best in steps
    assert len(steps) <= 7
    assert (run.best / "model.bin").is_file()


def test_a_full_disk_ends_the_run_with_a_clear_error_and_whole_checkpoints(toy, small_disk):
    errors = toy.call("train", "toy.toml", "--run", str(small_disk / "run"), "--workers", "2",
                      "--set", "train.steps=3000", "--set", "checkpoint.keep_last=1000",
                      "--set", "log.tensorboard=false", code=2).stderr  # fmt: skip
    assert "the disk is full" in errors
    from dragoman.rundir import RunDir
    from dragoman.train.checkpoint import damage

    run = RunDir(small_disk / "run")
    checkpoints = step_directories(run.checkpoints)
    assert checkpoints
    assert all(damage(path) is None for path in checkpoints.values())
    assert not [path for path in run.checkpoints.iterdir() if path.name.startswith(".")]
