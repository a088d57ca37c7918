"""A dataset on disk: token ids in memory-mapped shards, and a manifest that says where they came from.

    DATASETS/FINGERPRINT/  manifest.json  sentencepiece.model
                           train/{00000.src.npy 00000.tgt.npy 00000.offsets.npy 00001.src.npy …}
                           dev/{00000.src.npy … src.txt ref.txt}  test/{…}

The tokens of a side of a shard stand sentence after sentence, each with its end-of-sentence, in one array
(uint16, or uint32 for a vocabulary over 65,536). Offsets are int64 (pairs + 1, 2): pair ``i`` of a side is
``tokens[offsets[i, side]:offsets[i + 1, side]]``. Readers map the arrays, so the memory of a dataset is shared
by all processes of a machine, and given up when needed. This module owns every name in a dataset directory.
"""

import hashlib
import json
import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dragoman.errors import UserError
from dragoman.files import TEMPORARY, fsync_file, read_json, sha256, write_json

FORMAT = 2  # of the files, and of what is done to the text; part of every fingerprint
MANIFEST = "manifest.json"
TOKENIZER = "sentencepiece.model"
LOCK = ".lock"  # beside datasets: held by whoever makes or receives one
SIDES = ("src", "tgt")
SHARD_PAIRS = 500_000
SHARD_TOKENS = 1 << 24  # of a side: long sentences fill a shard earlier, so that one takes 100 MB to write

Array = npt.NDArray[Any]


def unfinished(path: Path) -> Path:
    """Return where the dataset of ``path`` is while it arrives from another host; ``prepare`` removes leftovers."""
    return path.with_name(f"{TEMPORARY}{path.name}-arriving")


def source_text(directory: Path, split: str) -> Path:
    """Return where the normalised source lines of dev or test are."""
    return directory / split / "src.txt"


def reference_text(directory: Path, split: str) -> Path:
    """Return where the untouched reference lines of dev or test are."""
    return directory / split / "ref.txt"


def write_text(directory: Path, split: str, src: list[str], ref: list[str]) -> None:
    """Write the lines of dev or test."""
    for path, lines in ((source_text(directory, split), src), (reference_text(directory, split), ref)):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes("".join(line + "\n" for line in lines).encode())


def _shard_files(directory: Path, index: int) -> tuple[Path, Path, Path]:
    """Return the paths of the source tokens, the target tokens and the offsets of a shard."""
    src, tgt, offsets = (directory / f"{index:05d}.{part}.npy" for part in (*SIDES, "offsets"))
    return src, tgt, offsets


@dataclass
class ShardWriter:
    """Writes the pairs of one split into shards; holds one shard in memory."""

    directory: Path
    dtype: type[np.unsignedinteger]
    shards: list[dict[str, Any]] = field(default_factory=list)
    _tokens: tuple[list[bytes], list[bytes]] = field(default_factory=lambda: ([], []))
    _lengths: list[Array] = field(default_factory=list)

    def add(self, src: bytes, tgt: bytes, lengths: Array) -> None:
        """Append pairs: the tokens of each side as bytes of ``dtype``, and their lengths (n, 2)."""
        for side, tokens in zip(self._tokens, (src, tgt), strict=True):
            side.append(tokens)
        self._lengths.append(lengths)
        pairs = sum(map(len, self._lengths))
        num_bytes = max(sum(map(len, side)) for side in self._tokens)
        if pairs >= SHARD_PAIRS or num_bytes >= SHARD_TOKENS * np.dtype(self.dtype).itemsize:
            self._write_shard(np.concatenate(self._lengths))

    def close(self) -> list[dict[str, Any]]:
        """Write what is left, and return the pairs and tokens of each shard."""
        if any(map(len, self._lengths)):
            self._write_shard(np.concatenate(self._lengths))
        return self.shards

    def _write_shard(self, lengths: Array) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        offsets = np.zeros((len(lengths) + 1, 2), np.int64)
        np.cumsum(lengths, axis=0, out=offsets[1:])
        src_path, tgt_path, offsets_path = _shard_files(self.directory, len(self.shards))
        for path, side in zip((src_path, tgt_path), self._tokens, strict=True):
            _write_array(path, np.frombuffer(b"".join(side), self.dtype))
            side.clear()
        _write_array(offsets_path, offsets)
        self._lengths.clear()
        self.shards.append({"pairs": len(lengths), "tokens": offsets[-1].tolist()})


def _write_array(path: Path, array: Array) -> None:
    # Not np.save: on a full disk it raises an error that does not say so.
    with open(path, "wb") as file:
        header = np.lib.format.header_data_from_array_1_0(array)
        np.lib.format.write_array_header_1_0(file, header)
        file.write(array.data)
        fsync_file(file)


def _map_array(path: Path, *, at_random: bool = False) -> Array:
    mapped = np.load(path, mmap_mode="r")
    if at_random and len(mapped):
        # Batches are shuffled. By itself the system reads on around every sentence, 128 KB or whatever a disk is set
        # to, and the first batch would read the whole dataset; told so, it reads the pages that are asked for.
        mapped._mmap.madvise(mmap.MADV_RANDOM)
    # Slices of a plain array are several times as fast to make as those of a memmap; both read the same map.
    return np.asarray(mapped)


