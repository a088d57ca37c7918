"""Translation memories: what is text in them, what is not, and what is wrong with them."""

import gzip

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.data.tmx import read_tmx
from dragoman.errors import UserError

HEAD = """<?xml version="1.0" encoding="{encoding}"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en" datatype="xml"/>
<body>
"""
TAIL = "</body></tmx>\n"


def unit(*sides):
    tuvs = "".join(f'<tuv xml:lang="{language}"><seg>{text}</seg></tuv>' for language, text in sides)
    return f"<tu>{tuvs}</tu>\n"


def write(path, units, encoding="UTF-8", head=HEAD, tail=TAIL):
    text = head.format(encoding=encoding) + "".join(units) + tail
    data = text.encode(encoding)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


def read(path, languages=("en", "de"), keep_partial=False, **options):
    src, tgt = [], []
    for chunk in read_tmx(path, languages, keep_partial=keep_partial, **options):
        assert not keep_partial or chunk.first_line == len(src) + 1
        assert chunk.label == path
        sides = chunk.decode()
        src += sides[0]
        tgt += sides[1]
    return list(zip(src, tgt, strict=True))


def error_of(*arguments, **options):
    with pytest.raises(UserError) as caught:
        read(*arguments, **options)
    return str(caught.value)


@pytest.mark.parametrize("encoding", ["UTF-8", "utf-8-sig", "UTF-16", "UTF-16-LE", "UTF-16-BE", "ISO-8859-1"])
@pytest.mark.parametrize("name", ["a.tmx", "a.tmx.gz"])
def test_reads_every_encoding(tmp_path, encoding, name):
    declared = encoding.removesuffix("-sig").removesuffix("-LE").removesuffix("-BE")
    head = HEAD.replace("{encoding}", declared)
    path = write(tmp_path / name, [unit(("en", "a &amp; b"), ("de", "für &#x20AC;"))], encoding, head)
    assert read(path) == [("a & b", "für €")]


def test_a_file_that_says_utf16_and_is_not_is_read_as_what_it_is(tmp_path):
    head = HEAD.replace("{encoding}", "UTF-16")
    assert read(write(tmp_path / "a.tmx", [unit(("en", "a"), ("de", "ä"))], head=head)) == [("a", "ä")]


@pytest.mark.parametrize(
    ("given", "wanted", "pair"),
    [
        (["en-US", "de"], ("en", "de"), ("0", "1")),
        (["DE_at", "EN-gb"], ("en", "de"), ("1", "0")),
        (["en-US", "en-GB", "de"], ("en-GB", "de"), ("1", "2")),
        (["en-US", "en-GB", "de", "de"], ("en", "de"), ("0", "2")),
        (["fr", "en", "it", "de"], ("it", "fr"), ("2", "0")),
    ],
)
def test_languages_are_found_by_their_beginning(tmp_path, given, wanted, pair):
    sides = [(language, str(place)) for place, language in enumerate(given)]
    assert read(write(tmp_path / "a.tmx", [unit(*sides)]), wanted) == [pair]


def test_older_files_say_lang(tmp_path):
    old = unit(("en", "a"), ("de", "b")).replace("xml:lang", "lang")
    assert read(write(tmp_path / "a.tmx", [old])) == [("a", "b")]


def test_marks_of_a_format_are_no_text_and_highlights_are(tmp_path):
    marked = '<bpt i="1">&lt;b&gt;<sub>no</sub></bpt>Press <hi type="x">the <ph>{0}</ph>key</hi><ept i="1">/b</ept>.'
    noted = unit(("en", marked), ("de", "Drücke\n  die\tTaste<it>x</it><ut>y</ut>.\n"))
    noted = noted.replace("<tu>", "<tu tuid='1'><note>no</note><prop type='p'>no</prop>")
    assert read(write(tmp_path / "a.tmx", [noted])) == [("Press the key.", "Drücke die Taste.")]


def test_units_without_both_sides_are_left_out_or_left_to_be_counted(tmp_path):
    units = [unit(("en", "a")), unit(("en", "b"), ("de", "c")), unit(("fr", "d"))]
    path = write(tmp_path / "a.tmx", units)
    assert read(path) == [("b", "c")]
    assert read(path, keep_partial=True) == [("a", ""), ("b", "c"), ("", "")]


@settings(max_examples=30)
@given(st.integers(1, 700), st.sampled_from(["UTF-8", "UTF-16"]))
def test_chunks_of_any_size_hold_the_same_units(tmp_path_factory, chunk_bytes, encoding):
    units = [unit(("en", f"line {i} <ph>x</ph>"), ("de", f"Zeile {i} ß")) for i in range(9)]
    units[2] = units[2].replace("</tu>", "</tu\n >")
    units[4] += "<!-- <tu>old</tu> -->\n" + "<!--" + "</tu>" * 9 + "-->"
    units[6] = unit(("en", "<![CDATA[</tu><b>]]>"), ("de", "Zeile 6 ß"))
    path = write(tmp_path_factory.mktemp("tmx") / "a.tmx", units, encoding)
    expected = [(f"line {i}", f"Zeile {i} ß") for i in range(9)]
    expected[6] = ("</tu><b>", "Zeile 6 ß")
    assert read(path, chunk_bytes=chunk_bytes) == expected


