"""Scores by sacreBLEU, each with its signature and its confidence interval. Imports without torch.

``bleu`` is the number that the ``sacrebleu`` command prints for the same two files.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF, CHRFScore

from dragoman.data.formats import read_chunks
from dragoman.decode.translator import Translator, resolve_model
from dragoman.errors import UserError

RESAMPLES = 1000
# Languages whose words 13a, the default tokenizer, cannot find. The signature says which was used.
TOKENIZERS = {"zh": "zh", "ja": "char", "th": "char", "km": "char", "lo": "char", "my": "char"}


class PlainCHRF(CHRF):
    """chrF as a plain float: sacreBLEU 2.6 cannot average resamples of which some are 0 and some are not."""

    def _compute_score_from_stats(self, stats: list[int]) -> CHRFScore:
        result = super()._compute_score_from_stats(stats)
        result.score = float(result.score)
        return result


class Scores(TypedDict):
    """The quality of a translated text. An interval is [low, high], 95 %, from bootstrap resampling."""

    bleu: float
    chrf: float
    signature: str
    chrf_signature: str
    ci95: list[float]
    chrf_ci95: list[float]
    sentences: int


def score(hypotheses: Sequence[str], references: Sequence[str], *, tgt_lang: str = "") -> Scores:
    """Compare hypotheses with one reference each; there must be as many of both, and at least one."""
    if len(hypotheses) != len(references) or not references:
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} references")
    language = tgt_lang.replace("_", "-").partition("-")[0]
    bleu, ci95, signature = _measure(BLEU(tokenize=TOKENIZERS.get(language)), hypotheses, references)
    chrf, chrf_ci95, chrf_signature = _measure(PlainCHRF(), hypotheses, references)
    return Scores(
        bleu=bleu,
        chrf=chrf,
        signature=signature,
        chrf_signature=chrf_signature,
        ci95=ci95,
        chrf_ci95=chrf_ci95,
        sentences=len(references),
    )


def _measure(
    metric: BLEU | CHRF, hypotheses: Sequence[str], references: Sequence[str]
) -> tuple[float, list[float], str]:
    result = metric.corpus_score(hypotheses, [references], n_bootstrap=RESAMPLES)
    interval = [round(result._mean - result._ci, 4), round(result._mean + result._ci, 4)]
    return round(result.score, 4), interval, str(metric.get_signature())


def evaluate_model(
    model_path: Path,
    src_path: Path,
    ref_path: Path,
    *,
    beam: int | None = None,
    length_penalty: float | None = None,
    device: str = "cpu",
    threads: int | None = None,
) -> dict[str, Any]:
    """Translate a file with a model, or the best model of a run, and score it against its reference.

    References are compared as they are; ``.gz``, ``.xz`` and ``.zst`` files are read as what they contain.
    """
    model = resolve_model(model_path)
    for path, option in ((src_path, "--src"), (ref_path, "--ref")):
        if not path.is_file():
            raise UserError("there is no such file", where=f"{option} {path}", fix="correct the path")
    sources: list[str] = []
    references: list[str] = []
    for chunk in read_chunks((str(src_path), str(ref_path))):
        src_lines, ref_lines = chunk.decode()
        sources += src_lines
        references += ref_lines
    translator = Translator(model, device=device, threads=threads)
    began = time.monotonic()
    translations = translator.translate(sources, beam=beam, length_penalty=length_penalty)
    hypotheses = [translation.text for translation in translations]
    seconds = time.monotonic() - began
    return {
        **score(hypotheses, references, tgt_lang=translator.card["tgt_lang"]),
        "model": str(model),
        "checkpoint": translator.card["checkpoint"],
        "beam": translator.card["beam"] if beam is None else beam,
        "length_penalty": translator.card["length_penalty"] if length_penalty is None else length_penalty,
        "seconds": round(seconds, 3),
    }
