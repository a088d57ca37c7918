"""`dragoman data get` in real processes: killed, interrupted, on a full disk; and what it prints."""

import gzip
import json
import random
import signal

import pytest

from tests.integration.conftest import wait_until

ENTRY = """
what = "ours"
languages = ["en", "de"]
[[corpora]]
name = "manuals"
split = "train"
files = ["manuals.en", "manuals.de"]
from = [["en.gz", "de.gz"]]
[downloads."en.gz"]
urls = ["{url}/en.gz"]
[downloads."de.gz"]
urls = ["{url}/de.gz"]
"""
TEXT = "".join(f"{random.Random(n).getrandbits(512):x}\n" for n in range(20_000)).encode()
PACKED = gzip.compress(TEXT, 1)
HALF = len(PACKED) // 2


@pytest.fixture
def mine(toy, web):
    """A directory with mine.toml, whose files the web server has."""
    (toy.path / "mine.toml").write_text(ENTRY.format(url=web.url))
    web.serve("/en.gz", PACKED)
    web.serve("/de.gz", PACKED)
    return toy


@pytest.mark.parametrize(("how", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_a_download_that_was_ended_goes_on_from_its_bytes(mine, web, answer, how, code):
    web.serve("/de.gz", answer(PACKED, sent=HALF, stalled=True), PACKED)
    process = mine.start("data", "get", "mine.toml")
    part = mine.path / "corpora" / "mine" / ".downloads" / "de.gz.part"
    wait_until(lambda: part.exists() and part.stat().st_size == HALF, "half of the file")
    wait_until((part.parent / "en.gz").exists, "the other file")
    process.send_signal(how)
    assert process.wait(20) == code
    assert "Traceback" not in process.stderr.read()
    assert sorted(path.name for path in (mine.path / "corpora" / "mine").iterdir()) == [".downloads", ".lock"]
    web.asked.clear()
    mine.call("data", "get", "./mine.toml")
    ((path, headers),) = web.asked
    assert (path, headers["Range"], headers["If-Range"]) == ("/de.gz", f"bytes={HALF}-", '"1"')
    assert (mine.path / "corpora" / "mine" / "manuals.de").read_bytes() == TEXT
    assert not part.parent.exists()


def test_what_the_command_prints(mine, web):
    got = mine.call("data", "get", "mine.toml", "--to", "there")
    assert "manuals.en, manuals.de" in got.stdout
    assert "20,000" in got.stdout
    assert "next:" not in got.stdout
    again = mine.call("data", "get", "mine.toml", "--to", "there", "--json")
    assert again.stderr == "there has all files of mine already\n"
    sources = json.loads(again.stdout)
    assert sources["directory"] == "there"
    assert sources["files"] == json.loads((mine.path / "there" / "sources.json").read_text())["files"]
    error = mine.call("data", "get", "mtdata:x", "--from", ".", code=2).stderr
    assert error == "error: mtdata takes no local copies\n  where: --from\n  fix:   leave --from out\n"


def test_a_corpus_of_the_catalogue_from_copies(mine):
    (mine.path / "copies").mkdir()
    lines = {"train": 29_000, "val": 1_014, "test_2016_flickr": 999}
    for name, count in lines.items():
        for language in ("en", "de"):
            (mine.path / "copies" / f"{name}.{language}").write_text("A dog.\n" * count)
    before = json.loads(mine.call("data", "list", "--json").stdout)
    assert before["multi30k-en-de"]["fetched"] == "no"
    got = mine.call("data", "get", "multi30k-en-de", "--from", "copies")
    assert got.stdout.endswith("next: dragoman train multi30k\n")
    assert got.stderr == (
        "warning: multi30k-test_2016_flickr has 999 lines, not 1,000 as expected (from copies in copies)\n"
    )
    listed = mine.call("data", "list").stdout
    assert [
        line.split()[-1] for line in listed.splitlines() if line.strip().startswith(("multi30k", "wmt16"))
    ] == [
        "yes",
        "no",
    ]


def test_a_full_disk_is_an_error(mine, small_disk):
    (small_disk / "other").write_bytes(bytes(7_000_000))
    error = mine.call("data", "get", "mine.toml", "--to", str(small_disk / "mine"), code=2).stderr
    assert "error: the disk is full\n" in error
    assert f"where: {small_disk}" in error
    assert not list((small_disk / "mine").glob("manuals*"))
