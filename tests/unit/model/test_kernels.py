import math

import pytest
import torch
import torch.nn.functional as F

from dragoman.model import kernels
from dragoman.model.kernels import (
    add_dropped,
    attend,
    draw_seed,
    dropout,
    dropout_mask,
    dropped_levels,
    relu_dropped,
)

P = 0.25  # exact in 8 bits


@pytest.fixture
def masks(monkeypatch):
    """Return the masks that were drawn, by seed."""
    drawn = {}

    def note(shape, p, seed, dtype=torch.float32):
        drawn[seed] = dropout_mask(shape, p, seed, dtype)
        return drawn[seed].clone()

    monkeypatch.setattr(kernels, "dropout_mask", note)
    return drawn


def only(masks):
    (mask,) = masks.values()  # the backward pass has drawn the same again
    return mask


def test_a_mask_is_a_function_of_its_seed():
    shape = torch.Size([333, 3])
    assert torch.equal(dropout_mask(shape, P, 5), dropout_mask(shape, P, 5))
    assert not torch.equal(dropout_mask(shape, P, 5), dropout_mask(shape, P, 6))


@pytest.mark.parametrize("p", [0.1, 0.25, 0.9])
def test_a_mask_drops_as_many_as_it_should_and_keeps_the_mean(p):
    mask = dropout_mask(torch.Size([1000, 1000]), p, 1)
    drawn = dropped_levels(p, 1) / 256
    assert (mask == 0).float().mean().item() == pytest.approx(drawn, abs=5 * math.sqrt(p * (1 - p)) / 1000)
    assert mask.mean().item() == pytest.approx(1, abs=0.01)
    assert mask.unique().numel() == 2
    neighbours = torch.corrcoef(torch.stack([mask.view(-1)[:-1], mask.view(-1)[1:]]))[0, 1]
    assert abs(neighbours.item()) < 0.005


@pytest.mark.parametrize("p", [0.001, 0.1, 0.3])
def test_masks_drop_as_many_as_they_should_on_average(p):
    levels = [dropped_levels(p, draw_seed()) for _ in range(4000)]
    assert set(levels) == {int(p * 256), int(p * 256) + 1}
    assert sum(levels) / 256 / len(levels) == pytest.approx(p, abs=5 * 0.5 / 256 / math.sqrt(len(levels)))


def test_dropping_almost_all_keeps_some():
    assert dropout_mask(torch.Size([1000, 1000]), 0.9999, 2**16 - 1).mean().item() == pytest.approx(
        1, abs=0.1
    )


def test_torchs_seed_decides():
    x = torch.ones(50, 50)
    torch.manual_seed(3)
    first, second = dropout(x, P), dropout(x, P)
    torch.manual_seed(3)
    assert torch.equal(dropout(x, P), first)
    assert not torch.equal(first, second)


def test_without_dropout_nothing_is_drawn():
    x = torch.randn(4, 5)
    state = torch.get_rng_state()
    assert torch.equal(dropout(x, 0.0), x)
    assert torch.equal(add_dropped(x, x, 0.0), 2 * x)
    assert torch.equal(relu_dropped(x.clone(), 0.0), F.relu(x))
    assert torch.equal(torch.get_rng_state(), state)


def gradients(output, *inputs):
    """Return the gradients of a sum with a weight for each number, the same for outputs of one shape."""
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(9))
    return torch.autograd.grad((output * weights).sum(), inputs)


def inputs(*shapes):
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


def test_dropout_and_its_gradient(masks):
    (x,) = inputs((6, 7))
    output = dropout(x, P)
    found = gradients(output, x)
    expected = x * only(masks)
    assert torch.equal(output, expected)
    torch.testing.assert_close(found, gradients(expected, x))


def test_a_dropped_branch_and_its_gradients(masks):
    x, branch = inputs((6, 7), (6, 7))
    output = add_dropped(x, branch, P)
    found = gradients(output, x, branch)
    expected = x + branch * only(masks)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(found, gradients(expected, x, branch))


@pytest.mark.parametrize("p", [0.0, P])
def test_relu_with_dropout_and_its_gradient(masks, p):
    (x,) = inputs((60, 7))
    output = relu_dropped(x * 1, p)
    found = gradients(output, x)
    expected = F.relu(x) * (only(masks) if p else 1.0)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(found, gradients(expected, x))


@pytest.mark.parametrize("case", ["plain", "causal", "masked", "over memory"])
def test_attention_is_torchs_with_a_dropped_weight(masks, case):
    batch, tgt, src, heads, width = 3, 5, 7, 2, 8
    over_memory = case == "over memory"
    given = (
        inputs((batch, tgt, width), (batch, src, 2 * width))
        if over_memory
        else inputs((batch, tgt, 3 * width))
    )
    length = src if over_memory else tgt
    mask = None
    if case in ("masked", "over memory"):
        mask = (torch.arange(length) < torch.tensor([[2], [length], [1]]))[:, None, None, :]
    packed, memory = given if over_memory else (given[0], None)
    output = attend(packed, memory, mask, heads, P, causal=case == "causal")
    found = gradients(output, *given)

    q, k, v = (packed, *memory.split(width, -1)) if over_memory else packed.split(width, -1)
    q, k, v = (part.view(batch, -1, heads, width // heads).transpose(1, 2) for part in (q, k, v))
    scores = q @ k.mT / math.sqrt(width // heads)
    if case == "causal":
        mask = torch.ones(tgt, tgt, dtype=torch.bool).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    weights = scores.softmax(-1) * only(masks).view(batch, heads, tgt, length)
    expected = (weights @ v).transpose(1, 2).flatten(2)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(found, gradients(expected, *given))


@pytest.mark.parametrize("p", [0.0, P])
def test_attention_in_half_precision_is_that_in_float32_but_for_rounding(p):
    (packed,) = inputs((3, 5, 24))
    half = packed.detach().bfloat16().requires_grad_()
    outputs = []
    for given in (packed, half):
        torch.manual_seed(4)
        outputs.append(attend(given, None, None, 2, p, causal=True))
    assert outputs[1].dtype is torch.bfloat16
    torch.testing.assert_close(outputs[1].float(), outputs[0], atol=0.05, rtol=0.05)
    (expected,), (found,) = gradients(outputs[0], packed), gradients(outputs[1], half)
    torch.testing.assert_close(found.float(), expected, atol=0.05, rtol=0.05)


def test_attention_without_dropout_is_torchs():
    packed, heads = inputs((3, 5, 24))[0], 2
    q, k, v = (part.view(3, 5, heads, 4).transpose(1, 2) for part in packed.chunk(3, -1))
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
    torch.testing.assert_close(attend(packed, None, None, heads, 0.0, causal=True), expected)
