"""What the real ``transformers`` loads is our model: same ids, same probabilities, same translations."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from dragoman.data.text import normalise
from dragoman.data.tokenizer import BOS, EOS, Tokenizer
from dragoman.decode.export import export_model
from dragoman.decode.translator import CARD, Translator, resolve_model
from dragoman.errors import UserError
from dragoman.files import read_json
from dragoman.model.transformer import Transformer
from dragoman.rundir import MODEL
from dragoman.train.checkpoint import State, write_checkpoint
from tests.unit.decode.conftest import SENTENCES, ToyRun, batch_of, make_multilingual, make_run

CLASSES = {"pre": "PegasusForConditionalGeneration", "post": "MarianMTModel"}
STEPS = 80


def train(toy: ToyRun) -> Transformer:
    """Return a model that has learned a little: enough to end its sentences."""
    torch.manual_seed(1)
    model = Transformer(toy.recipe.model, toy.dataset.vocab_size)
    src, tgt = (toy_ids(toy, lines) for lines in (SENTENCES, [line.upper() for line in SENTENCES]))
    batch = batch_of(src, [[BOS, *ids[:-1]] for ids in tgt])
    expected = torch.tensor([each for ids in tgt for each in ids])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for _ in range(STEPS):
        loss = cross_entropy(model.logits(model(batch)), expected)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def toy_ids(toy: ToyRun, lines: list[str]) -> list[list[int]]:
    return Tokenizer.load(toy.dataset.tokenizer_path).encode(lines)


class Exported(NamedTuple):
    toy: ToyRun
    model: Transformer
    theirs: Path
    ours: Path


@pytest.fixture(scope="module", params=CLASSES)
def exported(request, toy_task, tmp_path_factory):
    """A run, its model, and what that was exported to: for Hugging Face, for CTranslate2."""
    path = tmp_path_factory.mktemp(request.param)
    shape = {"norm": request.param, "layers": 1, "decoder_layers": 2, "d_model": 48}
    toy = make_run(path / "run", *toy_task).with_recipe(model=shape, evaluate={"beam": 3})
    model = train(toy)
    checkpoint = write_checkpoint(toy.directory, State(step=3), {MODEL: model.state_dict()})
    options = [checkpoint], toy.recipe, toy.dataset.tokenizer_path
    theirs = export_model(*options, path / "huggingface", format="huggingface")
    return Exported(toy, model, theirs, export_model(*options, path / "ctranslate2"))


@pytest.fixture(scope="module")
def loaded(exported):
    """The model and the tokenizer as a user gets them."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    path = str(exported.theirs)
    model, report = AutoModelForSeq2SeqLM.from_pretrained(path, output_loading_info=True)
    assert not any(report.values()), report  # nothing missing, nothing unexpected, nothing of another shape
    with pytest.warns(
        UserWarning, match="sacremoses"
    ):  # asked for by every MarianTokenizer, and used by none
        return model.eval(), AutoTokenizer.from_pretrained(path)


def test_the_class_is_the_one_whose_norms_are_ours(exported, loaded):
    assert type(loaded[0]).__name__ == CLASSES[exported.toy.recipe.model.norm]


@torch.no_grad()
def test_every_token_has_the_probability_that_our_model_gives_it(exported, loaded):
    toy, ours = exported.toy, exported.model
    draw = np.random.default_rng(1)
    for src_length, tgt_length in ((1, 3), (2, 1), (7, 9), (40, 300), (300, 25)):
        src = [[*draw.integers(4, toy.dataset.vocab_size, src_length).tolist(), EOS]]
        tgt = [[BOS, *draw.integers(4, toy.dataset.vocab_size, tgt_length).tolist()]]
        expected = ours.logits(ours(batch_of(src, tgt))).log_softmax(-1)
        given = {"input_ids": torch.tensor(src), "decoder_input_ids": torch.tensor(tgt)}
        found = loaded[0](**given).logits[0].log_softmax(-1)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("beam", [None, 1, 5])
def test_it_translates_as_the_model_that_was_scored_does(exported, loaded, beam):
    model, tokenizer = loaded
    lines = SENTENCES[::3]
    batch = tokenizer(lines, return_tensors="pt", padding=True)
    options = {} if beam is None else {"num_beams": beam, "early_stopping": beam > 1}
    found = model.generate(**batch, **options)
    assert (found == EOS).any(dim=1).all()
    expected = Translator(exported.ours, threads=1).translate(lines, beam=beam)
    decoded = tokenizer.batch_decode(found, skip_special_tokens=True)
    assert decoded == [translation.text for translation in expected]
    assert len(set(decoded)) > 3


def test_the_search_is_the_one_the_model_was_scored_with(loaded):
    cfg = loaded[0].generation_config
    assert (cfg.num_beams, cfg.length_penalty, cfg.decoder_start_token_id) == (3, 0.6, BOS)


def test_ids_are_ours(exported, loaded):
    lines = [
        *SENTENCES,
        "",
        "a",
        "Übermäßig €uropäisch: 猫 <unk> ▁ <0x41>",
        "(1) x, y – z!",
        "</s> <s> <pad>",
    ]
    lines = [normalise(line) for line in lines]
    assert loaded[1](lines)["input_ids"] == toy_ids(exported.toy, lines)


def test_the_tags_of_a_multilingual_model_are_single_pieces(toy_task, tmp_path):
    from transformers import AutoTokenizer

    toy = make_multilingual(tmp_path, toy_task[0])
    options = [toy.save(1)], toy.recipe, toy.dataset.tokenizer_path
    path = export_model(*options, tmp_path / "model", format="huggingface")
    with pytest.warns(UserWarning, match="sacremoses"):
        tokenizer = AutoTokenizer.from_pretrained(str(path))
    lines = [f"<2{language}> {line}" for language in ("de", "zh") for line in SENTENCES[:3]]
    assert tokenizer(lines)["input_ids"] == toy_ids(toy, lines)


def test_it_says_what_it_is_for_and_is_no_model_for_our_translator(exported):
    _, _, theirs, ours = exported
    assert read_json(theirs / CARD) == read_json(ours / CARD) | {"format": "huggingface"}
    with pytest.raises(UserError, match="this model was exported for Hugging Face's transformers"):
        resolve_model(theirs)


def test_it_is_not_quantised(exported, tmp_path):
    toy = exported.toy
    checkpoint, tokenizer = toy.directory.checkpoint(3), toy.dataset.tokenizer_path
    for options, what in (
        ({"format": "huggingface", "quantization": "int8"}, "is written in float32, not int8"),
        ({"format": "onnx"}, 'there is no format "onnx"'),
    ):
        with pytest.raises(UserError, match=what):
            export_model([checkpoint], toy.recipe, tokenizer, tmp_path / "model", **options)
