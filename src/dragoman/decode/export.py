"""Checkpoints as models: directories that the ``ctranslate2`` package itself loads and translates with.

A model directory holds CTranslate2's files, the SentencePiece model, and a card (``dragoman.json``) that says
which weights these are, what they were trained on, and how to translate with them. It appears whole or not
at all.
"""

import hashlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from ctranslate2.specs import TransformerSpec
from numpy.typing import NDArray

from dragoman import __version__
from dragoman.config import Model, Recipe
from dragoman.data.shards import Dataset
from dragoman.data.tokenizer import BOS, EOS, UNK, Tokenizer
from dragoman.decode.translator import CARD, CARD_VERSION, TOKENIZER
from dragoman.errors import UserError
from dragoman.files import beside, disk_errors, publish_directory, read_json, read_json_lines, write_json
from dragoman.model.weights import require_same_names, sinusoids
from dragoman.recipe import dump_recipe, load_recipe
from dragoman.rundir import AVERAGE, MANIFEST, MODEL, RunDir, best_first, step_directories

QUANTIZATIONS = ("float32", "int8", "int8_float32", "int16", "float16", "bfloat16")
POSITIONS = 1024  # or more, if the model was trained on more; the engine refuses to go beyond what is written
LAYER_NORM_EPSILON = 1e-5  # torch's default

Weights = dict[str, NDArray[np.float32]]


class DamagedCheckpoint(UserError):
    """A checkpoint that does not hold what was written into it."""


def export_model(
    checkpoints: Sequence[Path],
    recipe: Recipe,
    tokenizer_path: Path,
    to: Path,
    *,
    quantization: str | None = None,
    extra: Mapping[str, Any] = {},
) -> Path:
    """Write the model of a checkpoint, or of the mean of several, to the directory ``to``, and return that.

    Where a checkpoint holds a moving average of the weights, that is what is exported. An earlier export at
    ``to`` is replaced once the new one is complete; anything else there is refused. ``extra`` goes on the
    card. A checkpoint that is pruned meanwhile raises FileNotFoundError and leaves nothing behind.
    """
    if quantization not in (None, *QUANTIZATIONS):
        raise UserError(
            f'there is no quantization "{quantization}"',
            where=str(to),
            fix=f"choose one of {', '.join(QUANTIZATIONS)}",
        )
    _require_replaceable(to)
    manifests = [read_json(checkpoint / MANIFEST) for checkpoint in checkpoints]
    weights, digests = _mean_weights(checkpoints, manifests)
    positions = max(POSITIONS, recipe.filter.max_length)
    tokenizer = Tokenizer.load(tokenizer_path)
    spec = _build_spec(weights, recipe.model, tokenizer.pieces(), positions, checkpoints[-1])
    card = {
        "version": CARD_VERSION,
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
        "max_length": recipe.filter.max_length,
        "positions": positions,
        "quantization": quantization or "float32",
        "versions": {"dragoman": __version__, **{name: version(name) for name in ("ctranslate2", "torch")}},
        **extra,
    }
    with disk_errors(to):
        temporary = beside(to)
        try:
            temporary.mkdir(parents=True)
            spec.optimize(quantization)
            spec.save(str(temporary))
            shutil.copyfile(tokenizer_path, temporary / TOKENIZER)
            write_json(temporary / CARD, card)
            _publish(temporary, to)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return to


def export_run(
    run: RunDir, to: Path, *, step: int | None = None, average: int = 1, quantization: str | None = None
) -> Path:
    """Export a run's best checkpoint; or that of ``step``; or the mean of the last ``average`` of them.

    Best is what has the highest dev BLEU and is still there, which may itself be a mean; without scores, the
    newest. With both ``step`` and ``average``, the mean ends at that step.
    """
    recipe, facts = load_recipe(str(run.recipe)), read_json(run.facts)
    return export_model(
        _choose(run, step, average),
        recipe,
        _find_tokenizer(run, Path(facts["dataset"])),
        to,
        quantization=quantization,
        extra={"dataset": facts["fingerprint"]},
    )


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


def _build_spec(weights: Weights, cfg: Model, pieces: list[str], positions: int, where: Path) -> Any:
    """Return CTranslate2's description of the model, complete and checked."""
    num_layers = (cfg.layers, cfg.num_decoder_layers)
    spec = TransformerSpec.from_config(num_layers, cfg.heads, pre_norm=cfg.norm == "pre")
    parts = list(_parts(spec, cfg))
    shapes: dict[str, tuple[int, ...]] = {"embedding.weight": (len(pieces), cfg.d_model)}
    for _, name, shape in parts:
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    _require_shapes(shapes, weights, where)

    for part, name, _ in parts:
        weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
        if hasattr(part, "gamma"):
            part.gamma, part.beta = weight, bias
        else:
            part.weight, part.bias = weight, bias
    encodings = sinusoids(positions, cfg.d_model)
    spec.encoder.position_encodings.encodings = encodings
    spec.decoder.position_encodings.encodings = encodings
    for embeddings in (spec.encoder.embeddings[0], spec.decoder.embeddings, spec.decoder.projection):
        embeddings.weight = weights["embedding.weight"]

    spec.register_source_vocabulary(pieces)
    spec.register_target_vocabulary(pieces)
    spec.config.unk_token, spec.config.eos_token = pieces[UNK], pieces[EOS]
    spec.config.bos_token = spec.config.decoder_start_token = pieces[BOS]
    spec.config.add_source_eos = True  # the engine adds it, so whoever translates must not
    spec.config.layer_norm_epsilon = LAYER_NORM_EPSILON
    spec.validate()
    return spec


def _parts(spec: Any, cfg: Model) -> Iterator[tuple[Any, str, tuple[int, ...]]]:
    """Yield every linear map and norm of ``spec`` with our name for it and the shape of its weight."""
    d, f = cfg.d_model, cfg.feed_forward
    for stack, side in ((spec.encoder, "encoder"), (spec.decoder, "decoder")):
        if cfg.norm == "pre":
            yield stack.layer_norm, f"{side}.norm", (d,)
        for index, layer in enumerate(stack.layer):
            at = f"{side}.layers.{index}"
            yield layer.self_attention.layer_norm, f"{at}.attention_norm", (d,)
            yield layer.self_attention.linear[0], f"{at}.attention.qkv", (3 * d, d)
            yield layer.self_attention.linear[1], f"{at}.attention.out", (d, d)
            if side == "decoder":
                yield layer.attention.layer_norm, f"{at}.cross_norm", (d,)
                yield layer.attention.linear[0], f"{at}.cross_attention.q", (d, d)
                yield layer.attention.linear[1], f"{at}.cross_attention.kv", (2 * d, d)
                yield layer.attention.linear[2], f"{at}.cross_attention.out", (d, d)
            yield layer.ffn.layer_norm, f"{at}.feed_forward_norm", (d,)
            yield layer.ffn.linear_0, f"{at}.feed_forward.up", (f, d)
            yield layer.ffn.linear_1, f"{at}.feed_forward.down", (d, f)


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
