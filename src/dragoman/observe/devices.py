"""What devices can do, from their public data sheets, and what a Transformer gets out of them.

Training is matrix products, limited by arithmetic, and everything else (norms, dropout, softmax, residuals), limited by
memory. A product takes its FLOPs at ``OF_PEAK`` of the sheet's dense peak. The rest moves ``BYTES_PER_FLOP`` for each
FLOP of a model of width 1,024, and in proportion more in a narrower one, which is why small models get less out of the
same device. Both were fitted to one public measurement, a Transformer-big on one V100: 7,635 tokens/s in float32 and
32,153 in fp16 (README of NVIDIA DeepLearningExamples, PyTorch/Translation/Transformer). All else is from the sheets.
"""

import difflib
from dataclasses import dataclass

from dragoman.errors import UserError

OF_PEAK = 0.75
BYTES_PER_FLOP, AT_WIDTH = 0.011, 1024
LAUNCH_SECONDS = 8e-6  # of a GPU operation, at least; a micro-batch is a thousand of them
GB = 10**9


@dataclass(frozen=True)
class Device:
    """What a worker computes on."""

    name: str
    title: str
    tflops: dict[str, float]  # dense peak by precision
    memory_bytes: float
    memory_rate: float  # bytes per second
    within_rate: float  # bytes per second to another device of the same host, each way, as a ring gets them
    within_latency: float = 15e-6
    reserved_bytes: float = 0.8 * GB  # taken by the driver, its libraries and unusable gaps

    @property
    def is_gpu(self) -> bool:
        return self.name != "cpu"

    def precision(self, wanted: str) -> str:
        """Return what training computes in: what was asked for, or for ``auto`` what the device does well."""
        if wanted == "fp16" and not self.is_gpu:
            raise UserError(
                "fp16 arithmetic needs a GPU",
                where="[train] precision",
                fix='set train.precision to "auto", "float32" or "bf16"',
            )
        if wanted == "auto":
            return next(each for each in ("bf16", "fp16", "float32") if each in self.tflops)
        if wanted not in self.tflops:
            raise UserError(
                f"{self.title} has no {wanted} arithmetic",
                where="[train] precision",
                fix=f'set train.precision to "auto", or to one of: {", ".join(self.tflops)}',
            )
        return wanted

    def flops_per_second(self, precision: str, width: int) -> float:
        """Return the FLOPs a second that training a Transformer of this width achieves."""
        product = 1 / (self.tflops[precision] * 1e12 * OF_PEAK)
        rest = BYTES_PER_FLOP * AT_WIDTH / width / self.memory_rate
        return 1 / (product + rest)


def _gpu(
    name: str, title: str, half: str, peak: float, float32: float, gigabytes: int, rate: float, within: float
) -> Device:
    halves = {"bf16": peak, "fp16": peak} if half == "bf16" else {"fp16": peak}
    return Device(name, title, {**halves, "float32": float32}, gigabytes * GB, rate * GB, within * GB)


# Peak of tensor cores with float32 sums, without sparsity; float32 without TF32, which torch leaves off. Rates within a
# host: NVLink where the usual machine has it, else what a ring over PCIe gets.
DEVICES = {
    device.name: device
    for device in [
        _gpu("v100", "NVIDIA V100 16 GB", "fp16", 125, 15.7, 16, 900, 10),
        _gpu("a100", "NVIDIA A100 40 GB", "bf16", 312, 19.5, 40, 1555, 200),
        _gpu("h100", "NVIDIA H100 80 GB", "bf16", 989, 67, 80, 3350, 350),
        _gpu("l4", "NVIDIA L4 24 GB", "bf16", 121, 30.3, 24, 300, 10),
        _gpu("t4", "NVIDIA T4 16 GB", "fp16", 65, 8.1, 16, 320, 6),
        _gpu("rtx3090", "NVIDIA RTX 3090 24 GB", "bf16", 71, 35.6, 24, 936, 10),
        _gpu("rtx4090", "NVIDIA RTX 4090 24 GB", "bf16", 165, 82.6, 24, 1008, 10),
        # One core with AVX2 at 2.4 GHz; what a worker may use of memory is a guess at a small server.
        Device("cpu", "one CPU core", {"float32": 0.075}, 8 * GB, 10 * GB, 2 * GB, 30e-6, 0.5 * GB),
    ]
}


def find_device(name: str) -> Device:
    """Return the device of that name; an unknown one is told the nearest."""
    plain = name.lower().replace(" ", "").replace("-", "").removeprefix("nvidia")
    if plain in DEVICES:
        return DEVICES[plain]
    near = difflib.get_close_matches(plain, DEVICES, 1, 0.4)
    raise UserError(
        f"there is no device {name}",
        where=f"--device {name}",
        fix=(f"did you mean {near[0]}? " if near else "") + f"known: {', '.join(DEVICES)}; any other machine "
        "can be measured with --measure",
    )
