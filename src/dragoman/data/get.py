"""``dragoman data get``: bring the files of a catalogue entry to a directory, each whole, counted and accounted for.

A corpus comes from a local copy, else from the first of its origins that can be downloaded. Its files appear together,
and ``sources.json`` beside them then says what they are: a second call believes it and has nothing to do. Hashes of
downloads that nobody knew before are kept in a lock file next to the directory, and hold from then on.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from dragoman.data.archives import ArchiveError, Facts, copy, unpack, wrong_kind
from dragoman.data.catalogue import SOURCES, Corpus, Download, Entry
from dragoman.data.download import Fetched, Patience, fetch, verify
from dragoman.data.progress import Stages
from dragoman.errors import UserError, UserErrors
from dragoman.files import (
    beside,
    disk_errors,
    fsync_directory,
    locked,
    read_json,
    remove_unfinished,
    sha256,
    write_json,
)

VERSION = 1  # of sources.json
DOWNLOADS = ".downloads"  # in the directory, while archives are needed
LOCK = ".lock"


def get(
    entry: Entry,
    directory: Path,
    *,
    copies: Path | None = None,
    progress: bool = True,
    patience: Patience | None = None,
) -> dict[str, Any]:
    """Bring what is missing of ``entry`` to ``directory``; return the content of its sources.json.

    Files and archives that lie in ``copies`` are used in place of their sources. Of several processes that want the
    same directory, one works and the others wait.
    """
    stages = Stages(progress)
    if copies and not copies.is_dir():
        raise UserError("there is no such directory", where=str(copies), fix="correct --from")
    with disk_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        with locked(
            directory / LOCK, lambda: stages.say(f"another process works on {directory}: waiting for it")
        ):
            remove_unfinished(directory)
            return _Getting(entry, directory, copies, stages, patience).run()


def read_sources(directory: Path) -> dict[str, Any]:
    """Return the content of a directory's sources.json; without files if there is none, or none we can read."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        sources = read_json(directory / SOURCES)
        if sources["version"] == VERSION and isinstance(sources["files"], dict):
            return dict(sources)
    return {"version": VERSION, "files": {}}


