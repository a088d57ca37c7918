"""Number formats: which one a device computes in, and the loss scale that keeps fp16 gradients alive."""

from contextlib import AbstractContextManager, nullcontext

import torch

from dragoman.errors import UserError
from dragoman.train.checkpoint import State

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
FIRST_LOSS_SCALE = 2.0**15
GROW_AFTER_STEPS = 2000


def choose_precision(wanted: str, device: torch.device) -> str:
    """Return float32, bf16 or fp16: what was asked for, or for ``auto`` what the device does well."""
    if wanted == "fp16" and device.type != "cuda":
        raise UserError(
            "fp16 arithmetic needs a GPU",
            where="[train] precision",
            fix='set train.precision to "auto", "float32" or "bf16"',
        )
    if wanted != "auto":
        return wanted
    if device.type != "cuda":
        return "float32"
    return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"


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
