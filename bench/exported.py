"""Models to measure with: those of a run, or made-up ones, which need no training.

Made-up weights are random, at the size of the recipe multi30k, with a vocabulary of the text itself. They translate
into nonsense that ends at the same length for everybody; what a sentence costs is what it would cost.
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from dragoman.config import Recipe
from dragoman.data.builtin import sentences
from dragoman.data.tokenizer import Tokenizer, train
from dragoman.decode.export import export_model, export_run
from dragoman.decode.translator import TOKENIZER, resolve_model
from dragoman.model.transformer import Transformer
from dragoman.rundir import MODEL, RunDir
from dragoman.train.checkpoint import State, write_checkpoint

HUGGING_FACE = "huggingface"  # beside the names of quantizations
VOCABULARY, LENGTH = 2000, 16  # of made-up models: subwords, and tokens of every translation


def export_all(model: Path | None, kinds: Sequence[str], lines: list[str], work: Path) -> dict[str, Path]:
    """Return the models of a run, or made-up ones, by kind; or the one that is given, as it is."""
    if model is None:
        return made_up(kinds, lines, work)
    run = RunDir(model)
    if not run.recipe.is_file():
        return {"as it is": resolve_model(model)}
    return {kind: export_run(run, work / kind, **arguments(kind)) for kind in kinds}


def made_up(kinds: Sequence[str], lines: list[str], work: Path) -> dict[str, Path]:
    """Export random weights with a vocabulary of ``lines``."""
    recipe = Recipe.model_validate(
        {
            "data": {"train": "builtin", "dev": "builtin"},
            "model": {"layers": 3, "d_model": 256, "heads": 4, "feed_forward": 1024},
            "train": {"steps": 1, "tokens_per_step": 1},
        }
    )
    tokenizer = work / TOKENIZER
    tokenizer.write_bytes(train(lines, VOCABULARY))
    torch.manual_seed(1)
    weights = Transformer(recipe.model, Tokenizer.load(tokenizer).size).state_dict()
    checkpoint = write_checkpoint(RunDir(work / "run"), State(step=1), {MODEL: weights})
    ends = {"positions": LENGTH}  # random weights would go on for ever
    return {
        kind: export_model([checkpoint], recipe, tokenizer, work / kind, extra=ends, **arguments(kind))
        for kind in kinds
    }


def arguments(kind: str) -> dict[str, str]:
    return {"format": kind} if kind == HUGGING_FACE else {"quantization": kind}


def read_text(path: Path | None, most: int) -> list[str]:
    """Return the lines of a file, or of the built-in corpus if none is given."""
    if path is None:
        return [src for src, _ in sentences("test", most)]
    return path.read_text("utf-8").splitlines()[:most]
