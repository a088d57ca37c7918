"""Numbers on the wire: what a tensor is turned into before it travels, and what travelling costs in bytes.

``float32`` is exact; ``bf16`` and ``fp16`` take half the bytes. ``int8`` and ``int4`` take about a quarter and an
eighth: 64 numbers in a row share a scale, their largest magnitude. Such numbers cannot be summed on their way, so
everybody sends theirs to everybody, and all combine the same numbers in the same order into the same bits.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from dragoman.cluster.estimate import BLOCK, LEVELS, all_gather_bytes, padded

Group = dist.ProcessGroup

DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# Numbers handled at a time on a CPU: they stay in its cache, which makes rounding five times faster.
CHUNK = 2**18


def encode(values: Tensor, wire: str) -> tuple[Tensor, Tensor]:
    """Return flat float32 numbers as bytes, and as the numbers that ``decode`` will make of them.

    A block with a number that is not finite is decoded to numbers that are not: nothing wrong is made to look right.
    """
    if wire in DTYPES:
        rounded = values.to(DTYPES[wire])
        return rounded.view(torch.uint8), rounded.to(torch.float32, copy=True)
    numbers, total = len(values), padded(len(values))
    seen = torch.nn.functional.pad(values, (0, total - numbers))
    scales = torch.empty(total // BLOCK, dtype=torch.bfloat16, device=values.device)
    wholes = torch.empty(total, dtype=torch.int8, device=values.device)
    for start, end in _chunks(seen):
        part = seen[start:end].view(-1, BLOCK)
        scale = (part.abs().amax(1) / LEVELS[wire]).to(torch.bfloat16)
        scales[start // BLOCK : end // BLOCK] = scale
        factor = scale.to(torch.float32)[:, None]
        part.div_(factor.clamp_min(torch.finfo(torch.float32).tiny)).round_()
        wholes[start:end] = part.view(-1).to(torch.int8)
        part.mul_(factor)
    if wire == "int4":
        low, high = wholes.view(2, -1)  # the first half in the lower four bits
        wholes = low.bitwise_and_(15).bitwise_or_(high << 4)
    return torch.cat([wholes.view(torch.uint8), scales.view(torch.uint8)]), seen[:numbers]


def decode(data: Tensor, numbers: int, wire: str) -> Tensor:
    """Return the float32 numbers that ``encode`` said it would be."""
    if wire in DTYPES:
        return data.view(DTYPES[wire]).to(torch.float32)
    blocks = padded(numbers) // BLOCK
    scales = data[-blocks * torch.bfloat16.itemsize :].view(torch.bfloat16)
    wholes = data[: -blocks * torch.bfloat16.itemsize].view(torch.int8)
    if wire == "int4":
        wholes = torch.cat([wholes << 4 >> 4, wholes >> 4])  # shifting right keeps the sign
    values = torch.empty(len(wholes), device=data.device)
    for start, end in _chunks(values):
        factor = scales[start // BLOCK : end // BLOCK].to(torch.float32)[:, None]
        torch.mul(wholes[start:end].view(-1, BLOCK), factor, out=values[start:end].view(-1, BLOCK))
    return values[:numbers]


class Gather:
    """Everybody's flat float32 numbers, on their way. ``sent`` is what the others will see of mine."""

    def __init__(self, values: Tensor, wire: str, group: Group) -> None:
        self._numbers, self._wire, self._me = len(values), wire, group.rank()
        members = group.size()
        data, self.sent = encode(values, wire)
        self.bytes_sent = all_gather_bytes(len(data), members)
        self._all = [torch.empty_like(data) for _ in range(members)]
        self._work = dist.all_gather(self._all, data, group=group, async_op=True)

    def drain(self) -> None:
        """Wait until all has arrived."""
        self._work.wait()

    def wait(self) -> list[Tensor]:
        """Return the numbers of all members in order, the same bits for every member."""
        self.drain()
        return [
            self.sent if member == self._me else decode(data, self._numbers, self._wire)
            for member, data in enumerate(self._all)
        ]


def _chunks(values: Tensor) -> list[tuple[int, int]]:
    size = len(values) if values.is_cuda else CHUNK
    return [(start, min(start + size, len(values))) for start in range(0, len(values), max(size, 1))]
