"""A dataset reaches hosts whole or not at all, goes on where it was cut off, and every failure is named."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np
import pytest

from dragoman.cluster import receive as receiving
from dragoman.cluster import send as sending
from dragoman.cluster import send_command
from dragoman.cluster.hosts import Host, start_piped
from dragoman.cluster.receive import PIECE_BYTES, VERSION, Input, SenderGone, receive
from dragoman.cluster.send import Packer, send_dataset
from dragoman.cluster.send_command import as_json, send_to_hosts
from dragoman.cluster.send_view import View, duration, ending_of, progress_of
from dragoman.data.shards import LOCK, Dataset, ShardWriter, unfinished, write_manifest
from dragoman.errors import UserError, UserErrors
from dragoman.files import TEMPORARY

BIG = "train/00000.src.npy"
SMALL = "train/00000.tgt.npy"


def make_dataset(path: Path, seed: int = 0) -> Dataset:
    """A dataset of four pieces and a bit, with a file of no bytes."""
    random = np.random.default_rng(seed)
    src, tgt = random.integers(0, 8000, 500_000, np.uint16), random.integers(0, 8000, 2000, np.uint16)
    writer = ShardWriter(path / "train", np.uint16)
    lengths = np.full((1000, 2), [500, 2], np.int32)
    writer.add(src.tobytes(), tgt.tobytes(), lengths)
    facts = {"train": {"pairs": 1000, "shards": writer.close()}}
    (path / "dev").mkdir()
    (path / "dev" / "empty.txt").touch()
    write_manifest(path, {"fingerprint": path.name, "vocab": {"size": 8000}, "splits": facts})
    return Dataset.open(path)


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    """A dataset that is named as recipes name theirs: by a path relative to where we work."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return make_dataset(Path("datasets/abc"))


def host(tmp_path: Path, name: str = "b") -> Host:
    """A host with a disk of its own, which is a directory."""
    directory = tmp_path / name
    directory.mkdir(exist_ok=True)
    return Host(name, directory=str(directory))


def start_here(host: Host, arguments: list[str]) -> "subprocess.Popen[bytes]":
    return start_piped([sys.executable, *arguments], host.directory)


def send(dataset, *hosts, start=start_here):
    return send_dataset(dataset, hosts, lambda deliveries: None, start=start)


def assert_arrived(host, dataset):
    copy = Dataset.open(host.place(dataset.path))
    copy.verify()
    assert copy.manifest == dataset.manifest
    assert not list(copy.path.parent.glob(f"{TEMPORARY}*"))


def told_by(request: bytes, more: bytes = b"") -> list[dict]:
    """Return what a receiver says to these words and then the end of them."""
    said: list[dict] = []
    with TemporaryFile() as words:
        words.write(request + more)
        words.seek(0)
        try:
            receive(Input(words.fileno()), lambda **message: said.append(message))
        except SenderGone as gone:
            said.append({"gone": str(gone)})
    return said


def request_for(dataset: Dataset, target: Path, version: int = VERSION) -> bytes:
    manifest = (dataset.path / "manifest.json").read_bytes()
    facts = {"version": version, "directory": str(target), "bytes": len(manifest)}
    return json.dumps(facts).encode() + b"\n" + manifest


def piece(name: str, offset: int, content: bytes) -> bytes:
    return json.dumps({"file": name, "offset": offset, "bytes": len(content)}).encode() + b"\n" + content


def pieces_of(dataset: Dataset, *names: str) -> bytes:
    whole = b""
    for name in names or dataset.manifest["files"]:
        content = (dataset.path / name).read_bytes()
        for offset in range(0, len(content), PIECE_BYTES):
            whole += piece(name, offset, content[offset : offset + PIECE_BYTES])
    return whole


def test_hosts_get_it_at_the_same_place_whole(tmp_path, dataset):
    hosts = [host(tmp_path, name) for name in "bc"]
    for delivery, target in zip(send(dataset, *hosts), hosts, strict=True):
        assert delivery.problem is None
        assert delivery.sent_bytes == delivery.there_bytes == dataset.num_bytes
        assert delivery.wire_bytes <= delivery.sent_bytes
        assert_arrived(target, dataset)
    (again,) = send(dataset, hosts[0])
    assert (again.state, again.sent_bytes) == ("done", 0)
    assert ending_of(again) == "host b has the dataset already"


def test_a_sending_that_was_cut_off_goes_on_in_the_middle_of_a_file(tmp_path, dataset):
    target = host(tmp_path)
    path = target.place(dataset.path)
    cut = piece(BIG, 0, (dataset.path / BIG).read_bytes()[:PIECE_BYTES])
    said = told_by(request_for(dataset, path), more=cut + piece(BIG, PIECE_BYTES, b"x" * 100)[:-50])
    assert said[-1] == {"gone": "the sender is gone"}
    assert not path.exists()
    assert (unfinished(path) / BIG).stat().st_size == PIECE_BYTES
    (delivery,) = send(dataset, target)
    assert delivery.problem is None
    assert delivery.before_bytes == PIECE_BYTES
    assert delivery.sent_bytes == dataset.num_bytes - PIECE_BYTES
    assert "0.3 MB were there already" in ending_of(delivery)
    assert_arrived(target, dataset)


