"""Opening a run: new, resumed, refused, held by one process."""

import json
from types import SimpleNamespace

import pytest

from dragoman.errors import UserError
from dragoman.model.weights import count_parameters
from dragoman.recipe import load_recipe
from dragoman.train.start import only_trainer, open_run


@pytest.fixture
def dataset(tmp_path):
    manifest = {
        "splits": {"train": {"pairs": 5, "corpora": [{"name": "builtin", "pairs": 5, "languages": {}}]}},
        "files": {"train-000.src": {"bytes": 40}},
    }
    return SimpleNamespace(path=tmp_path / "dataset", fingerprint="abc", vocab_size=64, manifest=manifest)


def test_a_new_run_keeps_its_recipe_and_facts(tmp_path, dataset):
    recipe = load_recipe("tiny", ["train.steps=7"])
    run = open_run(recipe, tmp_path / "run", dataset)
    assert load_recipe(str(run.recipe)) == recipe
    facts = json.loads(run.facts.read_text())
    assert (facts["fingerprint"], facts["vocab_size"]) == ("abc", 64)
    assert "torch" in facts["versions"]
    assert facts["parameters"] == count_parameters(recipe.model, 64)
    # A copy of the run answers for its data, without the dataset.
    assert facts["passport"]["splits"]["train"]["pairs"] == 5
    assert facts["passport"]["disk"] == {"files": 1, "bytes": 40}
    assert facts["mixture"] == [{"name": "builtin", "pairs": 5, "weight": 1.0}]


def test_what_may_change_is_taken_over_and_the_rest_refused(tmp_path, dataset):
    open_run(load_recipe("tiny"), tmp_path / "run", dataset)
    longer = load_recipe("tiny", ["train.steps=9999"])
    run = open_run(longer, tmp_path / "run", dataset)
    assert load_recipe(str(run.recipe)) == longer
    with pytest.raises(UserError, match=r"model.layers was \d+, is now 9; train.seed was 1, is now 5"):
        open_run(load_recipe("tiny", ["train.seed=5", "model.layers=9"]), tmp_path / "run", dataset)
    assert load_recipe(str(run.recipe)) == longer


def test_another_dataset_is_refused(tmp_path, dataset):
    open_run(load_recipe("tiny"), tmp_path / "run", dataset)
    dataset.fingerprint = "def"
    with pytest.raises(UserError, match="other data"):
        open_run(load_recipe("tiny"), tmp_path / "run", dataset)


def test_a_directory_with_other_things_is_refused(tmp_path, dataset):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(UserError, match="not a run"):
        open_run(load_recipe("tiny"), tmp_path, dataset)


def test_a_run_is_held_by_one_process_and_free_afterwards(tmp_path):
    again = pytest.raises(UserError, match="being trained already")
    with only_trainer(tmp_path / "run"), again, only_trainer(tmp_path / "run"):
        pass
    with only_trainer(tmp_path / "run"):
        pass


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write here"), only_trainer(tmp_path / "file" / "run"):
        pass


def test_what_a_launch_killed_early_left_is_no_obstacle(tmp_path, dataset):
    run = open_run(load_recipe("tiny"), tmp_path / "run", dataset)
    run.recipe.unlink()
    (run.path / ".lock").touch()
    (run.path / ".tmp-recipe.toml-123").touch()
    assert open_run(load_recipe("tiny"), tmp_path / "run", dataset).recipe.is_file()
