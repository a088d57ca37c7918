"""Questions 7, 8 and 9: the training set, the files of a checkpoint, and how big both kinds of model are."""

import json
import re
from pathlib import Path
from typing import Any

from dragoman.data import overlap
from dragoman.data.shards import MANIFEST as DATASET_MANIFEST
from dragoman.observe.explain.answer import MEGABYTE, NO, NOT_RECORDED, YES, Case, Finding, unclear
from dragoman.observe.history import File, History, whole
from dragoman.rundir import AVERAGE, MANIFEST, MODEL, OPTIMIZER, STATE, SYNC

FLOAT = 4  # bytes of a weight in a checkpoint
HEADER = 0.02  # of a file of weights may be its header, and rounding
HEADER_BYTES = 200_000

PURPOSES = {
    MODEL: "the weights, as they are after this step",
    OPTIMIZER: "the optimizer's memory (moments of every weight): without it a resumed run would stumble",
    AVERAGE: "the moving average of the weights, which is what is evaluated and exported",
    SYNC: "what compressed or local synchronisation carries from step to step",
    STATE: "step, tokens and counters: where the run goes on",
    MANIFEST: "size and SHA-256 of every file: a damaged checkpoint is noticed and passed over",
    "model.bin": "the weights for CTranslate2",
    "config.json": "how CTranslate2 treats the model",
    "shared_vocabulary.json": "the subwords by number",
    "sentencepiece.model": "cuts text into subwords, and joins them again",
    "dragoman.json": "where the model comes from: run, step, checkpoint's hash, beam",
}
REQUIRED = (MODEL, OPTIMIZER, STATE, MANIFEST)


def data(case: Case) -> Finding:
    """Question 7: megabytes, lines and tokens, per side and corpus, and what was dropped."""
    passport, where = _passport(case.history)
    train = passport.get("splits", {}).get("train") if passport else None
    if not isinstance(train, dict) or not isinstance(train.get("bytes"), list):
        return unclear(f"the dataset's passport is {NOT_RECORDED}")
    sizes, tokens = _pair(train, "bytes"), _pair(train, "tokens")
    lines, pairs = whole(train.get("lines")) or 0, whole(train.get("pairs")) or 0
    languages = passport.get("languages", {}) if passport else {}
    dropped = {name: _dropped(each) for name, each in ((passport or {}).get("dropped") or {}).items()}
    corpora = [
        {
            "paths": each.get("paths"),
            "lines": whole(each.get("lines")),
            "pairs": whole(each.get("pairs")),
            "megabytes": [size / MEGABYTE for size in _pair(each, "bytes")],
            "tokens": _pair(each, "tokens"),
        }
        for each in train.get("corpora") or []
        if isinstance(each, dict)
    ]
    evidence = {
        "megabytes": sum(sizes) / MEGABYTE,
        "megabytes_by_side": [size / MEGABYTE for size in sizes],
        "lines": lines,
        "pairs": pairs,
        "tokens": sum(tokens),
        "tokens_by_side": tokens,
        "dropped_pairs": lines - pairs,
        "dropped": dropped,
        "corpora": corpora,
        "read_from": where,
    }
    sides = " + ".join(f"{size / MEGABYTE:,.1f}" for size in sizes)
    names = f"{languages.get('src', 'src')} + {languages.get('tgt', 'tgt')}"
    summary = (
        f"{sum(sizes) / MEGABYTE:,.1f} MB ({names}: {sides}), {lines:,} lines of which {pairs:,} are used, "
        f"{' + '.join(f'{each:,}' for each in tokens)} tokens"
    )
    summary += f", from {len(corpora)} corpora" if len(corpora) > 1 else ""
    reasons = [f"{name} {pairs:,}" for name, pairs in dropped.items() if pairs]
    summary += f"; dropped: {', '.join(reasons)}" if reasons else ""
    advice = []
    known = passport.get("overlap") if passport else None
    for name, split in passport.get("splits", {}).items() if passport else ():
        if known and not known.get("gate") and (told := overlap.in_words(known, name)):
            advice.append(f"{told}; set filter.overlap = true")
        elif isinstance(split, dict) and (number := whole(split.get("overlap_with_train"))):  # format 1
            advice.append(f"{number:,} pairs of {name} are in the training set too: its scores are too good")
    return Finding(YES, summary, evidence, 0.99, advice)


