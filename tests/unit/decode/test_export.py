"""Exported models compute what the trained ones do, and exports are whole, honest and refused where they must be."""

import json
import shutil
from pathlib import Path

import ctranslate2
import numpy as np
import pytest
import safetensors.numpy
import torch

from dragoman.data.tokenizer import BOS, EOS, Tokenizer
from dragoman.decode.export import POSITIONS, QUANTIZATIONS, checkpoint_hash, export_model, export_run
from dragoman.decode.translator import CARD, TOKENIZER
from dragoman.errors import UserError
from dragoman.files import TEMPORARY, append_json_line, open_json_lines, read_json
from dragoman.model.transformer import Transformer
from dragoman.rundir import MODEL, step_directories
from tests.unit.decode.conftest import batch_of


def export(toy, checkpoints, to, **options):
    return export_model(checkpoints, toy.recipe, toy.dataset.tokenizer_path, to, **options)


def engine_of(path: Path) -> ctranslate2.Translator:
    return ctranslate2.Translator(str(path), intra_threads=1)


def pieces_of(toy) -> list[str]:
    return Tokenizer.load(toy.dataset.tokenizer_path).pieces()


def random_ids(toy, lengths, seed):
    generator = np.random.default_rng(seed)
    return [generator.integers(4, toy.dataset.vocab_size, length).tolist() for length in lengths]


@torch.no_grad()
def next_log_probabilities(model: Transformer, src: list[int], tgt: list[int]) -> torch.Tensor:
    """Return the log-probabilities of what follows begin-of-sentence and each token of ``tgt``."""
    return model.logits(model(batch_of([[*src, EOS]], [[BOS, *tgt]]))).log_softmax(-1)


def greedy(model: Transformer, src: list[int], longest: int) -> list[int]:
    tgt: list[int] = []
    while len(tgt) < longest:
        log_probabilities = next_log_probabilities(model, src, tgt)[-1]
        if not tgt:
            log_probabilities[EOS] = -torch.inf  # the engine never writes an empty translation
        best = int(log_probabilities.argmax())
        if best == EOS:
            break
        tgt.append(best)
    return tgt


def error_of(call, *arguments, **options) -> str:
    with pytest.raises(UserError) as raised:
        call(*arguments, **options)
    return str(raised.value)


def score_line(run, step, bleu, checkpoint, **more):
    line = {
        "set": "dev",
        "step": step,
        "bleu": bleu,
        "checkpoint": checkpoint,
        "model": f"models/{step}",
        **more,
    }
    with open_json_lines(run.scores) as file:
        append_json_line(file, line)


def steps_of(model: Path) -> list[int]:
    return read_json(model / CARD)["steps"]


# What the model computes


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("decoder_layers", [1, 3])
def test_the_exported_model_gives_every_token_the_probability_torch_gives_it(
    toy_run, tmp_path, norm, decoder_layers
):
    toy = toy_run.with_recipe(model={"layers": 2, "decoder_layers": decoder_layers, "norm": norm})
    engine = engine_of(export(toy, [toy.save(1)], tmp_path / "model"))
    model, pieces = toy.model(1), pieces_of(toy)
    sources = random_ids(toy, (1, 2, 7, 40, 300), seed=1)
    targets = random_ids(toy, (3, 1, 9, 300, 25), seed=2)
    as_pieces = [[[pieces[i] for i in ids] for ids in side] for side in (sources, targets)]
    for src, tgt, scored in zip(sources, targets, engine.score_batch(*as_pieces), strict=True):
        expected = next_log_probabilities(model, src, tgt)[range(len(tgt) + 1), [*tgt, EOS]]
        np.testing.assert_allclose(scored.log_probs, expected, atol=1e-4)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_greedy_translation_is_that_of_torch(toy_run, tmp_path, norm):
    toy = toy_run.with_recipe(model={"norm": norm})
    engine = engine_of(export(toy, [toy.save(5)], tmp_path / "model"))
    model, pieces = toy.model(5), pieces_of(toy)
    for src in random_ids(toy, (1, 4, 12, 30), seed=3):
        (result,) = engine.translate_batch([[pieces[i] for i in src]], beam_size=1, max_decoding_length=40)
        assert [pieces.index(piece) for piece in result.hypotheses[0]] == greedy(model, src, longest=40)


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_every_quantization_translates(toy_run, tmp_path, quantization):
    path = export(toy_run, [toy_run.save(1)], tmp_path / "model", quantization=quantization)
    (result,) = engine_of(path).translate_batch([pieces_of(toy_run)[10:20]], max_decoding_length=5)
    assert result.hypotheses[0]
    assert read_json(path / CARD)["quantization"] == quantization


