"""How fast is `dragoman data prepare`, how much memory does it take, and does it grow with the text?

    python bench/prepare.py                                     1,000,000 pairs of the built-in corpus
    python bench/prepare.py --sizes 250000,1000000,4500000      several sizes: is the growth linear?
    python bench/prepare.py --no-language-id                    all default rules but that one
    python bench/prepare.py --src a.en --tgt a.de               your own text, compressed or not
    python bench/prepare.py --rules                             microseconds of each rule, in one process
    python bench/prepare.py --quick                             50,000 pairs, three turns

Prints seconds by stage, processor seconds of all processes, pairs per second and the peak memory of the whole
process tree (the sum of resident sizes, so shared pages count more than once). The built-in corpus is written to files
first, which is not counted. Mind the load before the start: a machine that has other work shows it in seconds.

Beside it stands, by turns and on the same files, what one does *by hand* for OpenNMT-py, Eole, Sockeye or Marian:
learn a vocabulary with SentencePiece, encode both files with it on all cores, write the result. That cleans nothing,
looks for no overlap and counts nothing, so it is at once the limit. `--no-baseline` leaves it out.

The targets on 2 cores: 4.5 million pairs without language identification in 8 minutes and 2 GB; with it in twice the
time; and pairs per second that stay the same from 0.25 to 4.5 million.
"""

import argparse
import io
import os
import statistics
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import psutil
import sentencepiece
from figures import options, write_figures
from signature import signature

from dragoman.config import Recipe, Vocab
from dragoman.data.builtin import sentences
from dragoman.data.corpora import corpora
from dragoman.data.formats import open_lines
from dragoman.data.prepare import prepare
from dragoman.data.rules import FILTERS, Pairs, is_off
from dragoman.data.text import normalise_lines
from dragoman.machine import usable_cores

SAMPLE_SECONDS = 0.05
WRITTEN_AT_ONCE = 50_000  # lines
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


def make_recipe(text: tuple[str, str], directory: str, given: argparse.Namespace) -> Recipe:
    return Recipe.model_validate(
        {
            "data": {
                "train": list(text),
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


def write_built_in(pairs: int, directory: Path, workers: int) -> tuple[str, str]:
    """Write so many pairs of the built-in corpus, a file for each side."""
    paths = directory / "train.en", directory / "train.de"
    starts = range(0, pairs, WRITTEN_AT_ONCE)
    with paths[0].open("w") as src, paths[1].open("w") as tgt, ProcessPoolExecutor(workers) as pool:
        for sides in pool.map(partial(built_in_part, pairs), starts):
            src.write(sides[0])
            tgt.write(sides[1])
    return str(paths[0]), str(paths[1])


def built_in_part(pairs: int, start: int) -> tuple[str, str]:
    part = list(sentences("train", min(WRITTEN_AT_ONCE, pairs - start), start=start))
    return "".join(f"{src}\n" for src, _ in part), "".join(f"{tgt}\n" for _, tgt in part)


def measure(text: tuple[str, str], given: argparse.Namespace) -> dict[str, Any]:
    """Prepare the text and do it by hand, by turns; return the figures of our median turn, and the ratios."""
    found = []
    for _ in range(given.turns):
        figures = prepare_once(text, given)
        if given.baseline:
            figures["by_hand_seconds"] = prepare_by_hand(text, given)
            figures["ratio"] = round(figures["by_hand_seconds"]["all"] / figures["seconds"], 3)
        found.append(figures)
    result = sorted(found, key=lambda each: each["seconds"])[len(found) // 2]
    if given.baseline:
        ratios = [each["ratio"] for each in found]
        result = {**result, "ratio": statistics.median(ratios), "ratios": ratios}
    return result


def prepare_once(text: tuple[str, str], given: argparse.Namespace) -> dict[str, Any]:
    """Prepare the text from scratch in a directory that is deleted afterwards; return the figures."""
    with tempfile.TemporaryDirectory() as directory, PeakMemory() as peak:
        recipe = make_recipe(text, directory, given)
        started, cpu_before = time.monotonic(), sum(os.times()[:4])
        manifest = prepare(recipe, workers=given.workers).manifest
        seconds, cpu_seconds = time.monotonic() - started, sum(os.times()[:4]) - cpu_before
    split = manifest["splits"]["train"]
    return {
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
    }


def prepare_by_hand(text: tuple[str, str], given: argparse.Namespace) -> dict[str, float]:
    """Learn subwords of as many lines as we do, and write both files as ids; return the seconds of each."""
    model = io.BytesIO()
    started = time.monotonic()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=chain.from_iterable(open_lines(Path(path)) for path in text),
        model_writer=model,
        model_type="bpe",
        vocab_size=given.vocab_size,
        hard_vocab_limit=False,
        input_sentence_size=2 * Vocab().sample_pairs,
        shuffle_input_sentence=True,
        num_threads=given.workers,
        minloglevel=3,
    )
    learned = time.monotonic()
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    for path in text:
        lines = open_lines(Path(path))
        with tempfile.TemporaryFile("w") as encoded:
            while part := list(islice(lines, WRITTEN_AT_ONCE)):
                ids = pieces.encode(part, num_threads=given.workers)
                encoded.writelines(" ".join(map(str, each)) + "\n" for each in ids)
    ended = time.monotonic()
    return {
        "learn": round(learned - started, 2),
        "encode": round(ended - learned, 2),
        "all": round(ended - started, 2),
    }


def measure_rules(text: tuple[str, str], given: argparse.Namespace) -> dict[str, Any]:
    """Return the processor time of each rule for a pair, and of what several share, in microseconds."""
    seconds: Counter[str] = Counter()
    pairs = 0

    def timed(name: str, work: Any) -> Any:
        started = time.process_time()
        result = work()
        seconds[name] += time.process_time() - started
        return result

    recipe = make_recipe(text, "datasets", given)
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


def show(results: list[dict[str, Any]]) -> None:
    for figures in results:
        for name, value in figures.items():
            print(f"{name:>20}  {value:,}" if type(value) is int else f"{name:>20}  {value}")
        print()
    if len(results) == 1 or "seconds" not in results[0]:
        return
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


def main() -> None:
    parser = options(__doc__, quick="50,000 pairs of the built-in corpus, 3 turns")
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
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--workers", type=int, default=usable_cores())
    given = parser.parse_args()
    if (given.src is None) != (given.tgt is None):
        parser.error("give both --src and --tgt, or neither")
    signed = signature()
    sizes = list(map(int, given.sizes.split(","))) if given.sizes else [given.pairs]
    if given.quick:
        sizes, given.turns = [50_000], 3
    work = measure_rules if given.rules else measure
    if given.src:
        results = [work((given.src, given.tgt), given)]
    else:
        results = []
        for size in sizes:
            with tempfile.TemporaryDirectory() as directory:
                results.append(work(write_built_in(size, Path(directory), given.workers), given))
    show(results)
    print("  ".join(f"{name} {value}" for name, value in signed.items()))
    ratios = {
        f"prepare, {each['pairs']:,} pairs / by hand": each["ratio"] for each in results if "ratio" in each
    }
    write_figures(given.json, {"ratios": ratios, "results": results, **signed})


if __name__ == "__main__":
    main()
