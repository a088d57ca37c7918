"""Scores by sacreBLEU, each with its signature and its confidence interval. Imports without torch.

``bleu`` is the number that the ``sacrebleu`` command prints for the same two files.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF, CHRFScore

from dragoman.corpus import holds_both
from dragoman.data.corpora import About, FileCorpus
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


def evaluate_model(
    model_path: Path,
    src_path: Path,
    ref_path: Path,
    *,
    to: str | None = None,
    beam: int | None = None,
    length_penalty: float | None = None,
    device: str = "cpu",
    threads: int | None = None,
) -> dict[str, Any]:
    """Translate a file with a model, or the best model of a run, and score it against its reference.

    References are compared as they are. Every format of a corpus is read, and one file that holds both sides is
    given as both. A multilingual model has to be told the language to translate ``to``.
    """
    model = resolve_model(model_path)
    for path, option in ((src_path, "--src"), (ref_path, "--ref")):
        if not path.is_file():
            raise UserError("there is no such file", where=f"{option} {path}", fix="correct the path")
    sources: list[str] = []
    references: list[str] = []
    translator = Translator(model, device=device, threads=threads)
    paths: tuple[str, ...] = (str(src_path), str(ref_path))
    if src_path == ref_path and holds_both(str(src_path)):
        paths = paths[:1]
    for chunk in FileCorpus(paths, About("evaluated", *_languages(translator.card, to))).chunks():
        src_lines, ref_lines = chunk.decode()
        sources += src_lines
        references += ref_lines
    began = time.monotonic()
    translations = translator.translate(sources, beam=beam, length_penalty=length_penalty, to=to)
    hypotheses = [translation.text for translation in translations]
    seconds = time.monotonic() - began
    return {
        **score(hypotheses, references, tgt_lang=to or translator.card["tgt_lang"]),
        "model": str(model),
        "checkpoint": translator.card["checkpoint"],
        "beam": translator.card["beam"] if beam is None else beam,
        "length_penalty": translator.card["length_penalty"] if length_penalty is None else length_penalty,
        "seconds": round(seconds, 3),
    }


def _languages(card: Mapping[str, Any], to: str | None) -> tuple[str, str]:
    """Return the languages to look for in a file that holds both sides: those of a pair the model was trained on."""
    for src, tgt in card.get("pairs", ()):
        if tgt == to:
            return src, tgt
    return card["src_lang"], to or card["tgt_lang"]
