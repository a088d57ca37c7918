"""The few operations that torch leaves slow on a CPU, each with its gradient written out.

*Dropout.* Torch draws 64 random bits for each number, one after the other. Here a faster generator draws 8, and the
backward pass draws the same again from the seed instead of keeping them. The seed comes from torch's generator, so
``torch.manual_seed`` decides as everywhere else.

*Attention.* With dropout on its weights torch goes step by step and copies between them; in bf16 its backward pass
takes eight times as long as in float32; and where oneDNN multiplies (``train/products.py``) all of it takes ten times
as long, since it multiplies head by head. Here are the same products with one copy in and one out.

On a GPU torch's own kernels are fast, and are used.
"""

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

LEVELS = 2**8  # that 8 random bits can have


def dropout(x: Tensor, p: float) -> Tensor:
    """Set numbers to zero with probability ``p``, and make the others as much larger."""
    if p == 0.0:
        return x
    if x.is_cuda:
        return F.dropout(x, p)
    return _Dropout.apply(x, p, draw_seed())  # type: ignore[no-any-return, no-untyped-call]


def add_dropped(x: Tensor, branch: Tensor, p: float) -> Tensor:
    """Return ``x + dropout(branch)``."""
    if p == 0.0 or x.is_cuda:
        return x + F.dropout(branch, p)
    return _AddDropped.apply(x, branch, p, draw_seed())  # type: ignore[no-any-return, no-untyped-call]


def relu_dropped(x: Tensor, p: float) -> Tensor:
    """Return ``dropout(relu(x))``, in the memory of ``x``."""
    if x.is_cuda:
        return F.dropout(F.relu(x, inplace=True), p)
    return _ReluDropped.apply(x, p, draw_seed() if p else 0)  # type: ignore[no-any-return, no-untyped-call]


def attend(
    queries: Tensor, memory: Tensor | None, mask: Tensor | None, heads: int, p: float, *, causal: bool
) -> Tensor:
    """Return what each position mixes (B, T, D), with dropout ``p`` on the weights of attention.

    ``queries`` (B, T, 3·D) are q, k and v in a row; or (B, T, D) only q, and ``memory`` (B, S, 2·D) has k and v.
    """
    if queries.is_cuda:
        q_BHTK, k_BHSK, v_BHSK = _views(queries, memory, heads)
        mixed_BHTK = F.scaled_dot_product_attention(
            q_BHTK, k_BHSK, v_BHSK, attn_mask=mask, dropout_p=p, is_causal=causal
        )
        return mixed_BHTK.transpose(1, 2).flatten(2)
    if causal:
        length = queries.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool).tril_()
    return _Attend.apply(queries, memory, mask, heads, p, draw_seed() if p else 0)  # type: ignore[no-any-return, no-untyped-call]


def draw_seed() -> int:
    return int(torch.empty((), dtype=torch.int64).random_())


