"""What is wrong is named with its severity and its fix, and what is right is not."""

import platform
from importlib.metadata import version
from pathlib import Path

import pytest

from dragoman import __version__
from dragoman.cluster.examine import Link, Lost, Measured
from dragoman.cluster.findings import Examination, Need, diagnose
from dragoman.cluster.hosts import Host
from dragoman.cluster.survey import Answer
from dragoman.data.shards import Dataset
from dragoman.errors import UserError

DATASET = Dataset(
    Path("/data/abc"), {"fingerprint": "abc", "files": {"x": {"bytes": 5 * 10**8, "sha256": "0"}}}
)
DATA = {
    "fingerprint": "abc",
    "content": DATASET.content,
    "damage": "",
    "arrived_bytes": 0,
    "is_on_disk_of_run": True,
}
NO_DATA = {**DATA, "fingerprint": None, "content": None}
NEED = Need(
    recipe="base.toml",
    path=DATASET.path,
    fingerprint="abc",
    dataset=DATASET,
    unread=None,
    parameters=61_000_000,
    disk_bytes=10**9,
    interface=None,
    exchanges_gradients=True,
)
LIGHT = Need(**{**NEED.__dict__, "exchanges_gradients": False})
A100 = {"name": "NVIDIA A100", "memory_bytes": 40 * 10**9}
T4 = {"name": "Tesla T4", "memory_bytes": 16 * 10**9}


def answer(name="a", workers=1, **changes):
    number = ord(name[-1]) - ord("a") + 1
    good = {
        "dragoman": __version__,
        "torch": version("torch"),
        "python": platform.python_version(),
        "devices": [],
        "cores": 8,
        "disk_free_bytes": 10**12,
        "interfaces": {"lo": ["127.0.0.1/8"], "eth0": [f"10.0.0.{number}/24"]},
        "dataset": DATA,
        "clock_offset_seconds": 0.0,
        "clock_doubt_seconds": 0.1,
    }
    return Answer(Host(name, workers), {**good, **changes})


def links(rates, latency_ms=0.2):
    """Return the links of ``{"ab": 940, ...}``."""
    return [
        Link(ends[0], ends[1], "eth0", "10.0.0.9", float(rate), latency_ms) for ends, rate in rates.items()
    ]


def findings(*answers, measured=None, need=None, here=False):
    return diagnose(Examination(answers, measured or Measured(), need, here))


def only(found):
    assert len(found) == 1, found
    return found[0]


def test_hosts_that_fit_have_no_findings():
    good = Measured(links=links({"ab": 9400, "ba": 9300}))
    assert findings(answer("a"), answer("b"), measured=good) == []
    assert findings(answer("a"), answer("b"), measured=good, need=NEED) == []


@pytest.mark.parametrize(
    ("changes", "severity", "what", "fix"),
    [
        ({"dragoman": "9.9"}, "problem", "host a has dragoman 9.9", "pip install dragoman=="),
        ({"torch": "1.0"}, "problem", "host a has torch 1.0", "pip install torch=="),
        ({"python": "3.99.1"}, "warning", "host a has Python 3.99.1", "python=PATH in a hosts file"),
        ({"disk_free_bytes": 10**9}, "warning", "host a has 1,000 MB free", "make room"),
        ({"cores": 1}, "warning", "2 workers share the 1 core of host a", "ask for a:1"),
        ({"devices": [A100]}, "problem", "2 workers cannot share the 1 GPU of host a", "ask for a:1"),
        ({"clock_offset_seconds": 4.2}, "warning", "4.2 s ahead of ours", "install chrony"),
        ({"clock_offset_seconds": -4.2}, "warning", "4.2 s behind ours", "timedatectl set-ntp true"),
    ],
)
def test_a_host_that_does_not_fit(changes, severity, what, fix):
    found = only(findings(answer(workers=2, **changes)))
    assert (found.where, found.severity) == ("a", severity)
    assert what in found.what
    assert fix in found.fix


