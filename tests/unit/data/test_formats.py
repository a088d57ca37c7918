"""Reading text from files of every kind."""

import bz2
import gzip
import io
import lzma
import sys
from types import SimpleNamespace

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.data import formats
from dragoman.data.formats import open_lines, read_chunks
from dragoman.errors import UserError

COMPRESS = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,  # as the zstd command does
}
any_line = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\n\r\ufeff"))


def write(path, lines, compress=bytes):
    path.write_bytes(compress("".join(f"{line}\n" for line in lines).encode()))
    return str(path)


def read(*paths, chunk_bytes=formats.CHUNK_BYTES):
    src, tgt = [], []
    for chunk in read_chunks(paths, chunk_bytes):
        assert chunk.first_line == len(src) + 1
        src_lines, tgt_lines = chunk.decode()
        src += src_lines
        tgt += tgt_lines
    return src, tgt


def error_of(function, *arguments, **options):
    with pytest.raises(UserError) as caught:
        function(*arguments, **options)
    return str(caught.value)


@pytest.mark.parametrize(("ending", "compress"), COMPRESS.items())
def test_reads_every_format(tmp_path, ending, compress):
    src = write(tmp_path / f"a.en{ending}", ["one", "two words"], compress)
    tgt = write(tmp_path / f"a.de{ending}", ["eins", "zwei Wörter"], compress)
    tsv = write(tmp_path / f"a.tsv{ending}", ["one\teins", "two words\tzwei Wörter"], compress)
    assert read(src, tgt) == read(tsv) == (["one", "two words"], ["eins", "zwei Wörter"])


@pytest.mark.parametrize("ending", [".gz", ".xz", ".zst", ".bz2"])
def test_reads_streams_one_after_another(tmp_path, ending):
    compress = COMPRESS[ending]
    path = tmp_path / f"a.tsv{ending}"
    path.write_bytes(compress(b"a\tb\nc") + compress(b"\td\n") + b"\0" * 8)
    assert read(str(path)) == (["a", "c"], ["b", "d"])


@settings(max_examples=30)
@given(st.lists(st.tuples(any_line, any_line), min_size=1), st.integers(1, 50))
def test_chunks_of_any_size_hold_the_same_lines(tmp_path_factory, pairs, chunk_bytes):
    folder = tmp_path_factory.mktemp("chunks")
    src_lines, tgt_lines = map(list, zip(*pairs, strict=True))
    src, tgt = write(folder / "a.en", src_lines), write(folder / "a.de", tgt_lines)
    assert read(src, tgt, chunk_bytes=chunk_bytes) == (src_lines, tgt_lines)


def test_only_newlines_end_lines_and_marks_of_windows_are_dropped(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_bytes("\ufeffa\u2028b\x0b\x85\tc\x0c\r\n\ufeffd\re\tf\r".encode())
    assert read(str(path)) == (["a\u2028b\x0b\x85", "\ufeffd\re"], ["c\x0c", "f"])


def test_progress_adds_up_to_the_size_of_the_file(tmp_path):
    src = write(tmp_path / "a.en.gz", map(str, range(50_000)), gzip.compress)
    tgt = write(tmp_path / "a.de", map(str, range(50_000)))
    chunks = list(read_chunks((src, tgt), 1000))
    assert len(chunks) > 100
    assert sum(chunk.size for chunk in chunks) == (tmp_path / "a.en.gz").stat().st_size


@pytest.mark.parametrize(("src_lines", "tgt_lines"), [(1000, 998), (998, 1000), (1000, 1001)])
def test_sides_of_different_length_are_an_error_with_both_counts(tmp_path, src_lines, tgt_lines):
    src = write(tmp_path / "a.en", range(src_lines))
    tgt = write(tmp_path / "a.de", range(tgt_lines))
    error = error_of(read, src, tgt, chunk_bytes=100)
    assert "the two sides have different numbers of lines" in error
    assert f"{src} has {src_lines:,} lines, {tgt} has {tgt_lines:,} lines" in error


@pytest.mark.parametrize("ending", COMPRESS)
def test_invalid_utf8_is_an_error_with_file_and_line(tmp_path, ending):
    src = tmp_path / f"a.en{ending}"
    src.write_bytes(COMPRESS[ending](b"fine\n" * 499 + b"caf\xe9\nfine\n"))
    tgt = write(tmp_path / "a.de", ["gut"] * 501)
    error = error_of(read, str(src), tgt, chunk_bytes=300)
    assert "not valid UTF-8 (byte 0xe9)" in error
    assert f"{src}, line 500\n" in error
    assert "iconv" in error


@pytest.mark.parametrize(("line", "tabs"), [("no tab", 0), ("a\tb\tc", 2), ("", 0)])
def test_a_tsv_line_without_exactly_one_tab_is_an_error(tmp_path, line, tabs):
    path = write(tmp_path / "a.tsv", ["a\tb"] * 300 + [line])
    error = error_of(read, path, chunk_bytes=200)
    assert f"{tabs} tabs in this line, not one" in error
    assert f"{path}, line 301" in error


def test_files_that_cannot_be_read_are_errors(tmp_path):
    good = write(tmp_path / "a.en", ["a"])
    missing, empty = str(tmp_path / "no.de"), write(tmp_path / "empty.de", [])
    assert "there is no such file" in error_of(read, good, missing)
    assert missing in error_of(read, good, missing)
    assert f"the file is empty\n  where: {empty}" in error_of(read, good, empty)
    assert f"the file is empty\n  where: {empty}" in error_of(read, empty, good)
    assert f"cannot read this file (Is a directory)\n  where: {tmp_path}" in error_of(read, str(tmp_path))


@pytest.mark.parametrize("ending", [".gz", ".xz", ".zst", ".bz2"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "other"])
def test_damaged_compressed_files_are_errors(tmp_path, ending, damage):
    whole = COMPRESS[ending]("".join(f"line {i}\tZeile {i}\n" for i in range(5000)).encode())
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    path = tmp_path / f"a.tsv{ending}"
    path.write_bytes({"cut": whole[:-100], "flipped": bytes(flipped), "other": b"plain text\n"}[damage])
    error = error_of(read, str(path))
    assert "the compressed file is damaged or cut off" in error
    assert f"where: {path}" in error


def test_open_lines_reads_files_and_standard_input(tmp_path, monkeypatch):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress("\ufeffä\r\n\nb".encode()))
    assert list(open_lines(path)) == ["ä", "", "b"]
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"one\ntw\xff\n")))
    lines = open_lines(None)
    assert next(lines) == "one"
    assert "standard input, line 2" in error_of(next, lines)
    assert "there is no such file" in error_of(next, open_lines(tmp_path / "none"))
