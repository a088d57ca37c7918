import hashlib
import random
import threading
import time

import pytest

from dragoman.data import download as module
from dragoman.data.archives import wrong_kind
from dragoman.data.catalogue import Download
from dragoman.data.download import DownloadError, Fetched, Patience, fetch
from dragoman.data.progress import Stages
from dragoman.errors import UserError

DATA = random.Random(1).randbytes(300_000)
OTHER = random.Random(2).randbytes(300_000)
HASH = hashlib.sha256(DATA).hexdigest()
QUICK = Patience(stall_seconds=0.3, rounds=3, first_pause_seconds=0.01, longest_pause_seconds=2)


def get(tmp_path, *urls, patience=QUICK, check=lambda name, head: None, **known):
    """Download one file; return its bytes, or the error."""
    wanted = {"a.bin": Download(urls=urls, **known)}
    result = fetch(wanted, tmp_path / "in", stages=Stages(False), check=check, patience=patience)["a.bin"]
    files = sorted(path.name for path in (tmp_path / "in").iterdir())
    if isinstance(result, UserError):
        assert "a.bin" not in files
        return result
    assert files == ["a.bin"]
    assert (result.bytes, result.sha256) == (
        result.path.stat().st_size,
        hashlib.sha256(result.path.read_bytes()).hexdigest(),
    )
    return result.path.read_bytes()


def test_a_file_arrives_whole(tmp_path, web):
    known = {"bytes": len(DATA), "sha256": HASH, "md5": hashlib.md5(DATA).hexdigest()}
    assert get(tmp_path, web.serve("/a", DATA), **known) == DATA
    ((_, headers),) = web.asked
    assert headers["User-Agent"].startswith("dragoman/")
    assert headers["Accept-Encoding"] == "identity"


def test_a_cut_connection_goes_on_where_it_was(tmp_path, web, answer):
    assert get(tmp_path, web.serve("/a", answer(DATA, sent=100_000), answer(DATA, sent=50_000), DATA)) == DATA
    assert web.ranges() == [None, "bytes=100000-", "bytes=150000-"]
    assert [headers.get("If-Range") for _, headers in web.asked] == [None, '"1"', '"1"']


def test_rounds_that_bring_bytes_are_not_failures(tmp_path, web, answer):
    assert get(tmp_path, web.serve("/a", *[answer(DATA, sent=30_000)] * 10, DATA)) == DATA


def test_a_stalled_server_is_given_up(tmp_path, web, answer):
    assert get(tmp_path, web.serve("/a", answer(DATA, sent=100_000, stalled=True), DATA)) == DATA
    assert web.ranges()[1] == "bytes=100000-"


def test_a_server_that_only_stalls_is_an_error_that_says_so(tmp_path, web, answer):
    url = web.serve("/a", answer(DATA, sent=0, stalled=True))
    error = get(tmp_path, url, patience=Patience(stall_seconds=0.1, rounds=2, first_pause_seconds=0.01))
    assert error.where == f"{url} (no byte for 0.1 s)"


def test_a_server_without_ranges_starts_over(tmp_path, web, answer):
    url = web.serve("/a", answer(DATA, sent=100_000), answer(DATA, ranges=False))
    assert get(tmp_path, url) == DATA


def test_a_file_that_changed_is_not_glued_to_its_old_half(tmp_path, web, answer):
    url = web.serve("/a", answer(DATA, sent=100_000), answer(OTHER, etag='"2"'))
    assert get(tmp_path, url) == OTHER


@pytest.mark.parametrize("etag", [None, 'W/"1"'])
def test_without_a_way_to_notice_a_change_all_is_asked_for_again(tmp_path, web, answer, etag):
    assert get(tmp_path, web.serve("/a", answer(DATA, sent=100_000, etag=etag), OTHER)) == OTHER
    assert web.ranges() == [None, None]


def test_a_known_hash_is_such_a_way(tmp_path, web, answer):
    first = web.serve("/a", answer(DATA, sent=100_000, etag=None), answer(status=404))
    second = web.serve("/b", DATA)
    assert get(tmp_path, first, second, sha256=HASH) == DATA
    assert web.ranges() == [None, "bytes=100000-"]


def test_halves_that_do_not_fit_are_fetched_again(tmp_path, web, answer):
    first = web.serve("/a", answer(OTHER, sent=100_000), answer(status=404))
    assert get(tmp_path, first, web.serve("/b", DATA), sha256=HASH) == DATA
    assert web.ranges() == [None, "bytes=100000-", None, None]


