"""The models that are served, by language pair, and newer ones in their place without losing a request.

A model is replaced when what its path means has changed: ``best`` of a run points elsewhere, or an export was written
again. The new one is loaded beside the old and takes over in one moment; the old one finishes what it has accepted.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.data.tokenizer import tag
from dragoman.decode.confidence import certainty, confidence
from dragoman.decode.translator import CARD, WEIGHTS, Hypothesis, Translator, resolve_model
from dragoman.errors import UserError
from dragoman.machine import usable_cores
from dragoman.serve.batching import Batcher
from dragoman.serve.limits import Limits

logger = logging.getLogger(__name__)

Identity = tuple[str, int, int, int]


@dataclass(frozen=True)
class Served:
    """A loaded model and how it is asked."""

    path: Path  # as given
    identity: Identity
    batcher: Batcher

    @property
    def card(self) -> dict[str, Any]:
        return self.batcher.translator.card

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The language pairs that it was trained on."""
        pairs = self.card.get("pairs") or [(self.card["src_lang"], self.card["tgt_lang"])]
        return [(source, target) for source, target in pairs]

    @property
    def is_calibrated(self) -> bool:
        return self.card.get("confidence") is not None

    def line(self, sentence: str, target: str) -> str:
        """Return a sentence as the model wants it. Only our own tag counts: what follows it is text."""
        return f"{tag(target)} {sentence}" if self.card.get("tags") else sentence

    def confidence(self, hypothesis: Hypothesis) -> float | None:
        """Return the confidence in a translation, 0 to 1; None where nothing was translated."""
        if hypothesis.num_tokens == 0:
            return None
        sure = certainty(hypothesis.log_probability, hypothesis.num_tokens)
        return round(confidence(self.card.get("confidence"), sure), 3)


class Models:
    """Loaded models. All methods are called from the event loop's thread; loading happens in another."""

    def __init__(
        self, paths: Sequence[Path], limits: Limits, *, device: str = "cpu", threads: int | None = None
    ):
        self._limits, self._device = limits, device
        self._threads = threads or (usable_cores() if device == "cpu" else 1)
        self._served = [self._load(path) for path in paths]
        self.by_pair = self._table(self._served)
        self._retired: list[Batcher] = []

    @property
    def served(self) -> list[Served]:
        return self._served

    def sources(self) -> list[str]:
        """Return the languages that can be translated from, in the order of the models."""
        return list(dict.fromkeys(source for source, _ in self.by_pair))

    def targets(self, source: str) -> list[str]:
        return [target for each, target in self.by_pair if each == source]

    async def refresh(self) -> list[Path]:
        """Replace the models that have changed on disk; return their paths. What cannot be loaded stays as it is."""
        replaced = []
        for index, old in enumerate(self._served):
            try:
                if _identity(old.path) == old.identity:
                    continue
                new = await asyncio.to_thread(self._load, old.path)
                served = [*self._served[:index], new, *self._served[index + 1 :]]
                self.by_pair = self._table(served)
            except (UserError, OSError, ValueError, KeyError, RuntimeError) as error:
                logger.warning("%s stays as it was: %s", old.path, error)
                continue
            self._served = served
            old.batcher.close()
            self._retired = [batcher for batcher in self._retired if batcher.queued] + [old.batcher]
            replaced.append(old.path)
        return replaced

    def close(self, seconds: float) -> None:
        """Finish what was accepted, for at most so long."""
        batchers = [served.batcher for served in self._served] + self._retired
        for batcher in batchers:
            batcher.close()
        for batcher in batchers:
            batcher.join(seconds)

    def _load(self, path: Path) -> Served:
        identity = _identity(path)  # before loading: a change meanwhile is found the next time
        translator = Translator(resolve_model(path), device=self._device, threads=self._threads)
        batcher = Batcher(
            translator,
            cores=self._threads,
            most_characters=self._limits.queue_characters,
            longest_wait_seconds=self._limits.seconds / 2,
        )
        served = Served(path, identity, batcher)
        try:
            # The first translation allocates memory, and shows that the model translates at all.
            list(translator.translate([served.line("1", served.pairs[0][1])]))
        except BaseException:
            batcher.close()
            raise
        return served

    @staticmethod
    def _table(served: Sequence[Served]) -> dict[tuple[str, str], Served]:
        table: dict[tuple[str, str], Served] = {}
        for each in served:
            for pair in each.pairs:
                if pair in table:
                    raise UserError(
                        f"two models translate from {pair[0]} to {pair[1]}",
                        where=f"{table[pair].path} and {each.path}",
                        fix="serve one of them",
                    )
                table[pair] = each
        return table


def _identity(path: Path) -> Identity:
    """Return what changes when another model stands at ``path``."""
    model = resolve_model(path)
    card, weights = (model / CARD).stat(), (model / WEIGHTS).stat()
    return str(model), card.st_mtime_ns, weights.st_mtime_ns, weights.st_ino
