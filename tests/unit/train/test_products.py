"""Which library multiplies, and that what it gives is still float32."""

import json
import os
import subprocess
import sys

import pytest

from dragoman.train import products

PROGRAM = """
import json, os, sys, torch
from dragoman.train import products
products.mkl_is_narrow, products.TOLERANCE = lambda: sys.argv[1] == "narrow", float(sys.argv[2])
products.set_up_products()
left, right = torch.randn(300, 200), torch.randn(200, 100)
told = {
    "setting": torch.backends.mkldnn.matmul.fp32_precision,
    "error": (left @ right - (left.double() @ right.double())).abs().max().item(),
    "seen": [os.environ[name] for name in products.CAPACITIES],
}
print(json.dumps(told))
"""


def set_up(kind: str, tolerance: float = products.TOLERANCE, **environment: str) -> dict:
    command = [sys.executable, "-c", PROGRAM, kind, str(tolerance)]
    surroundings = {name: value for name, value in os.environ.items() if name not in products.CAPACITIES}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**surroundings, **environment}
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("kind", ["narrow", "wide"])
def test_products_are_float32_whoever_computes_them(kind):
    assert set_up(kind)["error"] < 1e-3


def test_a_cpu_that_mkl_serves_well_is_left_alone():
    assert set_up("wide")["setting"] == "none"


def test_a_permission_that_would_be_used_to_round_is_taken_back():
    assert set_up("narrow", tolerance=0.0)["setting"] == "none"


def test_few_programs_are_kept_unless_the_user_says_otherwise():
    assert set_up("wide")["seen"] == ["32", "32"]
    assert set_up("wide", LRU_CACHE_CAPACITY="7")["seen"] == ["32", "7"]


@pytest.mark.parametrize(
    ("vendor", "family", "flags", "expected"),
    [
        ("AuthenticAMD", "26", "fma avx512f avx512_bf16", True),  # Zen 5
        ("AuthenticAMD", "25", "fma avx512f avx512_bf16", True),  # Zen 4
        ("AuthenticAMD", "25", "fma avx2", False),  # Zen 3
        ("AuthenticAMD", "26", "fma avx2", False),
        ("GenuineIntel", "26", "fma avx512f", False),
    ],
)
def test_the_processor_tells(monkeypatch, tmp_path, vendor, family, flags, expected):
    info = f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nflags\t\t: {flags}\n\nprocessor\t: 1\n"
    monkeypatch.setattr(products, "CPU_INFO", tmp_path / "cpuinfo")
    assert not products.mkl_is_narrow()  # where there is no such file
    (tmp_path / "cpuinfo").write_text(info)
    assert products.mkl_is_narrow() is expected
