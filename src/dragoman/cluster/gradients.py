"""How the gradients of a step become everybody's: what the communication hook does with a bucket.

All ways sum, because the loss is already divided by the tokens of the whole step. Where rounding loses something,
*error feedback* keeps what was lost and adds it to the next step's gradient, so that nothing is lost for good.
Only the sum of what all workers keep matters: ``settle`` shares it out evenly, and a checkpoint holds it once.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dragoman.cluster.estimate import all_reduce_bytes
from dragoman.cluster.wire import DTYPES, Group

Bucket = Any  # torch.distributed.GradBucket, which has no types
Answer = torch.futures.Future[Tensor]

# Names in a checkpoint: an equal share of what is kept, how many shares there are, a factor's start.
RESIDUAL, SHARES, RIGHT = "residual/", "shares", "right/"
# Mean gradients have elements around 1e-4 and fp16 ends at 6e-8: a power of two moves them to its middle.
FP16_SCALE = 2.0**10
MIN_SAVING = 2  # a matrix goes in two thin ones only where that saves at least this factor


class Exact:
    """Sum a bucket in float32 over ``group`` while the backward pass goes on; also the face of the others."""

    def __init__(self, model: nn.Module, group: Group | None) -> None:
        """Without a ``group`` a worker is alone, and has nothing to exchange."""
        self.names = {weight: name for name, weight in model.named_parameters()}
        self.group, self.members = group, 1 if group is None else group.size()
        self.bytes_sent = 0
        self.loss_scale = 1.0  # by which gradients are too large at the moment
        self.is_last = False  # whether the micro-batch at work is the last of its step

    def bucket(self, bucket: Bucket) -> Answer:
        """Begin to exchange one bucket; the answer will hold the sum."""
        if self.members == 1:
            return known(bucket.buffer())
        return self._all_reduce(bucket.buffer(), lambda summed: summed)

    def finish(self) -> None:
        """Exchange what is exchanged after the backward pass."""

    def leave(self) -> None:
        """Give the model back as it was: another way takes over, for a while or for good."""

    def enter(self) -> None:
        """Make of the model what this way needs."""

    def settle(self) -> None:
        """Bring all workers into the same state."""

    def forget(self) -> None:
        """Drop what is kept of gradients: the last step was bad, and its remains are not to come back."""

    def state(self) -> dict[str, Tensor]:
        """Return what the next step depends on, the same on every worker once settled."""
        return {}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Take up a state that was saved by any number of workers; names of other ways are passed over."""

    def _all_reduce(self, buffer: Tensor, then: Callable[[Tensor], Tensor]) -> Answer:
        self.bytes_sent += all_reduce_bytes(buffer.numel() * buffer.element_size(), self.members)
        work = dist.all_reduce(buffer, group=self.group, async_op=True)
        answer: Answer = work.get_future().then(lambda future: then(future.value()[0]))
        return answer


class Rounded(Exact):
    """Sum a bucket in bf16. What rounding loses is lost."""

    def bucket(self, bucket: Bucket) -> Answer:
        buffer: Tensor = bucket.buffer()
        return self._all_reduce(buffer.to(torch.bfloat16), buffer.copy_)


class Keeping(Exact):
    """What ways with error feedback have in common: a residual for some of the weights."""

    def __init__(self, model: nn.Module, group: Group | None, weights: list[nn.Parameter]) -> None:
        super().__init__(model, group)
        self.residual = {weight: torch.zeros_like(weight, dtype=torch.float32) for weight in weights}
        self.shares = self.members  # who keep something of their own

    def settle(self) -> None:
        if self.residual:
            kept = list(self.residual.values())
            torch._foreach_copy_(kept, parts(self._total(flatten(kept)) / self.shares, kept))

    def forget(self) -> None:
        for kept in self.residual.values():
            kept.zero_()

    def state(self) -> dict[str, Tensor]:
        shares = {RESIDUAL + self.names[weight]: kept for weight, kept in self.residual.items()}
        return {SHARES: torch.tensor(self.shares), **shares}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        self.forget()
        for weight, kept in self.residual.items():
            if RESIDUAL + self.names[weight] in tensors:
                kept.copy_(tensors[RESIDUAL + self.names[weight]])
                kept.mul_(tensors[SHARES].item() / self.shares)

    def _total(self, kept: Tensor) -> Tensor:
        dist.all_reduce(kept, group=self.group)
        return kept


