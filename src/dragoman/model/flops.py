"""How much a training step computes, from the model's shape and the real lengths of its sentences. Needs no torch.

Counted are matrix products, a multiplication and an addition as two: what the model needs, whatever a device does
beyond that (padding, computing attention a second time in the backward pass). Attention counts all pairs of positions,
also those that the decoder's mask hides. The backward pass needs two products for each one of the forward pass.
"""

import numpy as np
import numpy.typing as npt

from dragoman import config


def training_flops(cfg: config.Model, vocab_size: int, lengths: npt.NDArray[np.integer]) -> float:
    """Return the operations of one forward and backward pass over pairs of these ``lengths`` (n, 2): source, target."""
    width, inner = cfg.d_model, cfg.feed_forward
    src, tgt = lengths.astype(np.float64).T
    # Products with weights, by token: queries, keys, values and the way out are a square matrix each.
    encoder = 4 * width**2 + 2 * width * inner
    decoder = 6 * width**2 + 2 * width * inner
    memory = 2 * width**2  # keys and values of the source, for each layer of the decoder
    by_src = cfg.layers * encoder + cfg.num_decoder_layers * memory
    by_tgt = cfg.num_decoder_layers * decoder + vocab_size * width
    # Each query meets each key, and takes from each value.
    pairs = cfg.layers * src @ src + cfg.num_decoder_layers * (tgt @ tgt + tgt @ src)
    products = by_src * src.sum() + by_tgt * tgt.sum() + 2 * width * pairs
    return float(3 * 2 * products)
