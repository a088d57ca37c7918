"""Joining a world that somebody else started: torchrun, Open MPI, Slurm or Kubernetes.

Each tells its processes their place in variables of its own. We read them into the ones that torch understands
(``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE``, ``MASTER_ADDR``, ``MASTER_PORT``), once, so that
nothing after this asks who the starter was.
"""

import ctypes
import ctypes.util
import json
import os
import re
from collections.abc import Mapping

from dragoman.cluster.network import common_address, free_port, interfaces
from dragoman.errors import UserError

FIRST_PORT, PORTS = 20_000, 20_000  # where a job's number becomes a port
BOX_BYTES = 4096  # what one process says of itself over MPI


def joined_by_environment() -> bool:
    """Whether somebody started this process as one of several workers; the environment then tells torch its place."""
    starter = started_by(os.environ)
    if starter is None:
        return False
    os.environ.update(STARTERS[starter](os.environ))
    return True


def started_by(environment: Mapping[str, str]) -> str | None:
    """Return which starter's variables there are. torch's own come first: a starter may run under another."""
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return "torch"
    if "OMPI_COMM_WORLD_SIZE" in environment:
        return "mpi"
    # A batch script has SLURM_PROCID too; only what srun starts is a step with a number.
    if "SLURM_STEP_ID" in environment and int(environment.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
        return "slurm"
    return None


def place_by_torch(environment: Mapping[str, str]) -> dict[str, str]:
    """Kubernetes' PyTorchJob counts pods and says nothing of places within one: each pod is then one worker."""
    return {
        "LOCAL_RANK": environment.get("LOCAL_RANK", "0"),
        "LOCAL_WORLD_SIZE": environment.get("LOCAL_WORLD_SIZE", "1"),
    }


def place_by_mpi(environment: Mapping[str, str]) -> dict[str, str]:
    """Open MPI: who we are stands in the environment; where the first process is, MPI itself must tell."""
    rank, size = int(environment["OMPI_COMM_WORLD_RANK"]), int(environment["OMPI_COMM_WORLD_SIZE"])
    local_size = environment["OMPI_COMM_WORLD_LOCAL_SIZE"]
    place = {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": environment["OMPI_COMM_WORLD_LOCAL_RANK"],
        "LOCAL_WORLD_SIZE": local_size,
    }
    if "MASTER_ADDR" in environment:
        return {**place, "MASTER_PORT": environment.get("MASTER_PORT", "29500")}
    own = [address for addresses in interfaces().values() for address in addresses]
    told = [json.loads(each) for each in gather_by_mpi(json.dumps([own, free_port()]), size)]
    (leader, port), others = told[0], [addresses for addresses, _ in told[1:]]
    address = "127.0.0.1" if int(local_size) == size else common_address(leader, others)
    if address is None:
        raise UserError(
            "the hosts that mpirun started us on have no network in common, as far as their addresses tell",
            where="the interfaces of the first host: " + ", ".join(leader),
            fix="name the address by which the others reach it: mpirun -x MASTER_ADDR=ADDRESS …",
        )
    return {**place, "MASTER_ADDR": address, "MASTER_PORT": str(port)}


def place_by_slurm(environment: Mapping[str, str]) -> dict[str, str]:
    """Slurm's srun: the first host of the step's list leads, on a port made from the job's number."""
    step = int(environment["SLURM_STEP_ID"])
    job = int(environment["SLURM_JOB_ID"])
    node = int(environment.get("SLURM_NODEID", 0))
    hosts = expand_hosts(environment["SLURM_STEP_NODELIST"])
    return {
        "RANK": environment["SLURM_PROCID"],
        "WORLD_SIZE": environment["SLURM_STEP_NUM_TASKS"],
        "LOCAL_RANK": environment["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": str(expand_counts(environment["SLURM_STEP_TASKS_PER_NODE"])[node]),
        "MASTER_ADDR": environment.get("MASTER_ADDR", hosts[0]),
        "MASTER_PORT": environment.get("MASTER_PORT", str(FIRST_PORT + (job + step) % PORTS)),
    }


STARTERS = {"torch": place_by_torch, "mpi": place_by_mpi, "slurm": place_by_slurm}


def expand_hosts(text: str) -> list[str]:
    """Expand Slurm's list of hosts: ``gpu[01-03,07],login1`` is gpu01, gpu02, gpu03, gpu07 and login1."""
    hosts = []
    for prefix, ranges, suffix in re.findall(r"([^,\[\]]+)(?:\[([^\]]*)\])?([^,\[\]]*)", text):
        if not ranges:
            hosts.append(prefix + suffix)
            continue
        for part in ranges.split(","):
            first, _, last = part.partition("-")
            for number in range(int(first), int(last or first) + 1):
                hosts.append(f"{prefix}{number:0{len(first)}d}{suffix}")
    return hosts


def expand_counts(text: str) -> list[int]:
    """Expand Slurm's tasks per host: ``2(x3),1`` is 2, 2, 2 and 1."""
    counts = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(count)] * int(times or 1)
    return counts


def gather_by_mpi(text: str, size: int) -> list[str]:
    """Exchange a short text with all processes of the MPI world, through Open MPI's own library."""
    path = ctypes.util.find_library("mpi")
    if path is None:
        raise UserError(
            "mpirun started us, but its library libmpi is not found, so the processes cannot find each other",
            where="the library path of this host",
            fix="name the first host's address instead: mpirun -x MASTER_ADDR=ADDRESS …",
        )
    mpi = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    # Constants of Open MPI are addresses of objects in its library.
    byte, world = (
        ctypes.addressof(ctypes.c_char.in_dll(mpi, name)) for name in ("ompi_mpi_byte", "ompi_mpi_comm_world")
    )
    mine = ctypes.create_string_buffer(text.encode(), BOX_BYTES)
    everyones = ctypes.create_string_buffer(BOX_BYTES * size)
    mpi.MPI_Init(None, None)
    mpi.MPI_Allgather(
        mine,
        BOX_BYTES,
        ctypes.c_void_p(byte),
        everyones,
        BOX_BYTES,
        ctypes.c_void_p(byte),
        ctypes.c_void_p(world),
    )
    # From here on the processes talk through torch; MPI would only mind that we start others.
    mpi.MPI_Finalize()
    return [
        everyones.raw[start : start + BOX_BYTES].rstrip(b"\0").decode()
        for start in range(0, BOX_BYTES * size, BOX_BYTES)
    ]
