"""What quantisation costs: the dev set translated with the model before and after. Imports without torch."""

import tempfile
import time
from pathlib import Path
from typing import Any

from dragoman.data.shards import Dataset
from dragoman.decode.compare import Comparison, System
from dragoman.decode.export import export_run
from dragoman.decode.translator import CARD, WEIGHTS, Translator
from dragoman.errors import UserError
from dragoman.files import read_json
from dragoman.rundir import RunDir

WARM_UP_LINES = 20


def quantization_cost(run: RunDir, model: Path) -> dict[str, Any] | None:
    """Return BLEU, bytes and sentences per second of a quantised model and of the same weights in float32.

    Nothing, where the run's dataset or its checkpoint has gone meanwhile.
    """
    steps = read_json(model / CARD)["steps"]
    try:
        dataset = Dataset.open(Path(read_json(run.facts)["dataset"]))
        with tempfile.TemporaryDirectory(prefix="dragoman-") as directory:
            whole = export_run(run, Path(directory) / "float32", step=steps[-1], average=len(steps))
            if read_json(whole / CARD)["checkpoint"] != read_json(model / CARD)["checkpoint"]:
                return None
            return _compare(whole, model, *dataset.text("dev"))
    except (UserError, FileNotFoundError):
        return None


def _compare(whole: Path, model: Path, sources: list[str], references: list[str]) -> dict[str, Any]:
    systems, facts = [], []
    for path in (whole, model):
        translator = Translator(path)
        list(translator.translate(sources[:WARM_UP_LINES]))
        began = time.monotonic()
        texts = [translation.text for translation in translator.translate(sources)]
        speed = len(sources) / (time.monotonic() - began)
        name = translator.card["quantization"]
        systems.append(System(name, texts))
        facts.append(
            {
                "quantization": name,
                "bytes": (path / WEIGHTS).stat().st_size,
                "sentences_per_second": round(speed, 1),
            }
        )
    tgt_lang = read_json(model / CARD)["tgt_lang"]
    before, after = Comparison.of(systems, sources, references, ["bleu"], tgt_lang).results()
    return {
        "sentences": len(sources),
        "before": facts[0] | {"bleu": before["bleu"], "ci95": before["ci95"]},
        "after": facts[1] | {"bleu": after["bleu"], "ci95": after["ci95"]},
        "verdict": after["versus_first"]["bleu"]["verdict"],
        "signature": after["signature"],
    }
