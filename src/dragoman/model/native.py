"""Calls ``fused.c``, what lies between matrix products on a CPU, in the best of its builds that this processor can run.

It is compiled when Dragoman is installed. Where no compiler was there, or the device is a GPU, ``kernels.py`` does the
same with torch's operations.
"""

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# What a build needs of the processor, in torch's words; the best comes first.
BUILDS = {
    "v4": ("avx512_f", "avx512_bw", "avx512_cd", "avx512_dq", "avx512_vl"),
    "v3": ("avx2", "bmi", "bmi2", "f16c", "fma3", "lzcnt"),
    "any": (),
}
TYPES = {torch.float32: "float", torch.bfloat16: "bf16"}
# Of arguments: n count, p tensor or None, + a sum over rows that each thread makes for itself, f float, s seed, i int.
KINDS = {
    "n": ctypes.c_int64,
    "p": ctypes.c_void_p,
    "+": ctypes.c_void_p,
    "f": ctypes.c_float,
    "s": ctypes.c_uint64,
    "i": ctypes.c_int,
}
# Without the rows [begin, end), with which each begins.
ARGUMENTS = {
    "dropout_rows": "nppsi",
    "residual_norm": "npppppfsippp",
    "residual_norm_back": "npppppsipp+++",
    "relu": "nppsi",
    "relu_back": "nppf+",
    "exponentials": "nppppp",
    "attend": "nnpppnppnpppisipnp",
    "attend_back": "nnpppnppnpppsipnpppp+++",
}
UNTYPED = ("dropout_rows",)
FEWEST = 2**17  # numbers of the largest tensor that are worth waking threads for


@cache
def library() -> ctypes.CDLL | None:
    """Return the best build that is there and runs here."""
    able = torch.cpu.get_capabilities()
    for build, needed in BUILDS.items():
        path = Path(__file__).with_name(f"_fused_{build}{EXTENSION_SUFFIXES[0]}")
        if path.exists() and all(able.get(unit) for unit in needed):
            return ctypes.CDLL(str(path))
    return None


def is_native(x: Tensor) -> bool:
    """Whether ``fused.c`` computes on this tensor."""
    return x.device.type == "cpu" and x.dtype in TYPES and library() is not None


def notice(device: torch.device) -> str | None:
    """Say what is missing, and what to do, where a CPU has to do without."""
    if device.type != "cpu" or library() is not None:
        return None
    return (
        "fused.c was not compiled when Dragoman was installed, so steps take longer. "
        "Install a C compiler (gcc or clang), then Dragoman again"
    )


def sums(width: int) -> Tensor:
    """Return room for a sum over rows: each thread makes one, and ``total`` adds them up."""
    return torch.zeros(torch.get_num_threads(), width)


def total(sums: Tensor) -> Tensor:
    return sums[0] if len(sums) == 1 else sums.sum(0)


def call(name: str, count: int, dtype: torch.dtype, *arguments: Any) -> None:
    """Run a function of ``fused.c`` over ``count`` rows or sentences, shared by torch's number of threads."""
    function, kinds = _function(name, dtype), ARGUMENTS[name]
    pointed = [each.data_ptr() if isinstance(each, Tensor) else each for each in arguments]
    threads = torch.get_num_threads()
    if threads == 1 or max(each.numel() for each in arguments if isinstance(each, Tensor)) < FEWEST:
        function(0, count, *pointed)
        return

    def part(number: int) -> None:
        own = [
            value + number * argument.stride(0) * argument.element_size() if kind == "+" else value
            for kind, value, argument in zip(kinds, pointed, arguments, strict=True)
        ]
        function(number * count // threads, (number + 1) * count // threads, *own)

    list(_pool(threads).map(part, range(threads)))  # ctypes lets other threads run meanwhile


@cache
def _function(name: str, dtype: torch.dtype) -> Callable[..., None]:
    function: Callable[..., None] = getattr(library(), name if name in UNTYPED else f"{name}_{TYPES[dtype]}")
    function.argtypes = [ctypes.c_int64, ctypes.c_int64, *(KINDS[kind] for kind in ARGUMENTS[name])]  # type: ignore[attr-defined]
    function.restype = None  # type: ignore[attr-defined]
    return function


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="rows")
