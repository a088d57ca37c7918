"""The moving average follows the weights and can stand in for them."""

import pytest
import torch
from torch import nn

from dragoman.errors import UserError
from dragoman.train.average import MovingAverage


def test_it_follows_with_its_decay_once_it_is_old():
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    average = MovingAverage(model, decay=0.9)
    nn.init.ones_(model.weight)
    average.update(step=100_000)
    assert average.state()["weight"].item() == pytest.approx(0.1)


def test_a_young_average_forgets_faster():
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    average = MovingAverage(model, decay=0.999)
    nn.init.ones_(model.weight)
    average.update(step=1)
    assert average.state()["weight"].item() == pytest.approx(1 - 2 / 11)


def test_the_model_computes_with_it_for_a_while_only():
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    average = MovingAverage(model, decay=0.9)
    nn.init.ones_(model.weight)
    with average.applied():
        assert model(torch.ones(1)).item() == 0.0
    assert model(torch.ones(1)).item() == 1.0
    assert average.state()["weight"].item() == 0.0


def test_its_state_loads_by_copy_and_refuses_other_names():
    model = nn.Linear(1, 1, bias=False)
    average = MovingAverage(model, decay=0.9)
    saved = {"weight": torch.full((1, 1), 5.0)}
    average.load_state(saved)
    saved["weight"].zero_()
    assert average.state()["weight"].item() == 5.0
    with pytest.raises(UserError, match="other"):
        average.load_state({"other": torch.zeros(1)})
