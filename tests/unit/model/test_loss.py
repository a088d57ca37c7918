import pytest
import torch
import torch.nn.functional as F

from dragoman.model.loss import token_loss
from dragoman.model.weights import CPU_ROWS

GENERATOR = torch.Generator().manual_seed(1)
TOKENS = 2 * CPU_ROWS + 50  # three pieces, the last one short
HIDDEN_ND = torch.randn(TOKENS, 8, generator=GENERATOR)
WEIGHT_VD = torch.randn(30, 8, generator=GENERATOR)
TARGET_N = torch.randint(0, 30, (TOKENS,), generator=GENERATOR)


def by_torch(hidden, weight, target, smoothing):
    return F.cross_entropy(hidden @ weight.t(), target, label_smoothing=smoothing, reduction="sum")


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("tokens", [0, 1, 50, CPU_ROWS, TOKENS])
def test_loss_and_gradients_are_those_of_torchs_cross_entropy(smoothing, tokens):
    hidden, target = HIDDEN_ND[:tokens], TARGET_N[:tokens]
    ours, theirs = ([hidden.clone().requires_grad_(), WEIGHT_VD.clone().requires_grad_()] for _ in range(2))
    loss, expected = token_loss(*ours, target, smoothing), by_torch(*theirs, target, smoothing)
    torch.testing.assert_close(loss.smoothed, expected)
    torch.testing.assert_close(loss.nll, by_torch(hidden, WEIGHT_VD, target, 0.0))
    (loss.smoothed / 7).backward()
    (expected / 7).backward()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-5, atol=1e-5)


def test_sums_add_up_over_micro_batches():
    rows = (slice(0, 20), slice(20, TOKENS))
    parts = [token_loss(HIDDEN_ND[each], WEIGHT_VD, TARGET_N[each], 0.1) for each in rows]
    whole = token_loss(HIDDEN_ND, WEIGHT_VD, TARGET_N, 0.1)
    torch.testing.assert_close(parts[0].smoothed + parts[1].smoothed, whole.smoothed)
    torch.testing.assert_close(parts[0].nll + parts[1].nll, whole.nll)


def test_a_target_that_is_almost_impossible_has_a_finite_loss():
    hidden = torch.tensor([[1.0, 0.0]]).requires_grad_()
    weight = torch.tensor([[500.0, 0.0], [-500.0, 0.0]])
    loss = token_loss(hidden, weight, torch.tensor([1]), 0.0)
    assert loss.nll.item() == 1000.0
    loss.smoothed.backward()
    assert hidden.grad.tolist() == [[1000.0, 0.0]]


def test_numbers_that_are_not_finite_stay_so():
    hidden = HIDDEN_ND.clone()
    hidden[3, 2] = torch.nan
    assert token_loss(hidden, WEIGHT_VD, TARGET_N, 0.1).smoothed.isnan()


def test_half_precision_is_for_products_alone():
    hidden, weight = HIDDEN_ND.clone().requires_grad_(), WEIGHT_VD.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        loss = token_loss(hidden, weight, TARGET_N, 0.1)
    assert loss.smoothed.dtype is loss.nll.dtype is torch.float32
    loss.smoothed.backward()
    assert hidden.grad.dtype is weight.grad.dtype is torch.float32
    expected = token_loss(HIDDEN_ND, WEIGHT_VD, TARGET_N, 0.1).smoothed
    torch.testing.assert_close(loss.smoothed, expected, rtol=0.01, atol=0.01)
