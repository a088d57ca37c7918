"""The peak of a device is a measurement that leaves no trace."""

import pytest
import torch

from dragoman.cluster.world import World
from dragoman.config import Model
from dragoman.train import peak


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_the_peak_is_a_rate_and_training_draws_the_same_numbers(monkeypatch, precision):
    monkeypatch.setattr(peak, "SECONDS", 0.0)  # each shape once
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    rate = peak.measure_peak(World(), precision, Model(layers=1, d_model=32, heads=2, feed_forward=64), 100)
    assert torch.rand(1) == expected
    assert 1e6 < rate < 1e16


def test_the_fastest_shape_counts(monkeypatch):
    rates = iter([3.0, 7.0, 5.0, 1.0])
    monkeypatch.setattr(peak, "_rate", lambda *_: next(rates))
    assert peak.measure_peak(World(), "float32", Model(), 100) == 7.0


def test_a_cpu_has_a_name_and_no_number_among_gpus():
    assert peak.device_name(torch.device("cpu"))
    assert peak.gpu_id(torch.device("cpu")) is None
