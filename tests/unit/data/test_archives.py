import bz2
import gzip
import hashlib
import io
import lzma
import tarfile
import zipfile

import pytest
import zstandard

from dragoman.data import archives
from dragoman.data.archives import ArchiveError, copy, unpack, wrong_kind

TEXT = "Ä line.\nAnother one.\n".encode()
PACK = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lambda data: lzma.compress(data, preset=0),
    ".zst": lambda data: zstandard.ZstdCompressor().compress(data),
}


def tar(*members: tuple[str, bytes] | tarfile.TarInfo) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                archive.addfile(info, io.BytesIO(member[1]))
    return file.getvalue()


def zipped(*members: tuple[str | zipfile.ZipInfo, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return file.getvalue()


def take(tmp_path, name, data, **wanted):
    """Unpack members to files of the given names; return the facts by file."""
    (tmp_path / name).write_bytes(data)
    (tmp_path / "out").mkdir(exist_ok=True)
    facts = unpack(
        tmp_path / name, name, {member: tmp_path / "out" / file for file, member in wanted.items()}
    )
    return {file: facts[member] for file, member in wanted.items()}


def refused(tmp_path, name, data, **wanted):
    with pytest.raises(ArchiveError) as caught:
        take(tmp_path, name, data, **wanted)
    assert caught.value.where == name
    return caught.value


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("a.tar", ""),
        ("a.tgz", ".gz"),
        ("a.tar.gz", ".gz"),
        ("a.tar.bz2", ".bz2"),
        ("a.txz", ".xz"),
        ("a.tar.zst", ".zst"),
    ],
)
def test_members_of_a_tar(tmp_path, name, ending):
    data = tar(("x/no.en", b"no"), ("x/yes.en", TEXT), ("./yes.de", TEXT[:-1]), ("after", b"no"))
    facts = take(tmp_path, name, PACK[ending](data), en="x/yes.en", de="yes.de")
    assert (tmp_path / "out" / "en").read_bytes() == TEXT
    assert facts["en"].lines == facts["de"].lines == 2, "a last line needs no end"
    assert (facts["en"].bytes, facts["en"].sha256) == (len(TEXT), hashlib.sha256(TEXT).hexdigest())
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["de", "en"]


def test_members_of_a_zip(tmp_path):
    facts = take(tmp_path, "a.zip", zipped(("x/no", b"no"), ("x/yes", TEXT)), en="x/yes")
    assert (facts["en"].lines, (tmp_path / "out" / "en").read_bytes()) == (2, TEXT)


@pytest.mark.parametrize("ending", PACK)
def test_single_files(tmp_path, ending):
    packed = PACK[ending](TEXT)
    twice = packed + packed  # as pigz, pbzip2 and friends write them
    assert take(tmp_path, f"a.en{ending}", twice, en="")["en"].lines == 4
    assert (tmp_path / "out" / "en").read_bytes() == TEXT * 2


def test_names_in_an_archive_lead_nowhere(tmp_path):
    evil = [("../evil", b"!"), (str(tmp_path / "evil"), b"!"), ("a/../../evil", b"!")]
    take(tmp_path, "a.tar", tar(*evil, ("yes", TEXT)), en="yes")
    take(tmp_path, "a.zip", zipped(*evil, ("yes", TEXT)), en="yes")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.tar", "a.zip", "en", "out"]


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE]
)
def test_links_and_devices_are_refused(tmp_path, kind):
    member = tarfile.TarInfo("yes")
    member.type, member.linkname = kind, "/etc/passwd"
    error = refused(tmp_path, "a.tar", tar(member), en="yes")
    assert error.what == "yes is not a plain file in the archive"
    assert error.fix == "do not trust this file; get it elsewhere"
    assert not (tmp_path / "out" / "en").exists()


def test_links_in_a_zip_are_refused(tmp_path):
    link = zipfile.ZipInfo("yes")
    link.external_attr = 0o120777 << 16
    error = refused(tmp_path, "a.zip", zipped((link, b"/etc/passwd")), en="yes")
    assert error.what == "yes is not a plain file in the archive"


