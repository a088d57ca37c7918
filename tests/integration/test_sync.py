"""Modes of synchronisation with real workers: they learn, agree, and go on after a kill with the same bits.

Workers are started one by one, as somebody else's launcher would. Each is told to be the only one of its host, or
one of two: workers with the same name and local number are on different hosts.
"""

import signal
import socket
import subprocess
import sys

import pytest
from safetensors.torch import load_file

from dragoman.files import read_json_lines
from tests.integration.conftest import ENVIRONMENT, TOY, Toy, step_losses

QUIET = ("evaluate.every_steps=100", "checkpoint.every_steps=100", "log.samples_every=0")
MODES = {
    "every-step bf16": ("cluster.sync=every-step", "cluster.wire=bf16"),
    "compressed int4": ("cluster.sync=compressed",),
    "compressed bf16": ("cluster.sync=compressed", "cluster.wire=bf16"),
    "compressed fp16": ("cluster.sync=compressed", "cluster.wire=fp16"),
    "powersgd": ("cluster.sync=compressed", "cluster.wire=powersgd", "cluster.powersgd_rank=2"),
    "local int4": ("cluster.sync=local", "cluster.inner_steps=4"),
    "local bf16": (
        "cluster.sync=local",
        "cluster.inner_steps=4",
        "cluster.wire=bf16",
        "cluster.outer_momentum=0.3",
    ),
}


def start(toy, run, *settings, hosts=2, per_host=1):
    """Start the workers of a run, as many hosts as asked for; all on this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    changes = [part for each in settings for part in ("--set", each)]
    workers = []
    for rank in range(hosts * per_host):
        place = {
            "RANK": rank,
            "WORLD_SIZE": hosts * per_host,
            "LOCAL_RANK": rank % per_host,
            "LOCAL_WORLD_SIZE": per_host,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "dragoman", "train", "toy.toml", "--run", run, *changes],
            cwd=toy.path,
            env={**ENVIRONMENT, **{name: str(value) for name, value in place.items()}},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        toy.processes.append(process)
        workers.append(process)
    return workers


def train(toy, run, *settings, hosts=2, per_host=1):
    """Train to the end; return the run."""
    for worker in start(toy, run, *settings, hosts=hosts, per_host=per_host):
        output, _ = worker.communicate(timeout=200)
        assert worker.returncode == 0, output
    return toy.run_dir(run)


def final_weights(run, step=30):
    return load_file(run.checkpoint(step) / "model.safetensors")


@pytest.fixture(scope="module")
def exact(tmp_path_factory, datasets):
    """The losses of plain every-step on two workers."""
    path = tmp_path_factory.mktemp("exact")
    (path / "toy.toml").write_text(TOY.format(datasets=datasets))
    return step_losses(train(Toy(path), "run", *QUIET))


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_learns_about_as_much(toy, exact, mode):
    other = step_losses(train(toy, "other", *QUIET, *MODES[mode]))
    assert other != exact
    assert other[30] == pytest.approx(exact[30], rel=0.05)
    assert other[30] < 0.9 * other[1]


@pytest.mark.parametrize(
    "mode", ["compressed int4", "compressed bf16", "powersgd", "local int4", "local bf16"]
)
def test_a_killed_run_goes_on_with_the_same_bits(toy, mode):
    settings = (*MODES[mode], "evaluate.every_steps=15", "train.average=ema")
    whole = train(toy, "whole", *settings)
    workers = start(toy, "killed", *settings)
    toy.wait_for_step("killed", 13, workers[0])
    for worker in workers:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    train(toy, "killed", *settings)
    killed = toy.run_dir("killed")
    assert step_losses(killed) == step_losses(whole)
    expected = final_weights(whole)
    assert all(tensor.equal(expected[name]) for name, tensor in final_weights(killed).items())


@pytest.mark.parametrize("mode", ["compressed int4", "powersgd", "local int4"])
def test_another_number_of_workers_goes_on(toy, mode):
    train(toy, "run", *MODES[mode], "train.steps=15")
    run = train(toy, "run", *MODES[mode], "train.steps=30", hosts=3)
    alone = train(toy, "run", *MODES[mode], "train.steps=40", hosts=1)
    losses = step_losses(alone)
    assert list(losses) == list(range(1, 41))
    assert losses[40] < losses[15] < losses[1]
    assert run.path == alone.path


@pytest.mark.parametrize("mode", ["compressed int4", "local int4"])
def test_one_worker_speaks_for_its_host(toy, mode):
    settings = (*QUIET, *MODES[mode], "train.micro_batch_tokens=150")
    run = train(toy, "run", *settings, hosts=2, per_host=2)
    assert [step_losses(run, rank) for rank in (1, 2, 3)] == [step_losses(run)] * 3  # losses are the world's
    sent = [sum(line.get("bytes_sent", 0) for line in read_json_lines(run.events(rank))) for rank in range(4)]
    assert sent[0] == sent[2] > sent[1] == sent[3]


def test_local_on_one_host_is_every_step(toy, exact):
    local = train(toy, "local", *QUIET, *MODES["local int4"], hosts=1, per_host=2)
    assert "all workers are on one host" in local.log.read_text()
    assert step_losses(local) == exact


def test_plain_every_step_saves_what_it_always_saved(toy):
    run = train(toy, "run", "train.steps=5")
    names = {path.name for path in run.checkpoint(5).iterdir()}
    assert names == {"MANIFEST.json", "state.json", "model.safetensors", "optimizer.safetensors"}


def test_auto_measures_chooses_and_remembers(toy):
    run = train(toy, "run", "cluster.sync=auto", "train.steps=15")
    [decision] = [line for line in read_json_lines(run.events(0)) if line["event"] == "sync"]
    assert decision["step"] == 8
    assert decision["measured"]["link"]["bytes_per_second"] > 0
    assert decision["mode"] in [line["mode"] for line in decision["estimates"]]
    assert "<- taken" in run.log.read_text()
    train(toy, "run", "cluster.sync=auto", "train.steps=30")
    decisions = [line for line in read_json_lines(run.events(0)) if line["event"] == "sync"]
    assert decisions == [decision]  # the second start went on with it
    assert step_losses(run, 1) == step_losses(run)
