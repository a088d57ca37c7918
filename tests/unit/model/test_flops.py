"""What a step computes, against torch's own counter."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from dragoman.config import Model
from dragoman.model import kernels
from dragoman.model.flops import training_flops
from dragoman.model.loss import token_loss
from dragoman.model.transformer import Batch, Transformer

VOCAB = 50
SHAPES = [
    Model(layers=2, d_model=16, heads=2, feed_forward=24),
    Model(layers=1, decoder_layers=3, d_model=32, heads=4, feed_forward=64, norm="post"),
]


def counted(cfg: Model, pairs: int, src: int, tgt: int) -> int:
    """Let torch count one forward and backward pass without padding."""
    batch = Batch(
        src_M=torch.ones(pairs * src, dtype=torch.long),
        src_lengths_B=torch.full((pairs,), src),
        tgt_in_N=torch.ones(pairs * tgt, dtype=torch.long),
        tgt_out_N=torch.ones(pairs * tgt, dtype=torch.long),
        tgt_lengths_B=torch.full((pairs,), tgt),
    )
    model = Transformer(cfg, VOCAB)
    with FlopCounterMode(display=False) as counter:
        token_loss(model(batch), model.projection, batch.tgt_out_N, 0.1).smoothed.backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("cfg", SHAPES)
@pytest.mark.parametrize(("pairs", "src", "tgt"), [(3, 5, 7), (1, 20, 2), (4, 1, 9)])
def test_it_is_what_torch_counts(monkeypatch, cfg, pairs, src, tgt):
    monkeypatch.setattr(kernels, "is_native", lambda x: False)  # of ours torch knows nothing
    lengths = np.tile(np.array([[src, tgt]], np.int32), (pairs, 1))
    assert training_flops(cfg, VOCAB, lengths) == counted(cfg, pairs, src, tgt)


def test_sentences_add_up_and_padding_counts_nothing():
    lengths = np.array([[3, 4], [30, 2], [7, 50]], np.int32)
    whole = training_flops(SHAPES[0], VOCAB, lengths)
    assert whole == sum(training_flops(SHAPES[0], VOCAB, lengths[[row]]) for row in range(3))
    assert training_flops(SHAPES[0], VOCAB, lengths[:0]) == 0


def test_it_knows_the_size_of_a_base_model():
    # Six times parameters times tokens is the rule of thumb, without attention and with an embedding on one side.
    cfg = Model(layers=6, d_model=512, heads=8, feed_forward=2048)
    per_token = training_flops(cfg, 32_000, np.array([[25, 25]])) / 25
    assert per_token == pytest.approx(6 * 60.5e6, rel=0.02)
