"""Number formats by device, and fp16's loss scale."""

import pytest
import torch

from dragoman.errors import UserError
from dragoman.train.checkpoint import State
from dragoman.train.precision import GROW_AFTER_STEPS, autocast, choose_precision, update_loss_scale

CPU = torch.device("cpu")


def test_auto_is_float32_on_cpu():
    assert choose_precision("auto", CPU) == "float32"
    assert choose_precision("bf16", CPU) == "bf16"


def test_fp16_on_cpu_is_refused_with_a_way_out():
    with pytest.raises(UserError, match="fp16") as caught:
        choose_precision("fp16", CPU)
    assert "precision" in caught.value.where


@pytest.mark.parametrize(
    ("bf16_supported", "expected"), [(True, "bf16"), (False, "fp16")], ids=["A100", "V100 or T4"]
)
def test_auto_on_a_gpu_depends_on_its_units(monkeypatch, bf16_supported, expected):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bf16_supported)
    assert choose_precision("auto", torch.device("cuda", 0)) == expected


def test_autocast_computes_in_the_chosen_format():
    layer = torch.nn.Linear(2, 2)
    with autocast("bf16", CPU):
        assert layer(torch.ones(1, 2)).dtype is torch.bfloat16
    with autocast("float32", CPU):
        assert layer(torch.ones(1, 2)).dtype is torch.float32


def test_the_loss_scale_halves_on_overflow_and_grows_after_a_quiet_time():
    state = State(loss_scale=8.0)
    update_loss_scale(state, overflow=True)
    assert state.loss_scale == 4.0
    for _ in range(GROW_AFTER_STEPS):
        update_loss_scale(state, overflow=False)
    assert state.loss_scale == 8.0
    state.loss_scale = 1.0
    update_loss_scale(state, overflow=True)
    assert state.loss_scale == 1.0
