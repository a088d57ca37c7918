import pytest
import torch
import torch.nn.functional as F

from dragoman.model.loss import token_loss

LOGITS_NV = torch.randn(50, 30, generator=torch.Generator().manual_seed(1)) * 3
TARGET_N = torch.randint(0, 30, (50,), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_loss_is_the_sum_of_torchs_cross_entropy(smoothing):
    loss = token_loss(LOGITS_NV, TARGET_N, smoothing)
    expected = F.cross_entropy(LOGITS_NV, TARGET_N, label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(loss.smoothed, expected)
    torch.testing.assert_close(loss.nll, F.cross_entropy(LOGITS_NV, TARGET_N, reduction="sum"))


def test_gradient_is_that_of_torchs_cross_entropy():
    ours, theirs = LOGITS_NV.clone().requires_grad_(), LOGITS_NV.clone().requires_grad_()
    token_loss(ours, TARGET_N, 0.1).smoothed.backward()
    F.cross_entropy(theirs, TARGET_N, label_smoothing=0.1, reduction="sum").backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_sums_add_up_over_micro_batches():
    parts = [token_loss(LOGITS_NV[rows], TARGET_N[rows], 0.1) for rows in (slice(0, 20), slice(20, 50))]
    whole = token_loss(LOGITS_NV, TARGET_N, 0.1)
    torch.testing.assert_close(parts[0].smoothed + parts[1].smoothed, whole.smoothed)
    torch.testing.assert_close(parts[0].nll + parts[1].nll, whole.nll)


def test_half_precision_logits_are_added_up_in_float32():
    loss = token_loss(LOGITS_NV.bfloat16(), TARGET_N, 0.1)
    assert loss.smoothed.dtype is loss.nll.dtype is torch.float32