class Feedback(Keeping):
    """Sum a bucket in bf16 or fp16, with error feedback."""

    def __init__(self, model: nn.Module, group: Group | None, wire: str) -> None:
        super().__init__(model, group, list(model.parameters()))
        self.wire = wire

    @torch.no_grad()
    def bucket(self, bucket: Bucket) -> Answer:
        buffer, scale = bucket.buffer(), (FP16_SCALE if self.wire == "fp16" else 1.0)
        kept = [self.residual[weight] for weight in bucket.parameters()]
        gradients = bucket.gradients()  # parts of the buffer
        buffer.mul_(scale / self.loss_scale)
        torch._foreach_add_(gradients, kept, alpha=scale)
        sent = self._round(buffer)
        torch._foreach_copy_(kept, torch._foreach_div(parts(buffer - sent, gradients), scale))
        return self._all_reduce(sent, lambda summed: buffer.copy_(summed).mul_(self.loss_scale / scale))

    def _round(self, buffer: Tensor) -> Tensor:
        if self.wire == "fp16":
            # The sum must not overflow; what is cut off comes with the next steps. Infinity is no number to cut.
            most = torch.finfo(torch.float16).max / self.members
            buffer = torch.where(buffer.isfinite(), buffer.clamp(-most, most), torch.nan)
        return buffer.to(DTYPES[self.wire])


class LowRank(Keeping):
    """Sum every matrix as the product of two thin ones, with error feedback (PowerSGD, Vogels et al. 2019).

    ``left = Σ matrix · right``, made orthonormal; ``right = Σ matrixᵀ · left``; the sum is about ``left · rightᵀ``,
    and ``right`` starts the next step. Two small exchanges after the backward pass carry all matrices, and what
    is no large matrix rides along. Torch's own hook issues its exchanges from callbacks, one chain a bucket:
    over Gloo the workers' order then differs and they hang, which is why this is not it (decision 5).
    """

    def __init__(self, model: nn.Module, group: Group | None, rank: int) -> None:
        self.matrices = [weight for weight in model.parameters() if _saves(weight, rank)]
        self.others = [weight for weight in model.parameters() if not _saves(weight, rank)]
        super().__init__(model, group, self.matrices)
        self.rank = rank
        self.forget()

    def bucket(self, bucket: Bucket) -> Answer:
        return known(bucket.buffer())

    @torch.no_grad()
    def finish(self) -> None:
        gradients = {weight: weight.grad for weight in self.names if weight.grad is not None}
        for weight in self.matrices:
            # The residual becomes the whole: this step's gradient and what was kept.
            self.residual[weight].add_(gradients[weight], alpha=1 / self.loss_scale)
        lefts = [self.residual[weight] @ self.right[weight] for weight in self.matrices]
        rest = [gradients[weight] for weight in self.others]
        self._sum_together([*lefts, *rest])
        lefts = [torch.linalg.qr(left)[0] for left in lefts]
        rights = [self.residual[weight].T @ left for weight, left in zip(self.matrices, lefts, strict=True)]
        self._sum_together(rights)
        for weight, left, right in zip(self.matrices, lefts, rights, strict=True):
            self.right[weight] = right
            product = left @ right.T
            self.residual[weight].sub_(product, alpha=1 / self.members)
            gradients[weight].copy_(product).mul_(self.loss_scale)

    def forget(self) -> None:
        super().forget()
        generator = torch.Generator().manual_seed(0)  # the same start on every worker
        starts = (torch.randn(weight.shape[1], self.rank, generator=generator) for weight in self.matrices)
        self.right = {
            weight: start.to(weight.device) for weight, start in zip(self.matrices, starts, strict=True)
        }

    def state(self) -> dict[str, Tensor]:
        return super().state() | {RIGHT + self.names[weight]: self.right[weight] for weight in self.matrices}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        super().load_state(tensors)
        for weight in self.matrices:
            saved = tensors.get(RIGHT + self.names[weight])
            if saved is not None and saved.shape == self.right[weight].shape:
                self.right[weight].copy_(saved)

    def _sum_together(self, tensors: list[Tensor]) -> None:
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        self.bytes_sent += all_reduce_bytes(flat.numel() * flat.element_size(), self.members)
        dist.all_reduce(flat, group=self.group)
        torch._foreach_copy_(tensors, parts(flat, tensors))


def _saves(weight: Tensor, rank: int) -> bool:
    return weight.ndim == 2 and sum(weight.shape) * rank * MIN_SAVING <= weight.numel()


def flatten(tensors: Iterable[Tensor]) -> Tensor:
    """Return a copy of all numbers in one row."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def parts(flat: Tensor, like: list[Tensor]) -> list[Tensor]:
    """Return the parts of a flat tensor in the shapes of ``like``, which they do not copy."""
    pieces = torch.split(flat, [each.numel() for each in like])
    return [piece.view_as(each) for piece, each in zip(pieces, like, strict=True)]


def known(buffer: Tensor) -> Answer:
    """Return an answer that is there already."""
    answer: Answer = torch.futures.Future()
    answer.set_result(buffer)
    return answer
