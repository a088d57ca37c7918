import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragoman.errors import UserError
from dragoman.observe.explain import QUESTIONS, explain, to_json
from dragoman.observe.history import Samples
from dragoman.observe.reading import read_run
from tests.unit.observe.histories import BEGAN, curve_history, step_history, write_lines, write_run


def event(name, step, time, rank=0, **values):
    return {"event": name, "step": step, "time": BEGAN + time, "rank": rank, **values}


def steps_of(numbers, time, world=1, seconds=1.0, **values):
    return [
        event("step", n, time + at, seconds=seconds, world=world, **values) for at, n in enumerate(numbers)
    ]


def write_events(path, *ranks):
    (path / "events").mkdir(parents=True)
    for rank, entries in enumerate(ranks):
        write_lines(path / "events" / f"rank{rank:03d}.jsonl", entries)
    return path


def test_a_run_reads_back_as_it_was_written(tmp_path):
    made = step_history(30, transfer=0.5)
    read = read_run(write_run(made, tmp_path / "run"))
    assert read.problems == []
    assert read.ending == "finished"
    assert read.recipe == made.recipe
    assert [launch.world for launch in read.launches] == [2]
    for rank, track in made.tracks.items():
        assert read.tracks[rank].host == track.host
        for name, column in track.columns.items():
            np.testing.assert_array_equal(read.tracks[rank][name], column, err_msg=name)
    for host, samples in made.telemetry.items():
        assert read.telemetry[host].cores == 2
        np.testing.assert_allclose(read.telemetry[host]["cpu"], samples["cpu"])
        np.testing.assert_array_equal(read.telemetry[host]["sent"], samples["sent"])


def test_evaluations_sentences_and_scores_read_back(tmp_path):
    made = curve_history(np.arange(10.0, 60, 10), lambda s: 2 + 1 / s, lambda s: 1 + 1 / s, bleu=lambda s: s)
    read = read_run(write_run(made, tmp_path / "run"))
    assert read.evaluations == made.evaluations
    assert read.scored("dev") == made.scored("dev")
    np.testing.assert_array_equal(read.sentence_losses[30].nll, made.sentence_losses[30].nll)


def test_a_rollback_makes_steps_and_evaluations_undone(tmp_path):
    told = [
        event("start", 0, 0, world=1, host="a"),
        *steps_of(range(1, 7), 1, loss=1.0),
        event("evaluation", 6, 8, dev_loss=9.0, train_loss=9.0, seconds=1),
        event("rollback", 7, 9, to_step=4, rate_scale=0.5),
        *steps_of(range(5, 7), 10, loss=2.0),
    ]
    history = read_run(write_events(tmp_path / "run", told))
    assert history.leader["step"].tolist() == [1, 2, 3, 4, 5, 6]
    assert history.leader["loss"].tolist() == [1, 1, 1, 1, 2, 2]
    assert history.evaluations == []
    assert (history.repeated_steps, history.repeated_seconds) == (2, 2.0)
    assert history.leader.host == "a"


def test_a_run_that_resumes_on_fewer_workers_forgets_what_the_lost_one_did(tmp_path):
    began = [event("start", 0, 0, rank, world=2, host=f"h{rank}") for rank in range(2)]
    first = [began[0], *steps_of(range(1, 7), 1, world=2)]
    again = [event("resume", 4, 100, world=1, host="h0"), *steps_of(range(5, 9), 101)]
    history = read_run(
        write_events(tmp_path / "run", first + again, [began[1], *steps_of(range(1, 7), 1, world=2)])
    )
    assert history.tracks[0]["world"].tolist() == [2, 2, 2, 2, 1, 1, 1, 1]
    assert history.tracks[1]["step"].tolist() == [1, 2, 3, 4]
    assert [(launch.step, launch.world, launch.resumed) for launch in history.launches] == [
        (0, 2, False),
        (4, 1, True),
    ]


