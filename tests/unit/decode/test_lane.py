"""The lane scores each checkpoint once, keeps the best, and finds its way through what the trainer removes."""

import shutil
import threading

import pytest

from dragoman.decode import confidence, lane
from dragoman.decode.export import checkpoint_hash, export_run
from dragoman.decode.lane import Evaluator, evaluate_run
from dragoman.decode.score import Scores, score
from dragoman.decode.translator import CARD, Translator
from dragoman.files import TEMPORARY, beside, read_json, read_json_lines
from dragoman.rundir import MANIFEST, MODEL


@pytest.fixture
def grades(monkeypatch):
    """The BLEU that the next evaluations get; an empty list leaves it to sacreBLEU."""
    given: list[float] = []

    def graded(hypotheses, references, *, tgt_lang) -> Scores:
        scores = score(hypotheses, references, tgt_lang=tgt_lang)
        return scores | {"bleu": given.pop(0)} if given else scores

    monkeypatch.setattr(lane, "score", graded)
    return given


def finish(toy) -> list[dict]:
    """Let a lane score what is there and end; return the new lines of scores.jsonl."""
    before = len(read_json_lines(toy.directory.scores))
    finished = threading.Event()
    finished.set()
    evaluate_run(toy.directory, finished)
    return read_json_lines(toy.directory.scores)[before:]


def scored(lines) -> list[tuple[str, int]]:
    return [(line["set"], line["step"]) for line in lines]


def best(toy) -> str:
    return toy.directory.best.readlink().as_posix()


def models(toy) -> list[str]:
    return sorted(path.name for path in toy.directory.models.iterdir())


def test_a_line_of_scores_says_all_about_itself(toy_run):
    checkpoint = toy_run.save(20)
    dev, test = finish(toy_run)
    run, dataset = toy_run.directory, toy_run.dataset
    sources, references = dataset.text("dev")
    hypotheses = [each.text for each in Translator(run.best).translate(sources, beam=2, length_penalty=0.6)]
    assert dev.items() >= score(hypotheses, references).items()
    assert (run.path / dev["hypotheses"]).read_text().splitlines() == hypotheses
    assert (dev["set"], dev["step"], dev["checkpoint"]) == (
        "dev",
        20,
        read_json(checkpoint / MANIFEST)["hash"],
    )
    assert dev["model"] == best(toy_run) == "models/step-00000020"
    assert dev["hypotheses"] == "hypotheses/dev-step-00000020.txt"
    assert (dev["dataset"], dev["beam"], dev["length_penalty"]) == (dataset.fingerprint, 2, 0.6)
    # The task's sentences are all in train, from which the recipe does not remove them.
    assert dev["overlap"] == {
        "pairs": 6, "exact": 6, "normalised": 0, "ngram": 0, "gate": False, "removed": 0, "kept": 10,
    }  # fmt: skip
    assert dev["seconds"] > 0 < dev["time"]
    assert "averaged" not in dev
    assert (test["set"], test["step"], test["model"], test["sentences"]) == ("test", 20, dev["model"], 4)
    assert test["hypotheses"] == "hypotheses/test-step-00000020.txt"


def test_the_best_models_are_kept_and_the_link_points_at_the_best(toy_run, grades):
    for step in (1, 2, 3, 4):
        toy_run.save(step)
    grades[:] = [10.0, 30.0, 20.0, 5.0]
    assert scored(finish(toy_run)) == [("dev", 1), ("dev", 2), ("dev", 3), ("dev", 4), ("test", 2)]
    assert best(toy_run) == "models/step-00000002"
    assert models(toy_run) == ["step-00000002", "step-00000003"]


def test_of_equals_the_newer_is_best(toy_run, grades):
    for step in (1, 2, 3):
        toy_run.save(step)
    grades[:] = [0.0, 0.0, 0.0]
    finish(toy_run)
    assert best(toy_run) == "models/step-00000003"


def test_a_new_lane_scores_nothing_twice_and_goes_on(toy_run):
    toy_run.save(1)
    assert scored(finish(toy_run)) == [("dev", 1), ("test", 1)]
    assert finish(toy_run) == []
    toy_run.save(2)
    assert ("dev", 2) in scored(finish(toy_run))


def test_a_step_with_other_weights_is_scored_again_and_its_old_score_counts_no_more(toy_run, grades):
    for step in (1, 2):
        toy_run.save(step)
    grades[:] = [10.0, 30.0]
    finish(toy_run)
    assert best(toy_run) == "models/step-00000002"
    toy_run.save(2, seed=99)
    grades[:] = [5.0]
    assert scored(finish(toy_run)) == [("dev", 2), ("test", 1)]
    assert best(toy_run) == "models/step-00000001"


def test_a_model_exported_again_but_not_scored_yet_is_not_best(toy_run, grades):
    for step in (1, 2):
        toy_run.save(step)
    grades[:] = [10.0, 30.0]
    finish(toy_run)
    card = toy_run.directory.model(2) / CARD
    card.write_text(card.read_text().replace(checkpoint_hash([toy_run.directory.checkpoint(2)]), "other"))
    Evaluator(toy_run.directory, threading.Event())
    assert best(toy_run) == "models/step-00000001"


