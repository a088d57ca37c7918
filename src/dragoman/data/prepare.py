"""From text to a dataset: read, clean, learn the vocabulary, encode, publish.

The result is a function of the recipe and the bytes of its files: never of the number of cores, nor of an
earlier attempt. Its directory is named by the fingerprint of all that made it, so it is made once and then
found. It is built under a temporary name and renamed when whole: what fails before leaves nothing behind.
"""

import copy
import fcntl
import json
import platform
import shutil
import socket
import time
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from dragoman import __version__
from dragoman.config import Filter, Recipe
from dragoman.data.corpora import Corpus, Hashes, corpora
from dragoman.data.passes import Frame, HashSet, clean, count_new, encode, learn
from dragoman.data.pool import Pool
from dragoman.data.progress import Stages
from dragoman.data.rules import FILTER_NAMES
from dragoman.data.shards import (
    FORMAT,
    LOCK,
    MANIFEST,
    TOKENIZER,
    Dataset,
    ShardWriter,
    write_manifest,
    write_text,
)
from dragoman.data.tally import Tally
from dragoman.data.text import normalise_lines, pair_hash
from dragoman.data.tokenizer import Tokenizer, tagged
from dragoman.errors import UserError
from dragoman.files import beside, disk_errors, publish_directory, remove_unfinished, write_json
from dragoman.machine import usable_cores

SPOOL = "spool"  # in an unfinished dataset


def fingerprint(recipe: Recipe) -> str:
    """Return 16 hex digits that stand for the content of all files and all settings that shape a dataset."""
    hashes = Hashes(Path(recipe.data.directory))
    splits = corpora(recipe)
    made_from = {
        "format": FORMAT,
        "sentencepiece": version("sentencepiece"),
        "languages": {
            split: [[corpus.about.src_lang, corpus.about.tgt_lang] for corpus in each]
            for split, each in splits.items()
        },
        "filter": recipe.filter.model_dump(),
        "vocab": recipe.vocab.model_dump(),
        "corpora": {split: [corpus.identity(hashes) for corpus in each] for split, each in splits.items()},
    }
    hashes.save()
    return xxhash.xxh3_64_hexdigest(json.dumps(made_from, sort_keys=True).encode())


def prepare(recipe: Recipe, *, workers: int | None = None, progress: bool = True) -> Dataset:
    """Return the dataset of a recipe: the one that is there, or else a new one made by ``workers`` processes.

    As many as there are cores if not given; 0 does the work in this process. Of several processes that ask
    for a dataset at once, one makes it and the others wait.
    """
    stages = Stages(progress)
    directory = Path(recipe.data.directory)
    path = directory / fingerprint(recipe)
    if dataset := find(path):
        stages.say(f"{path} is there already")
        return _relabel(dataset, recipe)
    with disk_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        with _locked(directory, stages):
            remove_unfinished(directory)
            if not find(path):  # nobody made it while we waited
                _build(recipe, path, stages, usable_cores() if workers is None else workers)
    dataset = Dataset.open(path)
    pairs = dataset.manifest["splits"]["train"]["pairs"]
    stages.say(f"{path}: {pairs:,} pairs to train on, {dataset.vocab_size:,} subwords")
    return dataset


def _relabel(dataset: Dataset, recipe: Recipe) -> Dataset:
    """Let the manifest say what the recipe says now of paths, names, weights and origin, which shape no file."""
    manifest = copy.deepcopy(dataset.manifest)
    for split, each in corpora(recipe).items():
        for facts, corpus in zip(manifest["splits"][split]["corpora"], each, strict=True):
            facts |= {**corpus.about.facts(), "paths": list(corpus.paths)}
    if manifest != dataset.manifest:
        with suppress(OSError):  # a dataset that may only be read serves as well
            write_json(dataset.path / MANIFEST, manifest)
    return Dataset(dataset.path, manifest)


def find(path: Path) -> Dataset | None:
    """Open the dataset at ``path`` if it is there and whole."""
    try:
        return Dataset.open(path)
    except UserError:
        return None