def test_what_cannot_be_read_is_named_and_left_out(tmp_path):
    path = write_events(tmp_path / "run", steps_of(range(1, 4), 0))
    with open(path / "events" / "rank000.jsonl", "ab") as file:
        file.write(b'garbage\n[1, 2]\n{"event": 5}\n{"event": "step", "step": "x", "time": 1}\n{"event": "st')
    (path / "run.json").write_text("{")
    (path / "outcome.json").write_text("[]")
    (path / "recipe.toml").write_text("[train\n")
    (path / "events" / "rankfoo.jsonl").write_text("{}\n")
    history = read_run(path)
    assert history.leader["step"].tolist() == [1, 2, 3]
    said = "\n".join(history.problems)
    assert "rank000.jsonl: 2 of 7 lines cannot be read" in said
    assert "the last line is not complete" in said
    assert "run.json cannot be read" in said
    assert "outcome.json is no JSON object" in said
    assert "recipe.toml cannot be read" in said


@pytest.mark.parametrize(
    ("last", "outcome", "ending"),
    [("finish", 0, "finished"), ("stop", 130, "stopped"), (None, 1, "failed"), (None, None, "killed")],
)
def test_the_ending(tmp_path, last, outcome, ending):
    told = [event("start", 0, 0), *steps_of([1], 1), *([event(last, 1, 2)] if last else [])]
    path = write_events(tmp_path / "run", told)
    if outcome is not None:
        (path / "outcome.json").write_text(json.dumps({"exit_code": outcome}))
    assert read_run(path).ending == ending


def test_a_directory_that_is_no_run_is_the_users_error(tmp_path):
    with pytest.raises(UserError, match="not a run"):
        read_run(tmp_path)


def test_rates_skip_gaps_and_counters_that_began_anew():
    columns = {"time": np.array([0.0, 1, 2, 100, 101]), "sent": np.array([0.0, 5, 3, 500, 510])}
    rates = Samples("a", "eth0", 1, columns, []).rate("sent")
    np.testing.assert_array_equal(rates, [np.nan, 5, np.nan, np.nan, 10])


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
EVENT_NAMES = st.sampled_from(
    ["start", "resume", "step", "rollback", "evaluation", "link", "sync", "finish", "checkpoint"]
)
SMALL = st.integers(0, 30) | ANYTHING
EVENTS = st.fixed_dictionaries(
    {"event": EVENT_NAMES | ANYTHING, "time": st.floats(0, 1e9) | ANYTHING, "step": SMALL},
    optional={
        name: SMALL | st.floats(0, 10)
        for name in ("world", "seconds", "loss", "lr", "tokens", "to_step", "rate_scale", "dev_loss", "train_loss",
                     "exposed_seconds", "phases", "bytes_sent", "mode", "measured", "host", "latency_seconds",
                     "bytes_per_second", "parameters", "peak_flops", "flops")
    },
)  # fmt: skip
LINES = st.lists(EVENTS.map(json.dumps) | ANYTHING.map(json.dumps) | st.text(max_size=20), max_size=25)
TELEMETRY = st.lists(
    st.fixed_dictionaries(
        {"time": SMALL, "cpu": ANYTHING, "gpus": st.lists(ANYTHING, max_size=2), "sent": SMALL}
    ),
    max_size=5,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    ranks=st.lists(LINES, max_size=3),
    scores=st.lists(ANYTHING, max_size=3),
    telemetry=TELEMETRY,
    facts=ANYTHING,
)
def test_no_garbage_makes_an_explanation_fail(tmp_path_factory, ranks, scores, telemetry, facts):
    path = write_events(tmp_path_factory.mktemp("garbage") / "run")
    for rank, lines in enumerate(ranks):
        text = "\n".join(lines)
        (path / "events" / f"rank{rank:03d}.jsonl").write_text(text, encoding="utf-8", errors="replace")
    (path / "run.json").write_text(json.dumps(facts))
    (path / "telemetry").mkdir()
    write_lines(path / "telemetry" / "a.jsonl", telemetry)
    (path / "scores.jsonl").write_text("\n".join(map(json.dumps, scores)))
    history = read_run(path)
    answers = explain(history)
    assert [answer.key for answer in answers] == list(QUESTIONS)
    json.dumps(to_json(history, answers), allow_nan=False)
    reasoned = [answer.summary for answer in answers]
    assert not [text for text in reasoned if "cannot be reasoned about" in text], reasoned