@pytest.mark.parametrize("name", ["a.tmx", "a.tmx.gz"])
def test_progress_adds_up_to_the_size_of_the_file(tmp_path, name):
    path = write(tmp_path / name, [unit(("en", f"line {i}"), ("de", f"Zeile {i}")) for i in range(5000)])
    chunks = list(read_tmx(path, ("en", "de"), keep_partial=True, chunk_bytes=10_000))
    assert len(chunks) > 30
    assert sum(chunk.size for chunk in chunks) == (tmp_path / name).stat().st_size


def test_malformed_units_are_errors_with_file_and_line(tmp_path):
    good = [unit(("en", "a"), ("de", "b"))] * 500
    path = write(tmp_path / "a.tmx", [*good, "<tu><tuv>&nbsp;</tuv></tu>\n", *good])
    assert error_of(path, chunk_bytes=2000) == (
        f"error: not well-formed XML (undefined entity)\n  where: {path}, line 505\n"
        "  fix:   correct the line, or get the file again"
    )
    path = write(tmp_path / "b.tmx", [*good, "<tu><tuv></tu>\n", *good])
    assert f"not well-formed XML (mismatched tag)\n  where: {path}, line 505\n" in error_of(
        path, chunk_bytes=2000
    )
    (tmp_path / "c.tmx").write_bytes((tmp_path / "a.tmx").read_bytes().replace(b"&nbsp;", b"\xff"))
    assert f"not valid UTF-8 (byte 0xff)\n  where: {tmp_path}/c.tmx, line 505" in error_of(
        f"{tmp_path}/c.tmx"
    )


def test_files_that_are_no_whole_translation_memories_are_errors(tmp_path, monkeypatch):
    units = [unit(("en", "a"), ("de", "b"))]
    cut = write(tmp_path / "cut.tmx", units, tail="<tu><tuv>")
    assert error_of(cut) == (
        f"error: the file ends in the middle, or a unit has no end\n  where: {cut}, after line 5\n"
        "  fix:   get the file again"
    )
    other = write(tmp_path / "other.tmx", [], head="plain text", tail="")
    assert error_of(other) == (
        f"error: this is no TMX file: it has no <body>\n  where: {other}\n  fix:   give a translation memory"
    )
    assert "there is no such file" in error_of(str(tmp_path / "none.tmx"))
    monkeypatch.setattr("dragoman.data.tmx.MOST_BYTES", 500)
    endless = write(tmp_path / "endless.tmx", ["<tu>" + "a" * 1000], tail="b" * 1000 + "</tu></body>")
    assert "a unit has no end" in error_of(endless, chunk_bytes=64)
    assert "it has no <body>" in error_of(write(tmp_path / "x.tmx", [], head="<a>" * 999), chunk_bytes=64)


def test_a_language_that_no_unit_has_is_an_error_that_names_those_there_are(tmp_path):
    path = write(tmp_path / "a.tmx", [unit(("en-US", "a"), ("fr", "b"))])
    assert error_of(path) == (
        f"error: there is no text in this file that has both en and de\n  where: {path}\n"
        "  fix:   correct src_lang and tgt_lang; the languages of the file are en-US, fr"
    )


def test_entities_that_grow_are_refused(tmp_path):
    bomb = '<!DOCTYPE tmx [<!ENTITY a "lol"><!ENTITY b "&a;&a;&a;">]>'
    head = HEAD.replace('<!DOCTYPE tmx SYSTEM "tmx14.dtd">', bomb)
    path = write(tmp_path / "a.tmx", [unit(("en", "&b;"), ("de", "b"))], head=head)
    assert error_of(path) == (
        "error: the file defines entities of its own, which can be made to grow without limit\n"
        f"  where: {path}\n  fix:   remove the <!ENTITY …> lines, and write what they stand for"
    )


def test_an_encoding_that_does_not_hold_is_an_error(tmp_path):
    head = HEAD.replace("{encoding}", "KLINGON")
    path = write(tmp_path / "a.tmx", [unit(("en", "a"), ("de", "b"))], head=head)
    assert (
        f"there is no encoding KLINGON\n  where: {path}, line 1\n  fix:   convert the file to UTF-8"
        in error_of(path)
    )
    (tmp_path / "b.tmx").write_bytes(b"\xff\xfe" + "<tmx>".encode("utf-16-le") + b"\x00\xd8\x00")
    assert "not valid UTF-16, though it says so" in error_of(str(tmp_path / "b.tmx"))
