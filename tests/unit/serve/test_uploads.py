"""Files that are sent: read within bounds, kept for a while, and harmless under any name."""

import asyncio
import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.serve import uploads
from dragoman.serve.limits import Refusal
from dragoman.serve.uploads import KEPT_SECONDS, Downloads, name_of_translation, read_multipart, text_of

KIND = "multipart/form-data; boundary=XX"


def part(disposition, content=b"x"):
    return b"--XX\r\nContent-Disposition: form-data; " + disposition + b"\r\n\r\n" + content + b"\r\n"


def read(body, kind=KIND):
    return asyncio.run(read_multipart(body, kind))


def file_of(name, content):
    return read(part(b'name=file; filename="' + name.encode() + b'"', content) + b"--XX--\r\n")["file"]


def test_fields_and_a_file():
    values = read(
        part(b"name=source", b"en") + part(b'name="file"; filename="a.txt"', b"a\r\nb") + b"--XX--\r\n"
    )
    assert values["source"] == "en"
    assert text_of(values["file"]) == ("a.txt", "a\r\nb")


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        (b"", "multipart/form-data", "the form has no boundary"),
        (b"nonsense", KIND, "the form cannot be read"),
        (part(b"x=y"), KIND, "the form cannot be read"),
        (part(b"name=a") * 51, KIND, "Too many fields"),
        (part(b"name=a; filename=b.txt") * 2, KIND, "Too many files"),
        (b"--XX\r\n" + b"A: b\r\n" * 10_000, KIND, "the form cannot be read"),
        (b"--XX\r\nA: " + b"b" * 200_000, KIND, "the form cannot be read"),
    ],
)
def test_what_is_no_form_is_refused(body, kind, text):
    with pytest.raises(Refusal, match=text) as refused:
        read(body, kind)
    assert refused.value.status == 400


@given(st.binary(max_size=200))
def test_any_bytes_are_a_form_or_refused(noise):
    for body in (noise, b"--XX\r\n" + noise, part(b"name=a; " + noise.replace(b"\r", b""), noise)):
        with suppress(Refusal):
            read(body)


def test_the_client_does_not_choose_an_encoding():
    began = time.process_time()
    read(part(b"name=a", b"a" * 200_000) + b"--XX--\r\n", KIND + "; charset=punycode")
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("a.pdf", b"x", "file format not supported"),
        (".txt", b"x", "file format not supported"),
        ("a.txt", b"", "empty file"),
        ("a.txt", b"ab\xff", r"the file is not UTF-8 \(byte 2\)"),
    ],
)
def test_what_cannot_be_translated_is_refused(name, content, text):
    with pytest.raises(Refusal, match=text):
        text_of(file_of(name, content))
    with pytest.raises(Refusal, match="missing file parameter"):
        text_of("text")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a b.TXT", "a_b_de.txt"),
        ("../../etc/passwd.txt", "passwd_de.txt"),
        ("C:\\x\\Übung.html", "Übung_de.html"),
        ('"\r\nX: y".txt', "_X_y__de.txt"),
        ("a" * 500 + ".htm", "a" * 60 + "_de.htm"),
    ],
)
def test_names_are_harmless(name, expected):
    assert name_of_translation(name, "de") == expected


def test_files_are_kept_for_a_while_and_only_so_many(monkeypatch):
    downloads = Downloads()
    first, second = downloads.keep("a_de.txt", "one", 0.0), downloads.keep("a_de.html", "two", 1.0)
    assert first.partition(".")[0] != second.partition(".")[0]
    assert len(first.partition(".")[0]) == 32
    kept = downloads.find(first, KEPT_SECONDS)
    assert (kept.content, kept.media_type) == (b"one", "text/plain; charset=utf-8")
    assert kept.headers["Content-Disposition"] == "attachment; filename*=UTF-8''a_de.txt"
    with pytest.raises(Refusal, match="no such file") as refused:
        downloads.find(first, KEPT_SECONDS + 0.5)
    assert refused.value.status == 404
    monkeypatch.setattr(uploads, "KEPT_BYTES", 5)
    third = downloads.keep("b_de.txt", "three", 2.0)
    assert downloads.find(third, 2.0).content == b"three"
    with pytest.raises(Refusal):
        downloads.find(second, 2.0)
