"""Local training with rare synchronisation (DiLoCo, Douillard et al. 2023; in slices, Douillard et al. 2025).

Every host trains by itself. In turn, each slice of the weights is averaged over the hosts once every ``inner_steps``
steps: how far each host has come from the last common weights, and an outer Nesterov step that way.

    difference = gain · mean over hosts of (common - mine)
    momentum   = m · momentum + difference
    common     = common - r · (difference + m · momentum)

The gain makes up for what Adam loses on a host's small share of a step: where noise rules, Adam's steps have the
same size however noisy the gradient, and the mean of n such differences is short by up to √n. So the mean is made
as long as the differences are, block by block. Where the hosts agree, that changes nothing.

There are as many slices as inner steps, so that every step sends the same little, while the next step computes. What
travels is rounded, and is a step old when it arrives: a host always has some progress that the others have not
seen. It stays in the host's weights, and so goes with the next exchange: mine = common + what I have not told.
The workers of one host sum their gradients in every step and stay equal; a host counts by its number of workers.
"""

from collections.abc import Iterable, Mapping
from itertools import pairwise

import torch
from torch import Tensor, nn

from dragoman.cluster.across import Exchange, Hosts, total
from dragoman.cluster.gradients import flatten, parts
from dragoman.cluster.wire import blocks, chunks

MOMENTUM = "outer_momentum"  # its name in a checkpoint


class Local:
    """The outer optimizer: exchanges differences, a slice with every step, and moves the common weights."""

    def __init__(
        self,
        hosts: Hosts,
        model: nn.Module,
        *,
        wire: str,
        inner_steps: int,
        learning_rate: float,
        momentum: float,
    ) -> None:
        self.hosts, self.wire, self.learning_rate, self.decay = hosts, wire, learning_rate, momentum
        self.bytes_sent = 0
        self._weights = [weight.data.view(-1) for weight in model.parameters()]
        self._common = flatten(self._weights)
        self._momentum = torch.zeros_like(self._common)
        numbers = len(self._common)
        self._whole = Slice(self._weights, 0, numbers)
        bounds = [numbers * place // inner_steps for place in range(inner_steps + 1)]
        self._slices = [Slice(self._weights, start, end) for start, end in pairwise(bounds)]
        self._next = 0  # slice to be sent
        self._dirty = False  # whether a weight changed since the last settling
        self._sending: tuple[Slice, Exchange] | None = None

    @torch.no_grad()
    def after_update(self) -> None:
        """Take in the slice that travelled during this step, and send the next one."""
        self._receive()
        self._send(self._slices[self._next])
        self._next = (self._next + 1) % len(self._slices)
        self._dirty = True

    @torch.no_grad()
    def settle(self, moments: Iterable[Tensor], averages: Iterable[Tensor]) -> None:
        """Exchange everything now: afterwards all workers hold the same weights, moments and averages."""
        if not self._dirty:
            return
        self._receive()
        self._send(self._whole)
        self._receive()
        torch._foreach_copy_(self._weights, parts(self._common, self._weights))
        # Moments bear rounding. Averaged weights do not, so their small distance from the common ones is sent.
        if moments := list(moments):
            self._average(moments, torch.zeros_like(flatten(moments)))
        if averages := list(averages):
            self._average(averages, self._common)
        self._next, self._dirty = 0, False

    def drain(self) -> None:
        """Wait until nothing is on its way; what has arrived is taken in when its time comes."""
        if self._sending is not None:
            self._sending[1].drain()

    def state(self) -> dict[str, Tensor]:
        """Return what the checkpoint needs beside the weights, which are the common ones once settled."""
        return {MOMENTUM: self._momentum}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Start from the model's weights as they are now, which a checkpoint has made the same everywhere."""
        if self._sending is not None:
            self._sending[1].wait()
            self._sending = None
        self._common = flatten(self._weights)
        known = MOMENTUM in tensors
        self._momentum = tensors[MOMENTUM].to(self._common) if known else torch.zeros_like(self._common)
        self._next, self._dirty = 0, False

    def _send(self, slice: "Slice") -> None:
        difference = self._common[slice.start : slice.end] - flatten(slice.weights)
        exchange = Exchange(self.hosts, difference, self.wire, self._long_mean)
        self.bytes_sent += exchange.bytes_sent
        self._sending = slice, exchange

    def _receive(self) -> None:
        if self._sending is None:
            return
        slice, exchange = self._sending
        common, momentum = (each[slice.start : slice.end] for each in (self._common, self._momentum))
        differences = exchange.wait()
        for start, end in chunks(differences):
            difference = differences[start:end]
            if self.decay:
                momentum[start:end].mul_(self.decay).add_(difference)
                difference.add_(momentum[start:end], alpha=self.decay)
            difference.mul_(self.learning_rate)
            # The common weights move; mine move from where the others saw me to there.
            common[start:end].sub_(difference)
            torch.sub(exchange.sent(start, end), difference, out=difference)
        torch._foreach_add_(slice.weights, parts(differences, slice.weights))
        self._sending = None

    def _average(self, tensors: list[Tensor], base: Tensor) -> None:
        exchange = Exchange(self.hosts, flatten(tensors) - base, "bf16", self._mean)
        self.bytes_sent += exchange.bytes_sent
        torch._foreach_copy_(tensors, parts(base + exchange.wait(), tensors))

    def _mean(self, values: list[Tensor]) -> Tensor:
        return total([each * share for each, share in zip(values, self.hosts.shares, strict=True)])

    def _long_mean(self, values: list[Tensor]) -> Tensor:
        return lengthen(self._mean(values), values, self.hosts.shares)


def lengthen(mean: Tensor, values: list[Tensor], shares: list[float]) -> Tensor:
    """Return the mean of differences, each block made as long as the blocks it is the mean of."""

    def square(difference: Tensor) -> Tensor:
        return blocks(difference).square().sum(1)

    lengths = total([square(each) * share for each, share in zip(values, shares, strict=True)])
    # Pure noise makes the mean shorter by the root of the sum of squared shares; more than that is chance.
    most = 1 / sum(share**2 for share in shares)
    gain = (lengths / square(mean)).nan_to_num(1.0).clamp(1.0, most).sqrt()
    return blocks(mean).mul(gain[:, None]).view(-1)[: len(mean)]


class Slice:
    """A range of all weights in one row, and the weights' own memory that it covers."""

    def __init__(self, rows: list[Tensor], start: int, end: int) -> None:
        self.start, self.end, self.weights = start, end, []
        place = 0
        for row in rows:
            covered = row[max(start - place, 0) : max(end - place, 0)]
            if len(covered):
                self.weights.append(covered)
            place += len(row)