def checkpoint_files(case: Case) -> Finding:
    """Question 8: every file with its purpose, and whether all that a resumed run needs is there."""
    step, files = _newest(case.history)
    if step is None:
        return unclear(_no_checkpoint(case), {"checkpoints": []})
    missing = [name for name in REQUIRED if name not in {file.name for file in files}]
    evidence = {
        "step": step,
        "files": [_describe(file) for file in files],
        "missing": missing,
        "checkpoints": list(case.history.checkpoints),
        "model_files": [_describe(file) for file in case.history.model_files],
    }
    listed = ", ".join(
        f"{file.name} {_size(file.bytes)} ({_purpose(file.name, short=True)})" for file in files
    )
    if missing:
        advice = ["the run goes on from the newest checkpoint that is whole"]
        return Finding(
            NO, f"step {step:,} lacks {', '.join(missing)}; it has {listed}", evidence, 0.99, advice
        )
    return Finding(YES, f"{len(files)} files at step {step:,}: {listed}", evidence, 0.99)


def checkpoint_size(case: Case) -> Finding:
    """Question 9: megabytes of a checkpoint and of the exported model, checked against the parameters."""
    step, files = _newest(case.history)
    exported = sum(file.bytes for file in case.history.model_files)
    if step is None:
        return unclear(_no_checkpoint(case), {"model_megabytes": exported / MEGABYTE if exported else None})
    sizes = {file.name: file.bytes for file in files}
    parameters, weights = case.parameters, sizes.get(MODEL, 0)
    evidence = {
        "step": step,
        "checkpoint_megabytes": sum(sizes.values()) / MEGABYTE,
        "weights_megabytes": weights / MEGABYTE,
        "optimizer_megabytes": sizes.get(OPTIMIZER, 0) / MEGABYTE,
        "model_megabytes": exported / MEGABYTE if exported else None,
        "all_checkpoints_megabytes": sum(
            file.bytes for each in case.history.checkpoints.values() for file in each
        ) / MEGABYTE,
        "parameters": parameters,
        "expected_weights_megabytes": parameters * FLOAT / MEGABYTE if parameters else None,
        "bytes_per_parameter": sum(sizes.values()) / parameters if parameters else None,
    }  # fmt: skip
    summary = f"a checkpoint is {sum(sizes.values()) / MEGABYTE:,.1f} MB"
    summary += (
        f", the exported model {exported / MEGABYTE:,.1f} MB" if exported else ", no model is exported yet"
    )
    if not parameters:
        return unclear(f"{summary}; the number of parameters is {NOT_RECORDED}", evidence)
    expected = parameters * FLOAT
    summary += f"; {parameters / 1e6:,.1f} M parameters of {FLOAT} bytes are {expected / MEGABYTE:,.1f} MB"
    if abs(weights - expected) <= HEADER * expected + HEADER_BYTES:
        return Finding(YES, summary, evidence, 0.99)
    return Finding(NO, f"{summary}, but {MODEL} has {weights / MEGABYTE:,.1f}", evidence, 0.95)


def _passport(history: History) -> tuple[dict[str, Any] | None, str]:
    """Return the passport and where it was found: in the run, else in the dataset, if that is here."""
    if history.passport is not None:
        return history.passport, "run"
    dataset = history.facts.get("dataset")
    if not isinstance(dataset, str):
        return None, ""
    try:
        found = json.loads((Path(dataset) / DATASET_MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None, ""
    same = isinstance(found, dict) and found.get("fingerprint") == history.facts.get("fingerprint")
    return (found, "dataset") if same else (None, "")


def _pair(facts: dict[str, Any], name: str) -> list[int]:
    values = facts.get(name)
    return [whole(value) or 0 for value in values] if isinstance(values, list) else []


def _dropped(facts: Any) -> int | None:
    return whole(facts.get("pairs") if isinstance(facts, dict) else facts)


def _newest(history: History) -> tuple[int | None, list[File]]:
    kept = {step: files for step, files in history.checkpoints.items() if files}
    return (max(kept), kept[max(kept)]) if kept else (None, [])


def _no_checkpoint(case: Case) -> str:
    if case.history.kind != "dragoman":
        return f"the files of checkpoints are {NOT_RECORDED}"
    return f"there is no checkpoint here: none was written yet, or they were not copied ({NOT_RECORDED})"


def _describe(file: File) -> dict[str, Any]:
    return {"name": file.name, "megabytes": file.bytes / MEGABYTE, "purpose": _purpose(file.name)}


def _purpose(name: str, *, short: bool = False) -> str:
    """Return what a file is for; in ``short`` without the reason."""
    purpose = PURPOSES.get(name, "not one of ours")
    return re.split(r":| \(", purpose)[0] if short else purpose


def _size(count: int) -> str:
    return f"{count / MEGABYTE:,.1f} MB" if count >= 0.05 * MEGABYTE else f"{count:,} bytes"