def test_an_earlier_process_is_continued_by_the_mirror_it_used(tmp_path, web, answer):
    urls = [
        web.serve("/a", answer(status=404), DATA),
        web.serve("/b", answer(DATA, sent=1000), answer(status=404), DATA),
    ]
    assert isinstance(get(tmp_path, *urls), DownloadError)
    assert (tmp_path / "in" / "a.bin.part").stat().st_size == 1000
    web.asked.clear()
    assert get(tmp_path, *urls) == DATA
    assert [path for path, _ in web.asked] == ["/b"]
    assert web.ranges() == ["bytes=1000-"]


def test_a_process_killed_before_the_rename_has_nothing_to_ask(tmp_path, web):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.bin.part").write_bytes(DATA)
    (tmp_path / "in" / "a.bin.part.json").write_text(f'{{"url": "x", "total": {len(DATA)}}}')
    assert get(tmp_path, web.serve("/a", OTHER)) == DATA
    assert web.asked == []


def test_a_part_that_is_too_long_is_thrown_away(tmp_path, web):
    url = web.serve("/a", DATA)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.bin.part").write_bytes(DATA + b"more")
    (tmp_path / "in" / "a.bin.part.json").write_text(
        f'{{"url": "{url}", "validator": "\\"1\\"", "total": null}}'
    )
    assert get(tmp_path, url) == DATA


def test_redirects_are_followed(tmp_path, web, answer):
    there = web.serve("/b", answer(DATA, sent=1000), DATA)
    assert get(tmp_path, web.serve("/a", answer(status=302, headers={"Location": there}))) == DATA
    assert web.ranges() == [None, None, "bytes=1000-", "bytes=1000-"]


def test_redirects_in_a_circle_end(tmp_path, web, answer):
    url = web.serve("/a", answer(status=302, headers={"Location": web.url + "/b"}))
    web.serve("/b", answer(status=302, headers={"Location": url}))
    assert get(tmp_path, url).where == f"{url} (redirects too often, or in a circle)"
    assert len(web.asked) < 20


def test_redirects_do_not_lead_into_this_machine(tmp_path, web, answer):
    (tmp_path / "secret").write_bytes(b"secret")
    there = (tmp_path / "secret").as_uri()
    url = web.serve("/a", answer(status=302, headers={"Location": there}))
    assert get(tmp_path, url).where == f"{url} (redirects to {there}, which is not a web address)"
    web.serve("/a", answer(status=302, headers={"Location": "ftp://127.0.0.1/a"}))
    assert get(tmp_path, url).where == f"{url} (redirects to ftp://127.0.0.1/a, which is not a web address)"


def test_the_next_mirror_is_asked(tmp_path, web, answer):
    urls = [web.serve("/a", answer(status=404)), web.serve("/b", OTHER), web.serve("/c", DATA)]
    assert get(tmp_path, *urls, sha256=HASH) == DATA
    assert [path for path, _ in web.asked] == ["/a", "/b", "/c"]


def test_an_error_tells_what_happened_to_each_mirror(tmp_path, web, answer):
    urls = [web.serve("/a", answer(status=404)), web.serve("/b", OTHER), web.serve("/c", answer(status=500))]
    error = get(tmp_path, *urls, sha256=HASH)
    other = hashlib.sha256(OTHER).hexdigest()
    assert str(error) == (
        "error: cannot download a.bin\n"
        f"  where: {urls[0]} (404 Not Found); "
        f"{urls[1]} (wrong file (its SHA-256 is {other[:12]}…, not {HASH[:12]}…)); "
        f"{urls[2]} (500 Internal Server Error)\n"
        "  fix:   try again later (what has arrived is kept), or get the file in another way and give its "
        "directory with --from"
    )
    assert [path for path, _ in web.asked] == ["/a", "/b", "/c", "/c", "/c"], (
        "only some are worth another try"
    )


def test_nobody_listens(tmp_path, web):
    web.server.server_close()
    assert get(tmp_path, web.url + "/a").where == f"{web.url}/a (Connection refused)"


