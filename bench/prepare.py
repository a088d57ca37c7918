"""How fast is `dragoman data prepare`, how much memory does it take, and does it grow with the text?

    python bench/prepare.py                                     1,000,000 pairs of the built-in corpus
    python bench/prepare.py --sizes 250000,1000000,4500000      several sizes: is the growth linear?
    python bench/prepare.py --no-language-id                    all default rules but that one
    python bench/prepare.py --src a.en --tgt a.de               your own text, compressed or not
    python bench/prepare.py --rules                             microseconds of each rule, in one process
    python bench/prepare.py --quick                             50,000 pairs, for a look

Prints seconds by stage, processor seconds of all processes, pairs per second and the peak memory of the whole
process tree (the sum of resident sizes, so shared pages count more than once). Beside it stands what nobody can do
without: SentencePiece alone on the same pairs, in one process (`--no-baseline` leaves it out). Mind the load before the
start: a machine that has other work shows it in seconds.

The targets on 2 cores: 4.5 million pairs without language identification in 8 minutes and 2 GB; with it in twice the
time; and pairs per second that stay the same from 0.25 to 4.5 million.
"""

import argparse
import json
import os
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
from signature import signature

from dragoman.config import Recipe
from dragoman.data.corpora import corpora
from dragoman.data.prepare import prepare
from dragoman.data.rules import FILTERS, Pairs, is_off
from dragoman.data.shards import TOKENIZER
from dragoman.data.text import normalise_lines
from dragoman.data.tokenizer import Tokenizer

SAMPLE_SECONDS = 0.05
BASELINE_PAIRS = 100_000  # to measure SentencePiece alone; it knows no growth
RULES_CHUNKS = 12


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


def make_recipe(train: Any, directory: str, given: argparse.Namespace) -> Recipe:
    return Recipe.model_validate(
        {
            "data": {
                "train": train,
                "dev": "builtin",
                "directory": directory,
                "src_lang": given.src_lang,
                "tgt_lang": given.tgt_lang,
            },
            "filter": {} if given.language_id else {"max_other_language": 1.0},
            "vocab": {"size": given.vocab_size},
            "train": {"steps": 1, "tokens_per_step": 1},
        }
    )


def measure(train: Any, given: argparse.Namespace) -> dict[str, Any]:
    """Prepare ``train`` from scratch in a directory that is deleted afterwards; return the figures."""
    with tempfile.TemporaryDirectory() as directory:
        recipe = make_recipe(train, directory, given)
        load = os.getloadavg()[0]
        with PeakMemory() as peak:
            started, cpu_before = time.monotonic(), sum(os.times()[:4])
            dataset = prepare(recipe, workers=given.workers)
            seconds, cpu_seconds = time.monotonic() - started, sum(os.times()[:4]) - cpu_before
        manifest = dataset.manifest
        split = manifest["splits"]["train"]
        figures = {
            "pairs": split["lines"],
            "kept": split["pairs"],
            "tokens": split["tokens"],
            "vocab_size": manifest["vocab"]["size"],
            "language_id": given.language_id,
            "seconds": round(seconds, 1),
            "cpu_seconds": round(cpu_seconds, 1),
            "stages": manifest["made"]["seconds"],
            "pairs_per_second": round(split["lines"] / seconds),
            "peak_mb": round(peak.bytes / 1e6),
            "dropped": {name: each["pairs"] for name, each in manifest["dropped"].items() if each["pairs"]},
            "workers": given.workers,
            "load_before": round(load, 2),
        }
        if given.baseline:
            figures["sentencepiece_alone"] = encode_alone(recipe, dataset.path / TOKENIZER)
        return figures


def encode_alone(recipe: Recipe, model: Path) -> dict[str, Any]:
    """Return how fast SentencePiece encodes pairs of the text, in one process, with nothing around it."""
    src: list[str] = []
    tgt: list[str] = []
    for chunk in corpora(recipe)["train"][0].chunks():
        for side, lines in zip((src, tgt), chunk.decode(), strict=True):
            side += lines
        if len(src) >= BASELINE_PAIRS:
            break
    tokenizer = Tokenizer.load(model)
    started = time.process_time()
    tokenizer.encode(src)
    tokenizer.encode(tgt)
    return {"pairs": len(src), "pairs_per_second": round(len(src) / (time.process_time() - started))}


def measure_rules(train: Any, given: argparse.Namespace) -> dict[str, Any]:
    """Return the processor time of each rule for a pair, and of what several share, in microseconds."""
    seconds: Counter[str] = Counter()
    pairs = 0

    def timed(name: str, work: Any) -> Any:
        started = time.process_time()
        result = work()
        seconds[name] += time.process_time() - started
        return result

    recipe = make_recipe(train, "datasets", given)
    languages = (given.src_lang, given.tgt_lang)
    for number, chunk in enumerate(islice(corpora(recipe)["train"][0].chunks(), RULES_CHUNKS + 1)):
        sides = timed("(reading)", chunk.decode)
        src, tgt = timed("(normalising)", lambda sides=sides: list(map(normalise_lines, sides)))
        each = Pairs(src, tgt, languages)
        for shared in ("kinds", "words", "exact_hashes", "near_hashes"):
            timed(f"({shared})", partial(getattr, each, shared))
        for name, rule in FILTERS.items():
            if not is_off(name, recipe.filter):
                timed(name, partial(rule, each, recipe.filter))
        pairs += len(each)
        if number == 0:  # which loads tables and models
            seconds, pairs = Counter(), 0
    return {
        "pairs": pairs,
        "microseconds": {name: round(value / pairs * 1e6, 2) for name, value in seconds.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--src", help="source text; without it, the built-in corpus")
    parser.add_argument("--tgt", help="target text")
    parser.add_argument("--src-lang", default="en")
    parser.add_argument("--tgt-lang", default="de")
    parser.add_argument("--pairs", type=int, default=1_000_000, help="size of the built-in corpus")
    parser.add_argument("--sizes", help="several sizes of the built-in corpus, with commas between them")
    parser.add_argument("--language-id", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--baseline", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--rules", action="store_true", help="the time of each rule instead")
    parser.add_argument("--vocab-size", type=int, default=32_000)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--quick", action="store_true", help="50,000 pairs of the built-in corpus")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if (given.src is None) != (given.tgt is None):
        parser.error("give both --src and --tgt, or neither")
    sizes = (
        [50_000] if given.quick else list(map(int, given.sizes.split(","))) if given.sizes else [given.pairs]
    )
    texts = [[given.src, given.tgt]] if given.src else [f"builtin:{size}" for size in sizes]
    results = [(measure_rules if given.rules else measure)(text, given) for text in texts]
    if given.json:
        print(json.dumps({"results": results, **signature()}, indent=2))
        return
    for figures in results:
        for name, value in {**figures, **signature()}.items():
            print(f"{name:>20}  {value:,}" if type(value) is int else f"{name:>20}  {value}")
        print()
    if len(results) > 1 and not given.rules:
        print(
            f"{'pairs':>12}{'seconds':>10}{'µs a pair':>11}{'pairs/s':>10}{'peak MB':>9}{'against the first':>19}"
        )
        first = results[0]["seconds"] / results[0]["pairs"]
        for each in results:
            pace = each["seconds"] / each["pairs"]
            print(
                f"{each['pairs']:>12,}{each['seconds']:>10,.1f}{pace * 1e6:>11.1f}{each['pairs_per_second']:>10,}"
                f"{each['peak_mb']:>9,}{pace / first:>18.2f}×"
            )


if __name__ == "__main__":
    main()
