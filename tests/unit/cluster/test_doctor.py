"""What the doctor prints for people and for programs."""

import io
import json

import pytest
from rich.console import Console

from dragoman.cluster import doctor
from dragoman.cluster.doctor import as_json, exit_code, need_of, print_page, verdict
from dragoman.cluster.examine import AllReduce, Link, Measured
from dragoman.cluster.findings import Examination, Finding
from dragoman.cluster.hosts import Host
from dragoman.cluster.survey import Answer
from dragoman.errors import UserError

FACTS = {
    "dragoman": "0.1.0",
    "torch": "2.9.0+cpu",
    "python": "3.12.1",
    "devices": [{"name": "NVIDIA A100", "memory_bytes": 40 * 10**9}] * 2,
    "cores": 8,
    "memory_bytes": 64 * 10**9,
    "memory_free_bytes": 60 * 10**9,
    "disk_free_bytes": 500 * 10**9,
    "interfaces": {"eth0": ["10.0.0.1/24"]},
    "clock_offset_seconds": -0.00004,
    "clock_doubt_seconds": 0.0002,
}
LINK = Link("a", "b", "eth0", "10.0.0.2", 941.4, 0.214)
SUMS = [AllReduce(1, 0.01, 800.0), AllReduce(256, skipped="skipped: would take about 22 s")]
PROBLEM = Finding("b", "problem", "host b [is] off", "switch it on")
WARNING = Finding("a", "warning", "host a is old", "buy another")
NOTE = Finding("b", "note", "host b gets the dataset", "nothing to do")


def examination(*answers, here=False, links=(LINK,)):
    found = answers or (
        Answer(Host("a", 2), dict(FACTS)),
        Answer(Host("b"), problem="host b [is] off", fix="on"),
    )
    return Examination(found, Measured(links=list(links), all_reduce=SUMS, device="cpu"), None, here)


def page(*arguments, width=100):
    stream = io.StringIO()
    print_page(*arguments, Console(file=stream, width=width, highlight=False))
    return stream.getvalue()


def test_the_page_shows_hosts_links_sums_findings_and_a_verdict():
    text = page(examination(), [PROBLEM, WARNING])
    for words in (
        "2 × NVIDIA A100, 40,000 MB",
        "60,000 of 64,000 MB",
        "500,000 MB",
        "+0.0 ± 0.2 ms",
        "10.0.0.2   eth0",
        "941",
        "0.21",
        "all-reduce (Gloo, CPU)",
        "skipped: would take about 22 s",
        "problem: host b [is] off\n  fix: switch it on",
        "verdict: these 2 hosts cannot train together yet: 1 problem above",
    ):
        assert words in text


def test_the_page_is_at_most_100_columns_wide():
    hosts = [
        Answer(Host(f"a-rather-long-name-of-host-{number}.example.org"), dict(FACTS)) for number in range(6)
    ]
    text = page(examination(*hosts), [PROBLEM] * 2, width=200)
    assert max(len(line) for line in text.splitlines()) <= 100
    assert "5.example.org" in "".join(text.split())


def test_a_link_without_numbers_has_none():
    lines = page(examination(links=[Link("a", "b", error="timed out")]), []).splitlines()
    assert ["a", "b", "–", "–", "–", "–"] in [line.split() for line in lines]


@pytest.mark.parametrize(
    ("hosts", "here", "findings", "expected"),
    [
        (2, False, [], "these 2 hosts can train together"),
        (2, False, [NOTE], "these 2 hosts can train together"),
        (2, False, [WARNING, NOTE], "these 2 hosts can train together; 1 warning above"),
        (3, False, [PROBLEM, PROBLEM, WARNING], "these 3 hosts cannot train together yet: 2 problems above"),
        (1, False, [], "host a can train"),
        (1, True, [], "this machine can train"),
        (1, True, [PROBLEM], "this machine cannot train yet: 1 problem above"),
    ],
)
def test_the_verdict(hosts, here, findings, expected):
    answers = [Answer(Host(name), dict(FACTS)) for name in "abc"[:hosts]]
    assert verdict(examination(*answers, here=here), findings) == expected
    assert exit_code(findings) == (2 if PROBLEM in findings else 0)


def test_json_has_the_same_keys_for_every_host():
    told = json.loads(json.dumps(as_json(examination(links=[LINK, Link("b", "a", error="cut")]), [PROBLEM])))
    assert list(told) == ["hosts", "links", "all_reduce", "findings", "verdict", "summary"]
    there, away = told["hosts"]
    assert list(there) == list(away)
    assert (there["reachable"], there["workers"], there["cores"]) == (True, 2, 8)
    assert there["clock_offset_ms"] == pytest.approx(-0.04)
    assert (away["reachable"], away["cores"], away["devices"]) == (False, None, None)
    assert told["links"][0]["mbit_per_second"] == 941.4
    assert told["links"][1] == {
        "source": "b",
        "target": "a",
        "interface": None,
        "address": None,
        "mbit_per_second": None,
        "latency_ms": None,
        "error": "cut",
    }
    assert told["all_reduce"][0] == {
        "megabytes": 1, "seconds": 0.01, "mbit_per_second": 800.0, "skipped": "", "device": "cpu",
    }  # fmt: skip
    assert told["findings"] == [
        {"where": "b", "severity": "problem", "what": "host b [is] off", "fix": "switch it on"}
    ]
    assert told["verdict"] == "no"


def test_what_a_recipe_needs_is_known_without_preparing_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    need = need_of("tiny")
    assert need.path.name == need.fingerprint
    assert need.dataset is None
    assert 10**5 < need.parameters < 10**8
    assert need.disk_bytes > 12 * need.parameters
    with pytest.raises(UserError):
        need_of("no-such-recipe")


def test_without_its_text_a_recipe_still_tells_its_size(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    need = need_of("transformer-base")
    assert need.parameters > 6e7
    assert need.dataset is None
    assert need.unread.where == "wmt/train.en"


def test_this_machine_is_looked_at_without_ssh(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "measure_hosts", lambda answers, **options: Measured())
    examination, findings = doctor.consult([], "tiny")
    assert examination.here
    assert examination.answers[0].facts["cores"] >= 1
    assert [each for each in findings if each.severity == "problem"] == []
    assert "not there" in page(examination, findings)


def test_without_ssh_no_host_is_reached(monkeypatch):
    monkeypatch.delenv("DRAGOMAN_LAB", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="the program ssh is missing"):
        doctor.consult([Host("a"), Host("b")])
