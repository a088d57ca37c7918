"""Workers that somebody else started find each other and train the same run."""

import subprocess
import sys

from tests.integration.conftest import ENVIRONMENT, step_losses

TORCHRUN = (
    sys.executable,
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--nproc-per-node",
    "2",
    "-m",
    "--",
)


def test_torchrun_gives_the_same_bits_as_our_own_workers(toy):
    command = [*TORCHRUN, "dragoman", "train", "toy.toml", "--run", "joined"]
    result = subprocess.run(
        command, cwd=toy.path, env=ENVIRONMENT, capture_output=True, text=True, timeout=200
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("finished at step 30") == 1  # one of the workers speaks
    assert step_losses(toy.run_dir("joined")) == step_losses(toy.train("own", workers=2))


def test_a_mistake_ends_all_of_them(toy):
    command = [
        *TORCHRUN,
        "dragoman",
        "train",
        "toy.toml",
        "--run",
        "x",
        "--set",
        'data.dev=["no.en", "no.de"]',
    ]
    result = subprocess.run(
        command, cwd=toy.path, env=ENVIRONMENT, capture_output=True, text=True, timeout=200
    )
    assert result.returncode != 0
    assert "there is no such file" in result.stderr
