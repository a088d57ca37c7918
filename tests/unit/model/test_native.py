"""Which build of fused.c is taken, and that all of them compute alike."""

import ctypes
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
import torch

from dragoman.model import native
from dragoman.model.kernels import exponentials

AVX2 = dict.fromkeys(native.BUILDS["v3"], True)
AVX512 = AVX2 | dict.fromkeys(native.BUILDS["v4"], True)


@pytest.fixture
def fresh():
    """Look for the library anew, and again afterwards."""
    for each in (native.library, native._function):
        each.cache_clear()
    yield
    for each in (native.library, native._function):
        each.cache_clear()


def choice(monkeypatch, tmp_path, able, builds):
    """Return the build that is taken where only some are there."""
    for build in builds:
        (tmp_path / f"_fused_{build}{EXTENSION_SUFFIXES[0]}").touch()
    monkeypatch.setattr(native, "__file__", str(tmp_path / "native.py"))
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able)
    monkeypatch.setattr(ctypes, "CDLL", lambda path: Path(path).name.split(".")[0].removeprefix("_fused_"))
    return native.library()


@pytest.mark.parametrize(
    ("able", "builds", "expected"),
    [
        (AVX512, ["v4", "v3", "any"], "v4"),
        (AVX2, ["v4", "v3", "any"], "v3"),
        ({}, ["v4", "v3", "any"], "any"),
        (AVX512 | {"avx512_dq": False}, ["v4", "v3"], "v3"),
        (AVX512, ["any"], "any"),
        (AVX512, [], None),
        ({}, ["v4", "v3"], None),
    ],
)
def test_the_best_build_that_the_processor_can_run(fresh, monkeypatch, tmp_path, able, builds, expected):
    assert choice(monkeypatch, tmp_path, able, builds) == expected


@pytest.mark.parametrize("build", native.BUILDS)
def test_every_build_that_runs_here_computes_alike(fresh, monkeypatch, build):
    able = torch.cpu.get_capabilities()
    if not all(able.get(unit) for unit in native.BUILDS[build]):
        pytest.skip(f"this processor cannot run {build}")
    logits = torch.randn(40, 100, generator=torch.Generator().manual_seed(1)) * 9
    target = torch.zeros(40, dtype=torch.long)
    expected = torch.logsumexp(logits.double(), 1)
    monkeypatch.setattr(native, "BUILDS", {build: native.BUILDS[build]})
    assert native.library() is not None
    assert f"_fused_{build}." in native.library()._name
    _, sums, largest, _ = exponentials(logits.clone(), target)
    torch.testing.assert_close(largest.double() + sums.double().log(), expected, rtol=1e-6, atol=1e-6)


def test_without_a_build_torch_computes(fresh, monkeypatch, tmp_path):
    monkeypatch.setattr(native, "__file__", str(tmp_path / "native.py"))
    assert not native.is_native(torch.zeros(2, 2))
    assert "Install a C compiler" in native.notice(torch.device("cpu"))
    assert native.notice(torch.device("cuda")) is None


def test_nothing_is_said_where_nothing_is_missing():
    assert native.notice(torch.device("cpu")) is None
