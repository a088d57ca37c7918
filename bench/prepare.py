"""How fast is `dragoman data prepare`, and how much memory does it take?

    python bench/prepare.py                          1,000,000 pairs of the built-in corpus
    python bench/prepare.py --src a.en --tgt a.de    your own text, compressed or not
    python bench/prepare.py --quick                  50,000 pairs, for a look

Prints seconds by stage, processor seconds of all processes, pairs per second and the peak memory of the whole
process tree (the sum of resident sizes, so shared pages count more than once). Mind the load before the start:
a machine that has other work shows it in seconds. The target: a million pairs in 90 s and 1.5 GB on 2 cores.
"""

import argparse
import json
import os
import tempfile
import threading
import time
from contextlib import suppress
from typing import Any

import psutil
from signature import signature

from dragoman.config import Recipe
from dragoman.data.prepare import prepare

SAMPLE_SECONDS = 0.05


class PeakMemory:
    """The largest sum of resident memory of this process and its children, while the block runs."""

    bytes = 0

    def __enter__(self) -> "PeakMemory":
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        this = psutil.Process()
        while not self._stop.wait(SAMPLE_SECONDS):
            resident = 0
            for process in (this, *this.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    resident += process.memory_info().rss
            self.bytes = max(self.bytes, resident)


def measure(train: Any, vocab_size: int, workers: int) -> dict[str, Any]:
    """Prepare ``train`` from scratch in a directory that is deleted afterwards; return the figures."""
    with tempfile.TemporaryDirectory() as directory, PeakMemory() as peak:
        recipe = Recipe.model_validate(
            {
                "data": {"train": train, "dev": "builtin", "directory": directory},
                "vocab": {"size": vocab_size},
                "train": {"steps": 1, "tokens_per_step": 1},
            }
        )
        load = os.getloadavg()[0]
        started, cpu_before = time.monotonic(), sum(os.times()[:4])
        manifest = prepare(recipe, workers=workers).manifest
        seconds, cpu_seconds = time.monotonic() - started, sum(os.times()[:4]) - cpu_before
    split = manifest["splits"]["train"]
    return {
        "pairs": split["lines"],
        "kept": split["pairs"],
        "tokens": split["tokens"],
        "vocab_size": manifest["vocab"]["size"],
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_seconds, 1),
        "stages": manifest["made"]["seconds"],
        "pairs_per_second": round(split["lines"] / seconds),
        "peak_mb": round(peak.bytes / 1e6),
        "workers": workers,
        "load_before": round(load, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--src", help="source text; without it, the built-in corpus")
    parser.add_argument("--tgt", help="target text")
    parser.add_argument("--pairs", type=int, default=1_000_000, help="size of the built-in corpus")
    parser.add_argument("--vocab-size", type=int, default=32_000)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--quick", action="store_true", help="50,000 pairs of the built-in corpus")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if (given.src is None) != (given.tgt is None):
        parser.error("give both --src and --tgt, or neither")
    train = [given.src, given.tgt] if given.src else f"builtin:{50_000 if given.quick else given.pairs}"
    figures = {**measure(train, given.vocab_size, given.workers), **signature()}
    if given.json:
        print(json.dumps(figures, indent=2))
        return
    for name, value in figures.items():
        print(f"{name:>18}  {value:,}" if isinstance(value, int) else f"{name:>18}  {value}")


if __name__ == "__main__":
    main()
