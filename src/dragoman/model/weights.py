"""What training and export agree on about weights. Imports without torch, which the lane does not need."""

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dragoman import config
from dragoman.errors import UserError

LAYER_NORM_EPSILON = 1e-5  # torch's default
# Tokens whose logits exist at a time: fewer make products slower, more take memory.
CPU_ROWS, GPU_ROWS = 1024, 2048

Weights = dict[str, npt.NDArray[np.float32]]


def require_same_names(expected: set[str], found: set[str], path: Path | str) -> None:
    """Report all weights that a checkpoint lacks or has too many of, together."""
    if expected != found:
        missing, extra = sorted(expected - found), sorted(found - expected)
        raise UserError(
            f"the weights do not fit the recipe's model (missing: {missing or 'none'}; unknown: {extra or 'none'})",
            where=str(path),
            fix="use the recipe this checkpoint was trained with, or another --run",
        )


def weight_shapes(cfg: config.Model, vocab_size: int) -> dict[str, tuple[int, ...]]:
    """Return the name and the shape of every weight of the Transformer, without building it."""
    d, f = cfg.d_model, cfg.feed_forward
    parts: dict[str, tuple[int, ...]] = {}
    for side, num_layers in (("encoder", cfg.layers), ("decoder", cfg.num_decoder_layers)):
        if cfg.norm == "pre":
            parts[f"{side}.norm"] = (d,)
        for index in range(num_layers):
            at = f"{side}.layers.{index}"
            parts |= {
                f"{at}.attention_norm": (d,),
                f"{at}.attention.qkv": (3 * d, d),
                f"{at}.attention.out": (d, d),
            }
            if side == "decoder":
                parts |= {f"{at}.cross_norm": (d,), f"{at}.cross_attention.q": (d, d)}
                parts |= {f"{at}.cross_attention.kv": (2 * d, d), f"{at}.cross_attention.out": (d, d)}
            parts |= {f"{at}.feed_forward_norm": (d,), f"{at}.feed_forward.up": (f, d)}
            parts |= {f"{at}.feed_forward.down": (d, f)}
    shapes: dict[str, tuple[int, ...]] = {"embedding.weight": (vocab_size, d)}
    for name, shape in parts.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return shapes


def count_parameters(cfg: config.Model, vocab_size: int) -> int:
    """Return how many weights the Transformer of this shape has, without building it."""
    return sum(math.prod(shape) for shape in weight_shapes(cfg, vocab_size).values())


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
