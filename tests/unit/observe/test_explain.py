"""Every verdict against histories whose truth was made, with noise; and never a crash."""

import json
import math

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from dragoman.cli import build_app
from dragoman.observe.explain import QUESTIONS, explain, to_json
from dragoman.observe.explain.answer import Case
from dragoman.observe.explain.page import print_page
from dragoman.observe.history import File, History
from dragoman.observe.reading import read_run
from tests.unit.observe.histories import BEGAN, PARAMETERS, curve_history, recipe, step_history, write_run

STEPS = np.arange(100.0, 3001, 100)


def answers_of(history):
    return {answer.key: answer for answer in explain(history)}


def still_falling(step):
    return 2 + 1.5 * (step / 3000) ** -0.5


def levelled_out(step):
    return 2 + 3 * np.exp(-step / 300)


def turning(turn, rise):
    return lambda step: 2 + np.where(step < turn, 1.5 * (1 - step / turn), rise * (step - turn) / 1000)


def memorised(step):
    return 3 * np.exp(-step / 1000)


def test_too_few_steps_are_not_fully_trained():
    answer = answers_of(curve_history(STEPS, still_falling, still_falling))["q02_trained"]
    assert answer.verdict == "no"
    gain = answer.evidence["dev_loss"]["gain_by_twice_the_steps"]
    assert gain["value"] == pytest.approx(still_falling(3000) - still_falling(6000), rel=0.1)
    assert "train.steps=6000" in answer.advice[0]


def test_enough_steps_are_fully_trained():
    answer = answers_of(
        curve_history(STEPS, levelled_out, levelled_out, bleu=lambda s: 30 - 20 * np.exp(-s / 300))
    )
    assert answer["q02_trained"].verdict == "yes"
    assert answer["q03_overfitting"].verdict == "no"


def test_loss_and_bleu_that_do_not_agree_are_unclear():
    history = curve_history(STEPS, levelled_out, levelled_out, bleu=lambda s: 20 + 10 * s / 3000)
    answer = answers_of(history)["q02_trained"]
    assert answer.evidence["dev_loss"]["vote"] == "yes"
    assert answer.evidence["dev_bleu"]["vote"] == "no"
    assert answer.verdict == "unclear"


def test_what_a_falling_rate_gave_does_not_come_twice():
    """Under a schedule with an end, loss falls to the end, and that is no sign that more steps would help."""

    def annealed(step):
        return levelled_out(step) + 0.3 * (1 - step / 3000)

    linear = answers_of(curve_history(STEPS, annealed, annealed, overrides=['schedule.name="linear"']))[
        "q02_trained"
    ]
    assert linear.verdict != "no"
    assert linear.evidence["schedule_ended"]
    noam = answers_of(curve_history(STEPS, annealed, annealed))["q02_trained"]
    assert noam.verdict == "no"
    assert not noam.evidence["schedule_ended"]


def test_a_run_that_ended_while_it_learned_fastest_is_not_fully_trained():
    """Seen in a real run of 240 steps: a curve that bends down to the end fits no law that levels out."""
    seen = [5.53, 5.05, 4.46, 3.68, 3.10, 2.67, 2.26, 1.89, 1.60, 1.35, 1.20, 1.14]
    steps = 20.0 * np.arange(1, len(seen) + 1)
    history = curve_history(
        steps,
        lambda s: np.interp(s, steps, seen),
        memorised,
        overrides=['schedule.name="linear"'],
        noise=0.005,
    )
    answers = answers_of(history)
    assert answers["q02_trained"].verdict == "no"
    assert "too fast for a forecast" in answers["q02_trained"].summary
    assert answers["q12_next"].verdict == "yes"
    assert "if they bring what the last third did" in answers["q12_next"].summary


def test_a_schedule_at_its_end_says_that_going_on_is_no_use():
    history = curve_history(
        STEPS, still_falling, still_falling, overrides=['schedule.name="cosine"'], noise=0.002
    )
    answer = answers_of(history)["q02_trained"]
    assert answer.verdict == "no"
    assert "at its end" in answer.summary
    assert answer.advice[0].startswith("train anew")


@pytest.mark.parametrize("turn", [800, 1500, 2200])
def test_overfitting_is_seen_with_the_step_where_it_began(turn):
    answer = answers_of(curve_history(STEPS, turning(turn, 0.3), memorised))["q03_overfitting"]
    assert answer.verdict == "yes"
    assert abs(answer.evidence["best_step"] - turn) <= 100
    assert "bootstrap over 200 dev sentences" in answer.evidence["rise_method"]
    assert answer.evidence["gap_at_last"] > answer.evidence["gap_at_best"]


