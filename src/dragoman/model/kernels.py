"""What lies between the matrix products of a Transformer: dropout, norms, residual sums, relu, attention, softmax.

Each is one pass over memory by ``fused.c`` on a CPU, with its gradient, or a few of torch's operations anywhere else.
Rows are real tokens, one sentence after the other: there is no padding but where torch's attention needs it.

*Bias.* A product with a bias fills its output before it multiplies, and sums its gradient in a pass of its own. Here
``apart`` leaves the bias to whatever comes next.

*Dropout.* Torch draws 64 random bits for each number, one after the other. Here a hash of (seed, row, column) decides
with 8 bits, in the forward pass and again in the backward pass, so that nothing is kept. The seed comes from torch's
generator, so ``torch.manual_seed`` decides as everywhere else. ``fused.c`` and ``dropout_mask`` hash alike.
"""

import math
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.model.native import call, is_native, sums, total

Product = tuple[Tensor, Tensor | None]  # of a linear layer, and the bias that is still to be added, if any

LEVELS = 2**8  # that 8 random bits can have
LANES, BLOCK = 16, 64  # columns that a vector and a hash decide


class Sentences:
    """Where sentences lie among rows that follow each other."""

    def __init__(self, lengths_B: Tensor, device: torch.device) -> None:
        """``lengths_B`` is on the CPU: what depends on it must not wait for a device."""
        self.lengths_B, self.device = lengths_B, device
        self.starts = F.pad(lengths_B.cumsum(0), (1, 0))
        self.longest = int(lengths_B.max())
        position_N = torch.arange(int(self.starts[-1])) - self.starts[:-1].repeat_interleave(lengths_B)
        self.position_N = position_N.to(device, non_blocking=True)

    @cached_property
    def mask(self) -> Tensor | None:
        """Where there is a token, of (B, 1, 1, longest); None if that is everywhere."""
        if len(self) * self.longest == int(self.starts[-1]):
            return None
        mask_BT = torch.arange(self.longest) < self.lengths_B[:, None]
        return mask_BT[:, None, None].to(self.device, non_blocking=True)

    @cached_property
    def _places_N(self) -> Tensor:
        first_N = (torch.arange(len(self)) * self.longest).repeat_interleave(self.lengths_B)
        return first_N.to(self.device, non_blocking=True) + self.position_N

    def __len__(self) -> int:
        return len(self.lengths_B)

    def pad(self, x_ND: Tensor) -> Tensor:
        """Lay rows out as (B, longest, D), with zeros where there is no token."""
        padded = x_ND.new_zeros(len(self) * self.longest, x_ND.shape[1])
        return padded.index_copy(0, self._places_N, x_ND).view(len(self), self.longest, -1)

    def unpad(self, x_BTD: Tensor) -> Tensor:
        """Undo ``pad``."""
        return x_BTD.flatten(0, 1).index_select(0, self._places_N)


def apart(linear: nn.Linear, x: Tensor) -> Product:
    """Return what a linear layer makes of ``x``, its bias perhaps still to be added."""
    if is_native(x):
        return F.linear(x, linear.weight), linear.bias
    return linear(x), None


def whole(product: Product) -> Tensor:
    """Add a bias that is still to be added."""
    x, bias = product
    return x if bias is None else x + bias


def dropout(x: Tensor, p: float) -> Tensor:
    """Set numbers to zero with probability ``p``, and make the others as much larger."""
    if p == 0.0:
        return x
    if is_native(x) and x.dtype is torch.float32:
        return _Dropout.apply(x, p, draw_seed())  # type: ignore[no-any-return, no-untyped-call]
    return F.dropout(x, p) if x.is_cuda else x * dropout_mask(x.shape, p, draw_seed(), x.dtype)


def residual_norm(
    x: Tensor, product: Product, norm: nn.LayerNorm, p: float, *, half: bool
) -> tuple[Tensor, Tensor]:
    """Return ``x + dropout(product)``, and its layer norm, with ``half`` in what products compute with."""
    if not is_native(x):
        summed = x + dropout(whole(product), p)
        return summed, norm(summed)
    branch, bias = product
    branch = branch if half else branch.float()
    return _ResidualNorm.apply(  # type: ignore[no-any-return, no-untyped-call]
        x, branch, bias, norm.weight, norm.bias, norm.eps, p, draw_seed() if p else 0
    )


def relu_dropped(product: Product, p: float) -> Tensor:
    """Return ``dropout(relu(product))``, in its memory."""
    if is_native(product[0]):
        return _ReluDropped.apply(*product, p, draw_seed() if p else 0)  # type: ignore[no-any-return, no-untyped-call]
    return dropout(F.relu(whole(product), inplace=True), p)


