"""Number formats: which one the world computes in, and the loss scale that keeps fp16 gradients alive."""

from contextlib import AbstractContextManager, nullcontext

import torch

from dragoman.cluster.world import World
from dragoman.errors import UserError
from dragoman.train.checkpoint import State

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
MILDEST_FIRST = ("float32", "fp16", "bf16")  # a GPU that has bf16 has fp16, and everything has float32
# Of a CPU, as torch calls them; others compute bf16 slower than float32.
BF16_UNITS = ("avx512_bf16", "amx_bf16")
NARROW = 128  # below, bf16 gains nothing: most of the time goes to what is no product (decision 14)
FIRST_LOSS_SCALE = 2.0**15
GROW_AFTER_STEPS = 2000


def agree_on_precision(world: World, wanted: str, d_model: int) -> str:
    """Return what all workers compute in: their devices may differ, and then it is what all of them do well."""
    choices: list[str] = world.gather(choose_precision(wanted, world.device, d_model))
    return min(choices, key=MILDEST_FIRST.index)


def choose_precision(wanted: str, device: torch.device, d_model: int) -> str:
    """Return float32, bf16 or fp16: what was asked for, or for ``auto`` what the device does well."""
    if wanted == "fp16" and device.type != "cuda":
        raise UserError(
            "fp16 arithmetic needs a GPU",
            where="[train] precision",
            fix='set train.precision to "auto", "float32" or "bf16"',
        )
    if wanted != "auto":
        return wanted
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    has_units = any(torch.cpu.get_capabilities().get(unit) for unit in BF16_UNITS)
    return "bf16" if has_units and d_model >= NARROW else "float32"


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Surround forward passes; weights, gradients and the optimizer stay float32."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, DTYPES[precision])


def update_loss_scale(state: State, *, overflow: bool) -> None:
    """Halve fp16's loss scale when gradients overflowed, double it after a long time without."""
    if overflow:
        state.loss_scale, state.loss_scale_age = max(1.0, state.loss_scale / 2), 0
    else:
        state.loss_scale_age += 1
        if state.loss_scale_age >= GROW_AFTER_STEPS:
            state.loss_scale, state.loss_scale_age = state.loss_scale * 2, 0
