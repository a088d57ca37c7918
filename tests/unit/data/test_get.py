import fcntl
import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
import threading

import pytest

from dragoman.data.catalogue import parse_entry
from dragoman.data.download import Patience
from dragoman.data.get import get
from dragoman.data.mtdata import get_from_mtdata
from dragoman.errors import UserError

EN, DE = b"One.\nTwo.\n", "Eins.\nZwölf.\n".encode()
QUICK = Patience(stall_seconds=1, rounds=2, first_pause_seconds=0.01)
FORM = """
what = "ours"
languages = ["en", "de"]
[[corpora]]
name = "manuals"
split = "train"
files = ["manuals.en", "manuals.de"]
from = [["manuals.tgz/x/en.txt", "manuals.tgz/x/de.txt"], ["en.gz", "de.gz"]]
lines = 2
licence = "CC0"
source = "https://example.org"
{more}
[downloads."manuals.tgz"]
urls = ["{url}/manuals-2.tgz"]
[downloads."en.gz"]
urls = ["{url}/en.gz"]
[downloads."de.gz"]
urls = ["{url}/de.gz"]
"""


def tgz(**members):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(f"x/{name}.txt")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


@pytest.fixture
def mine(web):
    web.serve("/manuals-2.tgz", tgz(en=EN, de=DE, fr=b"no"))
    web.serve("/en.gz", gzip.compress(EN))
    web.serve("/de.gz", gzip.compress(DE))
    return parse_entry(FORM.format(url=web.url, more=""), "mine", "mine.toml")


@pytest.fixture
def bring(tmp_path):
    """Return a function that gets an entry to tmp_path/mine and returns its sources.json."""

    def bring(entry, **options):
        sources = get(entry, tmp_path / "mine", patience=QUICK, **options)
        assert json.loads((tmp_path / "mine" / "sources.json").read_text()) == sources
        return sources

    return bring


def paths(web):
    asked = [path for path, _ in web.asked]
    web.asked.clear()
    return asked


def test_files_come_with_what_is_known_about_them(tmp_path, web, mine, bring):
    sources = bring(mine)
    assert (tmp_path / "mine" / "manuals.en").read_bytes() == EN
    assert (tmp_path / "mine" / "manuals.de").read_bytes() == DE
    assert {key: sources[key] for key in ("version", "name")} == {"version": 1, "name": "mine"}
    assert sources["files"]["manuals.en"] == {
        "corpus": "manuals",
        "lines": 2,
        "bytes": len(EN),
        "sha256": hashlib.sha256(EN).hexdigest(),
        "licence": "CC0",
        "source": "https://example.org",
        "from": web.url + "/manuals-2.tgz",
    }
    assert sorted(os.listdir(tmp_path / "mine")) == [".lock", "manuals.de", "manuals.en", "sources.json"]
    assert paths(web) == ["/manuals-2.tgz"]


def test_a_second_call_has_nothing_to_do(tmp_path, web, mine, bring, capsys):
    first = bring(mine)
    paths(web)
    assert bring(mine) == first
    assert paths(web) == []
    assert capsys.readouterr().err.endswith(f"{tmp_path / 'mine'} has all files of mine already\n")


@pytest.mark.parametrize("new", [b"Changed.\n", EN.replace(b"O", b"A"), None])
def test_files_that_changed_or_went_are_fetched_again(tmp_path, web, mine, bring, new):
    bring(mine)
    file = tmp_path / "mine" / "manuals.en"
    file.write_bytes(new) if new else file.unlink()
    later = (tmp_path / "mine" / "sources.json").stat().st_mtime_ns + 10**9
    if new:
        os.utime(file, ns=(later, later))
    paths(web)
    bring(mine)
    assert file.read_bytes() == EN
    assert paths(web) == ["/manuals-2.tgz"]


def test_files_that_were_only_touched_are_kept(tmp_path, web, mine, bring):
    bring(mine)
    later = (tmp_path / "mine" / "sources.json").stat().st_mtime_ns + 10**9
    os.utime(tmp_path / "mine" / "manuals.en", ns=(later, later))
    paths(web)
    bring(mine)
    assert paths(web) == []


def test_the_next_origin_is_used(tmp_path, web, answer, mine, bring):
    web.serve("/manuals-2.tgz", answer(status=404))
    assert bring(mine)["files"]["manuals.de"]["from"] == f"{web.url}/en.gz, {web.url}/de.gz"
    assert (tmp_path / "mine" / "manuals.de").read_bytes() == DE


@pytest.mark.parametrize("bad", [tgz(en=EN), tgz(en=EN, de=DE)[:60], tgz(en=EN, de=DE + b"More.\n")])
def test_an_archive_that_is_no_good_is_forgotten(tmp_path, web, mine, bring, bad):
    web.serve("/manuals-2.tgz", bad)
    assert ".gz" in bring(mine)["files"]["manuals.de"]["from"]
    assert "manuals.tgz" not in json.loads((tmp_path / "mine.lock.json").read_text())["downloads"]


