"""A world of one has the same face as a large one; the environment says which it is."""

import socket
import threading

import pytest
import torch
import torch.distributed as dist

from dragoman.cluster import world as world_module
from dragoman.cluster.join import joined_by_environment
from dragoman.cluster.world import PeerLost, World, is_peer_lost, join_world


def test_one_process_is_a_world_of_one(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert not joined_by_environment()
    world = join_world(10)
    assert (world.rank, world.size, world.leads) == (0, 1, True)
    assert world.device.type == "cpu"
    world.leave()


def test_a_world_of_one_adds_up_and_shares_with_itself():
    world = World()
    assert world.sum(torch.tensor([1.0, 2.0])).tolist() == [1.0, 2.0]
    assert world.agree([1.0, 2.0]) == [1.0, 2.0]
    assert world.share({"a": 1}) == {"a": 1}


def test_the_environment_gives_the_place(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert joined_by_environment()


def test_only_the_first_worker_leads():
    assert World(rank=0, size=2).leads
    assert not World(rank=1, size=2).leads


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (PeerLost("gone"), True),
        (dist.DistBackendError("NCCL"), True),
        (
            RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer"),
            True,
        ),
        (RuntimeError("shape mismatch"), False),
        (ValueError("Connection"), False),
    ],
)
def test_a_lost_peer_is_told_from_a_bug(error, lost):
    assert is_peer_lost(error) is lost


def test_a_worker_waits_for_its_leader_to_listen_but_not_for_ever(monkeypatch):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(server.getsockname()[1]))
        waiting = threading.Thread(target=world_module._await_leader, daemon=True)
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()  # nobody listens yet
        server.listen()
        waiting.join(10)
        assert not waiting.is_alive()
    monkeypatch.setattr(world_module, "LEADER_SECONDS", 0.1)
    world_module._await_leader()  # nobody is there any more; torch says so
