"""Systems compared on one test set: scores, intervals, and whether a difference is more than chance.

The first system is what the others are compared with, by sacreBLEU's paired bootstrap: all systems are scored on the
same thousand resamples of the test set. Imports without torch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sacrebleu.significance import PairedTest

from dragoman.decode.comet import MODEL as COMET_MODEL
from dragoman.decode.comet import comet_scores
from dragoman.decode.score import METRICS, RESAMPLES, SENTENCE_METRICS, interval, measure
from dragoman.errors import UserError

COMET = "comet"
NAMES = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER", COMET: "COMET"}
LOWER_IS_BETTER = ("ter",)
LIKELY = 0.05  # a p-value below this is called a difference
SEED = 12345  # of resampling, as sacreBLEU's own

Row = tuple[float, list[float], float | None]  # score, interval, p-value against the first system


@dataclass(frozen=True)
class System:
    """What a system made of the sources."""

    name: str
    hypotheses: list[str]
    log_probabilities: list[float] | None = None
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """Systems, what they translated, and what they are measured by."""

    sources: list[str]
    references: list[str]
    systems: Sequence[System]
    metrics: Sequence[str]
    tgt_lang: str
    comet: list[list[float]]  # of every system and sentence, if that is among the metrics

    @classmethod
    def of(
        cls,
        systems: Sequence[System],
        sources: list[str],
        references: list[str],
        metrics: Sequence[str],
        tgt_lang: str,
    ) -> "Comparison":
        """Bring the systems together; COMET, which takes long, is computed here and once."""
        hypotheses = [system.hypotheses for system in systems]
        comet = comet_scores(hypotheses, sources, references) if COMET in metrics else []
        return cls(sources, references, systems, metrics, tgt_lang, comet)

    def results(self) -> list[dict[str, Any]]:
        """Return for each system its scores with interval and signature, and how it differs from the first.

        The names of scores are those of a line in scores.jsonl.
        """
        results: list[dict[str, Any]] = [
            {"system": system.name, "sentences": len(self.references), **system.facts}
            for system in self.systems
        ]
        for name in self.metrics:
            rows, signature = self._compare_comet() if name == COMET else self._compare_text(name)
            for result, (value, ci95, p) in zip(results, rows, strict=True):
                result |= {name: value, key(name, "ci95"): ci95, key(name, "signature"): signature}
                if p is not None:
                    difference = round(value - results[0][name], 4)
                    p = p if difference else 1.0  # resampling nothing but ties would call it unlikely
                    verdict = _verdict(result["system"], name, difference, p)
                    versus = {"difference": difference, "p": p, "verdict": verdict}
                    result.setdefault("versus_first", {})[name] = versus
        return results

    def sentences(self) -> Iterator[dict[str, Any]]:
        """Yield every sentence of every system with what it scores on its own."""
        by_text = {name: SENTENCE_METRICS[name](self.tgt_lang) for name in self.metrics if name != COMET}
        for index, (src, ref) in enumerate(zip(self.sources, self.references, strict=True)):
            for number, system in enumerate(self.systems):
                hyp = system.hypotheses[index]
                line: dict[str, Any] = {
                    "line": index + 1,
                    "system": system.name,
                    "src": src,
                    "ref": ref,
                    "hyp": hyp,
                }
                for name, metric in by_text.items():
                    line[name] = round(metric.sentence_score(hyp, [ref]).score, 2)
                if self.comet:
                    line[COMET] = round(100 * self.comet[number][index], 2)
                if system.log_probabilities is not None:
                    line["log_probability"] = round(system.log_probabilities[index], 4)
                yield line

    def _compare_text(self, name: str) -> tuple[list[Row], str]:
        metric = METRICS[name](self.tgt_lang)
        if len(self.systems) == 1:
            value, ci95, signature = measure(metric, self.systems[0].hypotheses, self.references)
            return [(value, ci95, None)], signature
        named: list[tuple[str, Sequence[str]]] = [
            (str(number), system.hypotheses) for number, system in enumerate(self.systems)
        ]
        signatures, scores = PairedTest(named, {name: metric}, [self.references], "bs", RESAMPLES)()
        (column,) = (column for column in scores if column != "System")
        rows: list[Row] = []
        for result in scores[column]:
            assert not isinstance(result, str) and result.mean is not None and result.ci is not None  # noqa: PT018
            p = None if result.p_value is None else round(result.p_value, 4)
            rows.append((round(float(result.score), 4), interval(metric, result.mean, result.ci), p))
        return rows, str(signatures[column])

    def _compare_comet(self) -> tuple[list[Row], str]:
        values = 100 * np.array(self.comet)  # as the other metrics are given
        draws = np.random.default_rng(SEED).integers(values.shape[1], size=(RESAMPLES, values.shape[1]))
        rows: list[Row] = []
        for system in values:
            p = None
            if rows:
                # As sacreBLEU does: how often would chance alone give so large a difference?
                differences = np.abs((system - values[0])[draws].mean(axis=1))
                chance = differences - differences.mean() > abs((system - values[0]).mean())
                p = round((int(chance.sum()) + 1) / (RESAMPLES + 1), 4)
            low, high = np.quantile(system[draws].mean(axis=1), (0.025, 0.975))
            rows.append((round(float(system.mean()), 4), [round(float(low), 4), round(float(high), 4)], p))
        return rows, f"model:{COMET_MODEL}|bs:{RESAMPLES}|seed:{SEED}"


def key(metric: str, what: str) -> str:
    """Return the name of a metric's signature or interval in results; BLEU's go without its name."""
    return what if metric == "bleu" else f"{metric}_{what}"


def require_metrics(metrics: Sequence[str]) -> list[str]:
    """Return the metrics once each, or say which there are."""
    unknown = [name for name in metrics if name not in NAMES]
    if unknown:
        raise UserError(
            f'there is no metric "{unknown[0]}"',
            where="--metric",
            fix=f"choose from {', '.join(NAMES)}, with commas between",
        )
    return list(dict.fromkeys(metrics))


def _verdict(system: str, metric: str, difference: float, p: float) -> str:
    if p >= LIKELY:
        return f"no difference shown, p = {p:.3f}"
    better = (difference > 0) != (metric in LOWER_IS_BETTER)
    return f"{system} is {'better' if better else 'worse'}, p = {p:.3f}"
