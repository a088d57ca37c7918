"""Checkpoints: whole or absent, the newest valid one is used, only the wanted ones are kept."""

import json

import pytest
import torch

from dragoman.config import Checkpoint
from dragoman.errors import UserError
from dragoman.rundir import MODEL, OPTIMIZER, RunDir, step_directories
from dragoman.train.checkpoint import (
    Saver,
    State,
    damage,
    newest_valid,
    prune,
    read_checkpoint,
    snapshot,
    write_checkpoint,
)


@pytest.fixture
def run(tmp_path):
    return RunDir(tmp_path / "run")


def tensors(value=1.0):
    return {MODEL: {"w": torch.full((3, 2), value)}, OPTIMIZER: {"w/exp_avg": torch.full((3, 2), -value)}}


def no_warning(text):
    raise AssertionError(text)


def test_a_checkpoint_reads_back_equal(run):
    state = State(step=7, tokens=123, rate_scale=0.5, mean_loss=0.1 + 0.2, best_dev_loss=1 / 3)
    path = write_checkpoint(run, state, tensors(2.5))
    read_state, files = read_checkpoint(path)
    assert read_state == state
    assert torch.equal(files[MODEL]["w"], tensors(2.5)[MODEL]["w"])
    assert torch.equal(files[OPTIMIZER]["w/exp_avg"], tensors(2.5)[OPTIMIZER]["w/exp_avg"])
    assert damage(path) is None
    manifest = json.loads((path / "MANIFEST.json").read_text())
    assert set(manifest["files"]) == {MODEL, OPTIMIZER, "state.json"}


@pytest.mark.parametrize("name", [MODEL, OPTIMIZER, "state.json"])
@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
def test_a_damaged_newest_checkpoint_is_named_and_passed_over(run, name, harm):
    good = write_checkpoint(run, State(step=1), tensors())
    bad = write_checkpoint(run, State(step=2), tensors()) / name
    content = bytearray(bad.read_bytes())
    if harm == "remove":
        bad.unlink()
    elif harm == "cut":
        bad.write_bytes(content[:-1])
    else:
        content[-1] ^= 1
        bad.write_bytes(content)
    warnings = []
    assert newest_valid(run, warnings.append) == good
    [warning] = warnings
    assert "step-00000002" in warning
    assert name in warning


@pytest.mark.parametrize("manifest", ["", "{", "[]", '{"version": 99, "files": {}}'])
def test_an_unreadable_manifest_is_damage(run, manifest):
    path = write_checkpoint(run, State(step=1), tensors())
    (path / "MANIFEST.json").write_text(manifest)
    assert damage(path) is not None


def test_no_checkpoint_at_all(run):
    assert newest_valid(run, no_warning) is None


def test_writing_a_step_again_replaces_it(run):
    write_checkpoint(run, State(step=1), tensors(1.0))
    path = write_checkpoint(run, State(step=1), tensors(2.0))
    assert read_checkpoint(path)[1][MODEL]["w"][0, 0] == 2.0
    assert [entry.name for entry in run.checkpoints.iterdir()] == ["step-00000001"]


def test_a_failed_write_leaves_nothing_and_surfaces_as_a_user_error(run, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dragoman.train.checkpoint.save_file", full)
    saver = Saver(run, Checkpoint())
    saver.save(State(step=1), tensors())
    with pytest.raises(UserError, match="disk is full"):
        saver.wait()
    assert list(run.checkpoints.iterdir()) == []


def test_the_saver_writes_what_was_there_when_it_was_asked(run):
    saver = Saver(run, Checkpoint())
    live, state = tensors(1.0), State(step=5)
    saver.save(state, live)
    live[MODEL]["w"].fill_(9.0)
    state.step = 6
    saver.wait()
    read_state, files = read_checkpoint(run.checkpoint(5))
    assert read_state.step == 5
    assert files[MODEL]["w"][0, 0] == 1.0


def test_leftovers_of_a_killed_writer_are_removed(run):
    leftover = run.checkpoints / ".tmp-step-00000003-999"
    leftover.mkdir(parents=True)
    Saver(run, Checkpoint())
    assert not leftover.exists()


def write_scores(run, bleu):
    lines = [{"set": "dev", "step": s, "bleu": b, "model": f"models/step-{s:08d}"} for s, b in bleu.items()]
    run.scores.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_last_the_best_and_the_unscored_are_kept(run):
    for step in range(1, 11):
        write_checkpoint(run, State(step=step), tensors())
    write_scores(run, {1: 5.0, 2: 30.0, 3: 20.0, 4: 1.0, 5: 2.0, 6: 3.0, 7: 4.0, 9: 6.0})
    prune(run, Checkpoint(keep_last=2, keep_best=2))
    # 9 and 10 are the last, 2 and 3 the best, 8 waits for the lane.
    assert list(step_directories(run.checkpoints)) == [2, 3, 8, 9, 10]


def test_a_snapshot_shares_nothing_with_the_original():
    live = tensors()
    copy = snapshot(live)
    live[MODEL]["w"].zero_()
    assert copy[MODEL]["w"][0, 0] == 1.0
