"""The doctor in a lab, where every fault can be made: it finds what is true, and names what is wrong."""

import json
import signal
import subprocess
import sys

import psutil

from tests.hosts.conftest import wait_until

DOCTOR = [sys.executable, "-m", "dragoman", "doctor"]
SECONDS = 120  # a busy machine loads torch slowly


def consult(lab, *options):
    """Run the doctor in a lab; return its exit code and what it said."""
    result = lab.inside([*DOCTOR, "--json", *options], timeout=SECONDS)
    assert result.returncode in (0, 2), result.stderr
    return result.returncode, json.loads(result.stdout)


def test_two_hosts_that_can_train_together(make_lab):
    code, told = consult(make_lab(hosts=2, network="100mbit"))
    assert (code, told["verdict"]) == (0, "yes"), told
    assert told["summary"].startswith("these 2 hosts can train together")
    assert [(host["host"], host["reachable"]) for host in told["hosts"]] == [("host1", True), ("host2", True)]
    assert all(abs(host["clock_offset_ms"]) < 1000 for host in told["hosts"])
    assert [(link["source"], link["target"]) for link in told["links"]] == [
        ("host1", "host2"),
        ("host2", "host1"),
    ]
    for link in told["links"]:
        assert 70 < link["mbit_per_second"] < 105
        assert 0 < link["latency_ms"] < 20
        assert link["interface"] == "eth0"
    small, middle, large = told["all_reduce"]
    assert (small["megabytes"], small["device"]) == (1, "cpu")
    assert 0.07 < small["seconds"] < 1
    assert 50 < middle["mbit_per_second"] < 105
    assert large["skipped"].startswith("skipped: would take about 2")


def test_a_slow_host_is_a_warning(make_lab):
    lab = make_lab(hosts=2, network="100mbit")
    lab.slow("host2", "20mbit")
    code, told = consult(lab)
    assert (code, told["verdict"]) == (0, "yes"), told
    # On a busy machine a late answer, or a rate that differs by direction, is told as well.
    assert {found["severity"] for found in told["findings"]} == {"warning"}, told["findings"]
    little = "Mbit/s is little to exchange gradients over"
    (warning,) = [found for found in told["findings"] if little in found["what"]]
    assert "host2" in warning["where"]


def test_a_cut_host_is_named_with_its_fix(make_lab):
    lab = make_lab(hosts=2)
    lab.cut("host2")
    code, told = consult(lab)
    assert (code, told["verdict"]) == (2, "no")
    (problem,) = told["findings"]
    assert (problem["where"], problem["severity"]) == ("host2", "problem")
    assert "cannot be reached" in problem["what"]
    assert problem["fix"] == "dragoman lab restore host2"


def test_a_host_that_dies_while_measured_is_named(make_lab):
    lab = make_lab(hosts=2, network="5mbit")
    doctor = lab.popen("lab", DOCTOR, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert any("all-reduce of 1 MB" in line for line in doctor.stderr)
    lab.kill("host2")
    page, _ = doctor.communicate(timeout=SECONDS)
    assert doctor.returncode == 2
    assert "problem: host host2 stopped measuring" in page
    assert "cannot train together yet: 1 problem above" in page


def test_an_interruption_leaves_nothing_behind(tmp_path):
    doctor = subprocess.Popen(
        DOCTOR,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        stdout=subprocess.DEVNULL,
    )
    assert any("loading torch" in line for line in doctor.stderr)
    wait_until(lambda: len(psutil.Process(doctor.pid).children()) == 2, "two processes that measure")
    started = psutil.Process(doctor.pid).children()
    doctor.send_signal(signal.SIGINT)
    doctor.communicate(timeout=SECONDS)
    assert doctor.returncode == 130
    assert not any(each.is_running() for each in started)


def test_this_machine_alone(tmp_path):
    result = subprocess.run(
        [*DOCTOR, "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS
    )
    told = json.loads(result.stdout)
    assert (result.returncode, told["summary"].partition(";")[0]) == (0, "this machine can train"), told
    assert told["links"] == []
    assert all(each["seconds"] > 0 for each in told["all_reduce"])