def test_an_error_tells_of_all_origins(tmp_path, web, answer, mine, bring):
    web.serve("/manuals-2.tgz", tgz(en=EN))
    web.serve("/de.gz", answer(status=404))
    with pytest.raises(UserError) as caught:
        bring(mine)
    assert caught.value.what == "cannot get manuals"
    assert caught.value.where == (
        f"x/de.txt is not in the archive: manuals.tgz; cannot download de.gz: {web.url}/de.gz (404 Not Found)"
    )
    assert os.listdir(tmp_path / "mine" / ".downloads") == ["en.gz"], "kept for the next time"
    web.serve("/de.gz", gzip.compress(DE))
    paths(web)
    bring(mine)
    assert paths(web) == ["/manuals-2.tgz", "/de.gz"], "what is here already is not asked for"


def test_sides_of_different_length_are_no_corpus(tmp_path, web, bring, mine):
    for name in ("/manuals-2.tgz", "/de.gz"):
        web.serve(name, tgz(en=EN, de=EN + EN) if "tgz" in name else gzip.compress(EN + EN))
    with pytest.raises(UserError) as caught:
        bring(mine)
    what = "the two sides have different numbers of lines: manuals.en: 2, manuals.de: 4"
    assert caught.value.where.startswith(what)
    assert caught.value.fix == "the files are no pair, or one is cut off: get them elsewhere"
    assert not (tmp_path / "mine" / "manuals.en").exists()


def test_another_number_of_lines_is_a_warning(web, bring, mine, capsys):
    web.serve("/manuals-2.tgz", tgz(en=EN + EN, de=DE + DE))
    assert bring(mine)["files"]["manuals.en"]["lines"] == 4
    warning = f"warning: manuals has 4 lines, not 2 as expected (from {web.url}/manuals-2.tgz)\n"
    assert warning in capsys.readouterr().err


def test_another_hash_of_a_file_is_an_error(web, bring, mine):
    more = f'sha256 = ["{hashlib.sha256(EN).hexdigest()}", "{"0" * 64}"]'
    entry = parse_entry(FORM.format(url=web.url, more=more), "mine", "mine.toml")
    with pytest.raises(UserError) as caught:
        bring(entry)
    what = f"manuals.de is another file than the catalogue knows (its SHA-256 is {hashlib.sha256(DE).hexdigest()})"
    assert what in caught.value.where
    assert caught.value.fix == "get it elsewhere, or correct sha256 in the entry"


def test_the_first_download_is_the_measure_of_later_ones(tmp_path, web, bring, mine):
    bring(mine)
    record = json.loads((tmp_path / "mine.lock.json").read_text())["downloads"]["manuals.tgz"]
    archive = web.answers["/manuals-2.tgz"][0].data
    assert record == {"bytes": len(archive), "sha256": hashlib.sha256(archive).hexdigest()}
    (tmp_path / "mine" / "manuals.en").unlink()
    for name in ("/manuals-2.tgz", "/en.gz"):
        web.serve(name, tgz(en=DE, de=EN) if "tgz" in name else b"")
    with pytest.raises(UserError) as caught:
        bring(mine)
    assert "wrong file" in caught.value.where
    assert caught.value.fix.endswith(
        f"; if the file has changed for good, remove it from {tmp_path / 'mine.lock.json'}"
    )


def test_copies_of_the_files_stand_in(tmp_path, web, mine, bring):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "manuals.en").write_bytes(EN)
    (tmp_path / "here" / "manuals.de").write_bytes(DE)
    sources = bring(mine, copies=tmp_path / "here")
    assert sources["files"]["manuals.en"]["from"] == f"copies in {tmp_path / 'here'}"
    assert (tmp_path / "mine" / "manuals.de").read_bytes() == DE
    assert paths(web) == []


@pytest.mark.parametrize("names", [["manuals.tgz"], ["manuals-2.tgz"], ["en.gz", "de.gz"]])
def test_copies_of_archives_stand_in(tmp_path, web, mine, bring, names):
    (tmp_path / "here").mkdir()
    packed = {"en.gz": gzip.compress(EN), "de.gz": gzip.compress(DE)}
    for name in names:
        (tmp_path / "here" / name).write_bytes(packed.get(name) or tgz(en=EN, de=DE))
    bring(mine, copies=tmp_path / "here")
    assert (tmp_path / "mine" / "manuals.de").read_bytes() == DE
    assert paths(web) == []
    assert sorted(os.listdir(tmp_path / "here")) == sorted(names), "what others gave us stays as it is"


