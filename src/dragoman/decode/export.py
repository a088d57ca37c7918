"""Checkpoints as models: directories that ``ctranslate2`` itself, or Hugging Face's ``transformers``, loads.

A model directory holds the files of its format, the SentencePiece model, and a card (``dragoman.json``) that says
which weights these are, what they were trained on, and how to translate with them. It appears whole or not
at all.
"""

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from dragoman import __version__
from dragoman.config import Recipe
from dragoman.data.shards import Dataset
from dragoman.data.tokenizer import Tokenizer
from dragoman.decode.engine import QUANTIZATIONS, write_engine_model
from dragoman.decode.huggingface import write_huggingface_model
from dragoman.decode.translator import CARD, CARD_VERSION, TOKENIZER
from dragoman.errors import UserError
from dragoman.files import beside, disk_errors, publish_directory, read_json, read_json_lines, write_json
from dragoman.model.weights import Weights, require_same_names, weight_shapes
from dragoman.recipe import dump_recipe, load_recipe
from dragoman.rundir import AVERAGE, MANIFEST, MODEL, RunDir, best_first, step_directories

FORMATS = ("ctranslate2", "huggingface")
POSITIONS = 1024  # or more, if the model was trained on more; the engine refuses to go beyond what is written


class DamagedCheckpoint(UserError):
    """A checkpoint that does not hold what was written into it."""


def export_model(
    checkpoints: Sequence[Path],
    recipe: Recipe,
    tokenizer_path: Path,
    to: Path,
    *,
    format: str = "ctranslate2",
    quantization: str | None = None,
    extra: Mapping[str, Any] = {},
) -> Path:
    """Write the model of a checkpoint, or of the mean of several, to the directory ``to``, and return that.

    Where a checkpoint holds a moving average of the weights, that is what is exported. An earlier export at
    ``to`` is replaced once the new one is complete; anything else there is refused. ``extra`` goes on the
    card. A checkpoint that is pruned meanwhile raises FileNotFoundError and leaves nothing behind.
    """
    _require_known(format, quantization, to)
    _require_replaceable(to)
    manifests = [read_json(checkpoint / MANIFEST) for checkpoint in checkpoints]
    weights, digests = _mean_weights(checkpoints, manifests)
    tokenizer = Tokenizer.load(tokenizer_path)
    pieces = tokenizer.pieces()
    _require_shapes(weight_shapes(recipe.model, len(pieces)), weights, checkpoints[-1])
    positions = max(POSITIONS, recipe.filter.max_length)
    card = {
        "version": CARD_VERSION,
        "format": format,
        "src_lang": recipe.data.src_languages,
        "tgt_lang": recipe.data.tgt_languages,
        "tags": list(tokenizer.tags),  # of a multilingual model: the languages that a line can ask for
        "pairs": [list(pair) for pair in recipe.data.language_pairs],
        "steps": [manifest["step"] for manifest in manifests],
        "checkpoint": _joint_hash(manifests),
        "weights": digests,
        "recipe": hashlib.sha256(dump_recipe(recipe).encode()).hexdigest(),
        "beam": recipe.evaluate.beam,
        "length_penalty": recipe.evaluate.length_penalty,
        "split_sentences": recipe.evaluate.split_sentences,
        "max_length": recipe.filter.max_length,
        "positions": positions,
        "quantization": quantization or "float32",
        "versions": {"dragoman": __version__, **_versions("ctranslate2", "torch")},
        **extra,
    }
    with disk_errors(to):
        temporary = beside(to)
        try:
            temporary.mkdir(parents=True)
            if format == "ctranslate2":
                write_engine_model(weights, recipe.model, pieces, positions, quantization, temporary)
                shutil.copyfile(tokenizer_path, temporary / TOKENIZER)
            else:
                write_huggingface_model(weights, recipe, pieces, positions, tokenizer_path, temporary)
            write_json(temporary / CARD, card)
            _publish(temporary, to)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return to


def export_run(
    run: RunDir,
    to: Path,
    *,
    step: int | None = None,
    average: int = 1,
    format: str = "ctranslate2",
    quantization: str | None = None,
) -> Path:
    """Export a run's best checkpoint; or that of ``step``; or the mean of the last ``average`` of them.

    Best is what has the highest dev BLEU and is still there, which may itself be a mean; without scores, the
    newest. With both ``step`` and ``average``, the mean ends at that step.
    """
    recipe, facts = load_recipe(str(run.recipe)), read_json(run.facts)
    checkpoints = _choose(run, step, average)
    return export_model(
        checkpoints,
        recipe,
        _find_tokenizer(run, Path(facts["dataset"])),
        to,
        format=format,
        quantization=quantization,
        extra={"dataset": facts["fingerprint"], **_calibration(run, checkpoint_hash(checkpoints))},
    )


def _calibration(run: RunDir, identity: str) -> dict[str, Any]:
    """Return what the lane found out about the confidence of these weights, if it still has a model of them."""
    for path in run.models.glob(f"*/{CARD}"):
        with suppress(FileNotFoundError):  # the lane removes models
            card = read_json(path)
            if card["checkpoint"] == identity and card.get("confidence"):
                return {"confidence": card["confidence"]}
    return {}