def attend(
    queries: Product,
    memory: Product | None,
    asking: Sentences,
    asked: Sentences,
    heads: int,
    p: float,
    *,
    causal: bool,
) -> Tensor:
    """Return what each row mixes (N, D), with dropout ``p`` on the weights of attention.

    ``queries`` (N, 3·D) are q, k and v in a row; or (N, D) only q, and ``memory`` (M, 2·D) has k and v.
    """
    if is_native(queries[0]):
        seed = draw_seed() if p else 0
        return _Attend.apply(*queries, *(memory or (None, None)), asking, asked, heads, p, seed, causal)  # type: ignore[no-any-return, no-untyped-call]
    packed = [(queries, asking, 3)] if memory is None else [(queries, asking, 1), (memory, asked, 2)]
    q_BHTK, k_BHSK, v_BHSK = (
        part.view(*part.shape[:2], heads, -1).transpose(1, 2)
        for product, sentences, parts in packed
        for part in sentences.pad(whole(product)).chunk(parts, -1)
    )
    # Padding at the end of a sentence is never seen by the real positions before it: causal is enough.
    mask = None if causal else asked.mask
    if q_BHTK.is_cuda:
        mixed_BHTK = F.scaled_dot_product_attention(
            q_BHTK, k_BHSK, v_BHSK, attn_mask=mask, dropout_p=p, is_causal=causal
        )
    else:
        mixed_BHTK = _mix(q_BHTK, k_BHSK, v_BHSK, mask, asking, p, causal=causal)
    return asking.unpad(mixed_BHTK.transpose(1, 2).flatten(2))