@pytest.mark.parametrize("name", ["a.gz", "a.bz2", "a.xz", "a.zst", "a.zip", "a.tgz"])
def test_bombs_are_stopped(tmp_path, name, monkeypatch):
    monkeypatch.setattr(archives, "ALWAYS_ALLOWED", 1 << 20)
    zeros = bytes(2 << 20)
    bombs = {
        **{f"a{ending}": lambda pack=pack: pack(zeros) for ending, pack in PACK.items()},
        "a.zip": lambda: zipped(("yes", zeros)),
        "a.tgz": lambda: gzip.compress(tar(("no", zeros), ("yes", TEXT)), 9),
    }
    member = {"a.zip": "yes", "a.tgz": "yes"}.get(name, "")
    error = refused(tmp_path, name, bombs[name](), en=member)
    assert error.what == "it unpacks to more than 200 times its size"
    assert error.fix == "do not trust this file; unpack it by hand if you know better, and use --from"
    written = tmp_path / "out" / "en"
    assert not written.exists() or written.stat().st_size <= archives.ALWAYS_ALLOWED


@pytest.mark.parametrize(("name", "pack"), [("a.tar", tar), ("a.zip", zipped)])
def test_a_member_that_is_not_there(tmp_path, name, pack):
    error = refused(tmp_path, name, pack(("x", TEXT)), en="y", de="z")
    assert error.what == "y, z is not in the archive"
    assert error.fix == "correct the catalogue entry"


@pytest.mark.parametrize("name", ["a.gz", "a.bz2", "a.xz", "a.zst", "a.zip", "a.tar", "a.tgz", "a.tar.bz2"])
@pytest.mark.parametrize("damage", ["cut", "foreign"])
def test_damaged_archives(tmp_path, name, damage):
    member = "" if name.count(".") == 1 and name[1:] in PACK else "yes"
    text = hashlib.shake_256(b"x").digest(200_000)
    whole = {
        "a.zip": zipped(("yes", text)),
        "a.tar": tar(("yes", text)),
        "a.tgz": gzip.compress(tar(("yes", text))),
    }
    whole["a.tar.bz2"] = bz2.compress(tar(("yes", text)))
    data = whole.get(name) or PACK[name[1:]](text)
    error = refused(tmp_path, name, data[:100_000] if damage == "cut" else text, en=member)
    assert error.what.startswith("the archive is damaged or not what its name says (")
    assert error.fix == "get the file again"


def test_a_zip_with_a_password(tmp_path):
    data = bytearray(zipped(("yes", TEXT)))
    data[6] |= 1  # in the local header, and in the directory at the end
    data[data.index(b"PK\x01\x02") + 8] |= 1
    assert "password" in refused(tmp_path, "a.zip", bytes(data), en="yes").what


SGML = """<srcset setid="newstest2014" srclang="any">
<doc docid="1">
<p>
<seg id="1">AT&amp;T &quot;wins&quot;\u2028 here\u00a0 </seg>
<seg id="2"> Two
 lines </seg><SEG id="3"></SEG>
</p>
</doc>
</srcset>
""".encode()


def test_sgml_becomes_text(tmp_path):
    facts = take(tmp_path, "a.tar", tar(("a.sgm", SGML)), **{"a.en": "a.sgm"})
    assert (tmp_path / "out" / "a.en").read_text("utf-8") == 'AT&T "wins"\u2028 here\u00a0\nTwo lines\n\n'
    assert facts["a.en"].lines == 3


def test_sgml_stays_sgml_where_its_file_is_called_so(tmp_path):
    take(tmp_path, "a.tar", tar(("a.sgm", SGML)), **{"b.sgm": "a.sgm"})
    assert (tmp_path / "out" / "b.sgm").read_bytes() == SGML


def test_copies_are_counted(tmp_path):
    (tmp_path / "a").write_bytes(TEXT)
    facts = copy(tmp_path / "a", tmp_path / "b")
    assert (facts.lines, facts.bytes, (tmp_path / "b").read_bytes()) == (2, len(TEXT), TEXT)


def test_a_file_of_another_kind_is_noticed_by_its_beginning():
    assert wrong_kind("a.tgz", gzip.compress(b"x")[:16]) is None
    assert wrong_kind("a.en", b"anything") is None
    assert wrong_kind("a.tgz", b"\n<!doctype html>") == "not a gz file, but a web page"
    assert wrong_kind("a.zip", b"Rar!") == "not a zip file"
