"""Gradients in whole numbers of 8 or 4 bits, between hosts: the way of slow links (see ``gradients``).

The workers of a host sum theirs in full; then the hosts exchange theirs while the backward pass goes on, and all sum
them alike. The embedding's gradient goes in three parts. What it is owed as the output projection is whole and ready
first, so it hides behind all of the backward pass. What it is owed as a table of words is ready after the decoder's
backward pass for the words of the target, and last of all for those of the source. But few of its rows are not zero;
which ones is told before anything else, when the link is still free.
"""

from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dragoman.cluster.across import Exchange, Hosts, total
from dragoman.cluster.estimate import all_reduce_bytes
from dragoman.cluster.gradients import Answer, Bucket, Keeping, flatten, known, parts
from dragoman.model.transformer import Batch, Transformer

SOURCE, TARGET = range(2)  # sides of a pair: who looks words up in the embedding


class Quantised(Keeping):
    """Sum a bucket in ``wire``, int8 or int4, with error feedback."""

    def __init__(self, model: nn.Module, hosts: Hosts, wire: str) -> None:
        super().__init__(model, hosts.here, list(model.parameters()))
        self.hosts, self.wire, self.shares = hosts, wire, hosts.count
        self._rows: dict[tuple[nn.Parameter, ...], Tensor] = {}  # the residuals of a bucket's weights
        self._sending: list[tuple[Tensor, Exchange]] = []
        self._table = _Table(model) if isinstance(model, Transformer) else None
        self._looked_up: Exchange | None = None
        self._table_rows: list[tuple[Tensor, Tensor]] = []  # which, and where their gradients come
        self.enter()

    def enter(self) -> None:
        if self._table is not None:
            projection, target = self._table.untie()
            projection.register_post_accumulate_grad_hook(self._send_projection)  # type: ignore[no-untyped-call]
            target.register_post_accumulate_grad_hook(self._send_target_rows)  # type: ignore[no-untyped-call]

    def leave(self) -> None:
        if self._table is not None:
            self._table.tie()

    @torch.no_grad()
    def bucket(self, bucket: Bucket) -> Answer:
        buffer, weights = bucket.buffer(), bucket.parameters()
        ends = [0]  # of the weights' gradients in the buffer, which lie there one after the other
        for weight in weights:
            ends.append(ends[-1] + weight.numel())
        # The table's rows are looked at when all else is on its way.
        tables = [
            place for place, weight in enumerate(weights) if self._table and weight is self._table.weight
        ]
        for before, after in pairwise([-1, *tables, len(weights)]):
            if some := tuple(weights[before + 1 : after]):
                self._send(some, buffer[ends[before + 1] : ends[after]])
        return known(buffer)

    @torch.no_grad()
    def finish(self) -> None:
        if self._table is not None:
            self._send_rows(self._table, SOURCE, self._table.gradient)
        for numbers, exchange in self._sending:  # gradients are views of their bucket
            exchange.wait(numbers)
            if self.loss_scale != 1.0:
                numbers.mul_(self.loss_scale)
        self._sending.clear()
        if self._table is not None:
            whole = self._table.gradient.copy_(self._table.take_projected())
            for indices, rows in self._table_rows:
                whole.index_add_(0, indices, rows)
            self._table_rows.clear()

    def _send(self, weights: tuple[nn.Parameter, ...], numbers: Tensor) -> None:
        """Begin to exchange the gradients of some weights, and what was kept of them."""
        self._sum_here(numbers)
        self._begin(self._row(weights), numbers, numbers)

    @torch.no_grad()
    def _send_projection(self, projection: Tensor) -> None:
        """Begin with the first gradient of a step's last backward pass."""
        if self.is_last and self._table is not None and projection.grad is not None:
            used = self._table.take_used().view(-1)
            self._sum_here(used)
            self._looked_up = Exchange(self.hosts, used.clamp_(max=1), self.wire, total)
            self.bytes_sent += self._looked_up.bytes_sent
            self._send((self._table.weight,), projection.grad.view(-1))

    @torch.no_grad()
    def _send_target_rows(self, target: Tensor) -> None:
        """Follow when the decoder's backward pass is over."""
        if self.is_last and self._table is not None:
            self._send_rows(self._table, TARGET, self._table.take_target())

    def _send_rows(self, table: "_Table", side: int, gradient: Tensor) -> None:
        """Begin to exchange the rows that any worker looked up on a side."""
        assert self._looked_up is not None
        indices = self._looked_up.wait().view(2, -1)[side].nonzero().view(-1)
        rows = gradient.index_select(0, indices).div_(self.loss_scale)
        self._sum_here(rows)
        lost = rows.clone()
        self._begin(lost.view(-1), rows.view(-1))
        # One weight, one residual: what is lost of a row goes with the next step's projection.
        self.residual[table.weight].index_add_(0, indices, lost)
        self._table_rows.append((indices, rows))

    def _sum_here(self, numbers: Tensor) -> None:
        if self.members > 1:
            # Waited for, because what comes next must be in the same order on every host.
            dist.all_reduce(numbers, group=self.group)
            self.bytes_sent += all_reduce_bytes(numbers.numel() * numbers.element_size(), self.members)

    def _begin(self, values: Tensor, result: Tensor, more: Tensor | None = None) -> None:
        exchange = Exchange(self.hosts, values, self.wire, total, more, 1 / self.loss_scale)
        self.bytes_sent += exchange.bytes_sent
        self._sending.append((result, exchange))

    def _row(self, weights: tuple[nn.Parameter, ...]) -> Tensor:
        """Return the residuals of some weights in one row; they are moved there when it is first asked for."""
        if weights not in self._rows:
            kept = [self.residual[weight] for weight in weights]
            self._rows[weights] = flatten(kept)
            self.residual.update(zip(weights, parts(self._rows[weights], kept), strict=True))
        return self._rows[weights]

    def _total(self, kept: Tensor) -> Tensor:
        return Exchange(self.hosts, kept, "float32", total).wait()


class _Table:
    """The embedding of a Transformer, with gradients apart as input of encoder and decoder and as output."""

    def __init__(self, model: Transformer) -> None:
        self.model, self.weight = model, model.get_parameter("embedding.weight")
        self._used = self.weight.new_zeros(2, len(self.weight))

    def untie(self) -> tuple[Tensor, Tensor]:
        """Let the decoder collect gradients as output and as input in the tensors returned; note what is looked up."""
        self._noting = self.model.register_forward_pre_hook(self._note)
        self._projection, self._target = self.model.untie()
        return self._projection, self._target

    def tie(self) -> None:
        """Undo ``untie``."""
        self._noting.remove()
        self.model.tie()

    def _note(self, model: nn.Module, given: tuple[Batch]) -> None:
        if torch.is_grad_enabled():
            self._used[SOURCE, given[0].src_M] = 1
            self._used[TARGET, given[0].tgt_in_N] = 1

    def take_used(self) -> Tensor:
        """Return a one for each row that a side looked up since the last call."""
        used, self._used = self._used, torch.zeros_like(self._used)
        return used

    @property
    def gradient(self) -> Tensor:
        """As input of the encoder; where the whole is put in the end."""
        assert self.weight.grad is not None
        return self.weight.grad

    def take_target(self) -> Tensor:
        """Return the gradient as input of the decoder; the next step begins a new one."""
        return _take(self._target)

    def take_projected(self) -> Tensor:
        """Return the gradient as output; the next step begins a new one."""
        return _take(self._projection)


def _take(leaf: Tensor) -> Tensor:
    gradient, leaf.grad = leaf.grad, None
    assert gradient is not None
    return gradient
