"""What this worker's device is, and how fast it multiplies matrices: the measure of how well a run uses it."""

import platform
import time
from pathlib import Path

import torch

from dragoman.cluster.world import World
from dragoman.config import Model
from dragoman.train.precision import DTYPES

SECONDS = 0.3  # for all shapes together, unless a single product takes longer
CPU_ROWS, CPU_SQUARE, GPU_ROWS, GPU_SQUARE = (
    512,
    512,
    8192,
    4096,
)  # large enough to be fast, a few milliseconds each


def measure_peak(world: World, precision: str, cfg: Model, tokens: int) -> float:
    """Return the best rate of matrix products, in operations a second: the model's own shapes, and a square.

    All workers measure at the same time: those of one host share its power and memory as they do in training.
    """
    on_gpu = world.device.type == "cuda"
    rows = min(tokens, GPU_ROWS if on_gpu else CPU_ROWS)
    square = GPU_SQUARE if on_gpu else CPU_SQUARE
    width, inner = cfg.d_model, cfg.feed_forward
    shapes = [(square, square, square), (rows, width, 3 * width), (rows, width, inner), (rows, inner, width)]
    world.sum(torch.zeros(1))  # all begin together
    return max(_rate(shape, world.device, precision, SECONDS / len(shapes)) for shape in shapes)


def device_name(device: torch.device) -> str:
    """Return what the device calls itself."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def gpu_id(device: torch.device) -> str | None:
    """Return the name by which NVML knows this GPU, however its numbers are arranged; None if it is none."""
    if device.type != "cuda":
        return None
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def _rate(shape: tuple[int, int, int], device: torch.device, precision: str, seconds: float) -> float:
    rows, inner, columns = shape
    # Random, because a GPU is faster on numbers that are all alike; from a generator of its own, because training's
    # is not to be disturbed.
    generator = torch.Generator().manual_seed(0)
    left, right = (
        torch.randn(*size, generator=generator).to(device, DTYPES.get(precision, torch.float32))
        for size in ((rows, inner), (inner, columns))
    )
    out = left @ right  # the first is slow
    best, ends = float("inf"), time.perf_counter() + seconds
    while True:
        _finish(device)
        began = time.perf_counter()
        torch.mm(left, right, out=out)
        _finish(device)
        ended = time.perf_counter()
        best = min(best, ended - began)
        if ended >= ends:
            return 2.0 * rows * inner * columns / best


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
