"""From text to a dataset: read, clean, learn the vocabulary, encode, publish.

The result is a function of the recipe and the bytes of its files: never of the number of cores, nor of an
earlier attempt. Its directory is named by the fingerprint of all that made it, so it is made once and then
found. It is built under a temporary name and renamed when whole. A process that was killed or interrupted leaves its
work there, and the next one for the same dataset goes on with it; an error leaves nothing behind.
"""

import copy
import json
import platform
import shutil
import socket
import time
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from dragoman import __version__
from dragoman.config import Filter, Recipe
from dragoman.data import language, overlap
from dragoman.data.corpora import Corpus, Hashes, corpora
from dragoman.data.overlap import Found, HeldOut
from dragoman.data.passes import Seen, clean, count_new, encode, learn
from dragoman.data.pool import Pool, WorkerDied
from dragoman.data.progress import Stages
from dragoman.data.rules import FILTER_NAMES, OVERLAP, is_off, notes
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
from dragoman.data.spool import Cleaned, Frame, Progress, Spool
from dragoman.data.tally import Tally
from dragoman.data.text import normalise_lines
from dragoman.data.tokenizer import Tokenizer, tagged
from dragoman.errors import UserError
from dragoman.files import (
    TEMPORARY,
    beside,
    disk_errors,
    locked,
    publish_directory,
    remove_unfinished,
    write_bytes,
    write_json,
)
from dragoman.machine import usable_cores

WORK = "work"  # in an unfinished dataset, with what is removed in the end:
SPOOL, HELD_OUT, ENCODED = "spool", "held-out.npz", "encoded.json"


