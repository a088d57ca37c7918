"""A toy run: a small dataset, a recipe, and checkpoints of random weights, as a trainer would write them."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dragoman.config import Recipe
from dragoman.data.prepare import prepare
from dragoman.data.shards import Dataset
from dragoman.files import write_json, write_text
from dragoman.model.transformer import Batch, Transformer
from dragoman.recipe import dump_recipe
from dragoman.rundir import AVERAGE, MODEL, RunDir
from dragoman.train.checkpoint import State, write_checkpoint

SENTENCES = [
    f"{subject} {verb} {thing}."
    for subject in ("The cat", "My sister", "An old man", "Nobody here")
    for verb in ("sees", "buys", "has never read")
    for thing in ("a small house", "the red book", "three letters")
]


def batch_of(src: list[list[int]], tgt_in: list[list[int]]) -> Batch:
    """Put sentences into one batch, with no target output."""
    tokens = [torch.tensor([token for ids in side for token in ids]) for side in (src, tgt_in)]
    lengths = [torch.tensor([len(ids) for ids in side]) for side in (src, tgt_in)]
    return Batch(tokens[0], lengths[0], tokens[1], torch.empty(0), lengths[1])


@dataclass(frozen=True)
class ToyRun:
    """A run whose training is pretended."""

    directory: RunDir
    recipe: Recipe
    dataset: Dataset

    def model(self, seed: int) -> Transformer:
        """Return a model with random weights, biases and norms included."""
        torch.manual_seed(seed)
        model = Transformer(self.recipe.model, self.dataset.vocab_size).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        return model

    def save(self, step: int, *, seed: int | None = None, average_seed: int | None = None) -> Path:
        """Write the checkpoint of a step, by default with weights that no other step has."""
        tensors: dict[str, dict[str, Tensor]] = {
            MODEL: self.model(step if seed is None else seed).state_dict()
        }
        if average_seed is not None:
            tensors[AVERAGE] = self.model(average_seed).state_dict()
        return write_checkpoint(self.directory, State(step=step), tensors)

    def with_recipe(self, **sections: dict[str, object]) -> "ToyRun":
        """Return the same run under another recipe, which is written down."""
        values = self.recipe.model_dump(exclude_none=True)
        for name, fields in sections.items():
            values[name] |= fields
        recipe = Recipe.model_validate(values)
        write_text(self.directory.recipe, dump_recipe(recipe))
        return ToyRun(self.directory, recipe, self.dataset)


def make_recipe(text: Path) -> Recipe:
    """Write the text of a tiny task (to say the same again in capitals) and return a recipe for it."""
    text.mkdir()
    for name, lines in {"train": SENTENCES, "dev": SENTENCES[:6], "test": SENTENCES[6:10]}.items():
        (text / f"{name}.en").write_text("".join(f"{line}\n" for line in lines))
        (text / f"{name}.de").write_text("".join(f"{line.upper()}\n" for line in lines))
    files = {name: [str(text / f"{name}.en"), str(text / f"{name}.de")] for name in ("train", "dev", "test")}
    return Recipe.model_validate(
        {
            "data": {**files, "directory": str(text / "datasets")},
            # To say the same again is what the rules would rather not have.
            "filter": {"max_copy": 1.0, "max_other_language": 1.0, "overlap": False},
            "vocab": {"size": 104},
            "model": {"layers": 1, "d_model": 16, "heads": 2, "feed_forward": 32},
            "train": {"steps": 100, "tokens_per_step": 100},
            "evaluate": {"beam": 2},
        }
    )


def make_run(path: Path, recipe: Recipe, dataset: Dataset) -> ToyRun:
    """Write a run without checkpoints."""
    directory = RunDir(path)
    write_text(directory.recipe, dump_recipe(recipe))
    facts = {
        "dataset": str(dataset.path),
        "fingerprint": dataset.fingerprint,
        "vocab_size": dataset.vocab_size,
    }
    write_json(directory.facts, facts)
    return ToyRun(directory, recipe, dataset)


def make_multilingual(path: Path, recipe: Recipe) -> ToyRun:
    """Write a run into German and Chinese, of the text of ``recipe``."""
    corpora = [
        {**recipe.data.train[0].model_dump(exclude_none=True), "tgt_lang": tgt} for tgt in ("de", "zh")
    ]
    values = recipe.model_dump(exclude_none=True)
    values["data"] |= {"train": corpora, "directory": str(path / "datasets")}
    recipe = Recipe.model_validate(values)
    return make_run(path / "run", recipe, prepare(recipe, workers=0, progress=False))


@pytest.fixture(scope="session")
def toy_task(tmp_path_factory):
    """A recipe and its dataset."""
    recipe = make_recipe(tmp_path_factory.mktemp("task") / "text")
    return recipe, prepare(recipe, workers=0, progress=False)


@pytest.fixture
def toy_run(tmp_path, toy_task):
    return make_run(tmp_path / "run", *toy_task)