def test_the_engine_refuses_positions_that_are_not_written(toy_run, tmp_path):
    engine = engine_of(export(toy_run, [toy_run.save(1)], tmp_path / "model"))
    source = pieces_of(toy_run)[10:11] * (POSITIONS - 1)  # and end-of-sentence
    assert engine.translate_batch([source], max_input_length=0, max_decoding_length=2)
    with pytest.raises(RuntimeError, match="No position encodings"):
        engine.translate_batch([source * 2], max_input_length=0, max_decoding_length=2)


def test_more_positions_are_written_for_a_model_trained_on_longer_sentences(toy_run, tmp_path):
    toy = toy_run.with_recipe(filter={"max_length": 1500})
    engine = engine_of(export(toy, [toy.save(1)], tmp_path / "model"))
    source = pieces_of(toy)[10:11] * 1499
    assert engine.translate_batch([source], max_input_length=0, max_decoding_length=2)


# Which weights


def test_several_checkpoints_give_the_model_of_their_mean(toy_run, tmp_path):
    several = [toy_run.save(step) for step in (1, 2, 3)]
    mean = toy_run.model(1)
    with torch.no_grad():
        for name, parameter in mean.named_parameters():
            parameter.copy_(sum(dict(toy_run.model(s).named_parameters())[name] for s in (1, 2, 3)) / 3)
    path = export(toy_run, several, tmp_path / "model")
    pieces = pieces_of(toy_run)
    ((scored),) = engine_of(path).score_batch([pieces[10:20]], [pieces[20:24]])
    expected = next_log_probabilities(mean, list(range(10, 20)), [20, 21, 22, 23])[
        range(5), [20, 21, 22, 23, EOS]
    ]
    np.testing.assert_allclose(scored.log_probs, expected, atol=1e-4)
    assert steps_of(path) == [1, 2, 3]
    assert read_json(path / CARD)["checkpoint"] == checkpoint_hash(several)


def test_the_mean_of_equal_checkpoints_is_that_checkpoint(toy_run, tmp_path):
    one = export(toy_run, [toy_run.save(1, seed=7)], tmp_path / "one")
    same = [toy_run.save(step, seed=7) for step in (1, 2, 3)]
    assert (export(toy_run, same, tmp_path / "mean") / "model.bin").read_bytes() == (
        one / "model.bin"
    ).read_bytes()


def test_the_moving_average_is_exported_where_there_is_one(toy_run, tmp_path):
    averaged = export(toy_run, [toy_run.save(1, seed=1, average_seed=2)], tmp_path / "averaged")
    plain = export(toy_run, [toy_run.save(2, seed=2)], tmp_path / "plain")
    assert (averaged / "model.bin").read_bytes() == (plain / "model.bin").read_bytes()


def test_the_card_says_where_the_model_came_from(toy_run, tmp_path):
    checkpoint = toy_run.save(12)
    path = export(toy_run, [checkpoint], tmp_path / "model", extra={"dataset": "toy"})
    card, manifest = read_json(path / CARD), read_json(checkpoint / "MANIFEST.json")
    assert card["checkpoint"] == manifest["hash"]
    assert card["weights"] == [manifest["files"][MODEL]["sha256"]]
    assert (card["src_lang"], card["tgt_lang"], card["steps"]) == ("en", "de", [12])
    assert (card["beam"], card["length_penalty"], card["dataset"]) == (2, 0.6, "toy")
    assert card["versions"]["ctranslate2"] == ctranslate2.__version__
    assert (path / TOKENIZER).read_bytes() == toy_run.dataset.tokenizer_path.read_bytes()


# What is refused


def test_all_missing_and_unknown_weights_are_reported_together(toy_run, tmp_path):
    wider = toy_run.with_recipe(model={"layers": 2, "norm": "post"})
    error = error_of(export, wider, [toy_run.save(1)], tmp_path / "model")
    assert "encoder.layers.1.attention.qkv.weight" in error
    assert "decoder.layers.1.cross_norm.bias" in error
    assert "encoder.norm.weight" in error


def test_all_weights_of_another_shape_are_reported_together(toy_run, tmp_path):
    checkpoint = toy_run.save(1)
    toy = toy_run.with_recipe(model={"feed_forward": 64})
    error = error_of(export, toy, [checkpoint], tmp_path / "model")
    assert "encoder.layers.0.feed_forward.up.weight is (32, 16), not (64, 16)" in error
    assert "decoder.layers.0.feed_forward.down.weight is (16, 32), not (16, 64)" in error


def test_an_unknown_quantization_is_refused_with_the_known_ones(toy_run, tmp_path):
    error = error_of(export, toy_run, [toy_run.save(1)], tmp_path / "model", quantization="int4")
    assert 'there is no quantization "int4"' in error
    assert "int8_float32" in error