def fingerprint(recipe: Recipe) -> str:
    """Return 16 hex digits that stand for the content of all files and all settings that shape a dataset."""
    hashes, splits = Hashes(Path(recipe.data.directory)), corpora(recipe)
    made_from = {
        "format": FORMAT,
        "sentencepiece": version("sentencepiece"),
        "language_id": None if is_off("language", recipe.filter) else language.identity(),
        "languages": {split: [corpus.about.languages for corpus in each] for split, each in splits.items()},
        "filter": recipe.filter.model_dump(),
        "vocab": recipe.vocab.dataset_settings,
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
        # Whoever holds it is alone here: what is unfinished has no living writer.
        with locked(
            directory / LOCK,
            lambda: stages.say(f"another process is preparing data in {directory}: waiting for it"),
        ):
            remove_unfinished(directory, keep=_unfinished(path))
            if not find(path):  # nobody made it while we waited
                _build(recipe, path, stages, usable_cores() if workers is None else workers)
    dataset = Dataset.open(path)
    pairs = dataset.manifest["splits"]["train"]["pairs"]
    stages.say(f"{path}: {pairs:,} pairs to train on, {dataset.vocab_size:,} subwords")
    return dataset


def _unfinished(path: Path) -> Path:
    """Return where the dataset at ``path`` is built: with other versions of us it is somewhere else."""
    versions = xxhash.xxh3_64_hexdigest(json.dumps(_versions()).encode())
    return path.with_name(f"{TEMPORARY}{path.name}-{versions}")


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


def _build(recipe: Recipe, path: Path, stages: Stages, workers: int) -> None:
    """Make the dataset at ``path``, all or nothing, from where an earlier process was stopped."""
    if path.exists():
        stages.say(f"{path} is damaged: making it again")
        damaged = beside(path)
        path.rename(damaged)  # so that it is not seen half deleted either
        shutil.rmtree(damaged)
    temporary = _unfinished(path)
    temporary.mkdir(exist_ok=True)
    remove_unfinished(temporary)
    try:
        splits = {name: _Split(each) for name, each in corpora(recipe).items()}
        made = _write_files(temporary, recipe, splits, stages, workers)
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
                "settings": {"filter": recipe.filter.model_dump(), "vocab": recipe.vocab.dataset_settings},
                "splits": {name: split.facts(hashes) for name, split in splits.items()},
                "dropped": _dropped(splits["train"].total, recipe),
                **made,
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
    except (KeyboardInterrupt, WorkerDied):
        stages.say("stopped: the same command goes on from here")
        raise
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
    """Write all files of a dataset but the manifest; return what that says of the vocabulary and of overlaps."""
    train = splits["train"]
    work, model = directory / WORK, directory / TOKENIZER
    work.mkdir(exist_ok=True)
    # First, though encoded last: a mistake in these files shows at once, not after the work on train.
    with stages.stage("read dev and test"):
        held_out = {name: _read(split) for name, split in splits.items() if split is not train}
        sets = {name: (src, normalise_lines(ref)) for name, (src, ref) in held_out.items()}
        all_src, all_tgt = ([line for each in sets.values() for line in each[side]] for side in (0, 1))
        both_ways = len(recipe.data.language_pairs) > 1
        HeldOut.of(all_src, all_tgt, both_ways=both_ways).save(work / HELD_OUT)
    with Pool(workers) as pool:
        with stages.stage("clean", sum(corpus.size() for corpus in train.corpora)) as advance:
            frames, found = _clean(train, work, recipe, pool, stages, advance)
        if not model.exists():
            # In a process of its own, which gives its memory back.
            with stages.stage("vocabulary"), Pool(min(workers, 1)) as learner:
                task = partial(learn, spool=work / SPOOL, settings=recipe.vocab, tags=recipe.data.tags)
                write_bytes(model, next(learner.map(task, [frames])))
        tokenizer = Tokenizer.load(model)
        with stages.stage("encode", sum(len(frame.fates) for frame in frames)) as advance:
            used = _encode(train, frames, work, model, recipe.filter, pool, stages, advance)
    _check_left(train, train.total.pairs)
    with stages.stage("encode dev and test"):
        for name, (src, ref) in held_out.items():
            write_text(directory, name, splits[name].tagged(src), ref)
            _encode_held_out(directory / name, splits[name], *sets[name], tokenizer, recipe.filter.max_length)
    shutil.rmtree(work)
    gate, total = recipe.filter.overlap, train.total
    pairs = total.dropped[OVERLAP] if gate else total.overlapping
    return {
        "vocab": {
            "size": tokenizer.size,
            "pieces": tokenizer.num_pieces,
            "used": used,
            "byte_fallback": tokenizer.byte_fallback,
            "sample_pairs": min(recipe.vocab.sample_pairs, count_new(frames)),
        },
        "overlap": overlap.facts(found, sets, gate=gate, pairs=pairs),
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
    train: _Split, work: Path, recipe: Recipe, pool: Pool, stages: Stages, advance: Callable[[float], None]
) -> tuple[list[Frame], Found]:
    """Run the first pass: write the spool; return its frames, and where train overlaps with dev and test."""
    frames: list[Frame] = []
    found, seen = Found(), Seen(recipe.filter)

    def take(cleaned: Cleaned, offset: int) -> None:
        fates = seen.fates(cleaned.hashes)
        place = cleaned.corpus, cleaned.label, offset, len(cleaned.frame)
        tag = train.corpora[cleaned.corpus].about.tag
        frames.append(Frame(*place, cleaned.overlaps, fates, tag))
        train.tallies[cleaned.corpus].add(cleaned.tally)
        found.add(cleaned.found)
        advance(cleaned.size)

    with Spool(work / SPOOL) as spool:
        for cleaned, offset in spool.recover():
            take(cleaned, offset)
        if frames:
            stages.say(f"going on after {train.total.lines:,} pairs")
        if not spool.is_complete:
            last = frames[-1].corpus if frames else 0
            for index, corpus in list(enumerate(train.corpora))[last:]:
                task = partial(
                    clean,
                    corpus=index,
                    settings=recipe.filter,
                    languages=corpus.about.languages,
                    held_out=work / HELD_OUT,
                )
                done = sum(frame.corpus == index for frame in frames)
                for cleaned in pool.map(task, islice(corpus.chunks(), done, None)):
                    take(cleaned, spool.append(cleaned))
            spool.complete()
    _check_left(train, sum(len(frame.fates) for frame in frames))
    return frames, found


def _encode(
    train: _Split,
    frames: list[Frame],
    work: Path,
    model: Path,
    settings: Filter,
    pool: Pool,
    stages: Stages,
    advance: Callable[[float], None],
) -> int:
    """Run the second pass: write the shards of train; return the number of subwords that occur."""
    progress = Progress.load(work / ENCODED, len(train.corpora))
    if progress.frames:
        stages.say(f"going on after {sum(each['pairs'] for each in progress.shards):,} encoded pairs")
        advance(sum(len(frame.fates) for frame in frames[: progress.frames]))
    writer = ShardWriter(work.parent / "train", Tokenizer.load(model).dtype, list(progress.shards))
    task = partial(encode, spool=work / SPOOL, model=model, max_length=settings.max_length)
    rest = frames[progress.frames :]
    for frame, encoded in zip(rest, pool.map(task, rest), strict=True):
        writer.add(encoded.src, encoded.tgt, encoded.lengths)
        progress.take(frame.corpus, encoded.tally, encoded.used)
        advance(len(frame.fates))
        if len(writer.shards) > len(progress.shards):
            progress.shards = list(writer.shards)
            progress.save(work / ENCODED)
    train.shards = writer.close()
    for tally, encoded_tally in zip(train.tallies, progress.tallies, strict=True):
        tally.add(encoded_tally)
    return int(np.unpackbits(np.frombuffer(progress.used, np.uint8)).sum())


def _encode_held_out(
    directory: Path, split: _Split, src: list[str], tgt: list[str], tokenizer: Tokenizer, max_length: int
) -> None:
    """Write the shards of dev or test."""
    packed_src = [line for rows, tag in split.rows() for line in tokenizer.encode_packed(src[rows], tag)]
    packed_tgt = tokenizer.encode_packed(tgt)
    lengths = tokenizer.packed_lengths(packed_src, packed_tgt)
    writer = ShardWriter(directory, tokenizer.dtype)
    writer.add(b"".join(packed_src), b"".join(packed_tgt), lengths)
    split.shards = writer.close()
    for tally, (rows, _) in zip(split.tallies, split.rows(), strict=True):
        packed = (b"".join(side[rows]) for side in (packed_src, packed_tgt))
        unknown = [tokenizer.count_unknown(tokenizer.count(side)) for side in packed]
        tally.keep(src[rows], tgt[rows], lengths[rows], unknown, max_length)


def _check_left(train: _Split, pairs: int) -> None:
    if not pairs:
        dropped = ", ".join(f"{name} {count:,}" for name, count in train.total.dropped.items())
        raise UserError(
            f"no training pair is left after filtering (dropped: {dropped})",
            where=", ".join(train.paths),
            fix="check that these are the right files, or relax [filter] in the recipe",
        )


# What the manifest says


def _dropped(train: Tally, recipe: Recipe) -> dict[str, Any]:
    told = notes([code for pair in recipe.data.language_pairs for code in pair], recipe.filter)
    return {
        name: {
            "pairs": train.dropped[name],
            "examples": train.examples.get(name, []),
            **({"off": True} if is_off(name, recipe.filter) else {}),
            **({"note": told[name]} if name in told else {}),
        }
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
