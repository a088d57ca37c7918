"""What a worker's memory holds at its fullest: when the last micro-batch begins its backward pass. Needs no torch.

What autograd keeps of each layer was counted in ``model/transformer.py`` and is tested against what torch really keeps.
"""

import math
from dataclasses import dataclass

from dragoman import config
from dragoman.cluster.estimate import BYTES, LEVELS, Mode
from dragoman.model.weights import CPU_ROWS, GPU_ROWS, count_parameters

USABLE = 0.95  # of what is free: allocators leave gaps
ROUND_TOKENS = 256  # of a suggested micro-batch
VECTOR = 16  # numbers that a CPU computes together


@dataclass(frozen=True)
class MicroBatch:
    """One forward and backward: sentences of the same lengths, in tokens with end-of-sentence."""

    sentences: float
    src: float
    tgt: float

    @property
    def tokens(self) -> float:
        return self.sentences * self.tgt


@dataclass(frozen=True)
class Memory:
    """Bytes on one device."""

    weights: float
    gradients: float  # also the buckets: gradients are views of them
    optimizer: float
    average: float
    exchange: float  # what the mode keeps
    activations: float
    logits: float  # of some tokens at a time
    reserved: float
    available: float

    @property
    def total(self) -> float:
        return self.fixed + self.activations + self.logits

    @property
    def fixed(self) -> float:
        """What does not depend on the micro-batch."""
        return self.weights + self.gradients + self.optimizer + self.average + self.exchange + self.reserved

    @property
    def fits(self) -> bool:
        return self.total - self.reserved <= USABLE * (self.available - self.reserved)

    def largest_micro_batch(self, tokens: float) -> int:
        """Return the most tokens of a micro-batch that fit, if one of ``tokens`` needs this; 0 if none does."""
        room = USABLE * (self.available - self.reserved) - (self.fixed - self.reserved) - self.logits
        most = room / (self.activations / tokens)
        return max(0, int(most) // ROUND_TOKENS * ROUND_TOKENS)


def memory_of(
    recipe: config.Recipe,
    vocab_size: int,
    batch: MicroBatch,
    mode: Mode,
    *,
    precision: str,
    on_gpu: bool,
    hosts: int,
    available: float,
    reserved: float,
) -> Memory:
    """Return what training a recipe takes of a device that computes in ``precision``."""
    weights = count_parameters(recipe.model, vocab_size)
    matrices = matrix_weights(recipe.model)
    half = precision != "float32"
    moments = 2 * (weights - matrices) + matrices if recipe.optimizer.name == "muon" else 2 * weights
    return Memory(
        # In half precision every matrix has a copy for the products.
        weights=4 * weights + (2 * (matrices + vocab_size * recipe.model.d_model) if half else 0),
        gradients=4 * weights,
        optimizer=4 * moments,
        average=4 * weights if recipe.train.average == "ema" else 0,
        exchange=4 * weights * kept_numbers(mode, hosts),
        activations=activation_bytes(recipe.model, batch, half=half, on_gpu=on_gpu),
        logits=logit_bytes(recipe.model, vocab_size, batch.tokens, half=half, on_gpu=on_gpu),
        reserved=reserved,
        available=available,
    )


def matrix_weights(cfg: config.Model) -> int:
    """Return the weights of the hidden matrices: all but embedding, norms and biases."""
    square, inner = cfg.d_model**2, cfg.d_model * cfg.feed_forward
    return cfg.layers * (4 * square + 2 * inner) + cfg.num_decoder_layers * (8 * square + 2 * inner)


def kept_numbers(mode: Mode, hosts: int) -> int:
    """Return how many numbers a worker keeps for each weight between steps: owed gradients, or common weights."""
    if mode.sync == "local" and hosts > 1:
        return 2
    return int(mode.sync == "compressed" and (mode.wire not in LEVELS or hosts > 1))


def logit_bytes(cfg: config.Model, vocab_size: int, tokens: float, *, half: bool, on_gpu: bool) -> float:
    """Return what the loss takes: logits of some rows, in half precision with a copy, and their weight's gradient."""
    rows = min(tokens, GPU_ROWS if on_gpu else CPU_ROWS)
    return vocab_size * (rows * (8 if half else 4) + 4 * cfg.d_model)


def activation_bytes(cfg: config.Model, batch: MicroBatch, *, half: bool, on_gpu: bool) -> float:
    """Return what the forward pass keeps for the backward pass, without logits."""
    value = BYTES["bf16"] if half else BYTES["float32"]
    mask = 1 if on_gpu else 0  # dropout keeps which; on a CPU only the seed
    masks = mask if cfg.dropout else 0
    width = cfg.d_model
    inner = cfg.feed_forward * (value + (value + mask if cfg.relu_dropout and on_gpu else 0))
    # A norm keeps its input, the residual sum, in float32; products keep their input in what they compute with.
    attention = width * (4 + value * (1 + 3 + 1) + masks)  # norm, input, q k v, mixed
    forward = width * (4 + value + masks) + inner
    source = cfg.layers * (attention + forward) + width * (4 + value + (mask if cfg.dropout else 0))
    target = cfg.num_decoder_layers * (width * (4 + value * 3 + masks) + attention + forward)
    target += width * (
        4 + 4 + value + (mask if cfg.dropout else 0)
    )  # the loss makes the last state's gradient
    over_source = cfg.num_decoder_layers * width * 2 * value  # k and v of the memory
    kept = batch.sentences * (batch.src * (source + over_source) + batch.tgt * target)
    if not on_gpu:
        # A CPU keeps attention's weights in float32, in whole vectors of keys: see model/kernels.py.
        src, tgt = (VECTOR * math.ceil(length / VECTOR) for length in (batch.src, batch.tgt))
        pairs = cfg.layers * batch.src * src + cfg.num_decoder_layers * batch.tgt * (tgt + src)
        kept += batch.sentences * cfg.heads * pairs * BYTES["float32"]
    return kept