def test_a_gap_alone_is_not_overfitting():
    answer = answers_of(curve_history(STEPS, still_falling, lambda s: still_falling(s) - 1.5))[
        "q03_overfitting"
    ]
    assert answer.verdict == "no"


def test_a_model_that_comes_apart_does_not_overfit():
    answer = answers_of(curve_history(STEPS, turning(1500, 0.5), turning(1500, 0.5)))["q03_overfitting"]
    assert answer.verdict == "unclear"
    assert "comes apart" in answer.summary


def test_a_slow_link_is_the_bottleneck_however_idle_it_looks():
    # 40 MB in 2 s, on a link that could carry 100 MB/s: busy a fifth of the time, and two thirds of every step.
    answer = answers_of(step_history(transfer=2.0, link=1e8))["q05_network"]
    assert answer.verdict == "yes"
    shares = answer.evidence["shares"]
    assert shares["transfer"] == pytest.approx(2 / 3.1, abs=0.05)
    assert (
        answer.evidence["transfer_share"]["low"]
        < shares["transfer"]
        < answer.evidence["transfer_share"]["high"]
    )
    assert answer.evidence["average_use_of_link"] < 0.2
    assert "looks idle" in answer.summary


def test_a_fast_link_is_not():
    assert answers_of(step_history(transfer=0.02))["q05_network"].verdict == "no"


def test_a_straggler_is_not_blamed_on_the_network():
    answer = answers_of(step_history(transfer=0.05, slow={1: 2.5}))["q05_network"]
    assert answer.verdict == "no"
    assert answer.evidence["largest_wait"] == "straggler"
    assert answer.evidence["slowest_host"] == "host2"
    assert "host2" in answer.advice[0]


def test_slow_data_are_not_blamed_on_the_network():
    answer = answers_of(step_history(transfer=0.3, data=1.5))["q05_network"]
    assert answer.verdict == "no"
    assert answer.evidence["largest_wait"] == "data"
    assert "data arrive too slowly" in answer.advice[0]


def test_workers_on_one_host_have_no_network_between_them():
    answers = answers_of(step_history(hosts=["a", "a"], transfer=1.0))
    assert answers["q05_network"].verdict == "no"
    assert "all workers are on a" in answers["q05_network"].summary
    assert answers["q11_correlation"].verdict == "unclear"


def test_without_a_ranks_events_transfer_cannot_be_told_from_waiting():
    history = step_history(transfer=2.0)
    del history.tracks[1]
    answer = answers_of(history)["q05_network"]
    assert answer.verdict == "unclear"
    assert "rank 1" in answer.summary


def test_devices_by_computing_and_by_peak():
    busy = answers_of(step_history())["q04_devices"]
    assert busy.verdict == "yes"
    assert busy.evidence["share_of_peak"] == pytest.approx(4 / 8 / 1.1, rel=0.1)
    waiting = answers_of(step_history(transfer=2.0))["q04_devices"]
    assert waiting.verdict == "no"
    assert "transfer" in waiting.summary
    slow = step_history()
    for track in slow.tracks.values():
        track.columns["flops"] = track["flops"] / 20
    assert "micro_batch_tokens" in answers_of(slow)["q04_devices"].advice[0]


def test_the_rate_follows_its_formula_also_after_a_rollback():
    history = step_history(100)
    assert answers_of(history)["q06_learning_rate"].verdict == "yes"
    history.leader.columns["lr"][60:] *= 0.5
    assert answers_of(history)["q06_learning_rate"].verdict == "no"
    note = {"event": "rollback", "rank": 0, "time": BEGAN, "step": 65, "to_step": 60, "rate_scale": 0.5}
    history.notes.append(note)
    answer = answers_of(history)["q06_learning_rate"]
    assert answer.verdict == "yes"
    assert answer.evidence["steps_scaled_by_rollbacks"] == 40
    assert "256^-0.5" in answer.evidence["formula"]
    assert answer.evidence["peak_step"] == history.recipe.warmup_steps