def test_with_too_many_waiting_the_lane_goes_to_the_newest(toy_run, capsys):
    for step in range(1, 6):
        toy_run.save(step)
    evaluator = Evaluator(toy_run.directory, threading.Event())
    assert evaluator.next_checkpoint() == toy_run.directory.checkpoint(5)
    assert evaluator.next_checkpoint() is None
    said = capsys.readouterr().out
    assert "5 checkpoints wait: skipped step-00000001, step-00000002, step-00000003, step-00000004" in said


def test_with_few_waiting_the_oldest_comes_first(toy_run):
    for step in range(1, 5):
        toy_run.save(step)
    evaluator = Evaluator(toy_run.directory, threading.Event())
    assert [evaluator.next_checkpoint().name[-1] for _ in range(4)] == ["1", "2", "3", "4"]


def test_a_checkpoint_that_vanishes_is_skipped_and_named(toy_run, capsys):
    gone, there = toy_run.save(1), toy_run.save(2)
    evaluator = Evaluator(toy_run.directory, threading.Event())
    shutil.rmtree(gone)
    evaluator.score_dev([gone])
    assert "step-00000001: skipped, its checkpoint was removed" in capsys.readouterr().out
    evaluator.score_dev([there])
    assert scored(read_json_lines(toy_run.directory.scores)) == [("dev", 2)]


def test_a_file_that_is_missing_from_a_checkpoint_is_no_reason_to_skip_it(toy_run):
    checkpoint = toy_run.save(1)
    (checkpoint / MODEL).unlink()
    with pytest.raises(FileNotFoundError):
        Evaluator(toy_run.directory, threading.Event()).score_dev([checkpoint])


def test_a_damaged_checkpoint_is_skipped_and_named(toy_run, capsys):
    (toy_run.save(1) / MODEL).write_bytes(b"nothing")
    toy_run.save(2)
    assert scored(finish(toy_run)) == [("dev", 2), ("test", 2)]
    said = capsys.readouterr().out
    assert "step-00000001: skipped" in said
    assert "its checksum does not hold" in said


def test_the_mean_of_the_last_checkpoints_is_scored_at_the_end(toy_run, grades):
    toy = toy_run.with_recipe(train={"average": "checkpoints", "average_last": 2})
    for step in (1, 2, 3):
        toy.save(step)
    grades[:] = [10.0, 20.0, 30.0, 40.0]
    *_, mean, test = finish(toy)
    assert (mean["set"], mean["step"], mean["averaged"]) == ("dev", 3, [2, 3])
    assert mean["model"] == best(toy) == "models/step-00000003-mean2"
    assert mean["checkpoint"] == checkpoint_hash([toy.directory.checkpoint(step) for step in (2, 3)])
    assert (test["set"], test["averaged"], test["model"]) == ("test", [2, 3], mean["model"])
    assert models(toy) == ["step-00000003", "step-00000003-mean2"]
    assert finish(toy) == []


def test_a_mean_that_is_no_better_is_not_best(toy_run, grades):
    toy = toy_run.with_recipe(train={"average": "checkpoints", "average_last": 2})
    for step in (1, 2):
        toy.save(step)
    grades[:] = [10.0, 20.0, 20.0]
    finish(toy)
    assert best(toy) == "models/step-00000002"


def test_one_checkpoint_has_no_mean(toy_run):
    toy = toy_run.with_recipe(train={"average": "checkpoints", "average_last": 2})
    toy.save(1)
    assert scored(finish(toy)) == [("dev", 1), ("test", 1)]


def test_a_recipe_without_test_has_no_test_score(toy_run):
    toy = toy_run.with_recipe(data={"test": None})
    toy.save(1)
    assert scored(finish(toy)) == [("dev", 1)]


def test_a_run_without_checkpoints_ends_without_scores(toy_run):
    assert finish(toy_run) == []
    assert not toy_run.directory.best.exists()


def test_leftovers_of_a_killed_lane_are_removed(toy_run, grades):
    toy_run.save(1)
    finish(toy_run)
    run = toy_run.directory
    beside(run.model(7)).mkdir()
    beside(run.models / "best").symlink_to("models/step-00000007")
    with open(run.scores, "a") as file:
        file.write('{"set": "dev", "st')
    toy_run.save(2)
    grades[:] = [99.0]
    assert scored(finish(toy_run)) == [("dev", 2), ("test", 2)]
    assert not list(run.models.glob(f"{TEMPORARY}*"))


def test_training_leaves_the_lane_one_thread_and_the_end_all_cores(toy_run, monkeypatch):
    threads = []

    class Counted(Translator):
        def __init__(self, *arguments, **options):
            threads.append(options["threads"])
            super().__init__(*arguments, **options)

    monkeypatch.setattr(lane, "Translator", Counted)
    checkpoint = toy_run.save(1)
    Evaluator(toy_run.directory, threading.Event()).score_dev([checkpoint])
    finish(toy_run)
    assert threads == [1, None]


def test_the_card_says_what_confidence_means(toy_run, monkeypatch, tmp_path):
    monkeypatch.setattr(confidence, "FEWEST_IN_A_POINT", 2)
    toy_run.save(20)
    finish(toy_run)
    calibration = read_json(toy_run.directory.best / CARD)["confidence"]
    assert calibration["sentences"] == 6
    assert len(calibration["points"]) >= 2
    exported = export_run(toy_run.directory, tmp_path / "model", quantization="int8")
    assert read_json(exported / CARD)["confidence"] == calibration
