"""Reading, normalising, filtering and counting text."""

import gzip
import io
import lzma
import sys
import unicodedata
from types import SimpleNamespace

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.config import Filter
from dragoman.data import text
from dragoman.data.text import FILTERS, Tally, normalise, normalise_lines, open_lines, pair_hash, read_chunks
from dragoman.errors import UserError

COMPRESS = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,  # as the zstd command does
}
any_line = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\n\r\ufeff"))


def write(path, lines, compress=bytes):
    path.write_bytes(compress("".join(f"{line}\n" for line in lines).encode()))
    return str(path)


def read(*paths, chunk_bytes=text.CHUNK_BYTES):
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


@pytest.mark.parametrize("ending", [".gz", ".xz", ".zst"])
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


@pytest.mark.parametrize("ending", [".gz", ".xz", ".zst"])
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


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("  two \t words\u3000\u00a0here ", "two words here"),
        ("bell\x07 and\x00 escape\x1b", "bell and escape"),
        ("soft\u00adhyphen, zero\u200bwidth, \u202aright\u202c", "softhyphen, zerowidth, right"),
        ("line\u2028paragraph\u2029next\x85tab\x0b", "line paragraph next tab"),
        ("u\u0308ber \u212b", "über Å"),
        ("e\u00ad\u0301", "é"),
        ("\u2581word\u2581", "word"),
        ("می\u200cخواهم 👩\u200d🚀", "می\u200cخواهم 👩\u200d🚀"),
        ("one\nline", "one line"),
        ("", ""),
    ],
)
def test_normalise(line, expected):
    assert normalise(line) == expected


@given(st.text())
def test_normalise_is_idempotent_and_leaves_nothing_unwanted(line):
    once = normalise(line)
    assert normalise(once) == once
    assert unicodedata.is_normalized("NFC", once)
    assert once == " ".join(once.split())
    assert not any(unicodedata.category(char) == "Cc" for char in once)


@given(st.lists(st.text(st.characters(exclude_characters="\n"))))
def test_lines_are_normalised_one_by_one(lines):
    assert normalise_lines(lines) == [normalise(line) for line in lines]


def words(number):
    return " ".join(["word"] * number)


@pytest.mark.parametrize(
    ("name", "src", "tgt", "drops"),
    [
        ("empty", "", "a", True),
        ("empty", "a", "", True),
        ("empty", "a", "b", False),
        ("ratio", words(41), words(10), True),
        ("ratio", words(10), words(41), True),
        ("ratio", words(40), words(10), False),
        ("ratio", words(9), words(1), False),  # both short
        ("ratio", words(10), words(1), True),
        ("identical", "a", "a", True),
        ("identical", "a", "A", False),
    ],
)
def test_filters(name, src, tgt, drops):
    assert FILTERS[name](src, tgt, Filter(max_ratio=4.0)) is drops


def test_identical_sides_may_stay():
    assert not FILTERS["identical"]("a", "a", Filter(identical=False))


def test_a_pair_is_hashed_with_both_sides_and_their_border():
    assert len({pair_hash("a", "b"), pair_hash("b", "a"), pair_hash("ab", ""), pair_hash("a", "c")}) == 4


def test_tallies_add_up_and_keep_the_first_examples():
    total = Tally()
    for part in range(3):
        tally = Tally(lines=10)
        tally.keep(["größe", "b"], ["c", "d"], (5, 7))
        for index in range(3):
            tally.drop("ratio", f"a.en:{part * 10 + index}", "x" * 1000, "y")
        total.add(tally)
    assert total.counts() == {
        "lines": 30,
        "pairs": 6,
        "chars": [18, 6],
        "bytes": [24, 6],
        "tokens": [15, 21],
        "dropped": {"ratio": 9},
    }
    places = [each["where"].removeprefix("a.en:") for each in total.examples["ratio"]]
    assert places == ["0", "1", "2", "10", "11"]
    assert len(total.examples["ratio"][0]["src"]) == text.EXAMPLE_CHARS