def test_the_training_set_by_its_passport():
    corpus = {
        "paths": ["a.en", "a.de"],
        "lines": 10,
        "pairs": 8,
        "bytes": [2_000_000, 3_000_000],
        "tokens": [5, 6],
    }
    splits = {"train": {**corpus, "corpora": [corpus]}, "dev": {"overlap_with_train": 3}}
    dropped = {"length": {"pairs": 2, "examples": []}, "ratio": {"pairs": 0, "examples": []}}
    passport = {"splits": splits, "dropped": dropped, "languages": {"src": "en", "tgt": "de"}}
    answer = answers_of(History(recipe(), facts={"passport": passport}))["q07_data"]
    assert answer.verdict == "yes"
    assert answer.evidence["megabytes"] == 5
    assert answer.evidence["dropped"] == {"length": 2, "ratio": 0}
    assert "5 + 6 tokens" in answer.summary
    assert answer.summary.endswith("dropped: length 2")
    assert answer.evidence["corpora"][0]["tokens"] == [5, 6]
    assert "3 pairs of dev" in answer.advice[0]


@pytest.mark.parametrize("gate", [True, False])
def test_overlap_that_was_left_in_train_is_advised_against(gate):
    corpus = {"paths": ["a"], "lines": 10, "pairs": 8, "bytes": [20, 30], "tokens": [5, 6]}
    sets = {"dev": {"pairs": 9, "exact": 1, "normalised": 2, "ngram": 0}}
    passport = {
        "splits": {"train": {**corpus, "corpora": [corpus]}, "dev": {}},
        "overlap": {"gate": gate, "removed": 4, "kept": 4, "sets": sets, "examples": []},
    }
    answer = answers_of(History(recipe(), facts={"passport": passport}))["q07_data"]
    told = (
        "3 of 9 pairs of dev were in train too (1 exact, 2 normalised) and were left there: scores on dev are too "
        "good; set filter.overlap = true"
    )
    assert answer.advice == ([] if gate else [told])


def test_checkpoint_files_and_sizes():
    history = step_history(20)
    sizes = {"model.safetensors": 4 * PARAMETERS + 900, "optimizer.safetensors": 8 * PARAMETERS, "state.json": 300,
             "MANIFEST.json": 400}  # fmt: skip
    history.checkpoints = {20: [File(name, size) for name, size in sizes.items()]}
    history.model_files = [File("model.bin", 2 * PARAMETERS)]
    answers = answers_of(history)
    files, size = answers["q08_checkpoint_files"], answers["q09_checkpoint_size"]
    assert (files.verdict, size.verdict) == ("yes", "yes")
    assert "not one of ours" not in {file["purpose"] for file in files.evidence["files"]}
    assert size.evidence["checkpoint_megabytes"] == pytest.approx(12e-6 * PARAMETERS, abs=0.1)
    assert size.evidence["model_megabytes"] == pytest.approx(2e-6 * PARAMETERS, rel=1e-4)
    history.checkpoints[20] = history.checkpoints[20][1:]
    answers = answers_of(history)
    assert answers["q08_checkpoint_files"].evidence["missing"] == ["model.safetensors"]
    assert answers["q09_checkpoint_size"].verdict == "no"


def test_step_time_leaves_out_the_first_steps_after_a_start():
    history = step_history(100, spread=0.01)
    history.leader.columns["seconds"][:3] = 60.0
    answer = answers_of(history)["q10_step_time"]
    assert answer.verdict == "yes"
    assert answer.evidence["mean_seconds"] == pytest.approx(1.03, abs=0.03)
    assert answer.evidence["tokens_per_second_per_device"] == pytest.approx(4096 / 1.03 / 2, rel=0.03)
    history.leader.columns["seconds"][::10] = 5.0
    assert answers_of(history)["q10_step_time"].verdict == "no"


def test_correlation_gives_coefficient_interval_and_mechanism():
    answer = answers_of(step_history(600, transfer=2.0, spread=0.3))["q11_correlation"]
    assert answer.verdict == "yes"
    pearson = answer.evidence["interface_rate"]["pearson"]
    assert -1 <= pearson["low"] < pearson["value"] < pearson["high"] < -0.3
    assert answer.evidence["transfer_seconds"]["pearson"]["low"] > 0.3
    assert "the network is what makes them vary" in answer.evidence["mechanism"]
    steady_link = answers_of(step_history(600, transfer=0.001, spread=0.3))["q11_correlation"]
    assert "not their transfer" in steady_link.evidence["mechanism"]