def checkpoint_hash(checkpoints: Sequence[Path]) -> str:
    """Return the hash of a checkpoint, or one that stands for several together."""
    return _joint_hash([read_json(checkpoint / MANIFEST) for checkpoint in checkpoints])


def _joint_hash(manifests: Sequence[Mapping[str, Any]]) -> str:
    hashes = [str(manifest["hash"]) for manifest in manifests]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()


def _choose(run: RunDir, step: int | None, average: int) -> list[Path]:
    there = step_directories(run.checkpoints)
    steps = list(there)
    if not steps:
        raise UserError(
            "this run has no checkpoint yet", where=str(run.checkpoints), fix="wait for the first checkpoint"
        )
    if step is not None and step not in there:
        raise UserError(
            f"there is no checkpoint of step {step:,}",
            where=str(run.checkpoints),
            fix=f"choose one of {', '.join(map(str, steps))}",
        )
    if step is None and average == 1:
        return _best(run, there) or [there[steps[-1]]]
    up_to = steps if step is None else steps[: steps.index(step) + 1]
    if not 1 <= average <= len(up_to):
        raise UserError(
            f"cannot average {average} checkpoints: {len(up_to)} are there",
            where=str(run.checkpoints),
            fix=f"average between 1 and {len(up_to)}",
        )
    return [there[kept] for kept in up_to[-average:]]


def _best(run: RunDir, there: Mapping[int, Path]) -> list[Path] | None:
    for line in best_first(read_json_lines(run.scores)):
        steps = line.get("averaged", [line["step"]])
        if all(step in there for step in steps):
            checkpoints = [there[step] for step in steps]
            if checkpoint_hash(checkpoints) == line["checkpoint"]:
                return checkpoints
    return None


def _find_tokenizer(run: RunDir, dataset: Path) -> Path:
    """Return the dataset's tokenizer, or, where the dataset has gone, the one beside the best model."""
    best = run.best / TOKENIZER
    return best if best.is_file() and not dataset.is_dir() else Dataset.open(dataset).tokenizer_path


def _mean_weights(
    checkpoints: Sequence[Path], manifests: Sequence[Mapping[str, Any]]
) -> tuple[Weights, list[str]]:
    """Return the mean of the checkpoints' weights, and the SHA-256 of each file that went into it."""
    # Summed in double precision, so that the mean of equal weights is those weights.
    precision = np.float32 if len(checkpoints) == 1 else np.float64
    total: dict[str, NDArray[Any]] = {}
    digests = []
    for checkpoint, manifest in zip(checkpoints, manifests, strict=True):
        file = AVERAGE if AVERAGE in manifest["files"] else MODEL
        data = (checkpoint / file).read_bytes()
        digests.append(hashlib.sha256(data).hexdigest())
        if digests[-1] != manifest["files"][file]["sha256"]:
            raise DamagedCheckpoint(
                "the checkpoint is damaged: its checksum does not hold",
                where=str(checkpoint / file),
                fix="export another checkpoint",
            )
        weights = safetensors.numpy.load(data)
        require_same_names(set(total or weights), set(weights), checkpoint)
        for name, weight in weights.items():
            total[name] = total.get(name, 0) + weight.astype(precision, copy=False)
    return {name: (whole / len(checkpoints)).astype(np.float32) for name, whole in total.items()}, digests


def _versions(*names: str) -> dict[str, str]:
    found = {}
    for name in names:
        with suppress(PackageNotFoundError):  # exporting does without torch
            found[name] = version(name)
    return found


def _require_known(format: str, quantization: str | None, to: Path) -> None:
    if format not in FORMATS:
        raise UserError(
            f'there is no format "{format}"', where=str(to), fix=f"choose one of {', '.join(FORMATS)}"
        )
    if quantization not in (None, *QUANTIZATIONS):
        raise UserError(
            f'there is no quantization "{quantization}"',
            where=str(to),
            fix=f"choose one of {', '.join(QUANTIZATIONS)}",
        )
    if format == "huggingface" and quantization not in (None, "float32"):
        raise UserError(
            f"a model for transformers is written in float32, not {quantization}",
            where=str(to),
            fix="leave --quantize out, or choose --format ctranslate2",
        )


def _require_shapes(expected: Mapping[str, tuple[int, ...]], weights: Weights, where: Path) -> None:
    require_same_names(set(expected), set(weights), where)
    wrong = [
        f"{name} is {weights[name].shape}, not {shape}"
        for name, shape in expected.items()
        if weights[name].shape != shape
    ]
    if wrong:
        raise UserError(
            f"the weights do not fit the recipe's model and vocabulary: {'; '.join(wrong)}",
            where=str(where),
            fix="use the recipe and the dataset that this checkpoint was trained with",
        )


def _require_replaceable(to: Path) -> None:
    if (to.exists() and not (to / CARD).is_file()) or to.is_symlink():
        raise UserError(
            "this exists and is not a model that Dragoman exported",
            where=str(to),
            fix="choose another directory, or remove this one first",
        )


def _publish(temporary: Path, to: Path) -> None:
    """Give the finished model its name, moving an earlier one out of the way for just that moment."""
    if not to.exists():
        publish_directory(temporary, to)
        return
    earlier = beside(to.with_name(to.name + "-earlier"))
    to.rename(earlier)
    try:
        publish_directory(temporary, to)
    except BaseException:
        earlier.rename(to)
        raise
    shutil.rmtree(earlier)