class Split:
    """The pairs of train, dev or test. Shards are invisible from outside."""

    lengths: Array  # int32 (n, 2): tokens with end-of-sentence, source and target

    def __init__(self, directory: Path, num_shards: int) -> None:
        shards = [_shard_files(directory, index) for index in range(num_shards)]
        offsets = [_map_array(paths[2]) for paths in shards]  # read once, for the lengths
        self._tokens = tuple([_map_array(paths[side], at_random=True) for paths in shards] for side in (0, 1))
        self._offsets = offsets
        self.dtype = self._tokens[0][0].dtype
        self.lengths = np.concatenate([np.diff(each, axis=0).astype(np.int32) for each in offsets])
        self._first_pairs = np.cumsum([0, *(len(each) - 1 for each in offsets)])

    def __len__(self) -> int:
        return len(self.lengths)

    def gather(self, indices: Array, side: int) -> list[Array]:
        """Return the token ids of these pairs on a side (0 source, 1 target), in the order asked for."""
        shards = np.searchsorted(self._first_pairs, indices, side="right") - 1
        places = indices - self._first_pairs[shards]
        sentences = []
        for shard, place in zip(shards.tolist(), places.tolist(), strict=True):
            offsets = self._offsets[shard]
            sentences.append(self._tokens[side][shard][offsets[place, side] : offsets[place + 1, side]])
        return sentences


@dataclass(frozen=True)
class Dataset:
    """A prepared dataset, opened for reading."""

    path: Path
    manifest: dict[str, Any]

    @classmethod
    def open(cls, path: Path) -> "Dataset":
        """Open the dataset at ``path`` after checking that all its files are there and have their size."""
        if not (path / MANIFEST).is_file():
            raise UserError(
                f"this is not a dataset (it has no {MANIFEST})",
                where=str(path),
                fix="give a directory that `dragoman data prepare` made, such as datasets/FINGERPRINT",
            )
        try:
            dataset = cls(path, read_json(path / MANIFEST))
            version, files = dataset.manifest["format"], dataset.manifest["files"]
        except (ValueError, LookupError, TypeError):
            raise _damaged(f"{MANIFEST} cannot be read", path) from None
        if version != FORMAT:
            raise _damaged(f"the dataset has format {version}, this Dragoman reads format {FORMAT}", path)
        for name, facts in files.items():
            file = path / name
            if not file.is_file():
                raise _damaged(f"{name} is missing", path)
            if file.stat().st_size != facts["bytes"]:
                raise _damaged(f"{name} has {file.stat().st_size:,} bytes, not {facts['bytes']:,}", path)
        return dataset

    @property
    def fingerprint(self) -> str:
        return str(self.manifest["fingerprint"])

    @property
    def vocab_size(self) -> int:
        """Pieces with padding: a multiple of 8."""
        return int(self.manifest["vocab"]["size"])

    @property
    def content(self) -> str:
        """A digest of the names, sizes and checksums of all files: what two copies have in common."""
        return hashlib.sha256(json.dumps(self.manifest["files"], sort_keys=True).encode()).hexdigest()

    @property
    def num_bytes(self) -> int:
        """Size of all files but the manifest."""
        return sum(int(facts["bytes"]) for facts in self.manifest["files"].values())

    @property
    def tokenizer_path(self) -> Path:
        return self.path / TOKENIZER

    def verify(self) -> None:
        """Read all files and compare their checksums with the manifest."""
        for name, facts in self.manifest["files"].items():
            if sha256(self.path / name) != facts["sha256"]:
                raise _damaged(f"the checksum of {name} is wrong", self.path)

    def split(self, name: str) -> Split:
        """Map the pairs of "train", "dev" or "test"."""
        return Split(self.path / name, len(self._facts(name)["shards"]))

    def text(self, name: str) -> tuple[list[str], list[str]]:
        """Return the normalised source lines and the untouched reference lines of "dev" or "test"."""
        self._facts(name)
        src, ref = (
            path(self.path, name).read_bytes().decode().removesuffix("\n").split("\n")
            for path in (source_text, reference_text)
        )
        return src, ref

    def _facts(self, split: str) -> dict[str, Any]:
        facts: dict[str, Any] | None = self.manifest["splits"].get(split)
        if facts is None:
            raise UserError(
                f"the dataset has no {split} set",
                where=str(self.path),
                fix=f"name {split} files in [data] of the recipe and prepare again",
            )
        return facts


def write_manifest(directory: Path, facts: dict[str, Any]) -> None:
    """Write the manifest of a dataset whose other files are all there, with their sizes and checksums."""
    files = {
        path.relative_to(directory).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256(path)}
        for path in _files(directory)
    }
    write_json(directory / MANIFEST, {"format": FORMAT, **facts, "files": files})


def bytes_in(directory: Path) -> int:
    """Return the size of all files in a directory, which need not exist."""
    return sum(path.stat().st_size for path in _files(directory))


def _files(directory: Path) -> Iterator[Path]:
    return (path for path in sorted(directory.rglob("*")) if path.is_file())


def _damaged(what: str, path: Path) -> UserError:
    return UserError(what, where=str(path), fix="delete this directory and run `dragoman data prepare` again")
