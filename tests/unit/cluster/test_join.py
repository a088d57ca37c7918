"""Every starter's variables become the ones that torch understands."""

import pytest

from dragoman.cluster import join
from dragoman.cluster.join import expand_counts, expand_hosts, started_by
from dragoman.errors import UserError

TORCH = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
}


@pytest.mark.parametrize(
    ("environment", "starter"),
    [
        ({}, None),
        (TORCH, "torch"),
        (MPI, "mpi"),
        (SLURM, "slurm"),
        ({**TORCH, **MPI, **SLURM}, "torch"),
        ({"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, None),  # a batch script itself
        ({**SLURM, "SLURM_STEP_NUM_TASKS": "1"}, None),  # an interactive shell on a node
    ],
)
def test_the_starter_is_recognised(environment, starter):
    assert started_by(environment) == starter


def test_a_kubernetes_pod_is_one_worker_on_its_host():
    assert join.place_by_torch(TORCH) == {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


def test_torchrun_gives_places_on_the_host_too():
    given = {**TORCH, "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert join.place_by_torch(given) == {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


def test_slurm_leads_from_the_first_host_of_the_step():
    assert join.place_by_slurm(SLURM) == {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "gpu07",
        "MASTER_PORT": "24711",
    }
    named = {**SLURM, "MASTER_ADDR": "10.1.2.3", "MASTER_PORT": "1234"}
    assert join.place_by_slurm(named)["MASTER_ADDR"] == "10.1.2.3"
    assert join.place_by_slurm(named)["MASTER_PORT"] == "1234"


def test_mpi_finds_the_network_that_all_hosts_share(monkeypatch):
    told = [
        '[["127.0.0.1/8", "172.17.0.1/16", "10.0.0.1/24"], 4321]',
        '[["127.0.0.1/8", "172.17.0.1/16", "10.0.0.1/24"], 1]',
        '[["127.0.0.1/8", "10.0.0.2/24"], 1]',
        '[["127.0.0.1/8", "10.0.0.2/24"], 1]',
    ]
    monkeypatch.setattr(join, "gather_by_mpi", lambda text, size: told)
    place = join.place_by_mpi(MPI)
    assert place == {
        "RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "4321",
    }


def test_mpi_on_one_host_needs_no_network(monkeypatch):
    monkeypatch.setattr(join, "gather_by_mpi", lambda text, size: ['[["127.0.0.1/8"], 4321]'] * 4)
    assert join.place_by_mpi({**MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "4"})["MASTER_ADDR"] == "127.0.0.1"


def test_mpi_without_a_common_network_asks_for_the_address(monkeypatch):
    told = ['[["10.0.0.1/24"], 1]', '[["10.0.1.2/24"], 1]']
    monkeypatch.setattr(join, "gather_by_mpi", lambda text, size: told)
    with pytest.raises(UserError, match="no network in common") as caught:
        join.place_by_mpi(MPI)
    assert "-x MASTER_ADDR" in caught.value.fix


def test_an_address_that_is_given_is_taken():
    place = join.place_by_mpi({**MPI, "MASTER_ADDR": "10.9.9.9"})
    assert place["MASTER_PORT"] == "29500"
    assert "MASTER_ADDR" not in place


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1", ["node1"]),
        ("a,b", ["a", "b"]),
        ("gpu[01-03,07],login1", ["gpu01", "gpu02", "gpu03", "gpu07", "login1"]),
        ("x[9-11]-ib", ["x9-ib", "x10-ib", "x11-ib"]),
    ],
)
def test_slurms_hosts_are_expanded(text, hosts):
    assert expand_hosts(text) == hosts


@pytest.mark.parametrize(("text", "counts"), [("2", [2]), ("2(x3),1", [2, 2, 2, 1]), ("1,2(x2)", [1, 2, 2])])
def test_slurms_counts_are_expanded(text, counts):
    assert expand_counts(text) == counts
