"""How many workers a training gets."""

import pytest
import torch

from dragoman.errors import UserError
from dragoman.train.command import choose_workers


@pytest.mark.parametrize(("gpus", "wanted", "expected"), [(0, None, 1), (0, 3, 3), (4, None, 4), (4, 2, 2)])
def test_one_worker_per_gpu_or_what_is_wanted(monkeypatch, gpus, wanted, expected):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert choose_workers(wanted) == expected


def test_more_workers_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UserError, match="3 workers cannot share 2 GPUs"):
        choose_workers(3)
