"""What training and export agree on about weights. Imports without torch, which the lane does not need."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

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


def sinusoids(length: int, d_model: int) -> npt.NDArray[np.float32]:
    """Return the position encodings (length, d_model): the sines of all frequencies, then their cosines."""
    frequency_K = np.exp(np.arange(0, d_model, 2) * (-np.log(10000.0) / d_model))
    angle_TK = np.arange(length)[:, None] * frequency_K
    return np.concatenate([np.sin(angle_TK), np.cos(angle_TK)], axis=1).astype(np.float32)
