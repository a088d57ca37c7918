"""The spool: what is whole in it is found again, whatever became of the rest."""

import numpy as np
import pytest
import zstandard

from dragoman.data.overlap import Found
from dragoman.data.spool import Cleaned, Frame, Spool
from dragoman.data.tally import Tally


def chunk(number, rows=3):
    text = "\n".join(f"{row}\tsrc {number}\ttgt" for row in range(rows))
    tally = Tally(lines=rows + 1)
    tally.drop("empty", f"a:{number}", "", "x")
    found = Found({number: 1}, [{"how": "exact", "where": "a:1"}])
    hashes = np.arange(2 * rows, dtype=np.uint64).reshape(2, rows) + number
    return Cleaned(
        number // 2, "a.en", 100 + number, zstandard.compress(text.encode()), hashes, [1], tally, found
    )


def recover(path):
    with Spool(path) as spool:
        found = list(spool.recover())
        return found, spool.is_complete


def write(path, numbers):
    with Spool(path) as spool:
        list(spool.recover())
        return [spool.append(chunk(number)) for number in numbers]


def test_chunks_come_back_as_they_were(tmp_path):
    offsets = write(tmp_path / "spool", range(3))
    found, is_complete = recover(tmp_path / "spool")
    assert not is_complete
    assert [offset for _, offset in found] == offsets
    for number, (cleaned, offset) in enumerate(found):
        expected = chunk(number)
        assert cleaned.hashes.tolist() == expected.hashes.tolist()
        for name in ("corpus", "label", "size", "frame", "overlaps", "tally", "found"):
            assert getattr(cleaned, name) == getattr(expected, name)
        frame = Frame(0, "a.en", offset, len(cleaned.frame), [], np.zeros(3, np.uint8))
        assert list(frame.rows(tmp_path / "spool"))[2] == ["2", f"src {number}", "tgt"]


def test_a_chunk_without_rows(tmp_path):
    with Spool(tmp_path / "spool") as spool:
        spool.append(chunk(1, rows=0))
    ((cleaned, offset),), _ = recover(tmp_path / "spool")
    assert cleaned.hashes.shape == (2, 0)
    assert list(Frame(0, "a", offset, len(cleaned.frame), [], np.zeros(0)).rows(tmp_path / "spool")) == []


@pytest.mark.parametrize("lost", [1, 8, 9, 40, 150])
def test_what_was_torn_off_is_written_again(tmp_path, lost):
    path = tmp_path / "spool"
    write(path, range(3))
    whole = path.read_bytes()
    path.write_bytes(whole[:-lost])
    found, _ = recover(path)
    assert len(found) == 2
    write(path, [2])
    assert path.read_bytes() == whole


def test_what_was_changed_is_not_believed(tmp_path):
    path = tmp_path / "spool"
    last = write(path, range(3))[-1]
    data = bytearray(path.read_bytes())
    data[last + 5] ^= 1
    path.write_bytes(data)
    assert len(recover(path)[0]) == 2
    path.write_bytes(b"\xff" * 500)
    assert recover(path) == ([], False)


def test_the_end_is_remembered(tmp_path):
    with Spool(tmp_path / "spool") as spool:
        spool.append(chunk(0))
        spool.complete()
    found, is_complete = recover(tmp_path / "spool")
    assert len(found) == 1
    assert is_complete
