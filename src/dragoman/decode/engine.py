"""The trained Transformer as CTranslate2 describes it: the same weights under the engine's names.

``weights`` are whole and of the right shapes when they come here (``export.py`` sees to it).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from ctranslate2.specs import TransformerSpec

from dragoman.config import Model
from dragoman.data.tokenizer import BOS, EOS, UNK
from dragoman.model.weights import LAYER_NORM_EPSILON, Weights, sinusoids

QUANTIZATIONS = ("float32", "int8", "int8_float32", "int16", "float16", "bfloat16")


def write_engine_model(
    weights: Weights, cfg: Model, pieces: list[str], positions: int, quantization: str | None, to: Path
) -> None:
    """Write the files that ``ctranslate2.Translator`` loads into the directory ``to``."""
    spec = build_spec(weights, cfg, pieces, positions)
    spec.optimize(quantization)
    spec.save(str(to))


def build_spec(weights: Weights, cfg: Model, pieces: list[str], positions: int) -> Any:
    """Return CTranslate2's description of the model, complete and checked."""
    num_layers = (cfg.layers, cfg.num_decoder_layers)
    spec = TransformerSpec.from_config(num_layers, cfg.heads, pre_norm=cfg.norm == "pre")
    for part, name in _parts(spec, cfg):
        weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
        if hasattr(part, "gamma"):
            part.gamma, part.beta = weight, bias
        else:
            part.weight, part.bias = weight, bias
    # Attention, where it is asked for, is the mean over all heads: one head alone may look anywhere.
    spec.decoder.alignment_heads = np.int16(0)
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


def _parts(spec: Any, cfg: Model) -> Iterator[tuple[Any, str]]:
    """Yield every linear map and norm of ``spec`` with our name for it."""
    for stack, side in ((spec.encoder, "encoder"), (spec.decoder, "decoder")):
        if cfg.norm == "pre":
            yield stack.layer_norm, f"{side}.norm"
        for index, layer in enumerate(stack.layer):
            at = f"{side}.layers.{index}"
            yield layer.self_attention.layer_norm, f"{at}.attention_norm"
            yield layer.self_attention.linear[0], f"{at}.attention.qkv"
            yield layer.self_attention.linear[1], f"{at}.attention.out"
            if side == "decoder":
                yield layer.attention.layer_norm, f"{at}.cross_norm"
                yield layer.attention.linear[0], f"{at}.cross_attention.q"
                yield layer.attention.linear[1], f"{at}.cross_attention.kv"
                yield layer.attention.linear[2], f"{at}.cross_attention.out"
            yield layer.ffn.layer_norm, f"{at}.feed_forward_norm"
            yield layer.ffn.linear_0, f"{at}.feed_forward.up"
            yield layer.ffn.linear_1, f"{at}.feed_forward.down"