def test_next_ranks_changes_by_what_plan_would_predict():
    # 40 MB at 20 MB/s take 2 s; in bf16 they would take 1 s.
    answer = answers_of(step_history(transfer=2.0, link=2e7))["q12_next"]
    assert answer.verdict == "yes"
    changes = answer.evidence["changes"]
    assert [each["gain"] for each in changes] == sorted((each["gain"] for each in changes), reverse=True)
    bf16 = next(each for each in changes if each["change"].startswith("bf16 gradients"))
    assert bf16["predicted"] == pytest.approx(bf16["now"] - 1.0, abs=0.1)
    straggler = answers_of(step_history(slow={1: 2.0}))["q12_next"]
    assert straggler.evidence["changes"][0]["change"].startswith("rank 1 on host2")
    assert straggler.evidence["changes"][0]["predicted"] == pytest.approx(1.1, abs=0.15)
    data = answers_of(step_history(data=1.0))["q12_next"]
    assert data.evidence["changes"][0]["change"].startswith("data")


def test_next_names_the_step_to_stop_at():
    answer = answers_of(curve_history(STEPS, turning(1500, 0.5), memorised))["q12_next"]
    assert "use the model of step 1," in answer.summary


def test_a_killed_run_says_so_and_how_long_is_left(tmp_path):
    history = step_history(100)
    history.notes = [note for note in history.notes if note["event"] != "finish"]
    history.recipe = recipe(400)
    answer = answers_of(read_run(write_run(history, tmp_path / "run")))["q01_duration"]
    assert answer.verdict == "no"
    assert answer.evidence["ending"] == "killed"
    assert answer.evidence["seconds_to_go"] == pytest.approx(3 * answer.evidence["wall_seconds"], rel=0.05)
    assert "dragoman train" in answer.advice[0]


def test_a_run_resumed_on_fewer_workers(tmp_path):
    """Each world is judged by its own ranks, and the time between the launches is downtime."""
    first, second = step_history(100, transfer=1.0), step_history(60, hosts=["host1"], first_step=101, seed=1)
    later = float(first.tracks[0]["time"][-1]) + 500 - BEGAN
    second.tracks[0].columns["time"] = second.tracks[0]["time"] + later
    for note in second.notes:
        note |= {"time": note["time"] + later} | ({"event": "resume"} if note["event"] == "start" else {})
    columns = {name: np.concatenate([first.tracks[0][name], column])
               for name, column in second.tracks[0].columns.items()}  # fmt: skip
    first.tracks[0].columns.update(columns)
    first.notes = [note for note in first.notes if note["event"] != "finish"] + second.notes
    first.recipe = recipe(160)
    answers = answers_of(read_run(write_run(first, tmp_path / "run")))
    duration, pace = answers["q01_duration"], answers["q10_step_time"]
    assert duration.verdict == "yes"
    assert duration.evidence["restarts"] == 1
    assert duration.evidence["phases"]["downtime"] == pytest.approx(500, abs=1)
    assert sum(duration.evidence["phases"].values()) == pytest.approx(
        duration.evidence["wall_seconds"], rel=1e-3
    )
    assert (
        pace.evidence["by_world"]["2"]["mean_seconds"]
        > 1.8
        > 1.2
        > pace.evidence["by_world"]["1"]["mean_seconds"]
    )


def test_three_steps_are_mostly_unclear():
    history = step_history(3)
    history.evaluations = curve_history(STEPS, still_falling, still_falling).evaluations[:1]
    answers = answers_of(history)
    decided = {key for key, answer in answers.items() if answer.verdict != "unclear"}
    assert decided <= {"q01_duration", "q06_learning_rate"}


def test_nothing_at_all_is_unclear_everywhere():
    history = History(recipe())
    answers = explain(history)
    assert {answer.verdict for answer in answers[1:]} == {"unclear"}
    assert all("cannot be reasoned about" not in answer.summary for answer in answers)


def test_a_question_that_fails_does_not_take_the_others_with_it():
    history = step_history(50)
    del history.leader.columns["lr"]
    answers = answers_of(history)
    assert "cannot be reasoned about: KeyError" in answers["q06_learning_rate"].summary
    assert answers["q06_learning_rate"].verdict == "unclear"
    assert answers["q05_network"].verdict == "no"


def test_json_has_stable_keys_and_no_nan():
    history = step_history(50)
    found = to_json(history, explain(history))
    assert list(found) == ["run", "kind", "ending", *QUESTIONS, "problems"]
    for key in QUESTIONS:
        assert set(found[key]) == {
            "question",
            "claim",
            "verdict",
            "summary",
            "evidence",
            "confidence",
            "advice",
        }
        assert 0 <= found[key]["confidence"] <= 1
    json.dumps(found, allow_nan=False)