def exponentials(logits_RV: Tensor, target_R: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return e to the logits less the largest of a row, perhaps in their place.

    With it, in float32, each row's sum of those, its largest logit, and its target's logit.
    """
    if is_native(logits_RV):
        sum_R, largest_R, chosen_R = torch.empty(3, len(logits_RV))
        call(
            "exponentials", len(logits_RV), logits_RV.dtype, logits_RV.shape[1],
            logits_RV, target_R, sum_R, largest_R, chosen_R,
        )  # fmt: skip
        return logits_RV, sum_R, largest_R, chosen_R
    full_RV = logits_RV.float()
    largest_R, chosen_R = full_RV.amax(1), full_RV.gather(1, target_R[:, None])[:, 0]
    full_RV = full_RV.sub_(largest_R[:, None]).exp_()
    return full_RV.to(logits_RV.dtype), full_RV.sum(1), largest_R, chosen_R


def draw_seed() -> int:
    return int(torch.empty((), dtype=torch.int64).random_())


def dropout_mask(shape: torch.Size, p: float, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return zeros, and what makes up for them: a function of its arguments, for a matrix of rows and columns."""
    columns = shape[-1]
    rows, blocks = math.prod(shape[:-1]), -(-columns // BLOCK)
    random = np.arange(rows * blocks * LANES, dtype=np.uint32)
    for key in (seed, seed >> 32):
        random ^= np.uint32(key & 0xFFFFFFFF)
        random = (random ^ (random >> np.uint32(16))) * np.uint32(0x21F0AAAD)
        random = (random ^ (random >> np.uint32(15))) * np.uint32(0xD35A2D97)
        random ^= random >> np.uint32(15)
    # The bytes of a hash are for one lane of four neighbouring vectors.
    by_lane = random.astype("<u4").view(np.uint8).reshape(rows, blocks, LANES, BLOCK // LANES)
    bits = torch.from_numpy(by_lane.swapaxes(2, 3).reshape(rows, -1)[:, :columns].copy())
    return (bits >= dropped_levels(p, seed)).view(shape).to(dtype).mul_(kept_scale(p, seed))


def dropped_levels(p: float, seed: int) -> int:
    """Return how many of all levels are dropped: rounded up or down by the seed, so that ``p`` is met on average."""
    return min(int(p * LEVELS + seed % 2**16 / 2**16), LEVELS - 1) if p else 0


def kept_scale(p: float, seed: int) -> float:
    """Return what makes up for the numbers that are dropped."""
    return LEVELS / (LEVELS - dropped_levels(p, seed))


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float, seed: int) -> Tensor:
        ctx.p, ctx.seed = p, seed
        return _Dropout.drop(x, p, seed)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _Dropout.drop(gradient, ctx.p, ctx.seed), None, None

    @staticmethod
    def drop(x: Tensor, p: float, seed: int) -> Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        call("dropout_rows", len(x), x.dtype, x.shape[1], x, out, seed, dropped_levels(p, seed))
        return out


class _ResidualNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        branch: Tensor,
        bias: Tensor,
        gain: Tensor,
        shift: Tensor,
        epsilon: float,
        p: float,
        seed: int,
    ) -> tuple[Tensor, Tensor]:
        summed, normed, statistics = torch.empty_like(x), torch.empty_like(branch), x.new_empty(len(x), 2)
        ctx.seed, ctx.levels = seed, dropped_levels(p, seed)
        call(
            "residual_norm", len(x), branch.dtype, x.shape[1], x, branch, bias, gain, shift, epsilon,
            seed, ctx.levels, summed, normed, statistics,
        )  # fmt: skip
        ctx.save_for_backward(summed, statistics, gain)
        ctx.set_materialize_grads(False)
        return summed, normed

    @staticmethod
    def backward(ctx: Any, by_sum: Tensor | None, by_normed: Tensor) -> Any:
        summed, statistics, gain = ctx.saved_tensors
        by_normed = by_normed.contiguous()
        by_sum = None if by_sum is None else by_sum.contiguous()
        by_x, by_branch = torch.empty_like(summed), torch.empty_like(by_normed)
        by_bias, by_gain, by_shift = (sums(summed.shape[1]) for _ in range(3))
        call(
            "residual_norm_back", len(summed), by_normed.dtype, summed.shape[1], summed, statistics, gain,
            by_sum, by_normed, ctx.seed, ctx.levels, by_x, by_branch, by_bias, by_gain, by_shift,
        )  # fmt: skip
        return by_x, by_branch, total(by_bias), total(by_gain), total(by_shift), None, None, None


class _ReluDropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, p: float, seed: int) -> Tensor:
        ctx.mark_dirty(x)
        call("relu", len(x), x.dtype, x.shape[1], x, bias, seed, dropped_levels(p, seed))
        ctx.save_for_backward(x)
        ctx.scale = kept_scale(p, seed)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        # In its place: the product behind us has made it for nobody else.
        gradient, by_bias = gradient.contiguous(), sums(x.shape[1])
        call("relu_back", len(x), x.dtype, x.shape[1], gradient, x, ctx.scale, by_bias)
        return gradient, total(by_bias), None, None


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        bias: Tensor,
        memory: Tensor | None,
        memory_bias: Tensor | None,
        asking: Sentences,
        asked: Sentences,
        heads: int,
        p: float,
        seed: int,
        causal: bool,
    ) -> Tensor:
        width = x.shape[1] // (3 if memory is None else 1)
        ctx.fixed = heads, width, asking, asked, seed, dropped_levels(p, seed)
        weights = torch.empty(heads * len(x), -(-asked.longest // LANES) * LANES)
        mixed = x.new_empty(len(x), width)
        call(
            "attend", len(asking), x.dtype, heads, width // heads, asking.starts, asked.starts,
            *_parts(x, memory, width), *_split(bias, memory_bias, width), causal, seed, ctx.fixed[-1],
            weights, weights.shape[1], mixed,
        )  # fmt: skip
        ctx.save_for_backward(x, bias, memory, memory_bias, weights)
        return mixed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, bias, memory, memory_bias, weights = ctx.saved_tensors
        heads, width, asking, asked, seed, levels = ctx.fixed
        gradient, by_x = gradient.contiguous(), torch.empty_like(x)
        by_memory = None if memory is None else torch.empty_like(memory)
        by_q, _, by_k, by_v, _ = _parts(by_x, by_memory, width)
        by_bias = sums(bias.shape[0])
        by_memory_bias = None if memory is None else sums(2 * width)
        call(
            "attend_back", len(asking), x.dtype, heads, width // heads, asking.starts, asked.starts,
            *_parts(x, memory, width), *_split(bias, memory_bias, width), seed, levels, weights,
            weights.shape[1], gradient, by_q, by_k, by_v, *_split(by_bias, by_memory_bias, width),
        )  # fmt: skip
        by_memory_bias = None if by_memory_bias is None else total(by_memory_bias)
        return by_x, total(by_bias), by_memory, by_memory_bias, None, None, None, None, None, None


def _split(x: Tensor, memory: Tensor | None, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v, views of what lies side by side."""
    parts = torch.split(x, width, -1) if memory is None else (x, *torch.split(memory, width, -1))
    return parts  # type: ignore[return-value]


def _parts(x: Tensor, memory: Tensor | None, width: int) -> tuple[Tensor, int, Tensor, Tensor, int]:
    """Return q, k and v as ``attend`` of fused.c takes them, with how far apart their rows lie."""
    q, k, v = _split(x, memory, width)
    return q, q.stride(0), k, v, k.stride(0)


def _mix(
    q_BHTK: Tensor,
    k_BHSK: Tensor,
    v_BHSK: Tensor,
    mask: Tensor | None,
    asking: Sentences,
    p: float,
    *,
    causal: bool,
) -> Tensor:
    """Attention on a CPU without ``fused.c``, with the same weights dropped."""
    scores_BHTS = q_BHTK @ k_BHSK.mT * q_BHTK.shape[-1] ** -0.5
    heads, queries, keys = scores_BHTS.shape[1:]
    if causal:
        mask = torch.ones(queries, keys, dtype=torch.bool).tril_()
    if mask is not None:
        scores_BHTS = scores_BHTS.masked_fill(~mask, -math.inf)
    weights_BHTS = scores_BHTS.softmax(-1)
    if p:
        columns = -(-keys // LANES) * LANES
        mask_RS = dropout_mask(
            torch.Size([heads * int(asking.starts[-1]), columns]), p, draw_seed(), weights_BHTS.dtype
        )
        first_BH = heads * asking.starts[:-1, None] + torch.arange(heads) * asking.lengths_B[:, None]
        row_BHT = first_BH[:, :, None] + torch.arange(queries)  # of padding another's, and it matters to none
        weights_BHTS = weights_BHTS * mask_RS[row_BHT.clamp_max(len(mask_RS) - 1), :keys]
    return torch.matmul(weights_BHTS, v_BHSK)
