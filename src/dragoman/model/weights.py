"""What training and export agree on about weights. Imports without torch, which the lane does not need."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from dragoman import config
from dragoman.errors import UserError


def require_same_names(expected: set[str], found: set[str], path: Path | str) -> None:
    """Report all weights that a checkpoint lacks or has too many of, together."""
    if expected != found:
        missing, extra = sorted(expected - found), sorted(found - expected)
        raise UserError(
            f"the weights do not fit the recipe's model (missing: {missing or 'none'}; unknown: {extra or 'none'})",
            where=str(path),
            fix="use the recipe this checkpoint was trained with, or another --run",
        )


def count_parameters(cfg: config.Model, vocab_size: int) -> int:
    """Return how many weights the Transformer of this shape has, without building it."""
    width, inner = cfg.d_model, cfg.feed_forward
    norm = 2 * width
    attention = 4 * (width * width + width) + norm
    feed_forward = 2 * width * inner + inner + width + norm
    final_norms = 2 * norm if cfg.norm == "pre" else 0
    encoder, decoder = attention + feed_forward, 2 * attention + feed_forward
    return vocab_size * width + cfg.layers * encoder + cfg.num_decoder_layers * decoder + final_norms


def checkpoint_bytes(recipe: config.Recipe, parameters: int) -> int:
    """Return the disk that a run's checkpoints take at most: weights and two moments, four bytes each.

    There is one more than is kept, while it is written.
    """
    return 12 * parameters * (recipe.checkpoint.keep_last + recipe.checkpoint.keep_best + 1)


def sinusoids(length: int, d_model: int) -> npt.NDArray[np.float32]:
    """Return the position encodings (length, d_model): the sines of all frequencies, then their cosines."""
    frequency_K = np.exp(np.arange(0, d_model, 2) * (-np.log(10000.0) / d_model))
    angle_TK = np.arange(length)[:, None] * frequency_K
    return np.concatenate([np.sin(angle_TK), np.cos(angle_TK)], axis=1).astype(np.float32)
