import pytest
import torch

from dragoman.config import Model
from dragoman.model.loss import token_loss
from dragoman.model.transformer import Batch, Transformer, is_fused
from dragoman.model.weights import sinusoids

VOCAB = 40
TINY = Model(layers=2, decoder_layers=1, d_model=16, heads=4, feed_forward=24)
BOTH_NORMS = [TINY, TINY.model_copy(update={"norm": "post"})]


def build(cfg: Model = TINY) -> Transformer:
    torch.manual_seed(1)
    return Transformer(cfg, VOCAB).eval()


def sentence(length: int) -> torch.Tensor:
    return torch.randint(3, VOCAB, (length,), generator=torch.Generator().manual_seed(length))


def batch_of(*pairs: tuple[torch.Tensor, torch.Tensor]) -> Batch:
    """Put sentence pairs into one batch; the target output plays no part in the logits."""
    src, tgt = zip(*pairs, strict=True)
    lengths = [torch.tensor([len(each) for each in side]) for side in (src, tgt)]
    return Batch(torch.cat(src), lengths[0], torch.cat(tgt), torch.cat(tgt), lengths[1])


def test_a_prediction_for_each_target():
    pairs = [(sentence(5), sentence(7)), (sentence(3), sentence(2))]
    model = build()
    assert model.logits(model(batch_of(*pairs))).shape == (9, VOCAB)


@pytest.mark.parametrize("cfg", BOTH_NORMS, ids=lambda cfg: cfg.norm)
def test_a_sentence_is_the_same_alone_and_in_a_batch(cfg):
    model = build(cfg)
    pairs = [(sentence(9), sentence(4)), (sentence(3), sentence(11)), (sentence(6), sentence(1))]
    together = model.logits(model(batch_of(*pairs))).log_softmax(-1)
    alone = torch.cat([model.logits(model(batch_of(pair))).log_softmax(-1) for pair in pairs])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("cfg", BOTH_NORMS, ids=lambda cfg: cfg.norm)
def test_a_later_token_does_not_change_earlier_logits(cfg):
    model = build(cfg)
    src, tgt = sentence(6), sentence(8)
    changed = tgt.clone()
    changed[5] = (changed[5] + 1) % VOCAB
    before, after = model(batch_of((src, tgt))), model(batch_of((src, changed)))
    assert torch.equal(before[:5], after[:5])
    assert not torch.allclose(before[5:], after[5:])


def test_every_source_token_matters():
    model = build()
    src, tgt = sentence(6), sentence(3)
    for position in range(6):
        changed = src.clone()
        changed[position] = (changed[position] + 1) % VOCAB
        assert not torch.allclose(model(batch_of((src, tgt))), model(batch_of((changed, tgt))))


def test_post_norm_has_no_closing_norms():
    names = {cfg.norm: set(dict(build(cfg).named_parameters())) for cfg in BOTH_NORMS}
    assert names["pre"] - names["post"] == {
        f"{side}.norm.{kind}" for side in ("encoder", "decoder") for kind in ("weight", "bias")
    }
    assert names["post"] < names["pre"]


def test_transformer_base_has_the_size_of_the_paper():
    with torch.device("meta"):
        model = Transformer(Model(), 32_768)
    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(60.9e6, rel=1e-3)


def test_positions_grow_with_the_longest_sentence():
    model = build()
    long, short = (sentence(300), sentence(280)), (sentence(5), sentence(5))
    before = model(batch_of(short))
    assert model(batch_of(long)).shape == (280, 16)
    assert len(model.positions_TD) == 600
    assert torch.equal(model.positions_TD, torch.from_numpy(sinusoids(600, 16)))
    assert torch.equal(model(batch_of(short)), before)
    assert "positions_TD" not in model.state_dict(), "a checkpoint must not depend on the sentences seen"


def test_positions_are_sines_and_cosines():
    table_TD = torch.from_numpy(sinusoids(3, 4))
    angle_TK = torch.tensor([[0.0, 0.0], [1.0, 0.01], [2.0, 0.02]])
    torch.testing.assert_close(table_TD, torch.cat([angle_TK.sin(), angle_TK.cos()], dim=1))


def test_dropout_is_for_training_only():
    model, batch = build(), batch_of((sentence(5), sentence(7)))
    assert torch.equal(model(batch), model(batch))
    model.train()
    assert not torch.equal(model(batch), model(batch))


def test_dropout_follows_the_seed():
    model, batch = build().train(), batch_of((sentence(5), sentence(7)))
    logits = []
    for _ in range(2):
        torch.manual_seed(7)
        logits.append(model(batch))
    assert torch.equal(*logits)


def test_half_precision_trains_all_weights():
    model, batch = build().train(), batch_of((sentence(5), sentence(7)), (sentence(4), sentence(3)))
    with torch.autocast("cpu", torch.bfloat16):
        loss = token_loss(model(batch), model.projection, batch.tgt_out_N, 0.1)
    loss.smoothed.backward()
    for weight in model.parameters():
        assert weight.grad.dtype is torch.float32
        assert weight.grad.isfinite().all()
        assert weight.grad.any()


def test_embeddings_are_one_matrix():
    shapes = {name: tuple(p.shape) for name, p in build().named_parameters() if VOCAB in p.shape}
    assert shapes == {"embedding.weight": (VOCAB, 16)}


def test_fused_projections_start_as_their_square_parts():
    model = build(Model(layers=1, d_model=64, heads=4, feed_forward=64))
    fused = {name: p for name, p in model.named_parameters() if is_fused(name)}
    assert sorted(fused) == [
        "decoder.layers.0.attention.qkv.weight",
        "decoder.layers.0.cross_attention.kv.weight",
        "encoder.layers.0.attention.qkv.weight",
    ]
    for parameter in fused.values():
        for part in parameter.split(64):
            assert part.abs().max().item() == pytest.approx((6 / 128) ** 0.5, rel=0.02)
