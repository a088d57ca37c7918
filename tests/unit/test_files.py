import errno
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from dragoman import files
from dragoman.errors import UserError


def test_write_text_replaces_and_leaves_nothing_behind(tmp_path):
    path = tmp_path / "deep" / "a.txt"
    files.write_text(path, "old")
    files.write_text(path, "größer\n")
    assert path.read_text(encoding="utf-8") == "größer\n"
    assert os.listdir(path.parent) == ["a.txt"]


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    files.write_text(path, "old")

    def fail(file):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(files, "fsync_file", fail)
    with pytest.raises(OSError, match="full"):
        files.write_text(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_json_round_trip(tmp_path):
    value = {"größe": [1, 2.5, None, "ä"]}
    files.write_json(tmp_path / "a.json", value)
    assert files.read_json(tmp_path / "a.json") == value
    assert "größe" in (tmp_path / "a.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (
            errno.ENOSPC,
            "error: the disk is full\n  where: {path}\n  fix:   free some space or choose another directory",
        ),
        (
            errno.EACCES,
            "error: cannot write here (Permission denied)\n  where: {path}\n"
            "  fix:   choose a directory you may write to, or change its permissions",
        ),
    ],
)
def test_disk_errors_become_user_errors(tmp_path, code, text):
    with pytest.raises(UserError) as caught, files.disk_errors(tmp_path):
        raise OSError(code, "x")
    assert str(caught.value) == text.format(path=tmp_path)


def test_other_os_errors_stay_bugs(tmp_path):
    with pytest.raises(OSError, match="broken"), files.disk_errors(tmp_path):
        raise OSError(errno.EIO, "broken")


def test_a_directory_appears_whole(tmp_path):
    final = tmp_path / "dataset"
    unfinished = files.beside(final)
    (unfinished / "inner").mkdir(parents=True)
    (unfinished / "inner" / "a").write_text("x")
    assert not final.exists()
    files.publish_directory(unfinished, final)
    assert (final / "inner" / "a").read_text() == "x"
    assert os.listdir(tmp_path) == ["dataset"]


def test_leftovers_of_killed_writers_are_removed(tmp_path):
    files.beside(tmp_path / "directory").mkdir()
    files.beside(tmp_path / "file").write_text("half")
    (tmp_path / "kept").write_text("whole")
    files.remove_unfinished(tmp_path)
    assert os.listdir(tmp_path) == ["kept"]


def test_sha256(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert files.sha256(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.mark.parametrize(
    "unfinished", ["", '{"n": 2', '{"n": "' + "x" * 200_000], ids=["none", "short", "long"]
)
def test_json_lines_cut_what_a_killed_writer_left(tmp_path, unfinished):
    path = tmp_path / "a.jsonl"
    with files.open_json_lines(path) as file:
        files.append_json_line(file, {"n": 1})
        file.write(unfinished)
    assert files.read_json_lines(path) == [{"n": 1}]
    with files.open_json_lines(path) as file:
        files.append_json_line(file, {"n": "ü"})
    assert files.read_json_lines(path) == [{"n": 1}, {"n": "ü"}]


def test_json_lines_of_only_half_a_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"n"')
    files.open_json_lines(path).close()
    assert path.read_bytes() == b""


def test_absent_json_lines_are_empty(tmp_path):
    assert files.read_json_lines(tmp_path / "absent.jsonl") == []


def test_many_may_remove_what_is_left_at_once(tmp_path):
    """All workers of a run do, when they start after a kill."""
    for number in range(40):
        (tmp_path / f"{files.TEMPORARY}{number}").mkdir()
        (tmp_path / f"{files.TEMPORARY}{number}" / "file").touch()
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(files.remove_unfinished, tmp_path) for _ in range(4)]:
            done.result()
    assert not list(tmp_path.iterdir())
