"""What lies between products, as ``fused.c`` and as torch's operations compute it: the same, with the same dropped."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dragoman.model import kernels, native
from dragoman.model.kernels import (
    Sentences,
    apart,
    attend,
    draw_seed,
    dropout,
    dropout_mask,
    dropped_levels,
    exponentials,
    relu_dropped,
    residual_norm,
)

P = 0.25  # exact in 8 bits
CPU = torch.device("cpu")
WIDTHS = [7, 16, 24, 64, 100]  # less than a vector, one, one and a half, what a hash decides, and more


@pytest.fixture(params=["fused", "torch"])
def way(request, monkeypatch):
    """Compute in one way and in the other."""
    if request.param == "torch":
        monkeypatch.setattr(kernels, "is_native", lambda x: False)
    else:
        assert native.library() is not None, "fused.c was not compiled: is there a C compiler?"
    return request.param


@pytest.fixture(params=[1, 3])
def threads(request, monkeypatch):
    monkeypatch.setattr(native, "FEWEST", 0)
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture
def seed(monkeypatch):
    """Let all draw the same seed."""
    monkeypatch.setattr(kernels, "draw_seed", lambda: 0x1234_5678_9ABC_0000)
    return 0x1234_5678_9ABC_0000


def gradients(outputs, *inputs):
    """Return the gradients of a sum with a weight for each number, the same for outputs of one shape."""
    generator = torch.Generator().manual_seed(9)
    weighted = [(output * torch.randn(output.shape, generator=generator)).sum() for output in outputs]
    return torch.autograd.grad(sum(weighted), inputs)


def inputs(*shapes):
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


def norm_of(width):
    norm = nn.LayerNorm(width)
    norm.weight.data, norm.bias.data = (each.detach() for each in inputs((width,), (width,)))
    return norm


def test_a_mask_is_a_function_of_its_seed():
    shape = torch.Size([333, 3])
    assert torch.equal(dropout_mask(shape, P, 5), dropout_mask(shape, P, 5))
    for other in (6, 5 + 2**40):  # both halves of a seed count
        assert not torch.equal(dropout_mask(shape, P, 5), dropout_mask(shape, P, other))


@pytest.mark.parametrize("p", [0.1, 0.25, 0.9])
def test_a_mask_drops_as_many_as_it_should_and_keeps_the_mean(p):
    mask = dropout_mask(torch.Size([1000, 1024]), p, 1)
    drawn = dropped_levels(p, 1) / 256
    assert (mask == 0).float().mean().item() == pytest.approx(drawn, abs=5 * math.sqrt(p * (1 - p)) / 1000)
    assert mask.mean().item() == pytest.approx(1, abs=0.01)
    assert mask.unique().numel() == 2


@pytest.mark.parametrize("apart_by", [1, 16, 64, 1024, 16 * 1024])
def test_numbers_are_dropped_independently(apart_by):
    mask = dropout_mask(torch.Size([1000, 1024]), P, 1).view(-1)
    assert abs(torch.corrcoef(torch.stack([mask[:-apart_by], mask[apart_by:]]))[0, 1].item()) < 0.005


def test_masks_of_neighbouring_seeds_are_independent():
    masks = [dropout_mask(torch.Size([1000, 1024]), P, seed).view(-1) for seed in (1, 2, 1 + 2**32)]
    correlations = torch.corrcoef(torch.stack(masks)) - torch.eye(3)
    assert correlations.abs().max() < 0.005


@pytest.mark.parametrize("p", [0.001, 0.1, 0.3])
def test_masks_drop_as_many_as_they_should_on_average(p):
    levels = [dropped_levels(p, draw_seed()) for _ in range(4000)]
    assert set(levels) == {int(p * 256), int(p * 256) + 1}
    assert sum(levels) / 256 / len(levels) == pytest.approx(p, abs=5 * 0.5 / 256 / math.sqrt(len(levels)))


def test_dropping_almost_all_keeps_some():
    mask = dropout_mask(torch.Size([1000, 1024]), 0.9999, 2**16 - 1)
    assert mask.mean().item() == pytest.approx(1, abs=0.1)


def test_torchs_seed_decides(way):
    x = torch.ones(50, 50)
    torch.manual_seed(3)
    first, second = dropout(x, P), dropout(x, P)
    torch.manual_seed(3)
    assert torch.equal(dropout(x, P), first)
    assert not torch.equal(first, second)


def test_without_dropout_nothing_is_drawn(way):
    x, branch = (each.detach() for each in inputs((4, 5), (4, 5)))
    zero, norm, sentences = torch.zeros(5), norm_of(5), Sentences(torch.tensor([4]), CPU)
    state = torch.get_rng_state()
    assert torch.equal(dropout(x, 0.0), x)
    summed, normed = residual_norm(x, (branch, zero), norm, 0.0, half=True)
    assert torch.equal(summed, x + branch)
    torch.testing.assert_close(normed, norm(x + branch))
    assert torch.equal(relu_dropped((x.clone(), zero), 0.0), F.relu(x))
    attend((x.repeat(1, 3), zero.repeat(3)), None, sentences, sentences, 1, 0.0, causal=False)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("width", WIDTHS)
def test_dropout_and_its_gradient(way, seed, threads, width):
    (x,) = inputs((9, width))
    output = dropout(x, P)
    expected = x * dropout_mask(x.shape, P, seed)
    assert torch.equal(output, expected)
    torch.testing.assert_close(gradients([output], x), gradients([expected], x))


def test_dropout_in_half_precision(way, seed):
    x = inputs((9, 70))[0].detach().bfloat16()
    assert torch.equal(dropout(x, P), x * dropout_mask(x.shape, P, seed, x.dtype))


@pytest.mark.parametrize("width", WIDTHS)
def test_a_residual_sum_with_its_norm(way, seed, threads, width):
    x, branch, bias = given = inputs((9, width), (9, width), (width,))
    norm = norm_of(width)
    for used in (slice(0, 2), slice(1, 2)):  # of the last sum nothing but the norm
        outputs = residual_norm(x, (branch, bias), norm, P, half=True)[used]
        summed = x + (branch + bias) * dropout_mask(x.shape, P, seed)
        expected = (summed, norm(summed))[used]
        torch.testing.assert_close(outputs, expected)
        to = (*given, norm.weight, norm.bias)
        torch.testing.assert_close(gradients(outputs, *to), gradients(expected, *to), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("p", [0.0, P])
@pytest.mark.parametrize("width", WIDTHS)
def test_relu_with_dropout_and_its_gradient(way, seed, threads, width, p):
    x, bias = inputs((60, width), (width,))
    output = relu_dropped((x * 1, bias), p)
    expected = F.relu(x + bias) * (dropout_mask(x.shape, p, seed) if p else 1.0)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(
        gradients([output], x, bias), gradients([expected], x, bias), rtol=1e-4, atol=1e-5
    )


def by_hand(q, k, v, heads, mask_RS, *, causal):
    """Attention of one sentence, head by head."""
    mixed = []
    for head, (q_TK, k_SK, v_SK) in enumerate(
        zip(*(each.chunk(heads, -1) for each in (q, k, v)), strict=True)
    ):
        scores_TS = q_TK @ k_SK.mT / math.sqrt(q_TK.shape[1])
        if causal:
            scores_TS = scores_TS.masked_fill(~torch.ones_like(scores_TS, dtype=torch.bool).tril(), -math.inf)
        rows = slice(head * len(q), (head + 1) * len(q))
        mixed.append((scores_TS.softmax(-1) * mask_RS[rows, : len(k)]) @ v_SK)
    return torch.cat(mixed, -1)


@pytest.mark.parametrize("case", ["plain", "causal", "over memory"])
@pytest.mark.parametrize("head", [4, 16, 20, 64])  # widths
@pytest.mark.parametrize("lengths", [([5, 1, 3], [7, 2, 4]), ([17, 33], [70, 16])])
def test_attention_and_its_gradients(way, seed, threads, case, head, lengths):
    heads, width = 2, 2 * head
    asking = Sentences(torch.tensor(lengths[0]), CPU)
    asked = Sentences(torch.tensor(lengths[1]), CPU) if case == "over memory" else asking
    rows, keys = sum(lengths[0]), int(asked.starts[-1])
    given = inputs(*(
        ((rows, width), (width,), (keys, 2 * width), (2 * width,))
        if case == "over memory"
        else ((rows, 3 * width), (3 * width,))
    ))  # fmt: skip
    queries, memory = tuple(given[:2]), tuple(given[2:]) or None
    output = attend(queries, memory, asking, asked, heads, P, causal=case == "causal")

    parts = (given[0] + given[1]).split(width, -1)
    q, k, v = parts if memory is None else (*parts, *(given[2] + given[3]).split(width, -1))
    columns = -(-asked.longest // 16) * 16
    mask = dropout_mask(torch.Size([heads * rows, columns]), P, seed)
    expected = torch.cat(
        [
            by_hand(q[a:b], k[c:d], v[c:d], heads, mask[heads * a : heads * b], causal=case == "causal")
            for a, b, c, d in zip(
                *(each.tolist() for s in (asking, asked) for each in (s.starts[:-1], s.starts[1:])),
                strict=True,
            )
        ]
    )
    torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        gradients([output], *given), gradients([expected], *given), rtol=1e-4, atol=1e-4
    )


def test_attention_without_dropout_is_torchs(way):
    packed, bias = (each.detach() for each in inputs((15, 24), (24,)))
    sentences, heads = Sentences(torch.tensor([5, 5, 5]), CPU), 2
    q, k, v = (part.reshape(3, 5, heads, 4).transpose(1, 2) for part in (packed + bias).chunk(3, -1))
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(15, 8)
    found = attend((packed, bias), None, sentences, sentences, heads, 0.0, causal=True)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("width", [24, 100])
def test_half_precision_is_float32_but_for_rounding(seed, width):
    x, branch, bias, memory = (
        each.detach() for each in inputs((9, width), (9, width), (width,), (9, 3 * width))
    )
    sentences, norm = Sentences(torch.tensor([4, 5]), CPU), norm_of(width)

    def outputs(dtype):
        half, many = branch.to(dtype).requires_grad_(), memory.to(dtype).requires_grad_()
        found = [
            residual_norm(x, (half, bias), norm, P, half=True)[1],
            relu_dropped((half * 1, bias), P),
            attend((many, bias.repeat(3)), None, sentences, sentences, 2, P, causal=True),
        ]
        assert {each.dtype for each in found} == {dtype}
        return [*found, *gradients(found, half, many)]

    for rounded, exact in zip(outputs(torch.bfloat16), outputs(torch.float32), strict=True):
        assert rounded.dtype is torch.bfloat16
        torch.testing.assert_close(rounded.float(), exact, atol=0.06, rtol=0.03)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [3, 16, 100])
def test_exponentials_of_logits(way, threads, dtype, width):
    logits = (20 * inputs((50, width))[0].detach()).to(dtype)
    target = torch.arange(50) % width
    exact = logits.double()
    e, sums, largest, chosen = exponentials(logits.clone(), target)
    assert e.dtype is dtype
    expected = (exact - exact.amax(1, keepdim=True)).exp()
    torch.testing.assert_close(
        e.double(), expected, rtol=1e-5 if dtype is torch.float32 else 4e-3, atol=1e-37
    )
    torch.testing.assert_close(sums.double(), expected.sum(1), rtol=1e-5, atol=0)
    assert torch.equal(largest.double(), exact.amax(1))
    assert torch.equal(chosen.double(), exact.gather(1, target[:, None])[:, 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_no_number_stays_so(way, dtype):
    x = torch.ones(3, 20, dtype=dtype)
    x[1, 17] = torch.nan
    bias, norm = torch.zeros(20), nn.LayerNorm(20)
    assert relu_dropped((x.clone(), bias), 0.0).isnan().nonzero().tolist() == [[1, 17]]
    _, normed = residual_norm(torch.zeros(3, 20), (x, bias), norm, 0.0, half=True)
    assert normed.isnan().any(1).tolist() == [False, True, False]
    assert exponentials(x.clone(), torch.zeros(3, dtype=torch.long))[1].isnan().tolist() == [
        False,
        True,
        False,
    ]


def test_a_bias_is_left_to_what_comes_next_only_where_that_adds_it(way):
    linear, (x,) = nn.Linear(4, 3), inputs((2, 4))
    product, bias = apart(linear, x)
    assert (bias is None) == (way == "torch")
    torch.testing.assert_close(product if bias is None else product + bias, linear(x))


def test_other_numbers_are_left_to_torch():
    assert not native.is_native(torch.zeros(2, 2, dtype=torch.float64))


def test_sentences_are_padded_and_unpadded():
    sentences = Sentences(torch.tensor([1, 3, 2]), CPU)
    rows = torch.arange(12.0).view(6, 2)
    padded = sentences.pad(rows)
    assert padded[..., 0].tolist() == [[0, 0, 0], [2, 4, 6], [8, 10, 0]]
    assert torch.equal(sentences.unpad(padded), rows)
    assert sentences.mask[:, 0, 0].tolist() == [[True, False, False], [True] * 3, [True, True, False]]
    assert Sentences(torch.tensor([2, 2]), CPU).mask is None
    assert sentences.position_N.tolist() == [0, 0, 1, 2, 0, 1]