def test_a_clock_within_doubt_is_right():
    assert findings(answer(clock_offset_seconds=3.0, clock_doubt_seconds=2.5)) == []


@pytest.mark.parametrize(
    ("changes", "what", "fix"),
    [
        ({"disk_free_bytes": 10**8}, "its checkpoints need about 1,000 MB", "make room"),
        (
            {"dataset": NO_DATA, "disk_free_bytes": 14 * 10**8},
            "need about 1,000 MB, the dataset 500 MB",
            "make room",
        ),
        ({"dataset": {**DATA, "content": "other"}}, "has other files than the one here", "remove /data/abc"),
    ],
)
def test_a_recipe_needs_room_and_data(changes, what, fix):
    found = findings(answer(**changes), need=NEED)[0]
    assert found.severity == "problem"
    assert what in found.what
    assert fix in found.fix


def test_a_dataset_that_will_be_sent_is_a_note():
    fast = Measured(links=links({"ab": 940, "ba": 900}))
    found = only(findings(answer("a"), answer("b", dataset=NO_DATA), measured=fast, need=LIGHT))
    assert (found.where, found.severity) == ("b", "note")
    assert found.what == (
        "host b does not have the dataset: it will be sent when training starts (500 MB, about 4 s at 940 Mbit/s)"
    )
    assert found.fix.endswith("to send it now: dragoman data send /data/abc --hosts b")
    damaged = answer("b", dataset={**DATA, "damage": "x is missing"})
    found = only(findings(damaged, need=LIGHT))
    assert (
        "host b has a damaged dataset (x is missing): it will be sent when training starts (500 MB)"
        in found.what
    )


def test_data_that_is_not_prepared_is_missed_once_and_not_at_all_alone():
    need = Need(**{**NEED.__dict__, "dataset": None})
    found = only(findings(answer("a", dataset=NO_DATA), answer("b", dataset=NO_DATA), need=need))
    assert (found.where, found.severity) == ("here", "note")
    assert found.what == "the dataset of base.toml (abc) is not prepared: it will be when training starts"
    assert "dragoman data prepare base.toml" in found.fix
    assert findings(answer(dataset=NO_DATA), need=need, here=True) == []


def test_text_that_cannot_be_read_is_a_problem_even_alone():
    unread = UserError("there is no such file", where="wmt/train.en", fix="correct the path")
    need = Need(**{**NEED.__dict__, "dataset": None, "fingerprint": "", "unread": unread})
    found = only(findings(answer(dataset=None), need=need, here=True))
    assert found.what == "the text of base.toml cannot be read: there is no such file (wmt/train.en)"
    assert found.fix == "correct the path"


def test_an_interface_that_the_recipe_names_must_be_there():
    need = Need(**{**NEED.__dict__, "interface": "ib0"})
    found = only(findings(answer(), need=need))
    assert found.what == "host a has no interface ib0 with an address"
    assert "one of: lo, eth0" in found.fix


def test_an_unreachable_host_keeps_its_reason_and_fix():
    found = only(findings(answer("a"), Answer(Host("b"), problem="host b is off", fix="switch it on")))
    assert (found.where, found.severity, found.what, found.fix) == (
        "b",
        "problem",
        "host b is off",
        "switch it on",
    )


def test_problems_come_before_warnings():
    found = findings(answer("a", python="3.99.0"), Answer(Host("b"), problem="off", fix="on"))
    assert [each.severity for each in found] == ["problem", "warning"]


@pytest.mark.parametrize(("alive", "fix"), [(True, "allow TCP"), (False, "overloaded or was cut off")])
def test_a_host_that_failed_while_measured_is_named(alive, fix):
    lost = Lost("b", "stopped measuring: killed", alive=alive)
    found = only(findings(answer("a"), answer("b"), measured=Measured(lost=[lost])))
    assert (found.where, found.what) == ("b", "host b stopped measuring: killed")
    assert fix in found.fix


