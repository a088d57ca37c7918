"""How fast is `dragoman translate`, beside CTranslate2 called directly?

    python bench/decode.py MODEL --src test_2016_flickr.en --ref test_2016_flickr.de
    python bench/decode.py --src test_2016_flickr.en            a made-up model of random weights
    python bench/decode.py MODEL --src … --quick                 200 lines, 2 turns, for a look

Every turn translates the text with each of the two, one after the other and the other way round in the next turn, so
that both see the same machine; the median of turns counts. The processor's time is compared, too, since it hardly
depends on what else the machine does. "Plain" is what one writes by hand: sentencepiece, one call
of ``translate_batch`` with the same batches of tokens, beam, length penalty and threads, sentencepiece again. It is
done in float32 and int8: exported from the best checkpoint of a run, or, without MODEL, from random weights, whose
translations all end at the same length. The target: at least 95 % of plain CTranslate2. How many translations agree is
shown, too: a sentence's neighbours in a batch may change the last digit of a number, and int8 more than that.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ctranslate2
import sentencepiece
import torch
from signature import signature

from dragoman.config import Recipe
from dragoman.data.tokenizer import Tokenizer, train
from dragoman.decode.export import export_model, export_run
from dragoman.decode.score import score
from dragoman.decode.translator import BATCH_TOKENS, TOKENIZER, Translator, resolve_model
from dragoman.machine import usable_cores
from dragoman.model.transformer import Transformer
from dragoman.rundir import MODEL, RunDir
from dragoman.train.checkpoint import State, write_checkpoint

QUANTIZATIONS = ("float32", "int8")
VOCABULARY, LENGTH = 2000, 32  # of made-up models
QUICK_LINES, QUICK_TURNS = 200, 2


def plain(model: Path, threads: int, card: dict[str, Any]) -> Callable[[list[str]], list[str]]:
    """Return a translation as a reader of CTranslate2's documentation would write it."""
    engine = ctranslate2.Translator(str(model), inter_threads=threads, intra_threads=1)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model / TOKENIZER))

    def translate(lines: list[str]) -> list[str]:
        results = engine.translate_batch(
            pieces.encode(lines, out_type=str),
            beam_size=card["beam"],
            length_penalty=card["length_penalty"],
            max_batch_size=BATCH_TOKENS,
            batch_type="tokens",
            max_decoding_length=card["positions"],
            disable_unk=True,
        )
        return [pieces.decode(result.hypotheses[0]) for result in results]

    return translate


def ours(model: Path, threads: int) -> tuple[Callable[[list[str]], list[str]], dict[str, Any]]:
    translator = Translator(model, threads=threads)
    return lambda lines: [each.text for each in translator.translate(lines)], translator.card


def compare(
    model: Path, lines: list[str], turns: int, threads: int, refs: list[str] | None
) -> dict[str, Any]:
    """Let both translate the lines by turns; return their sentences per second and the ratio."""
    translate, card = ours(model, threads)
    both = {"dragoman": translate, "ctranslate2": plain(model, threads, card)}
    seconds: dict[str, list[float]] = {name: [] for name in both}
    cpu_seconds = dict.fromkeys(both, 0.0)
    texts = {name: run(lines[:20]) for name, run in both.items()}  # to warm up
    for turn in range(turns):
        for name in sorted(both, reverse=bool(turn % 2)):
            began, cpu_began = time.monotonic(), time.process_time()
            texts[name] = both[name](lines)
            seconds[name].append(time.monotonic() - began)
            cpu_seconds[name] += time.process_time() - cpu_began
    same = sum(one == other for one, other in zip(*texts.values(), strict=True))
    rates = {name: len(lines) / statistics.median(values) for name, values in seconds.items()}
    ratios = [plain_ / our for our, plain_ in zip(seconds["dragoman"], seconds["ctranslate2"], strict=True)]
    return {
        "sentences_per_second": {name: round(rate, 1) for name, rate in rates.items()},
        "ratio": round(statistics.median(ratios), 3),
        "cpu_ratio": round(cpu_seconds["ctranslate2"] / cpu_seconds["dragoman"], 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "same_translations": f"{same} of {len(lines)}",
        **(
            {"bleu": round(score(texts["dragoman"], refs, tgt_lang=card["tgt_lang"])["bleu"], 2)}
            if refs
            else {}
        ),
    }


def export_both(model: Path | None, lines: list[str], to: Path) -> dict[str, Path]:
    """Return a model for each quantization: of a run, of made-up weights, or the one that is given."""
    if model is None:
        return made_up(lines, to)
    run = RunDir(model)
    if run.recipe.is_file():
        return {name: export_run(run, to / name, quantization=name) for name in QUANTIZATIONS}
    return {"as it is": resolve_model(model)}


def made_up(lines: list[str], work: Path) -> dict[str, Path]:
    """Export random weights at the size of the recipe multi30k, with a vocabulary of the text itself."""
    recipe = Recipe.model_validate(
        {
            "data": {"train": "builtin", "dev": "builtin"},
            "model": {"layers": 3, "d_model": 256, "heads": 4, "feed_forward": 1024},
            "train": {"steps": 1, "tokens_per_step": 1},
        }
    )
    tokenizer = work / TOKENIZER
    tokenizer.write_bytes(train(lines, VOCABULARY))
    torch.manual_seed(1)
    weights = Transformer(recipe.model, Tokenizer.load(tokenizer).size).state_dict()
    checkpoint = write_checkpoint(RunDir(work / "run"), State(step=1), {MODEL: weights})
    ends = {"positions": LENGTH}  # random weights would go on for ever
    return {
        name: export_model([checkpoint], recipe, tokenizer, work / name, quantization=name, extra=ends)
        for name in QUANTIZATIONS
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", type=Path, help="a run, or an exported model")
    parser.add_argument("--src", type=Path, required=True, help="source text, a sentence a line")
    parser.add_argument("--ref", type=Path, help="reference, to show BLEU beside the speed")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_LINES} lines, {QUICK_TURNS} turns")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    most, turns = (QUICK_LINES, QUICK_TURNS) if given.quick else (None, given.turns)
    lines, refs = (path and path.read_text("utf-8").splitlines()[:most] for path in (given.src, given.ref))
    load = round(os.getloadavg()[0], 2)
    with ExitStack() as stack:
        to = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        figures = {
            name: compare(path, lines, turns, given.threads, refs)
            for name, path in export_both(given.model, lines, to).items()
        }
    about = {
        "lines": len(lines),
        "turns": turns,
        "threads": given.threads,
        "load_before": load,
        **signature(),
    }
    if given.json:
        print(json.dumps({**figures, **about}, indent=2))
        return
    for name, found in figures.items():
        speeds = ", ".join(f"{who} {rate:,.0f}/s" for who, rate in found["sentences_per_second"].items())
        ratios = f"{found['ratio']:.1%}, by processor time {found['cpu_ratio']:.1%}"
        bleu = f", BLEU {found['bleu']}" if "bleu" in found else ""
        print(f"{name:>10}  {speeds}: {ratios} (same translations: {found['same_translations']}{bleu})")
    print("  ".join(f"{name} {value}" for name, value in about.items()))


if __name__ == "__main__":
    main()
