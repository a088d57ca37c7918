"""Matrix products on a CPU: which library computes them in float32, and how much it remembers of what it has computed.

Torch gives float32 products to MKL, which knows no vectors of 512 bits on AMD's processors: since Zen 5 it uses half of
their units, on Zen 4 it issues twice as many instructions. oneDNN, to which torch gives bf16, knows them. Torch offers
no setting that says so: it asks oneDNN for float32 products where factors may be rounded to bf16, and with vectors
alone oneDNN does not round (decision 15).
"""

import os
from pathlib import Path

import torch

CPU_INFO = Path("/proc/cpuinfo")
# oneDNN compiles a product anew for every number of rows, and torch keeps each of 1,024 such programs twice, at a
# megabyte each: half a gigabyte after twenty steps. Micro-batches come in ever new sizes, so few are used again.
KEPT_PROGRAMS = 32
CAPACITIES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
SIZE = 256  # of the matrices that show whether factors are rounded
TOLERANCE = 1e-4  # of products of numbers about one; rounding to bf16 would give a hundred times that


def set_up_products() -> None:
    """Make products in this process fast and forgetful. To be called before the first one: later nothing is read."""
    for name in CAPACITIES:
        os.environ.setdefault(name, str(KEPT_PROGRAMS))
    if mkl_is_narrow() and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        left, right = (
            torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)
        )
        exact = left.double() @ right.double()
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"  # type: ignore[attr-defined]
        if (left @ right - exact).abs().max() > TOLERANCE * SIZE**0.5:
            torch.backends.mkldnn.matmul.fp32_precision = "none"  # type: ignore[attr-defined]


def mkl_is_narrow() -> bool:
    """Whether MKL leaves out this CPU's wide vectors. It asks and measures nothing: a resumed run must agree."""
    try:
        lines = CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return facts.get("vendor_id") == "AuthenticAMD" and "avx512f" in facts.get("flags", "").split()