def test_wrong_bytes_are_asked_for_again_and_refused_the_second_time(tmp_path, dataset):
    target = host(tmp_path)
    path = target.place(dataset.path)
    right = (dataset.path / SMALL).read_bytes()
    wrong = piece(SMALL, 0, bytes(len(right)))
    others = [name for name in dataset.manifest["files"] if name != SMALL]
    said = told_by(request_for(dataset, path), more=wrong + pieces_of(dataset, *others, SMALL))
    assert {"again": SMALL} in said
    assert said[-1] == {"done": True}
    assert_arrived(target, dataset)
    shutil.rmtree(path)
    with pytest.raises(UserError) as caught:
        told_by(request_for(dataset, path), more=wrong * 2)
    assert f"{SMALL} came 2 times with another checksum than the manifest's" in str(caught.value)
    assert "dragoman data show DATASET --verify" in caught.value.fix
    assert not path.exists()


def test_what_is_wrong_here_is_not_published_there(tmp_path, dataset):
    with open(dataset.path / SMALL, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xff")
    target = host(tmp_path)
    (delivery,) = send(dataset, target)
    assert f"{SMALL} came 2 times" in delivery.problem.what
    assert delivery.problem.where.endswith("on host b")
    assert delivery.state == "failed"
    assert not target.place(dataset.path).exists()


def test_a_damaged_dataset_gets_only_its_bad_files_again(tmp_path, dataset):
    target = host(tmp_path)
    path = target.place(dataset.path)
    send(dataset, target)
    size = (path / BIG).stat().st_size
    os.truncate(path / BIG, size - 10)
    (path / SMALL).unlink()
    (path / "stray").touch()
    (delivery,) = send(dataset, target)
    assert delivery.sent_bytes == 10 + (dataset.path / SMALL).stat().st_size
    assert_arrived(target, dataset)
    assert not (path / "stray").exists()
    with open(path / BIG, "ab") as file:  # too long, and the manifest is gone to pieces as well
        file.write(b"more")
    (path / "manifest.json").write_text("{")
    (delivery,) = send(dataset, target)
    assert delivery.sent_bytes == size
    assert_arrived(target, dataset)


def test_another_dataset_or_directory_of_that_name_is_left_alone(tmp_path, dataset):
    target = host(tmp_path)
    path = target.place(dataset.path)
    other = make_dataset(path, seed=1)
    (delivery,) = send(dataset, target)
    assert delivery.problem.what == "there is another dataset of the name abc: its files are others"
    other.verify()
    shutil.rmtree(path)
    path.mkdir()
    (path / "thesis.txt").touch()
    with pytest.raises(UserError, match="this exists already and is not a dataset"):
        told_by(request_for(dataset, path))
    assert (path / "thesis.txt").exists()


def test_two_senders_take_turns(tmp_path, dataset):
    """Two hosts with one disk between them, while a third process holds it."""
    target = host(tmp_path)
    place = target.place(dataset.path).parent
    place.mkdir()
    twin = Host("c", directory=target.directory)
    seen: list[str] = []

    def watch(deliveries):
        seen.extend(delivery.state for delivery in deliveries)
        if [delivery.state for delivery in deliveries] == ["waits", "waits"]:
            lock.close()

    with open(place / LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        both = send_dataset(dataset, [target, twin], watch, start=start_here)
    assert "waits" in seen
    assert [delivery.problem for delivery in both] == [None, None]
    assert sum(delivery.sent_bytes for delivery in both) == dataset.num_bytes
    assert_arrived(target, dataset)


def test_a_host_that_fails_is_named_and_the_others_are_served(tmp_path, dataset):
    def start(host: Host, arguments: list[str]) -> "subprocess.Popen[bytes]":
        if host.name == "bad":
            return start_piped(["sh", "-c", "read line; echo lost power; exit 3"])
        return start_here(host, arguments)

    good = host(tmp_path)
    bad, fine = send(dataset, Host("bad"), good, start=start)
    assert bad.problem.what == "host bad stopped receiving the dataset: lost power"
    assert "run the same command: it goes on where it was (0 of 1 MB)" in bad.problem.fix
    assert fine.problem is None
    assert_arrived(good, dataset)


def test_a_silent_host_is_given_up(dataset, monkeypatch):
    monkeypatch.setattr(sending, "SILENCE_SECONDS", 0.3)
    (delivery,) = send(dataset, Host("b"), start=lambda *_: start_piped(["sleep", "100"]))
    assert delivery.problem.what == "host b said nothing for 0 s while it was sent the dataset"
    assert delivery.process.returncode is not None


def test_a_silent_sender_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(receiving, "SILENCE_SECONDS", 0.1)
    readable, writable = os.pipe()
    with pytest.raises(SenderGone, match="nothing came for 0 s"):
        receive(Input(readable), lambda **message: None)
    for each in (readable, writable):
        os.close(each)


def test_an_interruption_ends_all(tmp_path, dataset):
    def interrupt(deliveries):
        started.extend(delivery.process for delivery in deliveries)
        raise KeyboardInterrupt

    started: list[subprocess.Popen[bytes]] = []
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt), View(said.append):
        send_dataset(dataset, [host(tmp_path)], interrupt, start=start_here)
    assert started[0].returncode is not None
    assert said == ["stopped; what has arrived stays there, and the same command goes on from it"]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 512 kB."""
    path = tmp_path / "small"
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", path], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_host_without_room_is_named_with_numbers(small_disk, dataset, monkeypatch):
    request = request_for(dataset, small_disk / "datasets" / "abc")
    with pytest.raises(UserError) as caught:
        told_by(request)
    assert caught.value.what == "there are 0.5 MB free, and the dataset needs 1.0 MB more"
    assert caught.value.where == str(small_disk / "datasets")
    # Somebody else fills the disk meanwhile.
    monkeypatch.setattr(receiving.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(0, 0, 10**9))
    with pytest.raises(UserError, match="the disk is full"):
        told_by(request, more=pieces_of(dataset))


def test_what_nobody_means_is_refused(tmp_path, dataset):
    with pytest.raises(UserError, match="speaks version 99"):
        told_by(request_for(dataset, tmp_path / "abc", version=99))
    manifest = json.dumps({"files": {"../escape": {"bytes": 1, "sha256": ""}}}).encode()
    facts = {"version": VERSION, "directory": str(tmp_path / "abc"), "bytes": len(manifest)}
    with pytest.raises(ValueError, match=r"a dataset has no file \.\./escape"):
        told_by(json.dumps(facts).encode() + b"\n" + manifest)
    with pytest.raises(ValueError, match="is not wanted at 7"):
        told_by(request_for(dataset, tmp_path / "abc"), more=piece(SMALL, 7, b"x"))


def test_a_file_that_cannot_be_read_here_is_named(tmp_path, dataset):
    (dataset.path / SMALL).unlink()
    (delivery,) = send(dataset, host(tmp_path))
    assert f"cannot get {SMALL}, which cannot be read here (No such file" in delivery.problem.what


def test_packing_pays_on_slow_links_only():
    tokens = np.random.default_rng(0).integers(0, 100, PIECE_BYTES // 2, np.uint16).tobytes()
    slow, fast = Packer(), Packer()
    for _ in range(40):
        assert len(slow.pack(tokens)) <= len(tokens)
        slow.sent(1000, 1.0)
        fast.pack(tokens)
        fast.sent(10**9, 1e-6)
    assert len(slow.pack(tokens)) < len(tokens)
    assert fast.pack(tokens) is tokens
    noise = os.urandom(PIECE_BYTES)
    assert slow.pack(noise) is noise  # what does not shrink goes as it is


def test_the_command_sends_to_all_and_then_names_those_that_failed(tmp_path, dataset, monkeypatch, capfd):
    with pytest.raises(UserError, match="there is no host to send the dataset to"):
        send_to_hosts(dataset.path, [])
    monkeypatch.setattr(send_command, "survey", lambda hosts, question: [])
    monkeypatch.setattr(send_command, "send_dataset", partial(send_dataset, start=start_here))
    good, bad = host(tmp_path), host(tmp_path, "bad")
    (told,) = as_json(send_to_hosts(dataset.path, [good]))
    assert (told["host"], told["dataset"]) == ("b", str(tmp_path / "b/datasets/abc"))
    assert (told["before_bytes"], told["sent_bytes"]) == (0, dataset.num_bytes)
    make_dataset(bad.place(dataset.path), seed=1)
    with pytest.raises(UserErrors) as caught:
        send_to_hosts(dataset.path, [good, bad])
    assert "there is another dataset of the name abc" in str(caught.value)
    assert "where: datasets/abc on host bad" in str(caught.value)
    assert "host b has the dataset already" in capfd.readouterr().err


def test_progress_is_told_in_lines_and_bars(tmp_path, dataset, capfd, monkeypatch):
    with View() as view:
        send_dataset(dataset, [host(tmp_path)], view, start=start_here)
    assert "host b has the dataset: 1.0 MB in " in capfd.readouterr().err
    monkeypatch.setenv("FORCE_COLOR", "1")
    with View() as view:
        (delivery,) = send_dataset(dataset, [host(tmp_path, "c")], view, start=start_here)
    errors = capfd.readouterr().err
    assert "━━━━" in errors
    assert "1.0 of 1.0 MB" in errors
    delivery.state, delivery.there_bytes = "gets", dataset.num_bytes // 2
    assert "0.5 of 1.0 MB" in progress_of(delivery)
    assert "MB/s" in progress_of(delivery)
    assert progress_of(delivery).endswith("left")
    assert [duration(each) for each in (0.12, 99.7, 3600)] == ["0.1 s", "100 s", "60 min"]