def test_the_page_fits_80_columns_and_takes_text_as_it_is():
    history = step_history(50, hosts=["[red]a[/red]", "b"], slow={0: 3.0})
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    print_page(history, explain(history), console)
    console.file.close()
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80
    assert "[red]a[/red]" in text
    for question in QUESTIONS.values():
        assert question.text in text


def verdict(history, key):
    return QUESTIONS[key].ask(Case(history)).verdict


def evaluation_steps(random):
    last, count = float(random.choice([800, 5000, 60000])), int(random.integers(8, 40))
    return np.linspace(last / count, last, count).round()


def trained_history(truth, random, seed):
    """Power laws and exponentials; what twice the steps bring is far from what is worth it, to either side."""
    steps = evaluation_steps(random)
    last = steps[-1]
    while True:
        floor, drop, shape = random.uniform(0.5, 2.5), random.uniform(0.01, 4), random.uniform(0.05, 1.2)
        power = random.integers(2)

        def dev(step, floor=floor, drop=drop, shape=shape, power=power):
            return floor + drop * ((step / last) ** -shape if power else np.exp(-step / last / shape))

        gain = dev(last) - dev(2 * last)
        if gain < 0.007 if truth == "yes" else gain > 0.06:
            return curve_history(steps, dev, dev, noise=random.uniform(0.002, 0.012), sentences=20, seed=seed)


def overfitting_history(truth, random, seed):
    """A fall, and then a rise of 0.05 nats or more, a level, or a further fall."""
    steps = evaluation_steps(random)
    last = steps[-1]
    turn, rise = last * random.uniform(0.25, 0.75), random.uniform(0.05, 0.6)
    drop, exponent, bend = random.uniform(0.05, 1), random.uniform(0.3, 1.2), random.uniform(1, 2)
    level = bool(random.integers(2))

    def falling(step):
        return 1.5 + drop * (step / last) ** -exponent

    def dev(step):
        if truth == "no":
            return falling(np.minimum(step, turn) if level else step)
        since = np.maximum(0.0, step - turn) / (last - turn)
        return falling(np.minimum(step, turn)) + rise * since**bend

    return curve_history(
        steps, dev, lambda s: falling(s) - 0.3 * s / last, noise=random.uniform(0.002, 0.012), seed=seed
    )


def network_history(truth, random, seed):
    """Much transfer; or little, with slow data and stragglers to blame it on."""
    hosts = [f"host{number}" for number in range(random.integers(2, 5))]
    if truth == "yes":
        made = {"transfer": random.uniform(0.5, 3), "data": random.uniform(0, 0.1)}
    else:
        slow = {1: random.choice([1.0, random.uniform(1, 2.5)])}
        made = {
            "transfer": random.uniform(0, 0.06),
            "data": random.uniform(0, 1.5) * random.integers(2),
            "slow": slow,
        }
    steps, spread = int(random.integers(30, 300)), random.uniform(0.02, 0.25)
    return step_history(steps, hosts=hosts, spread=spread, telemetry=False, seed=seed, **made)


@pytest.mark.parametrize(
    ("key", "make"),
    [
        ("q02_trained", trained_history),
        ("q03_overfitting", overfitting_history),
        ("q05_network", network_history),
    ],
)
def test_calibration_over_200_seeds(key, make):
    """A confident verdict is wrong at most once in twenty; and most are confident, or that would be no art."""
    wrong = unclear = 0
    for seed in range(200):
        truth = "yes" if seed % 2 else "no"
        found = verdict(make(truth, np.random.default_rng(seed), seed), key)
        wrong += found not in (truth, "unclear")
        unclear += found == "unclear"
    assert wrong <= 0.05 * 200
    assert unclear <= 0.25 * 200


def test_confidence_is_that_of_the_verdict():
    for answer in explain(step_history(100, transfer=1.0)):
        assert math.isfinite(answer.confidence)
        assert answer.confidence >= 0.7 or answer.verdict == "unclear"


def test_the_command_prints_the_answers_as_text_and_as_json(tmp_path):
    run = str(write_run(step_history(30), tmp_path / "run"))
    app, runner = build_app(), CliRunner()
    text = runner.invoke(app, ["explain", run])
    assert text.exit_code == 0
    assert "Was the network the bottleneck?" in text.output
    found = json.loads(runner.invoke(app, ["explain", run, "--json"]).output)
    assert found["q05_network"]["verdict"] == "no"
    assert found["kind"] == "dragoman"
