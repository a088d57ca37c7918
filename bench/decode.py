"""How fast is `dragoman translate`, beside CTranslate2 called directly, and beside Hugging Face?

    python bench/decode.py runs/multi30k --src test_2016_flickr.en --ref test_2016_flickr.de
    python bench/decode.py                                       a made-up model, sentences of the built-in corpus
    python bench/decode.py --quick                               128 lines, 2 turns

Every turn translates the text with each of them, one after the other and the other way round in the next turn, so
that all see the same machine; the median over turns of the ratios counts. The processor's time is compared, too, since
it hardly depends on what else the machine does.

*CTranslate2* is the limit: what one writes by hand with sentencepiece and one call of ``translate_batch``, with the
same batches of tokens, beam, length penalty and threads. *transformers* is what many would take instead: the
same weights, exported for Hugging Face, and its ``generate`` with the same beam, on sentences sorted by length, 64 at
a time, which is kind to it. CTranslate2 is also compared in int8.

The target: at least 95 % of plain CTranslate2. How many translations agree is shown, too: a sentence's neighbours in
a batch may change the last digit of a number, and int8 more than that. Without MODEL the weights are random, and all
translations end at the same length.
"""

import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ctranslate2
import sentencepiece
import torch
from exported import HUGGING_FACE, export_all, read_text
from figures import options, write_figures
from signature import signature

from dragoman.decode.score import score
from dragoman.decode.translator import BATCH_TOKENS, CARD, TOKENIZER, Translator
from dragoman.files import read_json
from dragoman.machine import usable_cores

QUANTIZATIONS = ("float32", "int8")
LINES, QUICK_LINES, QUICK_TURNS = 1000, 128, 2
BATCH_SENTENCES = 64  # of transformers

Translate = Callable[[list[str]], list[str]]


def plain(model: Path, threads: int, card: dict[str, Any]) -> Translate:
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


def hugging_face(model: Path, threads: int) -> Translate:
    """Return a translation as a reader of the documentation of transformers would write it."""
    import transformers  # takes seconds, and only this contestant needs it

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.filterwarnings(
        "ignore", message="Recommended: pip install sacremoses"
    )  # which is for punctuation
    torch.set_num_threads(threads)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    network = transformers.AutoModelForSeq2SeqLM.from_pretrained(model).eval()
    longest = read_json(model / CARD)["positions"]

    def translate(lines: list[str]) -> list[str]:
        order = sorted(range(len(lines)), key=lambda row: len(lines[row]))
        found = [""] * len(lines)
        for first in range(0, len(order), BATCH_SENTENCES):
            rows = order[first : first + BATCH_SENTENCES]
            batch = tokenizer([lines[row] for row in rows], return_tensors="pt", padding=True)
            with torch.inference_mode():
                ids = network.generate(**batch, max_new_tokens=longest)
            for row, text in zip(rows, tokenizer.batch_decode(ids, skip_special_tokens=True), strict=True):
                found[row] = text
        return found

    return translate


def ours(model: Path, threads: int) -> Translate:
    translator = Translator(model, threads=threads)
    return lambda lines: [each.text for each in translator.translate(lines)]


def compare(
    contestants: dict[str, Translate], lines: list[str], turns: int, refs: list[str], tgt_lang: str
) -> dict[str, Any]:
    """Let all translate the lines by turns; return their sentences per second, and ours over the others'."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    cpu_seconds = dict.fromkeys(contestants, 0.0)
    texts = {name: translate(lines[:20]) for name, translate in contestants.items()}  # to warm up
    for turn in range(turns):
        for name in sorted(contestants, reverse=bool(turn % 2)):
            began, cpu_began = time.monotonic(), time.process_time()
            texts[name] = contestants[name](lines)
            seconds[name].append(time.monotonic() - began)
            cpu_seconds[name] += time.process_time() - cpu_began
    found: dict[str, Any] = {"sentences_per_second": {}, "against": {}}
    for name in contestants:
        found["sentences_per_second"][name] = round(len(lines) / statistics.median(seconds[name]), 1)
        if name != "dragoman":
            ratios = [their / our for our, their in zip(seconds["dragoman"], seconds[name], strict=True)]
            found["against"][name] = {
                "ratio": round(statistics.median(ratios), 3),
                "cpu_ratio": round(cpu_seconds[name] / cpu_seconds["dragoman"], 3),
                "ratios": [round(ratio, 3) for ratio in ratios],
                "same_translations": sum(map(str.__eq__, texts["dragoman"], texts[name])),
            }
    if refs:
        found["bleu"] = {name: score(text, refs, tgt_lang=tgt_lang)["bleu"] for name, text in texts.items()}
    return found


def show(name: str, found: dict[str, Any]) -> None:
    print(f"{name:>8}  dragoman {found['sentences_per_second']['dragoman']:8,.1f} sentences/s")
    for other, against in found["against"].items():
        print(
            f"{'':8}  {other:12} {found['sentences_per_second'][other]:8,.1f}: ours is {against['ratio']:.1%}, by "
            f"processor time {against['cpu_ratio']:.1%}; {against['same_translations']} translations are the same"
        )
    if "bleu" in found:
        print(" " * 9, "BLEU", ", ".join(f"{who} {bleu:.2f}" for who, bleu in found["bleu"].items()))


def main() -> None:
    parser = options(__doc__, quick=f"{QUICK_LINES} lines, {QUICK_TURNS} turns")
    parser.add_argument(
        "model", nargs="?", type=Path, help="a run, or an exported model; made up if not given"
    )
    parser.add_argument("--src", type=Path, help="source text, a sentence a line; built-in if not given")
    parser.add_argument("--ref", type=Path, help="reference, to show BLEU beside the speed")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--threads", type=int, default=usable_cores())
    given = parser.parse_args()
    signed = signature()
    most, turns = (QUICK_LINES, QUICK_TURNS) if given.quick else (LINES, given.turns)
    lines = read_text(given.src, most)
    refs = read_text(given.ref, most) if given.ref else []
    results = {}
    with tempfile.TemporaryDirectory() as directory:
        models = export_all(given.model, [*QUANTIZATIONS, HUGGING_FACE], lines, Path(directory))
        for name in [each for each in models if each != HUGGING_FACE]:
            card = read_json(models[name] / CARD)
            contestants = {
                "dragoman": ours(models[name], given.threads),
                "ctranslate2": plain(models[name], given.threads, card),
            }
            if name == "float32":
                contestants["transformers"] = hugging_face(models[HUGGING_FACE], given.threads)
            results[name] = compare(contestants, lines, turns, refs, card["tgt_lang"])
            show(name, results[name])
    about = {"lines": len(lines), "turns": turns, "threads": given.threads, **signed}
    print("  ".join(f"{name} {value}" for name, value in about.items()))
    ratios = {}
    for name, found in results.items():
        for other, against in found["against"].items():
            ratios[f"translate, {name} / {other}"] = against["ratio"]
            ratios[f"translate, {name} / {other}, by processor time"] = against["cpu_ratio"]
    write_figures(given.json, {"ratios": ratios, "results": results, **about})


if __name__ == "__main__":
    main()
