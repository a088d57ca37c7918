"""How many workers a training gets, and which dataset one gets that others started."""

import socket
from pathlib import Path

import pytest
import torch

from dragoman.data.shards import write_manifest
from dragoman.errors import UserError
from dragoman.train.command import check_same_dataset, choose_workers, own_dataset


@pytest.mark.parametrize(("gpus", "wanted", "expected"), [(0, None, 1), (0, 3, 3), (4, None, 4), (4, 2, 2)])
def test_one_worker_per_gpu_or_what_is_wanted(monkeypatch, gpus, wanted, expected):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert choose_workers(wanted) == expected


def test_more_workers_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UserError, match="3 workers cannot share 2 GPUs"):
        choose_workers(3)


def test_a_joined_host_uses_the_dataset_that_was_sent_to_it(tmp_path, recipe_with):
    """It then needs no text: here there is none."""
    recipe = recipe_with(f'data.directory="{tmp_path}"', 'data.train=["no.en", "no.de"]')
    (tmp_path / "abc").mkdir()
    write_manifest(tmp_path / "abc", {"fingerprint": "abc"})
    assert own_dataset(recipe, "abc", progress=False).fingerprint == "abc"
    with pytest.raises(UserError) as caught:
        own_dataset(recipe, "xyz", progress=False)
    host = socket.gethostname()
    assert caught.value.what == f"host {host} has neither the dataset xyz nor its text: there is no such file"
    assert caught.value.fix.endswith(f"dragoman data send {tmp_path}/xyz --hosts {host}")
    with pytest.raises(UserError, match="there is no such file"):
        own_dataset(recipe, None, progress=False)


def test_a_joined_host_with_other_text_is_named():
    check_same_dataset([("a", "abc"), ("a", None), ("b", "abc")], Path("datasets"))
    with pytest.raises(UserError) as caught:
        check_same_dataset([("a", "abc"), ("b", "xyz")], Path("datasets"))
    assert caught.value.what == "host b has other text: its dataset is xyz, the leader's is abc"
    assert "dragoman data send datasets/abc --hosts b" in caught.value.fix
