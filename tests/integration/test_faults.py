"""Promise 2: killed at any instant, continued as if never killed, bit for bit."""

import signal
from dataclasses import dataclass

import pytest

from dragoman.files import read_json_lines
from dragoman.rundir import step_directories
from dragoman.train.checkpoint import damage
from tests.integration.conftest import family, kill, lives, step_losses, wait_until, workers_of

LONG = ("--set", "train.steps=80", "--set", "evaluate.every_steps=40", "--set", "checkpoint.every_steps=7")


@dataclass(frozen=True)
class Fault:
    """Kill -9 of some processes of a run, once a step is done."""

    victims: str  # "all", "launcher", or "worker 1"
    at_step: int
    workers: int

    def __str__(self):
        return f"{self.victims} of {self.workers} at {self.at_step}"


FAULTS = [
    Fault("all", at_step=1, workers=1),
    Fault("all", at_step=33, workers=1),
    Fault("all", at_step=20, workers=2),
    Fault("launcher", at_step=40, workers=2),
    Fault("worker 1", at_step=30, workers=2),
    Fault("worker 0", at_step=50, workers=3),
]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, datasets):
    """The losses of runs that nothing happened to, by number of workers."""
    from tests.integration.conftest import TOY, Toy

    path = tmp_path_factory.mktemp("undisturbed")
    (path / "toy.toml").write_text(TOY.format(datasets=datasets))
    return {n: step_losses(Toy(path).train(f"run{n}", *LONG, workers=n)) for n in (1, 2, 3)}


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_killed_run_goes_on_as_if_nothing_had_happened(toy, undisturbed, fault):
    command = ("train", "toy.toml", "--run", "run", "--workers", str(fault.workers), *LONG)
    process = toy.start(*command)
    toy.wait_for_step("run", fault.at_step, process)
    launcher, *rest = family(process)
    if fault.victims.startswith("worker"):
        workers_of(process)[int(fault.victims.split()[1])].send_signal(signal.SIGKILL)
        output, errors = process.communicate(timeout=200)
        assert process.returncode == 0, output + errors
        assert "restarted (1 of 10)" in output
    else:
        kill([launcher] if fault.victims == "launcher" else [launcher, *rest])
        process.communicate()
        wait_until(lambda: not any(map(lives, rest)), "orphans to end")
        toy.call(*command)
    run = toy.run_dir("run")
    assert step_losses(run) == undisturbed[fault.workers]
    assert all(damage(path) is None for path in step_directories(run.checkpoints).values())
    assert {line["set"] for line in read_json_lines(run.scores)} == {"dev", "test"}


def test_a_damaged_checkpoint_costs_steps_but_not_the_run(toy, undisturbed):
    process = toy.start("train", "toy.toml", "--run", "run", "--workers", "1", *LONG)
    toy.wait_for_step("run", 40, process)
    kill(family(process))
    process.communicate()
    run = toy.run_dir("run")
    newest = list(step_directories(run.checkpoints).values())[-1]
    with open(newest / "optimizer.safetensors", "r+b") as file:
        file.seek(-3, 2)
        file.write(b"\xff\xff\xff")
    output = toy.call("train", "toy.toml", "--run", "run", "--workers", "1", *LONG).stdout
    assert f"checkpoint {newest.name} is damaged: optimizer.safetensors" in output
    assert step_losses(run) == undisturbed[1]


def test_a_run_may_change_its_number_of_workers(toy, undisturbed):
    process = toy.start("train", "toy.toml", "--run", "run", "--workers", "2", *LONG)
    toy.wait_for_step("run", 40, process)
    kill(family(process))
    process.communicate()
    toy.call("train", "toy.toml", "--run", "run", "--workers", "1", *LONG)
    last = {
        line["step"]: line["loss"]
        for line in read_json_lines(toy.run_dir("run").events(0))
        if line["event"] == "step"
    }
    assert last == pytest.approx(undisturbed[2], rel=1e-4)


@pytest.mark.parametrize(
    ("number", "code", "workers"),
    [(signal.SIGINT, 130, 1), (signal.SIGINT, 130, 2), (signal.SIGTERM, 143, 2)],
)
def test_a_signal_stops_a_run_with_its_state_saved(toy, undisturbed, number, code, workers):
    command = ("train", "toy.toml", "--run", "run", "--workers", str(workers), *LONG)
    process = toy.start(*command)
    toy.wait_for_step("run", 10, process)
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == code, output + errors
    assert "state saved; run the same command to go on" in errors
    run = toy.run_dir("run")
    last_step = max(step_losses(run))
    assert max(step_directories(run.checkpoints)) == last_step < 80
    assert f"resuming after step {last_step}" in toy.call(*command).stdout
    assert step_losses(run) == undisturbed[workers]


def test_a_run_is_trained_by_one_command_at_a_time(toy):
    process = toy.start("train", "toy.toml", "--run", "run", *LONG, "--set", "train.steps=100000")
    toy.wait_for_step("run", 1, process)
    errors = toy.call(
        "train", "toy.toml", "--run", "run", *LONG, "--set", "train.steps=100000", code=2
    ).stderr
    assert f"being trained already (process {process.pid})" in errors
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stop_while_the_lane_scores_is_said_and_made_up_for(toy, workers):
    command = ("train", "toy.toml", "--run", "run", "--workers", str(workers))
    process = toy.start(*command)
    toy.wait_for_step("run", 1, process)
    [lane] = [each for each in family(process) if any("decode.lane" in word for word in each.cmdline())]
    lane.suspend()  # so that it is not done too soon
    assert process.stdout is not None
    for line in process.stdout:
        if "training is over" in line:
            break
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "training is complete, its scores are not; run the same command to score it" in errors
    result = toy.call(*command)
    assert "finished at step 30" in result.stdout
    assert any(entry["set"] == "test" for entry in read_json_lines(toy.run_dir("run").scores))