@pytest.mark.parametrize(
    ("known", "wrong"),
    [
        ({"bytes": 5}, "300,000 bytes, not 5"),
        ({"md5": "0" * 32}, f"its MD5 is {hashlib.md5(DATA).hexdigest()}, not {'0' * 32}"),
    ],
)
def test_wrong_bytes(tmp_path, web, known, wrong):
    url = web.serve("/a", DATA)
    assert get(tmp_path, url, **known).where == f"{url} (wrong file ({wrong}))"
    assert not (tmp_path / "in" / "a.bin.part").exists()


def test_a_mirror_with_another_file_does_not_cost_the_bytes_we_have(tmp_path, web, answer):
    first = web.serve("/a", answer(DATA, sent=100_000), DATA)
    second = web.serve("/b", answer(b"<html>Sorry!</html>", ranges=False))
    assert get(tmp_path, first, second, bytes=len(DATA), sha256=HASH) == DATA
    assert web.ranges() == [None, "bytes=100000-", "bytes=100000-"]


def test_bytes_without_an_end_are_stopped_at_the_known_size(tmp_path, web, answer):
    url = web.serve("/a", answer(DATA, headers={"Content-Length": "", "Connection": "close"}))
    assert get(tmp_path, url, bytes=1000).where == f"{url} (wrong file (more than 1,000 bytes))"


def test_a_busy_server_says_when_to_come_back(tmp_path, web, answer):
    url = web.serve("/a", answer(status=503, headers={"Retry-After": "1"}), DATA)
    started = time.monotonic()
    assert get(tmp_path, url) == DATA
    assert time.monotonic() - started >= 1


def test_a_server_that_is_busy_for_long_is_left_alone(tmp_path, web, answer):
    url = web.serve("/a", answer(status=429, headers={"Retry-After": "3600"}), DATA)
    assert get(tmp_path, url).where == f"{url} (429 Too Many Requests, come back in 3,600 s)"


def test_a_page_of_excuses_is_not_an_archive(tmp_path, web):
    wanted = {"a.tgz": Download(urls=(url := web.serve("/a", b"<html>Sorry!</html>"),))}
    error = fetch(wanted, tmp_path, stages=Stages(False), check=wrong_kind, patience=QUICK)["a.tgz"]
    assert error.where == f"{url} (wrong file (not a gz file, but a web page))"


def test_files_of_this_machine_can_be_sources(tmp_path):
    (tmp_path / "there").write_bytes(DATA)
    assert get(tmp_path, (tmp_path / "nowhere").as_uri(), (tmp_path / "there").as_uri(), sha256=HASH) == DATA
    missing = (tmp_path / "nowhere").as_uri()
    assert get(tmp_path / "again", missing).where == f"{missing} (there is no such file)"


def test_several_files_at_once(tmp_path, web, answer):
    both = threading.Barrier(2, timeout=20)
    wanted = {name: Download(urls=(web.serve(f"/{name}", answer(DATA, before=both.wait)),)) for name in "ab"}
    wanted["c"] = Download(urls=(web.url + "/c",))
    results = fetch(wanted, tmp_path, stages=Stages(False), patience=QUICK)
    assert [type(results[name]) for name in "abc"] == [Fetched, Fetched, DownloadError]


def test_too_little_space_is_said_before(tmp_path, web, monkeypatch):
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 10_000_000}))
    with pytest.raises(UserError) as caught:
        get(tmp_path, web.serve("/a", DATA), bytes=2_000_000_000)
    assert str(caught.value) == (
        "error: the download needs 2,000 MB and 10 MB are free\n"
        f"  where: {tmp_path / 'in'}\n"
        "  fix:   free some space or choose another directory with --to"
    )
    assert web.asked == []


def test_an_unwritable_directory_is_not_the_servers_fault(tmp_path, web):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.bin.part").mkdir()
    with pytest.raises(OSError, match="directory"):
        get(tmp_path, web.serve("/a", DATA))


def test_pauses_grow_and_differ():
    patience = Patience()
    assert 0.5 <= patience.pause(0) <= 1
    assert 30 <= patience.pause(20) <= 60
    assert len({patience.pause(3) for _ in range(10)}) > 1


def test_a_line_per_file_where_there_is_no_terminal(tmp_path, web, capsys):
    wanted = {"a.bin": Download(urls=(web.serve("/a", DATA),))}
    fetch(wanted, tmp_path, stages=Stages(True))
    assert capsys.readouterr().err.startswith("a.bin: 0.3 MB in 0.")
