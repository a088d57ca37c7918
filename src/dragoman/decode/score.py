"""Scores by sacreBLEU, each with its signature and its confidence interval. Imports without torch.

``bleu`` is the number that the ``sacrebleu`` command prints for the same two files.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF, CHRFScore
from sacrebleu.metrics.ter import TER

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


def _bleu(tgt_lang: str, **options: Any) -> BLEU:
    language = tgt_lang.replace("_", "-").partition("-")[0]
    return BLEU(tokenize=TOKENIZERS.get(language), **options)


# What is computed from text alone, from the target language; and the same for a single sentence, where BLEU has to do
# without the longest n-grams of short sentences.
METRICS: dict[str, Callable[[str], Metric]] = {
    "bleu": _bleu,
    "chrf": lambda _: PlainCHRF(),
    "ter": lambda _: TER(),
}
SENTENCE_METRICS = METRICS | {"bleu": lambda tgt_lang: _bleu(tgt_lang, effective_order=True)}


def score(hypotheses: Sequence[str], references: Sequence[str], *, tgt_lang: str = "") -> Scores:
    """Compare hypotheses with one reference each; there must be as many of both, and at least one."""
    if len(hypotheses) != len(references) or not references:
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} references")
    bleu, ci95, signature = measure(METRICS["bleu"](tgt_lang), hypotheses, references)
    chrf, chrf_ci95, chrf_signature = measure(METRICS["chrf"](tgt_lang), hypotheses, references)
    return Scores(
        bleu=bleu,
        chrf=chrf,
        signature=signature,
        chrf_signature=chrf_signature,
        ci95=ci95,
        chrf_ci95=chrf_ci95,
        sentences=len(references),
    )


def measure(
    metric: Metric, hypotheses: Sequence[str], references: Sequence[str]
) -> tuple[float, list[float], str]:
    """Return the score of a text, its 95 % interval and its signature."""
    result = metric.corpus_score(hypotheses, [references], n_bootstrap=RESAMPLES)
    return round(result.score, 4), interval(metric, result._mean, result._ci), str(metric.get_signature())


def interval(metric: Metric, mean: float, half_width: float) -> list[float]:
    """Return [low, high] within what the metric can say: sacreBLEU's is as wide upwards as downwards."""
    most = math.inf if isinstance(metric, TER) else 100.0
    return [round(max(0.0, mean - half_width), 4), round(min(most, mean + half_width), 4)]


def score_pairs(
    hypotheses: Sequence[str], references: Sequence[str], corpora: Sequence[Mapping[str, Any]]
) -> dict[str, Scores]:
    """Score each language pair of a set by itself; nothing where there is but one.

    ``corpora`` are those of the set in order, as the dataset's manifest has them.
    """
    parts: dict[tuple[str, str], list[int]] = {}
    first = 0
    for corpus in corpora:
        languages = corpus["languages"]
        rows = range(first, first + corpus["pairs"])
        parts.setdefault((languages["src"], languages["tgt"]), []).extend(rows)
        first = rows.stop
    if len(parts) < 2:
        return {}
    return {
        f"{src}-{tgt}": score(
            [hypotheses[row] for row in rows], [references[row] for row in rows], tgt_lang=tgt
        )
        for (src, tgt), rows in parts.items()
        if rows
    }
