"""What a run writes so that it can explain itself: phases, FLOPs, machines, losses by sentence, the data's passport."""

import math
import signal

import numpy as np
import pytest

from dragoman.files import read_json, read_json_lines
from dragoman.observe.history import PHASES, STEP_COLUMNS
from dragoman.observe.reading import read_run
from tests.integration.conftest import TOY, Toy, family, lives, wait_until, workers_of

# Steps long enough for their parts to be told apart from the moments between two clocks.
LONG_STEPS = (
    "--set", "train.steps=24", "--set", "train.tokens_per_step=6000", "--set", "train.micro_batch_tokens=1000",
    "--set", "model.d_model=64", "--set", "evaluate.every_steps=12", "--set", "checkpoint.every_steps=12",
    "--set", "log.samples_every=12",
)  # fmt: skip
APART = ("evaluation", "checkpoint", "sample")


@pytest.fixture(scope="module")
def runs(tmp_path_factory, datasets):
    """A run of two workers, and the same of one worker that leaves its machine alone."""
    path = tmp_path_factory.mktemp("record")
    (path / "toy.toml").write_text(TOY.format(datasets=datasets))
    toy = Toy(path)
    quiet = ("--set", "log.telemetry=false")
    return toy.train("pair", *LONG_STEPS, workers=2), toy.train("alone", *LONG_STEPS, *quiet, workers=1)


def test_phases_sum_to_the_wall_clock_on_every_rank(runs):
    for rank in range(2):
        lines = read_json_lines(runs[0].events(rank))
        steps = [line for line in lines if line["event"] == "step"]
        for line in steps:
            assert list(line["phases"]) == list(PHASES)
            assert sum(line["phases"].values()) == line["seconds"]
            assert min(line["phases"].values()) >= 0
        first, last = steps[0]["time"], steps[-1]["time"]
        apart = [line for line in lines if line["event"] in APART and first < line["time"] < last]
        assert {line["event"] for line in apart} == {*APART} - ({"sample"} if rank else set())
        held_up = sum(line["seconds"] for line in apart)
        assert sum(line["seconds"] for line in steps[1:]) == pytest.approx(last - first - held_up, rel=0.02)


def test_every_rank_records_all_that_the_reader_knows(runs):
    history = read_run(runs[0].path)
    assert history.problems == []
    assert [len(launch.ranks) for launch in history.launches] == [2]
    for note in history.launches[0].ranks:
        assert (note["world"], note["precision"], note["interface"]) == (2, "float32", "lo")
        assert note["parameters"] == history.facts["parameters"]
        assert note["peak_flops"] > 1e6
        assert note["device"]
        assert note["host"]
    for rank in range(2):
        track = history.tracks[rank]
        assert len(track) == 24
        for column in (*STEP_COLUMNS, *PHASES):
            assert np.isfinite(track[column]).all(), column
        assert (track["compute"] > 0.2 * track["seconds"]).all()
        assert (track["exchange"] >= track["exposed_seconds"] - 1e-3).all()
        assert (track["flops"] > 1e6).all()
    assert all(note["seconds"] > 0 for note in history.noted("sample"))


def test_what_is_computed_does_not_depend_on_who_computes_it(runs):
    pair, alone = (read_run(run.path) for run in runs)
    assert sum(pair.tracks[rank]["flops"] for rank in range(2)) == pytest.approx(alone.tracks[0]["flops"])
    for step in (12, 24):
        of_two, of_one = pair.sentence_losses[step], alone.sentence_losses[step]
        assert of_two.tokens.tolist() == of_one.tokens.tolist()
        assert of_two.nll == pytest.approx(of_one.nll, rel=1e-3, abs=2e-3)
        [evaluation] = [each for each in pair.evaluations if each.step == step]
        assert evaluation.dev_loss == pytest.approx(of_two.nll.sum() / of_two.tokens.sum(), rel=1e-4)
    assert len(pair.sentence_losses[24].nll) == pair.passport["splits"]["dev"]["pairs"]


def test_telemetry_is_there_unless_it_is_not_wanted(runs):
    pair, alone = (read_run(run.path) for run in runs)
    [samples] = pair.telemetry.values()
    assert samples.interface == "lo"
    assert samples.cores >= 1
    assert np.nanmax(samples["cpu_run"]) > 0
    assert samples["memory_run"].max() > 1e7
    assert np.diff(samples["received"]).sum() > 0  # two workers of one host meet on its loopback
    assert not alone.telemetry
    assert math.isnan(float(alone.launches[0].ranks[0]["peak_flops"] or "nan"))


def test_a_copied_run_knows_its_data(runs):
    facts = read_json(runs[0].facts)
    assert facts["passport"]["fingerprint"] == facts["fingerprint"]
    assert facts["passport"]["splits"]["train"]["pairs"] > 0


def test_telemetry_survives_a_restart(toy):
    process = toy.start("train", "toy.toml", "--run", "run", "--workers", "2", "--set", "train.steps=100000")
    run = toy.run_dir("run")

    def samples(after=0.0):
        found = [line for path in (run.path / "telemetry").glob("*") for line in read_json_lines(path)]
        return [line["time"] for line in found if line["time"] > after]

    def samplers():
        return [each for each in family(process) if "dragoman.observe.telemetry" in each.cmdline()]

    wait_until(lambda: len(samples()) >= 2, "the first samples")
    toy.wait_for_step("run", 6, process)
    before, [first] = samples(), samplers()
    workers_of(process)[1].send_signal(signal.SIGKILL)
    wait_until(lambda: not lives(first), "the sampler to end")
    wait_until(
        lambda: any(line["event"] == "resume" for line in read_json_lines(run.events(0))),
        "the workers to resume",
    )
    resumed = read_json_lines(run.events(0))[-1]["time"]
    wait_until(lambda: len(samples(after=resumed)) >= 2, "samples of the new workers")
    assert samples()[: len(before)] == before
    [second] = samplers()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    wait_until(lambda: not second.is_running(), "the sampler to end")
    assert not read_run(run.path).problems
    assert "telemetry" not in run.log.read_text()
