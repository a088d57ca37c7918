"""The catalogue: which corpora can be had by name, where their files come from, and what is known about them.

An entry is a TOML file: those in ``entries/`` come with Dragoman, others are given by path, in the same form. It only
says; ``get.py`` does. Names of files are checked here, so that nobody below has to ask whether one leads elsewhere.
"""

import tomllib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from dragoman.errors import UserError, UserErrors

CORPORA = "corpora"  # the directory below which corpora are put, in the current one
SOURCES = "sources.json"  # in a corpus' directory: what each file is and where it came from
SCHEMES = ("http", "https", "file")


def _check_url(url: str) -> str:
    if urlsplit(url).scheme not in SCHEMES:
        raise ValueError(f"not an address that begins with {', '.join(SCHEMES)}: {url}")
    return url


FileName = Annotated[str, Field(pattern=r"^\w[\w.+=@-]*$", max_length=200)]  # never a path, never hidden
Url = Annotated[str, AfterValidator(_check_url)]


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Download(Part):
    """A file as it lies on its servers, with what is known about its bytes."""

    urls: tuple[Url, ...]  # of the same bytes, best first
    bytes: int | None = Field(None, ge=0)
    sha256: str | None = Field(None, pattern="^[0-9a-f]{64}$")
    md5: str | None = Field(None, pattern="^[0-9a-f]{32}$")


class Corpus(Part):
    """Files of one corpus: a source and a target file, or one that holds both sides."""

    name: str
    split: Literal["train", "dev", "test"]
    files: tuple[FileName, ...] = Field(min_length=1, max_length=2)
    # Ways to make the files, best first: for each file the name of a download, or DOWNLOAD/MEMBER of an archive.
    origins: tuple[tuple[str, ...], ...] = Field(alias="from", min_length=1)
    lines: int | None = Field(None, ge=1)
    sha256: tuple[str, ...] | None = None  # of the files, one each
    licence: str = "not stated"
    source: str | None = None


class Entry(Part):
    """All files that one ``dragoman data get`` brings."""

    name: FileName
    what: str
    languages: tuple[str, str]
    recipe: str | None = None  # a built-in recipe that trains on it
    corpora: tuple[Corpus, ...] = Field(min_length=1)
    downloads: dict[FileName, Download]

    @model_validator(mode="after")
    def _check_names(self) -> "Entry":
        files = [file for corpus in self.corpora for file in corpus.files]
        for name in {*files, *self.downloads}:
            if name == SOURCES or (name in files and files.count(name) > 1):
                raise ValueError(f"the name {name} is taken")
        for name, download in self.downloads.items():
            if not download.urls:
                raise ValueError(f"{name} has no urls")
        for corpus in self.corpora:
            for origin in corpus.origins:
                if len(origin) != len(corpus.files):
                    raise ValueError(
                        f"{corpus.name}: `from` has {len(origin)} names for {len(corpus.files)} files"
                    )
                if len({*origin}) < len(origin):
                    raise ValueError(f"{corpus.name}: {origin[0]} cannot be both sides")
                for path in origin:
                    if path.partition("/")[0] not in self.downloads:
                        raise ValueError(f"{corpus.name}: {path} does not begin with the name of a download")
            if corpus.sha256 and len(corpus.sha256) != len(corpus.files):
                raise ValueError(f"{corpus.name}: `sha256` has not as many values as `files`")
        return self

    @property
    def pairs(self) -> int | None:
        """Lines of the training corpora, if all of them are known."""
        lines = [corpus.lines for corpus in self.corpora if corpus.split == "train"]
        return None if None in lines else sum(filter(None, lines))

    def download_bytes(self) -> tuple[int, bool]:
        """Return the known bytes of all that has to be downloaded, and whether that is everything."""
        names = {path.partition("/")[0] for corpus in self.corpora for path in corpus.origins[0]}
        sizes = [self.downloads[name].bytes for name in names]
        return sum(filter(None, sizes)), None not in sizes


def built_in_entries() -> dict[str, str]:
    """Return the entries that come with Dragoman: name to text."""
    folder = resources.files("dragoman") / "data" / "entries"
    texts = {file.name.removesuffix(".toml"): file.read_text("utf-8") for file in folder.iterdir()}
    return dict(sorted(texts.items()))


def load_entry(source: str) -> Entry:
    """Read the entry of that name, or the one in the .toml file at that path."""
    if source in (entries := built_in_entries()):
        return parse_entry(entries[source], source, f"entry {source}")
    path = Path(source)
    if path.suffix == ".toml" and path.is_file():
        return parse_entry(path.read_bytes().decode("utf-8", "replace"), path.stem, source)
    raise UserError(
        "there is no such corpus in the catalogue",
        where=source,
        fix=f"give one of {', '.join(entries)}, mtdata:ID, or the path of a .toml file with an entry of your own",
    )


def parse_entry(text: str, name: str, source: str) -> Entry:
    """Read an entry from TOML text; ``source`` names it in errors, which are told together."""
    try:
        return Entry.model_validate({"name": name, **tomllib.loads(text)})
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"not valid TOML: {error}", where=source, fix="correct that line") from error
    except ValidationError as error:
        raise UserErrors(list(_explain(error, source))) from error


def _explain(error: ValidationError, source: str) -> Iterator[UserError]:
    for found in error.errors():
        place = ".".join(str(part) for part in found["loc"] if part != "[key]")
        cause = found.get("ctx", {}).get("error")
        given = "" if cause or found["type"] == "missing" else f" (given: {found['input']!r})"
        yield UserError(
            found["msg"].removeprefix("Value error, ") + given,
            where=f"{source}, {place}".removesuffix(", "),
            fix='correct the entry; "Your own catalogue entry" in docs/data.md shows one',
        )


def how_to_get(path: str) -> str | None:
    """Return the command that brings the file at ``path``, if it is where a corpus of the catalogue is put."""
    parts = PurePath(path).parts
    if len(parts) == 3 and parts[0] == CORPORA and parts[1] in built_in_entries():
        return f"dragoman data get {parts[1]}"
    return None


def summary(entry: Entry, directory: Path) -> dict[str, Any]:
    """Return what ``dragoman data list`` says about an entry, and about its files in ``directory``."""
    size, whole = entry.download_bytes()
    there = [(directory / file).is_file() for corpus in entry.corpora for file in corpus.files]
    return {
        "what": entry.what,
        "languages": list(entry.languages),
        "pairs": entry.pairs,
        "bytes": size,
        "all_sizes_known": whole,
        "licences": {corpus.name: corpus.licence for corpus in entry.corpora},
        "fetched": "no" if not any(there) else "yes" if all(there) else "partly",
        "directory": str(directory),
    }
