"""Sending a dataset over a real link, by a real ssh, that is cut off in the middle."""

import json
import os
import sys

import numpy as np
import pytest

from dragoman.data.shards import Dataset, unfinished, write_manifest
from tests.hosts.conftest import SSH_PORT, wait_until

MEGABYTE = 2**20
FILE = "train/00000.src.npy"


@pytest.mark.timeout(120)
def test_a_sender_that_is_killed_is_followed_by_one_that_goes_on(lab, ssh, tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "datasets/abc/train").mkdir(parents=True)
    there.mkdir()
    # Noise, so that packing does not make the link faster than it is.
    (here / "datasets/abc" / FILE).write_bytes(np.random.default_rng(0).bytes(3 * MEGABYTE))
    write_manifest(here / "datasets/abc", {"fingerprint": "abc"})
    (tmp_path / "hosts").write_text(f"beta directory={there}\n")
    lab.slow("host2", "10mbit")
    outside = ["env", "-u", "DRAGOMAN_LAB", "-u", "DRAGOMAN_HOSTS", f"PATH={ssh}:{os.environ['PATH']}"]
    send = [sys.executable, "-m", "dragoman", "data", "send", "datasets/abc", "--json"]
    command = [*outside, *send, "--hosts", str(tmp_path / "hosts"), "--ssh-port", str(SSH_PORT)]
    first = lab.popen("lab", command, cwd=here)
    arriving = unfinished(there / "datasets/abc") / FILE
    wait_until(lambda: arriving.exists() and arriving.stat().st_size > MEGABYTE // 2, "a part to arrive")
    assert first.poll() is None
    first.kill()
    first.wait()
    lab.slow("host2", "1gbit")
    again = lab.run("lab", command, cwd=here, timeout=60)
    assert again.returncode == 0, again.stderr
    (told,) = json.loads(again.stdout)
    assert told["host"] == "beta"
    assert told["before_bytes"] > MEGABYTE // 2
    assert told["sent_bytes"] == 3 * MEGABYTE - told["before_bytes"]
    assert "MB were there already" in again.stderr
    Dataset.open(there / "datasets/abc").verify()