def test_a_directory_that_is_no_model_is_never_replaced(toy_run, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.txt").write_text("years of work")
    assert "not a model that Dragoman exported" in error_of(
        export, toy_run, [toy_run.save(1)], tmp_path / "thesis"
    )
    assert (tmp_path / "thesis" / "chapter1.txt").read_text() == "years of work"


def test_an_earlier_export_is_replaced_and_nothing_is_left_behind(toy_run, tmp_path):
    for step in (1, 2):
        export(toy_run, [toy_run.save(step)], tmp_path / "models" / "mine")
    assert steps_of(tmp_path / "models" / "mine") == [2]
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["mine"]


def test_a_failed_export_leaves_the_earlier_one(toy_run, tmp_path, monkeypatch):
    to = export(toy_run, [toy_run.save(1)], tmp_path / "models" / "mine")

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dragoman.decode.export.publish_directory", full_disk)
    assert "the disk is full" in error_of(export, toy_run, [toy_run.save(2)], to)
    assert steps_of(to) == [1]
    assert not list(to.parent.glob(f"{TEMPORARY}*"))


def test_a_damaged_checkpoint_is_not_exported(toy_run, tmp_path):
    checkpoint = toy_run.save(1)
    weights = safetensors.numpy.load_file(checkpoint / MODEL)
    weights["encoder.norm.bias"] += 1
    safetensors.numpy.save_file(weights, checkpoint / MODEL)
    assert "its checksum does not hold" in error_of(export, toy_run, [checkpoint], tmp_path / "model")


def test_a_checkpoint_that_was_pruned_meanwhile_leaves_nothing_behind(toy_run, tmp_path):
    checkpoint = toy_run.save(1)
    shutil.rmtree(checkpoint)
    with pytest.raises(FileNotFoundError):
        export(toy_run, [checkpoint], tmp_path / "models" / "mine")
    assert not (tmp_path / "models").exists()


# Which checkpoint of a run


def test_the_best_checkpoint_that_is_still_there_is_exported(toy_run, tmp_path):
    run = toy_run.directory
    hashes = {step: checkpoint_hash([toy_run.save(step)]) for step in (1, 2, 3, 4)}
    for step, bleu in ((1, 30.0), (2, 20.0), (3, 10.0)):
        score_line(run, step, bleu, hashes[step])
    assert steps_of(export_run(run, tmp_path / "model")) == [1]
    shutil.rmtree(run.checkpoint(1))
    assert steps_of(export_run(run, tmp_path / "model")) == [2]
    toy_run.save(2, seed=99)  # the run went back and came by again: other weights, not those that were scored
    assert steps_of(export_run(run, tmp_path / "model")) == [3]


def test_a_mean_that_scored_best_is_exported_as_that_mean(toy_run, tmp_path):
    run = toy_run.directory
    checkpoints = [toy_run.save(step) for step in (1, 2, 3)]
    score_line(run, 3, 10.0, checkpoint_hash(checkpoints[2:]))
    score_line(run, 3, 11.0, checkpoint_hash(checkpoints[1:]), model="models/mean", averaged=[2, 3])
    assert steps_of(export_run(run, tmp_path / "model")) == [2, 3]


def test_without_scores_the_newest_checkpoint_is_exported(toy_run, tmp_path):
    for step in (1, 2):
        toy_run.save(step)
    assert steps_of(export_run(toy_run.directory, tmp_path / "model")) == [2]


@pytest.mark.parametrize(
    ("options", "steps"),
    [({"step": 2}, [2]), ({"average": 3}, [2, 3, 4]), ({"step": 3, "average": 2}, [2, 3])],
)
def test_a_step_or_a_mean_can_be_asked_for(toy_run, tmp_path, options, steps):
    for step in (1, 2, 3, 4):
        toy_run.save(step)
    model = export_run(toy_run.directory, tmp_path / "model", quantization="int8", **options)
    assert steps_of(model) == steps
    assert read_json(model / CARD)["dataset"] == toy_run.dataset.fingerprint


def test_what_a_run_does_not_have_cannot_be_asked_for(toy_run, tmp_path):
    run = toy_run.directory
    assert "no checkpoint yet" in error_of(export_run, run, tmp_path / "model")
    toy_run.save(1000)
    error = error_of(export_run, run, tmp_path / "model", step=7)
    assert "there is no checkpoint of step 7" in error
    assert "choose one of 1000" in error
    assert "cannot average 5 checkpoints: 1 are there" in error_of(
        export_run, run, tmp_path / "model", average=5
    )


def test_a_run_can_be_exported_where_its_dataset_is_not(toy_run, tmp_path):
    run = toy_run.directory
    model = export(toy_run, [toy_run.save(1)], run.model(1))
    run.best.symlink_to(model.relative_to(run.path))
    run.facts.write_text(json.dumps({"dataset": "/nowhere", "fingerprint": "toy"}))
    assert steps_of(export_run(run, tmp_path / "model")) == [1]
    run.best.unlink()
    assert "this is not a dataset" in error_of(export_run, run, tmp_path / "other")
    assert list(step_directories(run.checkpoints)) == [1]
