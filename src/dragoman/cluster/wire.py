"""Numbers on the wire: what a tensor is turned into before it travels, and what travelling costs in bytes.

``float32`` is exact; ``bf16`` and ``fp16`` take half the bytes. ``int8`` and ``int4`` take about a quarter and an
eighth: 64 numbers in a row share a scale, their largest magnitude. Such numbers cannot be summed on their way, so
everybody sends theirs to everybody, and all combine the same numbers in the same order into the same bits.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from dragoman.cluster.estimate import BLOCK, BYTES, LEVELS, all_gather_bytes

Group = dist.ProcessGroup

DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# Numbers handled at a time on a CPU: they stay in its cache, which makes rounding several times faster.
CHUNK = 2**18


def encode(values: Tensor, wire: str, more: Tensor | None = None, weight: float = 1.0) -> Tensor:
    """Return flat float32 numbers as bytes, and leave in ``values`` what rounding lost of them.

    ``weight`` times ``more`` is added to the numbers first. A block with a number that is not finite is decoded to
    numbers that are not: nothing wrong is made to look right.
    """
    if wire in DTYPES:
        if more is not None:
            values.add_(more, alpha=weight)
        rounded = values.to(DTYPES[wire], copy=True)
        values.sub_(rounded)
        return rounded.view(torch.uint8)
    data, wholes, scales = _room(len(values), wire, values.device)
    for start, end in chunks(values):
        part = values[start:end]
        if more is not None:
            part.add_(more[start:end], alpha=weight)
        rows = slice(start // BLOCK, -(-end // BLOCK))
        block = blocks(part)
        scale = block.abs().amax(1).div_(LEVELS[wire]).to(torch.bfloat16)
        factor = scale.to(torch.float32)[:, None]
        rounded = block.div(factor.clamp_min(torch.finfo(torch.float32).tiny)).round_()
        scales[rows] = scale
        _pack(rounded, wholes[rows])
        part.sub_(rounded.mul_(factor).view(-1)[: len(part)])
    return data


def decode(data: Tensor, numbers: int, wire: str, start: int = 0, end: int | None = None) -> Tensor:
    """Return the float32 numbers that ``encode`` was given, without what it left; all, or those of whole blocks."""
    end = numbers if end is None else end
    if wire in DTYPES:
        return data.view(DTYPES[wire])[start:end].to(torch.float32)
    rows = slice(start // BLOCK, -(-end // BLOCK))
    _, wholes, scales = _room(numbers, wire, data.device, data)
    factor = scales[rows].to(torch.float32)[:, None]
    return _unpack(wholes[rows]).mul_(factor).view(-1)[: end - start]


def chunks(values: Tensor) -> list[tuple[int, int]]:
    """Return the bounds of the pieces, of whole blocks, that are best handled one after the other."""
    size = len(values) if values.is_cuda else CHUNK
    return [(start, min(start + size, len(values))) for start in range(0, len(values), max(size, 1))]


def _room(
    numbers: int, wire: str, device: torch.device, data: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return bytes for that many numbers, new if not given, as rows of wholes and scales, one for each block."""
    count = -(-numbers // BLOCK)
    width = BLOCK // 2 if wire == "int4" else BLOCK
    if data is None:
        data = torch.empty(count * (width + BYTES["bf16"]), dtype=torch.uint8, device=device)
    wholes, scales = data[: count * width], data[count * width :]
    return data, wholes.view(torch.int8).view(count, width), scales.view(torch.bfloat16)


def blocks(values: Tensor) -> Tensor:
    """Return flat numbers as rows of a block each, the last one filled with zeros."""
    short = -len(values) % BLOCK
    return (torch.nn.functional.pad(values, (0, short)) if short else values).view(-1, BLOCK)


def _pack(rounded: Tensor, room: Tensor) -> None:
    """Put whole numbers into bytes; of two small ones, one in each half of a block, low + 16 · high has room in one."""
    if room.shape[1] == BLOCK:
        room.copy_(rounded)
    else:
        low, high = rounded[:, : BLOCK // 2], rounded[:, BLOCK // 2 :]
        room.copy_(low.add(high, alpha=16))


def _unpack(packed: Tensor) -> Tensor:
    """Return the whole numbers of ``_pack``, as float32."""
    bytes_ = packed.to(torch.float32)
    if packed.shape[1] == BLOCK:
        return bytes_
    wholes = bytes_.new_empty(len(packed), BLOCK)
    low, high = wholes[:, : BLOCK // 2], wholes[:, BLOCK // 2 :]
    torch.mul(bytes_, 1 / 16, out=high).round_()
    torch.sub(bytes_, high, alpha=16, out=low)
    return wholes


def add_up(values: Tensor, group: Group) -> None:
    """Turn numbers into the sums of all members'."""
    dist.all_reduce(values, group=group)


class Gather:
    """Everybody's bytes for as many numbers, on their way."""

    def __init__(self, data: Tensor, numbers: int, wire: str, group: Group) -> None:
        self._numbers, self._wire = numbers, wire
        members = group.size()
        self.bytes_sent = all_gather_bytes(len(data), members)
        self._all = [torch.empty_like(data) for _ in range(members)]
        self._work = dist.all_gather(self._all, data, group=group, async_op=True)

    def drain(self) -> None:
        """Wait until all has arrived."""
        self._work.wait()

    def numbers(self, start: int, end: int) -> list[Tensor]:
        """Return a piece of all members' numbers in order, the same bits for every member."""
        return [decode(data, self._numbers, self._wire, start, end) for data in self._all]