def dropout_mask(shape: torch.Size, p: float, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return zeros, and what makes up for them: a function of its arguments."""
    numbers = math.prod(shape)
    bits = torch.from_numpy(np.random.SFC64(seed).random_raw(-(-numbers // 8)).view(np.uint8)[:numbers])
    kept = torch.ge(bits, dropped_levels(p, seed), out=bits).view(shape)
    return kept.to(dtype).mul_(kept_scale(p, seed))


def dropped_levels(p: float, seed: int) -> int:
    """Return how many of all levels are dropped: rounded up or down by the seed, so that ``p`` is met on average."""
    return min(int(p * LEVELS + seed % 2**16 / 2**16), LEVELS - 1)


def kept_scale(p: float, seed: int) -> float:
    """Return what makes up for the numbers that are dropped."""
    return LEVELS / (LEVELS - dropped_levels(p, seed))


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float, seed: int) -> Tensor:
        ctx.p, ctx.seed = p, seed
        return x * dropout_mask(x.shape, p, seed, x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * dropout_mask(gradient.shape, ctx.p, ctx.seed, gradient.dtype), None, None


class _AddDropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, branch: Tensor, p: float, seed: int) -> Tensor:
        ctx.p, ctx.seed, ctx.dtype = p, seed, branch.dtype
        return torch.addcmul(x, branch, dropout_mask(branch.shape, p, seed, branch.dtype))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        mask = dropout_mask(gradient.shape, ctx.p, ctx.seed, ctx.dtype)
        return gradient, (gradient * mask).to(ctx.dtype), None, None


class _ReluDropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float, seed: int) -> Tensor:
        ctx.mark_dirty(x)
        x.clamp_min_(0.0)
        if p:
            x.mul_(dropout_mask(x.shape, p, seed, x.dtype))
        ctx.save_for_backward(x)
        ctx.scale = kept_scale(p, seed)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x,) = ctx.saved_tensors  # not zero where neither relu nor dropout made it so
        return torch.ops.aten.threshold_backward(gradient, x, 0.0).mul_(ctx.scale), None, None


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, memory: Tensor | None, mask: Tensor | None, heads: int, p: float, seed: int
    ) -> Tensor:
        parts = [_by_head(queries, heads, 3 if memory is None else 1)]
        if memory is not None:
            parts.append(_by_head(memory, heads, 2))
        q_NTK, k_NSK, v_NSK = (part for each in parts for part in each)
        scores_NTS = torch.bmm(q_NTK, k_NSK.mT).mul_(q_NTK.shape[-1] ** -0.5)
        if mask is not None:
            scores_NTS.view(-1, heads, *scores_NTS.shape[1:]).masked_fill_(~mask, -math.inf)
        weights_NTS = torch.softmax(scores_NTS, -1, out=scores_NTS)
        dropped_NTS = (
            weights_NTS * dropout_mask(weights_NTS.shape, p, seed, weights_NTS.dtype) if p else weights_NTS
        )
        ctx.save_for_backward(q_NTK, k_NSK, v_NSK, weights_NTS)
        ctx.heads, ctx.p, ctx.seed, ctx.packed = heads, p, seed, memory is None
        return _together(torch.bmm(dropped_NTS, v_NSK)[None], heads)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        q_NTK, k_NSK, v_NSK, weights_NTS = ctx.saved_tensors
        (gradient_NTK,) = _by_head(gradient.contiguous(), ctx.heads, 1)
        by_weight_NTS, dropped_NTS = torch.bmm(gradient_NTK, v_NSK.mT), weights_NTS
        if ctx.p:
            mask_NTS = dropout_mask(weights_NTS.shape, ctx.p, ctx.seed, weights_NTS.dtype)
            by_weight_NTS.mul_(mask_NTS)
            dropped_NTS = mask_NTS.mul_(weights_NTS)
        by_score_NTS = torch.ops.aten._softmax_backward_data(
            by_weight_NTS, weights_NTS, -1, weights_NTS.dtype
        )
        by_score_NTS.mul_(q_NTK.shape[-1] ** -0.5)
        by_q, by_k = torch.bmm(by_score_NTS, k_NSK), torch.bmm(by_score_NTS.mT, q_NTK)
        by_v = torch.bmm(dropped_NTS.mT, gradient_NTK)
        if ctx.packed:
            return _together(torch.stack([by_q, by_k, by_v]), ctx.heads), None, None, None, None, None
        by_memory = _together(torch.stack([by_k, by_v]), ctx.heads)
        return _together(by_q[None], ctx.heads), by_memory, None, None, None, None


def _views(queries: Tensor, memory: Tensor | None, heads: int) -> list[Tensor]:
    """Return q, k and v as (B, H, T, K), without a copy."""
    packed = [(queries, 3)] if memory is None else [(queries, 1), (memory, 2)]
    return [
        part.view(*part.shape[:2], heads, -1).transpose(1, 2)
        for each, parts in packed
        for part in each.chunk(parts, -1)
    ]


def _by_head(x: Tensor, heads: int, parts: int) -> Tensor:
    """Lay out (B, T, parts·D) as (parts, B·H, T, K)."""
    batch, length, width = x.shape
    split = x.view(batch, length, parts, heads, width // parts // heads)
    return split.permute(2, 0, 3, 1, 4).reshape(parts, batch * heads, length, -1)


def _together(x: Tensor, heads: int) -> Tensor:
    """Undo ``_by_head``."""
    parts, rows, length, width = x.shape
    split = x.view(parts, rows // heads, heads, length, width)
    return split.permute(1, 3, 0, 2, 4).reshape(rows // heads, length, -1)
