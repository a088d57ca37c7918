"""Number formats by device, and fp16's loss scale."""

import pytest
import torch

from dragoman.cluster.world import World
from dragoman.errors import UserError
from dragoman.train.checkpoint import State
from dragoman.train.precision import (
    GROW_AFTER_STEPS,
    NARROW,
    agree_on_precision,
    autocast,
    choose_precision,
    update_loss_scale,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("units", "d_model", "expected"),
    [
        ({"avx2": True}, 512, "float32"),
        ({"avx2": True, "avx512_bf16": False, "amx_bf16": False}, 512, "float32"),
        ({"avx512_bf16": True}, NARROW, "bf16"),
        ({"amx_bf16": True}, NARROW, "bf16"),
        ({"avx512_bf16": True}, NARROW - 8, "float32"),
    ],
)
def test_auto_on_a_cpu_depends_on_its_units_and_the_width(monkeypatch, units, d_model, expected):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: units)
    assert choose_precision("auto", CPU, d_model) == expected
    assert choose_precision("bf16", CPU, d_model) == "bf16"
    assert choose_precision("float32", CPU, d_model) == "float32"


@pytest.mark.parametrize(
    ("found", "agreed"),
    [
        (["bf16", "bf16"], "bf16"),
        (["bf16", "float32", "bf16"], "float32"),  # a host with an older CPU
        (["bf16", "fp16"], "fp16"),  # an A100 and a V100
    ],
)
def test_workers_with_different_devices_agree_on_what_all_do_well(found, agreed):
    class Mixed(World):
        def gather(self, value):
            return found

    assert agree_on_precision(Mixed(), "auto", 512) == agreed


def test_fp16_on_cpu_is_refused_with_a_way_out():
    with pytest.raises(UserError, match="fp16") as caught:
        choose_precision("fp16", CPU, 512)
    assert "precision" in caught.value.where


@pytest.mark.parametrize(
    ("bf16_supported", "expected"), [(True, "bf16"), (False, "fp16")], ids=["A100", "V100 or T4"]
)
def test_auto_on_a_gpu_depends_on_its_units(monkeypatch, bf16_supported, expected):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bf16_supported)
    assert choose_precision("auto", torch.device("cuda", 0), 64) == expected


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
