"""The training loss: cross-entropy, with and without label smoothing, as sums over tokens.

Sums are what workers can add up; whoever has all of them divides once, by the tokens of the whole step.
"""

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor


class Loss(NamedTuple):
    smoothed: Tensor  # what is minimised: "loss" in the events
    nll: Tensor  # plain negative log-likelihood: comparable between recipes


def token_loss(logits_NV: Tensor, target_N: Tensor, label_smoothing: float) -> Loss:
    """Return the loss summed over tokens, in float32.

    Smoothing gives each target token the probability 1 - s and spreads s evenly over the vocabulary:
    ``(1 - s) · nll + s · mean over v of -log p(v)``.
    """
    log_p_NV = F.log_softmax(logits_NV.float(), dim=-1)
    nll = F.nll_loss(log_p_NV, target_N, reduction="sum")
    if label_smoothing == 0.0:
        return Loss(nll, nll)
    spread = -log_p_NV.sum() / log_p_NV.shape[-1]
    return Loss((1.0 - label_smoothing) * nll + label_smoothing * spread, nll)


def token_nll(logits_NV: Tensor, target_N: Tensor) -> Tensor:
    """Return the negative log-likelihood of each token, in float32."""
    return F.cross_entropy(logits_NV.float(), target_N, reduction="none")
