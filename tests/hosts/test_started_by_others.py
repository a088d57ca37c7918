"""Workers on two hosts that somebody else started: mpirun, torchrun, and ssh for real."""

import os
import subprocess
import sys
import time

import pytest

from dragoman.rundir import RunDir
from tests.hosts.conftest import SSH_PORT, Lab, needs
from tests.integration.conftest import ENVIRONMENT, TOY, Toy, step_losses

DRAGOMAN = [sys.executable, "-m", "dragoman", "train", "toy.toml"]


@pytest.fixture
def toy(tmp_path):
    (tmp_path / "toy.toml").write_text(TOY.format(datasets=tmp_path / "datasets"))
    return Toy(tmp_path)


@pytest.fixture
def own_workers(toy):
    """The losses of two workers on one machine."""
    return step_losses(toy.train("own", workers=2))


def run_in(lab: Lab, toy: Toy, command: list[str], code: int = 0) -> str:
    """Run a command inside the lab, next to the hosts."""
    kept = {name: ENVIRONMENT[name] for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "COLUMNS")}
    words = ["env", "-C", str(toy.path), *(f"{name}={value}" for name, value in kept.items()), *command]
    result = lab.inside(words, timeout=150)
    assert result.returncode == code, f"exit code {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result.stdout + result.stderr


@pytest.mark.timeout(250)
def test_mpirun(lab, toy, own_workers):
    needs("mpirun")
    mpirun = [
        "mpirun", "--allow-run-as-root", "-H", "host1:1,host2:1",
        "--mca", "plm_rsh_agent", f"{sys.executable} -m dragoman.cluster.lab exec",
        "-x", "OMP_NUM_THREADS", "-x", "CUDA_VISIBLE_DEVICES",
    ]  # fmt: skip
    said = run_in(lab, toy, [*mpirun, *DRAGOMAN, "--run", "mpi"])
    assert said.count("finished at step 30") == 1
    assert "network: host1 eth0 (10.77.0.1), host2 eth0 (10.77.0.2)" in said
    assert step_losses(RunDir(toy.path / "mpi")) == own_workers


@pytest.mark.timeout(250)
def test_torchrun(lab, toy, own_workers):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    meeting = ["--master-addr", "10.77.0.1", "--master-port", "29401"]
    for rank, host in enumerate(("host1", "host2")):
        lab.popen(
            host,
            [*torchrun, *meeting, "--node-rank", str(rank), "-m", "--", *DRAGOMAN[2:], "--run", "torchrun"],
            cwd=toy.path,
            env={**ENVIRONMENT, "DRAGOMAN_LAB": lab.directory},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    outputs = [process.communicate(timeout=150)[0] for process in lab.started]
    assert [process.returncode for process in lab.started] == [0, 0], outputs
    assert "finished at step 30" in outputs[0]
    assert step_losses(RunDir(toy.path / "torchrun")) == own_workers


def over_ssh(lab: Lab, ssh: str, *arguments: str) -> list[str]:
    """Return the command line of a training over ssh: the lab is not to be recognised."""
    path = f"PATH={ssh}:{os.environ['PATH']}"
    return [
        "env",
        "-u",
        "DRAGOMAN_LAB",
        "-u",
        "DRAGOMAN_HOSTS",
        path,
        *DRAGOMAN,
        "--ssh-port",
        str(SSH_PORT),
        *arguments,
    ]


@pytest.mark.timeout(250)
def test_ssh(lab, toy, ssh, own_workers):
    said = run_in(lab, toy, over_ssh(lab, ssh, "--hosts", "alpha:1,beta:1", "--run", "over"))
    assert "2 hosts meet at alpha (10.77.0.1:" in said
    assert "alpha | step" in said
    assert "finished at step 30" in said
    # ssh does not pass on how many threads a worker has, which decides the last bits.
    assert step_losses(RunDir(toy.path / "over")) == pytest.approx(own_workers, rel=1e-4)


@pytest.mark.timeout(250)
def test_ssh_names_the_host_that_cannot_be_reached(lab, toy, ssh):
    hosts = toy.path / "hosts"
    hosts.write_text("alpha slots=1\nbeta slots=1 python=/nowhere/python\nlocalhost:1 port=1\n")
    started = time.monotonic()
    said = run_in(lab, toy, over_ssh(lab, ssh, "--hosts", str(hosts), "--run", "x"), code=2)
    assert "error: host beta cannot run dragoman" in said
    assert "error: host localhost cannot be reached" in said
    assert "host alpha" not in said
    assert time.monotonic() - started < 60
