"""The training loss: cross-entropy, with and without label smoothing, as sums over tokens.

Sums are what workers can add up; whoever has all of them divides once, by the tokens of the whole step.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.model.kernels import exponentials
from dragoman.model.weights import CPU_ROWS, GPU_ROWS


class Loss(NamedTuple):
    smoothed: Tensor  # what is minimised: "loss" in the events
    nll: Tensor  # plain negative log-likelihood: comparable between recipes


def token_loss(hidden_ND: Tensor, weight_VD: Tensor, target_N: Tensor, label_smoothing: float) -> Loss:
    """Return the loss of predicting the targets from ``hidden · weightᵀ``, summed over tokens in float32.

    Smoothing gives each target token the probability 1 - s and spreads s evenly over the vocabulary:
    ``(1 - s) · nll + s · mean over v of -log p(v)``.

    Logits are the largest thing in training, so they are never there all at once: some rows at a time are turned
    into losses, and into the gradients of ``hidden`` and ``weight`` too, which the backward pass has only to scale.
    """
    return Loss(*_TokenLoss.apply(hidden_ND, weight_VD, target_N, label_smoothing))  # type: ignore[no-untyped-call]


def token_nll(logits_NV: Tensor, target_N: Tensor) -> Tensor:
    """Return the negative log-likelihood of each token, in float32."""
    return F.cross_entropy(logits_NV.float(), target_N, reduction="none")


class _TokenLoss(torch.autograd.Function):
    """With logits z and their softmax p: smoothed = logsumexp(z) - (1 - s) · z[target] - s · mean(z).

    The gradient of z is p - (1 - s) at the target - s/V everywhere. Only p needs products of the full size: the other
    two are a few rows of the weight, and the sum of all of them.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, target: Tensor, smoothing: float) -> Any:
        device = hidden.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        rows = GPU_ROWS if device == "cuda" else CPU_ROWS
        with torch.autocast(device, enabled=False):
            cast_VD = weight.to(dtype)
            by_hidden, by_weight = torch.empty_like(hidden, dtype=torch.float32), torch.zeros_like(weight)
            room_RV = hidden.new_empty((min(rows, len(hidden)), len(weight)), dtype=dtype)
            # In float64, because few large sums follow from many small ones.
            log_sums, chosen = hidden.new_zeros((2,), dtype=torch.float64)
            for start in range(0, len(hidden), rows):
                here = slice(start, start + rows)
                cast_RD = hidden[here].to(dtype)
                logits_RV = torch.mm(cast_RD, cast_VD.t(), out=room_RV[: len(cast_RD)])
                e_RV, sum_R, largest_R, chosen_R = exponentials(logits_RV, target[here])
                chosen += chosen_R.sum(dtype=torch.float64)
                log_sums += (largest_R + sum_R.log()).sum(dtype=torch.float64)
                # p is e over its row's sum: dividing is cheaper where rows are short, after and before the products.
                torch.div(e_RV @ cast_VD, sum_R[:, None], out=by_hidden[here])
                share_RD = (cast_RD / sum_R[:, None]).to(dtype)
                if dtype == by_weight.dtype:
                    torch.addmm(by_weight, e_RV.t(), share_RD, out=by_weight)
                else:  # a sum of many pieces stays float32
                    by_weight += e_RV.t() @ share_RD
            hidden, sum_D, even = hidden.float(), weight.sum(0), smoothing / len(weight)
            spread = (hidden.sum(0, dtype=torch.float64) * sum_D).sum()
            by_hidden.sub_(weight.index_select(0, target), alpha=1.0 - smoothing).sub_(sum_D, alpha=even)
            by_weight.index_add_(0, target, hidden, alpha=smoothing - 1.0).sub_(hidden.sum(0), alpha=even)
        ctx.save_for_backward(by_hidden, by_weight)
        nll = (log_sums - chosen).float()
        ctx.mark_non_differentiable(nll)
        return (log_sums - (1.0 - smoothing) * chosen - even * spread).float(), nll

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> Any:
        by_hidden, by_weight = ctx.saved_tensors
        return by_hidden.mul_(gradient), by_weight.mul_(gradient), None, None
