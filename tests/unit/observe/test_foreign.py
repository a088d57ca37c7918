import math

import pytest

from dragoman.errors import UserError
from dragoman.observe.explain import explain
from dragoman.observe.foreign import read_history
from dragoman.observe.tensorboard import Curves
from tests.unit.observe.histories import step_history, write_run

LOG = """*** Building graph
*** Global step 100: ***     Train loss: 5.2000
time per step = 0:00:1.500
***     Train Source[0]:     <s> a loss = 99 sentence </s>
*** Global step 200: ***     Train loss: 4.1000
time per step = 0:01:1.250
*** Running evaluation on a validation set:
***     Validation loss: 3.9000
***     Eval BLUE score: 0.1250
*** Epoch 1, global step 300: loss = 3.5000, time per step = 0:00:1.250
***     Validation loss: 3.4000
***     Eval BLUE score: 0.2500
"""


def answers_of(history):
    return {answer.key: answer for answer in explain(history)}


def test_a_training_log(tmp_path):
    path = tmp_path / "nohup.out"
    path.write_text(LOG + "*** Finished training\n")
    history = read_history(path)
    assert (history.kind, history.ending) == ("log", "finished")
    assert history.leader["step"].tolist() == [100, 200, 300]
    assert history.leader["loss"].tolist() == [5.2, 4.1, 3.5]
    assert history.leader["seconds"].tolist() == [1.5, 61.25, 1.25]
    assert [(each.step, each.dev_loss) for each in history.evaluations] == [(200, 3.9), (300, 3.4)]
    assert [line["bleu"] for line in history.scored("dev")] == [12.5, 25.0]
    answers = answers_of(history)
    assert answers["q01_duration"].evidence["wall_seconds"] == pytest.approx(100 * (1.5 + 61.25 + 1.25))
    assert answers["q02_trained"].verdict == "no"
    for key in ("q05_network", "q07_data", "q08_checkpoint_files"):
        assert answers[key].verdict == "unclear"
        assert "not recorded" in answers[key].summary


def test_a_log_that_was_started_again_counts_each_step_once(tmp_path):
    (tmp_path / "log.txt").write_text(LOG + "*** Global step 200: ***     Train loss: 4.0000\n")
    history = read_history(tmp_path)
    assert history.leader["loss"].tolist() == [5.2, 4.0]
    assert history.evaluations == []


def test_tensorboard_with_nested_runs(tmp_path):
    train, dev = (Curves(tmp_path / name, resume_step=0) for name in ("train", "eval"))
    for step in range(10, 201, 10):
        train.add("loss", 5 - step / 100, step)
        train.add("learning_rate", 1e-3 * (step / 10) ** -0.5, step)
        dev.add("loss", 6 - step / 100, step)
        dev.add("Eval_BLEU_Score", step / 1000, step)
    train.close()
    dev.close()
    history = read_history(tmp_path)
    assert history.kind == "tensorboard"
    assert history.leader["loss"][-1] == pytest.approx(3)
    assert history.evaluations[-1].dev_loss == pytest.approx(4)
    assert math.isnan(history.evaluations[-1].train_loss)
    assert history.scored("dev")[-1]["bleu"] == pytest.approx(20)
    rate = answers_of(history)["q06_learning_rate"]
    assert rate.verdict == "unclear"
    assert rate.evidence["decay_exponent"] == pytest.approx(-0.5, abs=0.01)


def test_our_own_curves_count_bleu_to_100(tmp_path):
    curves = Curves(tmp_path, resume_step=0)
    for step in (10, 20):
        curves.add("train_sample_loss", 1.0, step)
        curves.add("eval_loss", 2.0, step)
        curves.add("Eval_BLEU_Score", 0.5, step)
    curves.close()
    history = read_history(tmp_path)
    assert history.evaluations[0].train_loss == 1.0
    assert history.scored("dev")[0]["bleu"] == 0.5


def test_a_damaged_event_file_is_a_problem_and_no_crash(tmp_path):
    (tmp_path / "events.out.tfevents.1.host").write_bytes(b"not a record" * 100)
    history = read_history(tmp_path)
    assert history.problems
    assert {answer.verdict for answer in explain(history)} == {"unclear"}


def test_a_run_of_ours_is_recognised(tmp_path):
    assert read_history(write_run(step_history(5), tmp_path / "run")).kind == "dragoman"


@pytest.mark.parametrize("name", ["missing", "empty", "text.txt"])
def test_anything_else_is_the_users_error(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("hello\n")
    with pytest.raises(UserError, match="neither a run" if name != "missing" else "no such file"):
        read_history(tmp_path / name)