@dataclass
class _Getting:
    entry: Entry
    directory: Path
    copies: Path | None
    stages: Stages
    patience: Patience | None
    fetched: dict[str, Fetched | UserError] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lock_path = self.directory.with_name(self.directory.name + ".lock.json")
        self.recorded: dict[str, dict[str, Any]] = {}
        with suppress(OSError, ValueError, AttributeError):
            self.recorded = read_json(self.lock_path).get("downloads", {})
        old = read_sources(self.directory)
        self.sources = {
            "version": VERSION,
            "name": self.entry.name,
            "languages": list(self.entry.languages),
            "files": old["files"],
        }

    def run(self) -> dict[str, Any]:
        missing = [corpus for corpus in self.entry.corpora if not self._is_there(corpus)]
        if not missing:
            self.stages.say(f"{self.directory} has all files of {self.entry.name} already")
        missing = [self._with_local_first(corpus) for corpus in missing if not self._copy(corpus)]
        for choice in range(max((len(corpus.origins) for corpus in missing), default=0)):
            self._fetch(missing, choice)
            missing = [corpus for corpus in missing if not self._unpack(corpus, choice)]
        if missing:
            errors = [self._why_not(corpus) for corpus in missing]
            raise errors[0] if len(errors) == 1 else UserErrors(errors)
        shutil.rmtree(self.directory / DOWNLOADS, ignore_errors=True)
        return self.sources

    def _is_there(self, corpus: Corpus) -> bool:
        """Whether the files are those that sources.json describes; only what changed since then is read."""
        for name in corpus.files:
            known, path = self.sources["files"].get(name, {}), self.directory / name
            if not path.is_file() or path.stat().st_size != known.get("bytes"):
                return False
            written = (self.directory / SOURCES).stat().st_mtime_ns
            if path.stat().st_mtime_ns > written and sha256(path) != known.get("sha256"):
                self.stages.say(f"{path} has changed since it was fetched: getting it again")
                return False
        return True

    def _copy(self, corpus: Corpus) -> bool:
        """Use the files of a corpus from the directory of copies, if they are there under their final names."""
        files = [
            self.copies / name for name in corpus.files if self.copies and (self.copies / name).is_file()
        ]
        if len(files) < len(corpus.files):
            return False
        with self._workplace() as folder:
            facts = {file.name: copy(file, folder / file.name) for file in files}
            self._publish(corpus, folder, facts, f"copies in {self.copies}")
        return True

    def _with_local_first(self, corpus: Corpus) -> Corpus:
        """Return the corpus with those origins first that need no network."""

        def is_remote(origin: tuple[str, ...]) -> bool:
            return not all(self._local(_archive(path)) for path in origin)

        origins = tuple(sorted(corpus.origins, key=is_remote))
        if self.copies and is_remote(origins[0]):
            self.stages.say(f"{corpus.name} is not in {self.copies}: downloading it")
        return corpus.model_copy(update={"origins": origins})

    def _fetch(self, corpora: list[Corpus], choice: int) -> None:
        """Bring the archives that the given choice of each corpus needs, unless that was tried before."""
        origins = [corpus.origins[choice] for corpus in corpora if choice < len(corpus.origins)]
        names = {
            _archive(path): None
            for origin in origins
            for path in origin
            if _archive(path) not in self.fetched
        }
        wanted: dict[str, Download] = {}
        for name in names:
            download = self._as_recorded(name)
            if path := self._local(name):
                digest, wrong = verify(path, download, partial(wrong_kind, name))
                if not wrong:
                    self.fetched[name] = Fetched(path, path.absolute().as_uri(), path.stat().st_size, digest)
                    continue
                self.stages.say(f"{path} is not used: wrong file ({wrong})")
            wanted[name] = download
        if wanted:
            folder = self.directory / DOWNLOADS
            self.fetched |= fetch(
                wanted, folder, stages=self.stages, check=wrong_kind, patience=self.patience
            )
        for name, download in wanted.items():
            error = self.fetched[name]
            if isinstance(error, UserError) and download != self.entry.downloads[name]:
                error.fix += f"; if the file has changed for good, remove it from {self.lock_path}"

    def _as_recorded(self, name: str) -> Download:
        """Return a download with the hash it had the first time, if the catalogue knows none."""
        download, record = self.entry.downloads[name], self.recorded.get(name)
        if download.sha256 or download.md5 or not record:
            return download
        return download.model_copy(update={"sha256": record["sha256"], "bytes": record["bytes"]})

    def _local(self, name: str) -> Path | None:
        """Find a download among the copies, under our name for it or its server's, or from an earlier call."""
        urls = self.entry.downloads[name].urls
        names = [name, *(Path(unquote(urlsplit(url).path)).name for url in urls)] if self.copies else []
        places = [*(self.copies / each for each in names if self.copies), self.directory / DOWNLOADS / name]
        return next((path for path in places if path.is_file()), None)

    def _unpack(self, corpus: Corpus, choice: int) -> bool:
        """Make the files of a corpus from the archives that have come; False if those have not, or are no good."""
        if choice >= len(corpus.origins):
            return False
        wanted: dict[str, dict[str, str]] = {}  # archive → member → file
        for file, path in zip(corpus.files, corpus.origins[choice], strict=True):
            wanted.setdefault(_archive(path), {})[path.partition("/")[2]] = file
        archives = {name: each for name in wanted if isinstance(each := self.fetched[name], Fetched)}
        if len(archives) < len(wanted):
            return False
        facts: dict[str, Facts] = {}
        with self._workplace() as folder:
            for name, each in archives.items():
                members = {member: folder / file for member, file in wanted[name].items()}
                try:
                    for member, found in unpack(each.path, name, members).items():
                        facts[wanted[name][member]] = found
                except ArchiveError as error:
                    self._reject(name, error)
                    return False
            try:
                self._publish(corpus, folder, facts, ", ".join(each.url for each in archives.values()))
            except ArchiveError as error:
                self._reject(next(iter(archives)), error)
                return False
        for name, each in archives.items():
            self.recorded[name] = {"bytes": each.bytes, "sha256": each.sha256}
        write_json(self.lock_path, {"version": VERSION, "downloads": self.recorded})
        return True

    def _why_not(self, corpus: Corpus) -> UserError:
        """Return one error for a corpus, which tells what happened to each of its archives."""
        names = dict.fromkeys(_archive(path) for origin in corpus.origins for path in origin)
        errors = [each for name in names if isinstance(each := self.fetched[name], UserError)]
        if len(errors) == 1:
            return errors[0]
        where = "; ".join(f"{error.what}: {error.where}" for error in errors)
        return UserError(f"cannot get {corpus.name}", where=where, fix=errors[0].fix)

    def _reject(self, name: str, error: UserError) -> None:
        """Remember that an archive is no good; the next call shall not find it again."""
        self.fetched[name] = error
        (self.directory / DOWNLOADS / name).unlink(missing_ok=True)

    @contextmanager
    def _workplace(self) -> Iterator[Path]:
        """Give an empty directory beside the files to be."""
        folder = beside(self.directory / "files")
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder)

    def _publish(self, corpus: Corpus, folder: Path, facts: dict[str, Facts], origin: str) -> None:
        """Check what was written, give it its final names, and note it in sources.json."""
        counts = {each.lines for each in facts.values()}
        if len(counts) > 1:
            raise ArchiveError(
                "the two sides have different numbers of lines",
                where=", ".join(f"{name}: {each.lines:,}" for name, each in facts.items())
                + f" (from {origin})",
                fix="the files are no pair, or one is cut off: get them elsewhere",
            )
        for name, digest in zip(corpus.files, corpus.sha256 or (), strict=False):
            if facts[name].sha256 != digest:
                raise ArchiveError(
                    f"{name} is another file than the catalogue knows (its SHA-256 is {facts[name].sha256})",
                    where=origin,
                    fix="get it elsewhere, or correct sha256 in the entry",
                )
        if corpus.lines not in (None, *counts):
            found = f"{counts.pop():,} lines, not {corpus.lines:,} as expected"
            self.stages.say(f"warning: {corpus.name} has {found} (from {origin})")
        for name, each in facts.items():
            (folder / name).replace(self.directory / name)
            about = {"licence": corpus.licence, "source": corpus.source}
            self.sources["files"][name] = {"corpus": corpus.name, **asdict(each), **about, "from": origin}
        fsync_directory(self.directory)
        write_json(self.directory / SOURCES, self.sources)


def _archive(path: str) -> str:
    return path.partition("/")[0]
