"""What survives a preparation that is killed: the cleaned text, which waits on disk for the vocabulary anyway.

A record is a chunk after the first pass, with all that was found out about it. It ends with its checksum, so what a
killed process left of the last one is recognised and cut off, and the next process goes on after the
last whole one. A special record at the end says that no chunk is missing. How far encoding is, ``Progress`` knows.
"""

import json
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import xxhash
import zstandard

from dragoman.data.overlap import Found
from dragoman.data.shards import Array
from dragoman.data.tally import Tally
from dragoman.files import fsync_file, read_json, write_json

SYNC_SECONDS = 10.0  # a power cut costs so much work at most; a killed process costs none
_HEADER = struct.Struct("<QQ")  # bytes of the facts and of all
_CHECKSUM = struct.Struct("<Q")


@dataclass(frozen=True)
class Cleaned:
    """A chunk after the first pass."""

    corpus: int
    label: str
    size: int  # as that of the chunk
    frame: bytes  # compressed rows of: line number TAB source TAB target
    hashes: Array  # uint64 (2, rows): of the pair, and of its words, 0 where a side has none
    overlaps: list[int]  # rows that overlap with dev or test and are still there
    tally: Tally
    found: Found


@dataclass(frozen=True)
class Frame:
    """Where in the spool the rows of a chunk are, and what is to become of each."""

    corpus: int
    label: str
    offset: int
    size: int
    overlaps: list[int]
    fates: Array  # uint8, one a row: an index of FATES
    tag: str | None = None  # the target language that the source lines are to name

    def rows(self, spool: Path) -> Iterator[list[str]]:
        """Yield the line number, source and target of every row."""
        if len(self.fates):
            with open(spool, "rb") as file:
                file.seek(self.offset)
                text = zstandard.decompress(file.read(self.size)).decode()
            yield from (row.split("\t") for row in text.split("\n"))


class Spool:
    """The file, opened for writing after what is whole in it."""

    def __init__(self, path: Path) -> None:
        self.is_complete = False
        self._file: IO[bytes] = open(path, "r+b" if path.exists() else "w+b")  # noqa: SIM115
        self._synced = time.monotonic()

    def __enter__(self) -> "Spool":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def recover(self) -> Iterator[tuple[Cleaned, int]]:
        """Yield the chunks that are there, and where the text of each is; cut off what is not whole. Comes first."""
        place = 0
        while not self.is_complete and (record := self._read(place)):
            facts, data, end = record
            self.is_complete = facts.get("complete", False)
            if not self.is_complete:
                cleaned = self._cleaned(facts, data)
                yield cleaned, end - _CHECKSUM.size - len(cleaned.frame)
            place = end
        self._file.seek(place)
        self._file.truncate()

    def append(self, cleaned: Cleaned) -> int:
        """Write a chunk; return where its text is."""
        facts = {
            "corpus": cleaned.corpus,
            "label": cleaned.label,
            "size": cleaned.size,
            "rows": cleaned.hashes.shape[1],
            "overlaps": cleaned.overlaps,
            "tally": cleaned.tally.as_dict(),
            "found": cleaned.found.as_dict(),
        }
        self._append(facts, cleaned.hashes.tobytes() + cleaned.frame)
        if time.monotonic() - self._synced > SYNC_SECONDS:
            fsync_file(self._file)
            self._synced = time.monotonic()
        return self._file.tell() - _CHECKSUM.size - len(cleaned.frame)

    def complete(self) -> None:
        """Say that no chunk is missing."""
        self._append({"complete": True}, b"")
        fsync_file(self._file)
        self.is_complete = True

    def _append(self, facts: dict[str, Any], data: bytes) -> None:
        text = json.dumps(facts).encode()
        body = _HEADER.pack(len(text), len(text) + len(data)) + text + data
        self._file.write(body + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body)))
        self._file.flush()

    def _read(self, place: int) -> tuple[dict[str, Any], bytes, int] | None:
        """Return the facts and the data of the record at ``place``, and where it ends; None if it is not whole."""
        self._file.seek(place)
        header = self._file.read(_HEADER.size)
        if len(header) < _HEADER.size:
            return None
        num_text, num_all = _HEADER.unpack(header)
        if num_all > os.fstat(self._file.fileno()).st_size:
            return None
        body, checksum = header + self._file.read(num_all), self._file.read(_CHECKSUM.size)
        if checksum != _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body)):
            return None
        text, data = body[_HEADER.size :][:num_text], body[_HEADER.size + num_text :]
        return json.loads(text), data, self._file.tell()

    @staticmethod
    def _cleaned(facts: dict[str, Any], data: bytes) -> Cleaned:
        hashes = np.frombuffer(data, np.uint64, 2 * facts["rows"]).reshape(2, -1)
        return Cleaned(
            corpus=facts["corpus"],
            label=facts["label"],
            size=facts["size"],
            frame=data[hashes.nbytes :],
            hashes=hashes,
            overlaps=facts["overlaps"],
            tally=Tally.from_dict(facts["tally"]),
            found=Found.from_dict(facts["found"]),
        )


@dataclass
class Progress:
    """How far the second pass is: written down whenever a shard is."""

    frames: int
    shards: list[dict[str, Any]]
    tallies: list[Tally]  # of each corpus, what the second pass counted
    used: bytes = b""  # one bit for each subword

    @classmethod
    def load(cls, path: Path, num_corpora: int) -> "Progress":
        """Return what was saved, or the beginning."""
        if not path.exists():
            return cls(0, [], [Tally() for _ in range(num_corpora)])
        known = read_json(path)
        tallies = [Tally.from_dict(each) for each in known["tallies"]]
        return cls(known["frames"], known["shards"], tallies, bytes.fromhex(known["used"]))

    def save(self, path: Path) -> None:
        """Write it down, whole or not at all."""
        tallies = [tally.as_dict() for tally in self.tallies]
        write_json(path, {**vars(self), "tallies": tallies, "used": self.used.hex()})

    def take(self, corpus: int, tally: Tally, used: Array) -> None:
        """Count a frame."""
        self.frames += 1
        self.tallies[corpus].add(tally)
        self.used = (used | np.frombuffer(self.used, np.uint8) if self.used else used).tobytes()
