"""A plan that measures a lab: it finds the link that the lab has, and predicts from it."""

import json
import sys

PLAN = [sys.executable, "-m", "dragoman", "plan", "tiny", "--measure", "--json"]


def test_a_lab_is_measured_and_planned(make_lab):
    lab = make_lab(hosts=2, network="50mbit")
    result = lab.inside(PLAN, timeout=180)
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    assert (told["cluster"]["workers"], told["cluster"]["hosts"]) == (2, 2)
    assert 30 < told["cluster"]["between_mbit_per_second"] < 55
    assert told["rates"]["from"] == "measured"
    assert told["rates"]["flops_per_second"] > 1e8
    full, half = told["modes"][:2]
    # 1.6 M weights, of which the embedding, 1 MB, cannot hide.
    assert 0.15 < full["exposed_seconds"] < 1.6
    assert half["exposed_seconds"] < full["exposed_seconds"]