@contextmanager
def _locked(directory: Path, stages: Stages) -> Iterator[None]:
    """Hold the directory of datasets alone: what is unfinished in it then has no living writer."""
    with open(directory / LOCK, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stages.say(f"another process is preparing data in {directory}: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(recipe: Recipe, path: Path, stages: Stages, workers: int) -> None:
    """Make the dataset at ``path``, all or nothing."""
    temporary = beside(path)
    if path.exists():
        stages.say(f"{path} is damaged: making it again")
        path.rename(temporary)  # so that it is not seen half deleted either
        shutil.rmtree(temporary)
    temporary.mkdir()
    try:
        splits = {name: _Split(each) for name, each in corpora(recipe).items()}
        vocab = _write_files(temporary, recipe, splits, stages, workers)
        if fingerprint(recipe) != path.name:
            raise UserError(
                "a file changed while it was being prepared",
                where=", ".join(name for split in splits.values() for name in split.paths),
                fix="start again when the files are complete",
            )
        hashes = Hashes(path.parent)
        write_manifest(
            temporary,
            {
                "fingerprint": path.name,
                "languages": {"src": recipe.data.src_languages, "tgt": recipe.data.tgt_languages},
                "tags": list(recipe.data.tags),
                "settings": {"filter": recipe.filter.model_dump(), "vocab": recipe.vocab.model_dump()},
                "vocab": vocab,
                "splits": {name: split.facts(hashes) for name, split in splits.items()},
                "dropped": _dropped(splits["train"].total),
                "versions": _versions(),
                "made": {
                    "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
                    "host": socket.gethostname(),
                    "workers": workers,
                    "seconds": stages.seconds,
                },
            },
        )
        publish_directory(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


# The stages


class _Split:
    """The corpora of train, dev or test, and what became of them."""

    def __init__(self, corpora: list[Corpus]) -> None:
        self.corpora = corpora
        self.tallies = [Tally() for _ in corpora]
        self.shards: list[dict[str, Any]] = []
        self.overlap: int | None = None  # of dev and test: pairs that train has too

    @property
    def paths(self) -> list[str]:
        return [path for corpus in self.corpora for path in corpus.paths]

    @property
    def total(self) -> Tally:
        total = Tally()
        for tally in self.tallies:
            total.add(tally)
        return total

    def rows(self) -> list[tuple[slice, str | None]]:
        """Return where the lines of each corpus stand among those of all, and their tag; of dev and test."""
        ends = list(accumulate(tally.lines for tally in self.tallies))
        tags = [corpus.about.tag for corpus in self.corpora]
        return list(zip(map(slice, [0, *ends], ends), tags, strict=True))

    def tagged(self, src: list[str]) -> list[str]:
        """Return the source lines of all corpora, each with the tag it needs."""
        return [line for rows, tag in self.rows() for line in tagged(src[rows], tag)]

    def facts(self, hashes: Hashes) -> dict[str, Any]:
        """Return what the manifest says of this split."""
        facts = {**self.total.counts(), "shards": self.shards}
        if self.overlap is not None:
            facts["overlap_with_train"] = self.overlap
        facts["corpora"] = [
            {
                **corpus.about.facts(),
                "paths": list(corpus.paths),
                "content": corpus.identity(hashes),
                **tally.counts(),
            }
            for corpus, tally in zip(self.corpora, self.tallies, strict=True)
        ]
        return facts


def _write_files(
    directory: Path, recipe: Recipe, splits: dict[str, _Split], stages: Stages, workers: int
) -> dict[str, Any]:
    """Write all files of a dataset but the manifest; return what is to be said of the vocabulary."""
    train = splits["train"]
    spool, model = directory / SPOOL, directory / TOKENIZER
    # First, though encoded last: a mistake in these files shows at once, not after the work on train.
    with stages.stage("read dev and test"):
        held_out = {name: _read(split) for name, split in splits.items() if split is not train}
    with Pool(workers) as pool:
        with stages.stage("clean", sum(corpus.size() for corpus in train.corpora)) as advance:
            frames, seen = _clean(train, spool, recipe.filter, pool, advance)
        with stages.stage("vocabulary"), Pool(min(workers, 1)) as learner:  # a process gives its memory back
            task = partial(learn, spool=spool, settings=recipe.vocab, tags=recipe.data.tags)
            (learned,) = learner.map(task, [frames])
            model.write_bytes(learned)
        tokenizer = Tokenizer(learned)
        with stages.stage("encode", sum(len(frame.is_new) for frame in frames)) as advance:
            writer = ShardWriter(directory / "train", tokenizer.dtype)
            encoding = partial(encode, spool=spool, model=model, max_length=recipe.filter.max_length)
            for frame, encoded in zip(frames, pool.map(encoding, frames), strict=True):
                writer.add(encoded.src, encoded.tgt, encoded.lengths)
                train.tallies[frame.corpus].add(encoded.tally)
                advance(len(frame.is_new))
            train.shards = writer.close()
    _check_left(train, train.total.pairs)
    spool.unlink()
    with stages.stage("encode dev and test"):
        for name, (src, ref) in held_out.items():
            write_text(directory, name, splits[name].tagged(src), ref)
            _encode_held_out(directory / name, splits[name], src, normalise_lines(ref), tokenizer, seen)
    return {
        "size": tokenizer.size,
        "pieces": tokenizer.num_pieces,
        "byte_fallback": tokenizer.byte_fallback,
        "sample_pairs": min(recipe.vocab.sample_pairs, count_new(frames)),
    }


def _read(split: _Split) -> tuple[list[str], list[str]]:
    """Return the normalised source lines and the untouched target lines of dev or test, which are small."""
    src, ref = [], []
    for corpus, tally in zip(split.corpora, split.tallies, strict=True):
        for chunk in corpus.chunks():
            src_lines, ref_lines = chunk.decode()
            src += normalise_lines(src_lines)
            ref += ref_lines
            tally.lines += len(src_lines)
    return src, ref


def _clean(
    train: _Split, spool: Path, settings: Filter, pool: Pool, advance: Callable[[float], None]
) -> tuple[list[Frame], HashSet]:
    """Run the first pass: write the spool; return its frames, and the hashes of all pairs in it."""
    frames: list[Frame] = []
    seen = HashSet()
    with open(spool, "wb") as file:
        for index, corpus in enumerate(train.corpora):
            for cleaned in pool.map(partial(clean, settings=settings), corpus.chunks()):
                is_new = seen.add(cleaned.hashes)
                if not settings.duplicates:
                    is_new[:] = True
                place = (file.tell(), len(cleaned.frame))
                frames.append(Frame(index, cleaned.label, *place, is_new, corpus.about.tag))
                file.write(cleaned.frame)
                train.tallies[index].add(cleaned.tally)
                advance(cleaned.size)
    _check_left(train, len(seen))
    return frames, seen


def _encode_held_out(
    directory: Path, split: _Split, src: list[str], tgt: list[str], tokenizer: Tokenizer, seen: HashSet
) -> None:
    """Write the shards of dev or test, and count what train has of it."""
    packed_src = [line for rows, tag in split.rows() for line in tokenizer.encode_packed(src[rows], tag)]
    packed_tgt = tokenizer.encode_packed(tgt)
    lengths = tokenizer.packed_lengths(packed_src, packed_tgt)
    writer = ShardWriter(directory, tokenizer.dtype)
    writer.add(b"".join(packed_src), b"".join(packed_tgt), lengths)
    split.shards = writer.close()
    for tally, (rows, _) in zip(split.tallies, split.rows(), strict=True):
        tally.keep(src[rows], tgt[rows], lengths[rows].sum(axis=0))
    hashes = np.array([pair_hash(*pair) for pair in zip(src, tgt, strict=True)], np.uint64)
    split.overlap = int(seen.contains(hashes).sum())


def _check_left(train: _Split, pairs: int) -> None:
    if not pairs:
        dropped = ", ".join(f"{name} {count:,}" for name, count in train.total.dropped.items())
        raise UserError(
            f"no training pair is left after filtering (dropped: {dropped})",
            where=", ".join(train.paths),
            fix="check that these are the right files, or relax [filter] in the recipe",
        )


# What the manifest says


def _dropped(train: Tally) -> dict[str, Any]:
    return {
        name: {"pairs": train.dropped[name], "examples": train.examples.get(name, [])}
        for name in FILTER_NAMES
    }


def _versions() -> dict[str, str]:
    return {
        "dragoman": __version__,
        "sentencepiece": version("sentencepiece"),
        "numpy": version("numpy"),
        "python": platform.python_version(),
        "unicode": unicodedata.unidata_version,
    }
