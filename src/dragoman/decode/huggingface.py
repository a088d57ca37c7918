"""The trained Transformer as Hugging Face's ``transformers`` loads it: the same numbers under other names.

Two of its classes compute what we do, down to the layout of the sinusoids: ``MarianMTModel`` where norms come after a
block, ``PegasusForConditionalGeneration`` where they come before (docs/decisions/0010). Written without torch and
without ``transformers``: weights as safetensors, everything else as JSON.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from dragoman.config import Data, Evaluate, Model, Recipe
from dragoman.data.tokenizer import BOS, EOS, PAD, UNK, tag
from dragoman.files import write_json
from dragoman.model.weights import Weights, sinusoids

CLASSES = {"post": ("marian", "MarianMTModel"), "pre": ("pegasus", "PegasusForConditionalGeneration")}
SIDES = ("encoder", "decoder")


def write_huggingface_model(
    weights: Weights, recipe: Recipe, pieces: list[str], positions: int, tokenizer_path: Path, to: Path
) -> None:
    """Write the files that ``AutoModelForSeq2SeqLM`` and ``AutoTokenizer`` load into the directory ``to``."""
    tensors = dict(_tensors(weights, recipe.model, positions))
    safetensors.numpy.save_file(
        {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()},
        to / "model.safetensors",
        metadata={"format": "pt"},
    )
    write_json(to / "config.json", _config(recipe.model, len(pieces), positions))
    write_json(to / "generation_config.json", _generation(recipe.evaluate, positions))
    write_json(to / "tokenizer_config.json", _tokenizer(pieces, recipe.data, positions))
    write_json(to / "vocab.json", {piece: index for index, piece in enumerate(pieces)})
    for name in ("source.spm", "target.spm"):  # one vocabulary for both languages
        shutil.copyfile(tokenizer_path, to / name)


def _tensors(weights: Weights, cfg: Model, positions: int) -> Iterator[tuple[str, Any]]:
    yield "model.shared.weight", weights["embedding.weight"]
    yield "final_logits_bias", np.zeros((1, len(weights["embedding.weight"])), np.float32)
    for side, num_layers in zip(SIDES, (cfg.layers, cfg.num_decoder_layers), strict=True):
        yield f"model.{side}.embed_positions.weight", sinusoids(positions, cfg.d_model)
        parts = [
            (f"layers.{index}.{theirs}", f"layers.{index}.{ours}", which, num_parts)
            for index in range(num_layers)
            for theirs, ours, which, num_parts in _layer(side)
        ]
        if cfg.norm == "pre":
            parts.append(("layer_norm", "norm", 0, 1))
        for theirs, ours, which, num_parts in parts:
            for kind in ("weight", "bias"):
                fused = weights[f"{side}.{ours}.{kind}"]
                yield f"model.{side}.{theirs}.{kind}", np.split(fused, num_parts)[which]


def _layer(side: str) -> Iterator[tuple[str, str, int, int]]:
    """Yield their name, ours, and which part of how many of our fused weight it is."""
    for which, letter in enumerate("qkv"):
        yield f"self_attn.{letter}_proj", "attention.qkv", which, 3
    yield "self_attn.out_proj", "attention.out", 0, 1
    yield "self_attn_layer_norm", "attention_norm", 0, 1
    if side == "decoder":
        yield "encoder_attn.q_proj", "cross_attention.q", 0, 1
        yield "encoder_attn.k_proj", "cross_attention.kv", 0, 2
        yield "encoder_attn.v_proj", "cross_attention.kv", 1, 2
        yield "encoder_attn.out_proj", "cross_attention.out", 0, 1
        yield "encoder_attn_layer_norm", "cross_norm", 0, 1
    yield "fc1", "feed_forward.up", 0, 1
    yield "fc2", "feed_forward.down", 0, 1
    yield "final_layer_norm", "feed_forward_norm", 0, 1


def _config(cfg: Model, vocab_size: int, positions: int) -> dict[str, Any]:
    model_type, architecture = CLASSES[cfg.norm]
    layers = dict(zip(SIDES, (cfg.layers, cfg.num_decoder_layers), strict=True))
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "is_encoder_decoder": True,
        "vocab_size": vocab_size,
        "d_model": cfg.d_model,
        **{f"{side}_layers": layers[side] for side in SIDES},
        **{f"{side}_attention_heads": cfg.heads for side in SIDES},
        **{f"{side}_ffn_dim": cfg.feed_forward for side in SIDES},
        "activation_function": "relu",
        "max_position_embeddings": positions,
        "scale_embedding": True,
        "tie_word_embeddings": True,
        "dropout": cfg.dropout,
        "attention_dropout": cfg.attention_dropout,
        "activation_dropout": cfg.relu_dropout,
        "init_std": cfg.d_model**-0.5,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
        "forced_eos_token_id": None,
        "dtype": "float32",
    }


def _generation(evaluate: Evaluate, positions: int) -> dict[str, Any]:
    """Say in their words how the model was scored: the same search, the same normalisation, nothing unknown."""
    return {
        "num_beams": evaluate.beam,
        "length_penalty": evaluate.length_penalty,
        "early_stopping": True,  # the engine stops once as many hypotheses have ended as the beam is wide
        "max_length": positions,
        "min_new_tokens": 1,
        "suppress_tokens": [UNK],
        "renormalize_logits": True,  # what is suppressed leaves its probability to the others
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
    }


def _tokenizer(pieces: list[str], data: Data, positions: int) -> dict[str, Any]:
    tags = [tag(language) for language in data.tags]
    return {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": data.src_languages,
        "target_lang": data.tgt_languages,
        "unk_token": pieces[UNK],
        "pad_token": pieces[PAD],
        "eos_token": pieces[EOS],
        "extra_special_tokens": tags,  # by which a line names its target language
        "model_max_length": positions,
        "split_special_tokens": not tags,  # text that reads like the end-of-sentence piece is text
        "clean_up_tokenization_spaces": False,
    }
