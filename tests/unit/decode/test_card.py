"""A card says what the model is, and what quantisation has cost it."""

import shutil

import pytest

from dragoman.data.passport import passport
from dragoman.decode.card import cost_line, write_card
from dragoman.decode.cost import quantization_cost
from dragoman.decode.export import checkpoint_hash, export_run
from dragoman.decode.score import score
from dragoman.files import append_json_line, open_json_lines, read_json, write_json


@pytest.fixture
def run(toy_run):
    """A run with two checkpoints, the first of which was scored."""
    run = toy_run.directory
    checkpoint = checkpoint_hash([toy_run.save(1)])
    toy_run.save(2)
    facts = read_json(run.facts) | {"parameters": 6_400_000, "passport": passport(toy_run.dataset)}
    write_json(run.facts, facts)
    _, references = toy_run.dataset.text("dev")
    line = {
        "set": "dev",
        "step": 1,
        "checkpoint": checkpoint,
        "model": "models/1",
        "beam": 2,
        "length_penalty": 0.6,
    }
    with open_json_lines(run.scores) as file:
        append_json_line(file, line | dict(score([r + " x" for r in references], references)))
        append_json_line(
            file, line | dict(score(references, references)) | {"checkpoint": "another", "model": "models/2"}
        )
    return run


@pytest.mark.parametrize("format", ["ctranslate2", "huggingface"])
def test_the_card_has_recipe_passport_scores_versions_and_hash(run, tmp_path, format):
    model = export_run(run, tmp_path / "my-model", format=format)
    write_card(model, run)
    text, card = (model / "README.md").read_text("utf-8"), read_json(model / "dragoman.json")
    assert text.startswith("---\nlanguage:\n- en\n- de\n")
    for part in (
        "# en → de", "6.4 M parameters, float32", "step 1 of its run", "| dev | ", "tok:13a", "BLEU `nrefs:1",
        "36 pairs of 36 lines were kept", "- train: 36 pairs", "dropped: nothing", "[model]\n",
        card["checkpoint"], card["recipe"], card["dataset"], "ctranslate2 4.", "my-model",
    ):  # fmt: skip
        assert part in text, part
    assert "100.00" not in text  # the score of other weights
    assert {"ctranslate2": "dragoman translate my-model", "huggingface": "AutoTokenizer"}[format] in text
    assert "{" not in text.partition("## Scores")[0].replace('f"{', "")


def test_weights_that_were_not_scored_say_so(run, tmp_path):
    model = export_run(run, tmp_path / "model", average=2)
    write_card(model, run)
    text = (model / "README.md").read_text("utf-8")
    assert "These weights were not scored by the run." in text
    assert "the mean of steps 1, 2 of its run" in text


def test_quantisation_says_what_it_cost(run, tmp_path):
    model = export_run(run, tmp_path / "model", quantization="int8")
    cost = quantization_cost(run, model)
    before, after = cost["before"], cost["after"]
    assert (before["quantization"], after["quantization"], cost["sentences"]) == ("float32", "int8", 6)
    assert after["bytes"] < before["bytes"]
    assert min(before["sentences_per_second"], after["sentences_per_second"]) > 0
    assert "no difference shown" in cost_line(cost)
    write_card(model, run, cost)
    assert "| int8 | " in (model / "README.md").read_text("utf-8")


def test_a_cost_that_cannot_be_measured_is_none(run, tmp_path):
    model = export_run(run, tmp_path / "model", quantization="int8")
    shutil.rmtree(run.checkpoint(1))
    assert quantization_cost(run, model) is None
