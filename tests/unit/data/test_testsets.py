"""Test sets of WMT: SGML in two files, XML in one."""

import gzip

import pytest

from dragoman.data import testsets
from dragoman.data.testsets import read_sgml, read_xml
from dragoman.errors import UserError

SRC = """<srcset setid="newstest2014" srclang="any">
<doc sysid="ref" docid="a.1" genre="news" origlang="de">
<hl><seg id="1">Title</seg></hl>
<p>
<seg id="2">Fish &amp; chips: R&D, &lt;3 &#39;x&#x27; &quot;&apos; &nope;</seg>
<seg id="3"> over
two lines </seg>
</p>
</doc>
<doc docid='b' sysid="ref"><seg id=1>B</seg></doc>
</srcset>
"""
REF = """<refset setid="newstest2014" srclang="any" trglang="de">
<DOC sysid="ref" docid="b"><SEG id="1">Be</SEG></DOC>
<doc sysid="ref" docid="a.1"><seg id="1">Titel</seg><seg id="2">Fisch</seg><seg id="3">über zwei</seg></doc>
<doc sysid="second" docid="b"><seg id="1">zweite Meinung</seg></doc>
</refset>
"""
XML = """<?xml version='1.0' encoding='utf-8'?>
<dataset id="newstest2021"><collection id="general">
<doc origlang="en" id="a">
<src lang="en"><p><seg id="1">One &amp; only.</seg></p><p><seg id="2">Two.</seg></p></src>
<ref lang="de" translator="B"><p><seg id="2">Zwei.</seg><seg id="1">Einzig.</seg></p></ref>
<ref lang="de" translator="A"><p><seg id="1">nie</seg><seg id="2">nie</seg></p></ref>
<hyp lang="de" system="X"><p><seg id="1">nie</seg></p></hyp>
</doc>
<doc id="b"><src lang="en"><seg id="1">Three.</seg></src>
<ref lang="de" translator="A"><seg id="1">Drei.</seg></ref></doc>
<doc id="c"><src lang="en"><seg id="1">Untranslated.</seg></src></doc>
</collection></dataset>
"""


def pairs(chunks):
    both = [chunk.decode() for chunk in chunks]
    return [pair for src, tgt in both for pair in zip(src, tgt, strict=True)]


def write(path, text):
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return str(path)


def error_of(function, *arguments):
    with pytest.raises(UserError) as caught:
        list(function(*arguments))
    return str(caught.value)


@pytest.mark.parametrize("ending", [".sgm", ".sgm.gz"])
def test_segments_of_two_files_are_matched_by_document_and_number(tmp_path, ending):
    src, ref = write(tmp_path / f"src.en{ending}", SRC), write(tmp_path / f"ref.de{ending}", REF)
    assert pairs(read_sgml((src, ref))) == [
        ("Title", "Titel"),
        ("Fish & chips: R&D, <3 'x' \"' &nope;", "Fisch"),
        ("over two lines", "über zwei"),
        ("B", "Be"),
    ]


def test_chunks_are_numbered_and_their_sizes_add_up(tmp_path, monkeypatch):
    monkeypatch.setattr(testsets, "CHUNK_PAIRS", 3)
    src, ref = write(tmp_path / "src.sgm", SRC), write(tmp_path / "ref.sgm", REF)
    chunks = list(read_sgml((src, ref)))
    assert [(chunk.first_line, len(chunk.src), chunk.label) for chunk in chunks] == [(1, 3, src), (4, 1, src)]
    assert sum(chunk.size for chunk in chunks) == (tmp_path / "src.sgm").stat().st_size


def test_the_first_segment_that_has_no_partner_is_named(tmp_path):
    src, ref = write(tmp_path / "src.sgm", SRC), write(tmp_path / "ref.sgm", REF.replace('"3"', '"4"'))
    fix = "\n  fix:   give the source and the reference file of the same test set"
    assert error_of(read_sgml, (src, ref)) == (
        f'error: document "a.1", segment 3 is not in {ref}\n  where: {src}, line 6{fix}'
    )
    assert error_of(read_sgml, (ref, src)) == (
        f'error: document "a.1", segment 4 is not in {src}\n  where: {ref}, line 3{fix}'
    )
    shorter = write(tmp_path / "shorter.sgm", SRC.replace('<seg id="1">Title</seg>', ""))
    assert f"segment 1 is not in {shorter}\n  where: {src}, line 3" in error_of(read_sgml, (src, shorter))
    assert f"segment 1 is not in {shorter}\n  where: {src}, line 3" in error_of(read_sgml, (shorter, src))


def test_malformed_sgml_is_an_error_with_file_and_line(tmp_path):
    good = write(tmp_path / "ref.sgm", REF)
    twice = write(tmp_path / "twice.sgm", SRC.replace('"3"', '"2"'))
    assert error_of(read_sgml, (twice, good)) == (
        f'error: document "a.1", segment 2 is there twice\n  where: {twice}, line 6\n  fix:   get the file again'
    )
    open_end = write(tmp_path / "open.sgm", SRC.replace("&nope;</seg>", ""))
    assert error_of(read_sgml, (open_end, good)) == (
        f"error: a segment has no </seg>\n  where: {open_end}, line 5\n  fix:   correct the line"
    )
    plain = write(tmp_path / "plain.sgm", "text\n")
    assert error_of(read_sgml, (plain, good)) == (
        f"error: there is no <seg> in this file\n  where: {plain}\n  fix:   give an SGML file of a test set"
    )
    (tmp_path / "latin.sgm").write_bytes(SRC.encode().replace(b"Title", b"caf\xe9"))
    assert "latin.sgm, line 3" in error_of(read_sgml, (str(tmp_path / "latin.sgm"), good))
    assert "there is no such file" in error_of(read_sgml, (str(tmp_path / "none.sgm"), good))


def test_an_xml_set_is_read_with_its_first_translator(tmp_path):
    path = write(tmp_path / "newstest2021.xml", XML)
    assert pairs(read_xml(path, ("en", "de"))) == [
        ("One & only.", "Einzig."),
        ("Two.", "Zwei."),
        ("Three.", "Drei."),
    ]


def test_malformed_xml_sets_are_errors(tmp_path):
    path = write(tmp_path / "a.xml", XML)
    assert error_of(read_xml, path, ("de", "en")) == (
        f"error: there is no text in this file that has both de and en\n  where: {path}\n"
        "  fix:   correct src_lang and tgt_lang; the languages of the file are de, en"
    )
    lacking = write(tmp_path / "b.xml", XML.replace('<seg id="2">Zwei.</seg>', ""))
    assert error_of(read_xml, lacking, ("en", "de")) == (
        f'error: document "a", segment 2 has no reference\n  where: {lacking}, line 4\n  fix:   get the file again'
    )
    cut = write(tmp_path / "c.xml", XML[:600])
    assert f"not well-formed XML (unclosed token)\n  where: {cut}, line " in error_of(
        read_xml, cut, ("en", "de")
    )
    bomb = write(tmp_path / "d.xml", '<!DOCTYPE a [<!ENTITY a "lol">]><a>&a;</a>')
    assert "defines entities of its own" in error_of(read_xml, bomb, ("en", "de"))
    empty = write(tmp_path / "e.xml", "<a><src lang='en'><seg>x</seg></src></a>")
    assert "the languages of the file are not named" in error_of(read_xml, empty, ("en", "de"))