def test_copies_that_are_wrong_or_missing_are_downloaded(tmp_path, web, mine, bring, capsys):
    (tmp_path / "here").mkdir()
    bring(mine, copies=tmp_path / "here")
    assert f"manuals is not in {tmp_path / 'here'}: downloading it\n" in capsys.readouterr().err
    (tmp_path / "mine" / "manuals.en").unlink()
    (tmp_path / "here" / "manuals.tgz").write_bytes(b"<html>")
    bring(mine, copies=tmp_path / "here")
    reason = "wrong file (not a gz file, but a web page)"
    assert f"{tmp_path / 'here' / 'manuals.tgz'} is not used: {reason}\n" in capsys.readouterr().err
    with pytest.raises(UserError, match="there is no such directory") as caught:
        bring(mine, copies=tmp_path / "nowhere")
    assert caught.value.fix == "correct --from"


def test_two_processes_take_turns(tmp_path, mine, bring, monkeypatch):
    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)
    (tmp_path / "mine").mkdir()
    with open(tmp_path / "mine" / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        other = threading.Thread(target=bring, args=(mine,))
        other.start()
        while "waiting for it\n" not in said.getvalue():
            assert other.is_alive()
    other.join(30)
    assert f"another process works on {tmp_path / 'mine'}: waiting for it\n" in said.getvalue()
    assert (tmp_path / "mine" / "manuals.en").exists()


@pytest.mark.parametrize("text", ["{", "[]", '{"version": 1}', '{"version": 9, "files": {}}'])
def test_a_sources_file_that_nobody_can_read_is_written_again(tmp_path, mine, bring, text):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "sources.json").write_text(text)
    (tmp_path / "mine.lock.json").write_text("[]")
    assert len(bring(mine)["files"]) == 2


FAKE = """#!/bin/sh
[ "$1 $2 $3 $4 $5 $6" = "get --langs deu-eng --train $ID --out" ] || { echo "wrong: $*"; exit 1; }
[ "$FAIL" ] && { echo "Downloading"; echo "no such dataset"; exit 1; }
mkdir -p "$7/train-parts"; cd "$7/train-parts"
printf 'Eins.\\n' > "$ID.deu"; printf 'One.\\n' > "$ID.eng"
"""
ID = "Statmt-europarl-7-deu-eng"


@pytest.fixture
def mtdata(tmp_path, monkeypatch):
    """A command that behaves like mtdata, on the path."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "mtdata").write_text(FAKE)
    (tmp_path / "bin" / "mtdata").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("ID", ID)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


def test_mtdata_brings_a_corpus(tmp_path, mtdata, capsys):
    sources = get_from_mtdata(ID, tmp_path / "mine")
    assert sources["files"][f"{ID}.eng"] == {
        "corpus": ID,
        "lines": 1,
        "bytes": 5,
        "sha256": hashlib.sha256(b"One.\n").hexdigest(),
        "licence": "see source",
        "source": f"mtdata:{ID}",
    }
    assert sorted(os.listdir(tmp_path / "mine")) == [".lock", f"{ID}.deu", f"{ID}.eng", "sources.json"]
    os.environ["FAIL"] = "1"
    try:
        assert get_from_mtdata(ID, tmp_path / "mine") == json.loads(
            (tmp_path / "mine" / "sources.json").read_text()
        )
        assert f"{tmp_path / 'mine'} has all files of {ID} already\n" in capsys.readouterr().err
        with pytest.raises(UserError) as caught:
            get_from_mtdata(ID, tmp_path / "other")
    finally:
        del os.environ["FAIL"]
    assert str(caught.value) == (
        f"error: mtdata could not get it (no such dataset)\n  where: mtdata:{ID}\n"
        "  fix:   `mtdata list -l L1-L2 -id` prints the identifiers; else try again later"
    )
    assert "mtdata: Downloading\n" in capsys.readouterr().err
    assert os.listdir(tmp_path / "other") == [".lock"]


def test_mtdata_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError) as caught:
        get_from_mtdata(ID, tmp_path)
    assert str(caught.value) == (
        f"error: mtdata is not installed\n  where: mtdata:{ID}\n"
        "  fix:   `pip install dragoman[mtdata]`, or `pipx install mtdata` to keep its libraries apart"
    )


@pytest.mark.parametrize("name", ["europarl", "../a-b-c-deu-eng", "Statmt-news-1-deu", "a-b-c-deu-eng\n"])
def test_not_an_identifier(tmp_path, name):
    with pytest.raises(UserError) as caught:
        get_from_mtdata(name, tmp_path)
    assert caught.value.what == "not an mtdata identifier of two languages"
    assert (
        caught.value.fix == "`mtdata list -l deu-eng -id` prints them, for example Statmt-europarl-7-deu-eng"
    )
