"""The live page: it follows a run by itself, compares several, and answers only to this machine."""

import json
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

from dragoman.rundir import RunDir
from dragoman.serve.live import Server, build_app


@contextmanager
def served(path):
    """Serve a directory on a free port; yield the address."""
    ready, told = threading.Event(), []
    server = Server(build_app(path), 0, lambda address: (told.append(address), ready.set()))
    thread = threading.Thread(target=server.listen)
    thread.start()
    try:
        assert ready.wait(30)
        yield told[0]
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


def append(path, **event):
    with open(RunDir(path).events(0), "a") as file:
        file.write(json.dumps({"rank": 0, "time": time.time(), **event}) + "\n")


def test_the_page_follows_a_run_and_keeps_its_zoom(tab, tmp_path, make_run):
    path = make_run(tmp_path / "run", steps=60, ranks=2, ending=None, start=time.time() - 120)
    with served(path) as address:
        tab.open(address)
        assert 61 not in tab.curve("losses", "train")
        tab.page.evaluate(
            "Plotly.relayout(document.querySelector('#chart-losses .plot'), {'xaxis.range': [10, 80]})"
        )
        append(path, event="step", step=61, nll=1.234, loss=2.0, tokens=16000, seconds=1.0, lr=0.001, world=2)
        append(path, event="evaluation", step=61, dev_loss=1.5, train_loss=1.4, seconds=1.0)
        tab.wait("document.querySelector('#chart-losses .plot').data.some((trace) => trace.x.includes(61))")
        assert tab.curve("losses", "train")[61] == 1.234
        assert tab.curve("losses", "dev")[61] == 1.5
        assert tab.page.evaluate("document.querySelector('#chart-losses .plot').layout.xaxis.range") == [
            10,
            80,
        ]
        assert "61" in tab.page.locator("#head").inner_text()
        append(path, event="finish", step=61)
        tab.wait("document.querySelector('.state').textContent === 'finished'")


def test_several_runs_are_compared(tab, tmp_path, make_run):
    for name, bleu in (("one", 20.0), ("two <b>", 30.0)):
        make_run(tmp_path / name, steps=60, ranks=1, seed=len(name), bleu=bleu)
    with served(tmp_path) as address:
        tab.open(address)
        assert tab.page.locator("table.runs tbody tr").count() == 2
        assert len(tab.curve("bleu", "one")) == 12
        assert max(tab.curve("bleu", "two &lt;b&gt;").values()) > max(tab.curve("bleu", "one").values())
        tab.page.get_by_role("link", name="two <b>").click()
        tab.page.wait_for_selector("#chart-split .main-svg")
        assert tab.page.locator("h1").inner_text() == "two <b>"


def test_only_this_machine_under_its_own_name_is_answered(tmp_path, make_run):
    path = make_run(tmp_path / "run", steps=20, ranks=1)
    with served(path) as address:
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address) as answer:
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        for name in ("evil.example", "127.0.0.1.evil.example", ""):
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(urllib.request.Request(address, headers={"Host": name}))
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(address + "data/..%2F..%2Fetc")