def test_all_hosts_or_none_have_gpus():
    found = only(findings(answer("a", devices=[A100]), answer("b")))
    assert (found.where, found.severity) == ("b", "problem")
    assert "finds no GPU on host b, but on a" in found.what


def test_the_slowest_gpu_decides():
    found = only(findings(answer("a", devices=[A100]), answer("b", devices=[T4])))
    assert found.severity == "warning"
    assert "a has 1 × NVIDIA A100, 40,000 MB, b has 1 × Tesla T4, 16,000 MB" in found.what


def test_a_link_that_is_cut_names_both_ends():
    cut = [Link("a", "b", error="10.0.0.2: timed out"), Link("b", "a", error="10.0.0.1: timed out")]
    found = only(findings(answer("a"), answer("b"), measured=Measured(links=cut)))
    assert (found.where, found.severity) == ("a ↔ b", "problem")
    assert "though they share a network (10.0.0.2: timed out; 10.0.0.1: timed out)" in found.what
    assert "allow TCP" in found.fix
    one_way = [cut[0], *links({"ba": 900})]
    assert only(findings(answer("a"), answer("b"), measured=Measured(links=one_way))).where == "a → b"


def test_hosts_without_a_network_in_common_are_told():
    cut = [Link("a", "b", error="b: Name or service not known")]
    far = answer("b", interfaces={"eth0": ["192.168.7.2/24"]})
    found = only(findings(answer("a"), far, measured=Measured(links=cut)))
    assert "no network leads from one to the other" in found.what
    assert "put both on one network" in found.fix


def test_one_direction_may_not_be_much_slower():
    found = only(findings(answer("a"), answer("b"), measured=Measured(links=links({"ab": 940, "ba": 300}))))
    assert (found.where, found.severity) == ("b → a", "warning")
    assert found.what == "b → a: 300 Mbit/s, back it is 940"


def test_a_slow_host_is_named_once():
    rates = {"ab": 940, "ba": 940, "ac": 95, "ca": 95, "bc": 94, "cb": 95}
    found = only(findings(*map(answer, "abc"), measured=Measured(links=links(rates))))
    assert (found.where, found.severity) == ("c", "warning")
    assert found.what == "host c has 95 Mbit/s to the others, and those have 940 between them"


def test_a_slow_link_between_good_hosts_is_named():
    rates = {first + second: 940 for first in "abcd" for second in "abcd" if first != second}
    found = only(
        findings(*map(answer, "abcd"), measured=Measured(links=links({**rates, "cd": 90, "dc": 90})))
    )
    assert found.where == "c ↔ d"
    assert found.what == "c ↔ d: 90 Mbit/s, other hosts have 940 between them"


def test_very_fast_links_are_not_compared():
    fast = Measured(links=links({"ab": 40_000, "ba": 15_000}))
    assert findings(answer("a"), answer("b"), measured=fast) == []


def test_hosts_that_are_far_apart():
    far = Measured(links=links({"ab": 900, "ba": 900}, latency_ms=31.0))
    found = only(findings(answer("a"), answer("b"), measured=far))
    assert found.what == "a ↔ b: 31.0 ms there and back"
    assert 'cluster.sync = "local"' in found.fix


def test_a_network_that_is_slow_for_the_model():
    slow = Measured(links=links({"ab": 941, "ba": 940}))
    found = only(findings(answer("a"), answer("b"), measured=slow, need=NEED))
    assert (found.where, found.severity) == ("b → a", "warning")
    assert found.what == "b → a: an exchange of 61 M float32 gradients takes about 2.1 s"
    assert found.fix == 'consider cluster.sync = "auto"'
    assert findings(answer("a"), answer("b"), measured=slow, need=LIGHT) == []


def test_a_network_that_is_slow_for_any_model():
    found = only(findings(answer("a"), answer("b"), measured=Measured(links=links({"ab": 20, "ba": 19}))))
    assert found.what == "b → a: 19 Mbit/s is little to exchange gradients over"
