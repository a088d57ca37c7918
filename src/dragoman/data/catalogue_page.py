"""What ``dragoman data list`` and ``dragoman data get`` print."""

from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dragoman.data.catalogue import CORPORA, built_in_entries, load_entry, summary
from dragoman.data.get import get
from dragoman.data.mtdata import PREFIX, get_from_mtdata
from dragoman.errors import UserError

MEGABYTE = 1e6


def catalogue() -> dict[str, dict[str, Any]]:
    """Return what is known about each entry, and whether it is in ./corpora."""
    return {name: summary(load_entry(name), Path(CORPORA) / name) for name in built_in_entries()}


def print_catalogue() -> None:
    table = Table("name", "what", box=box.SIMPLE, pad_edge=False)
    for column in ("pairs", "MB"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("licence")
    table.add_column("fetched")
    entries = catalogue()
    for name, each in entries.items():
        pairs = "?" if each["pairs"] is None else f"{each['pairs']:,}"
        size = f"{each['bytes'] / MEGABYTE:,.0f}" if each["bytes"] else ""
        licences = "; ".join(dict.fromkeys(each["licences"].values()))
        size = size if each["all_sizes_known"] else f"{size}+" if size else "?"
        table.add_row(name, each["what"], pairs, size, licences, each["fetched"])
    _print(table)
    _print(
        Text(
            f"MB to download; + and ?: not all sizes are known. Fetched: to {CORPORA}/NAME below this directory."
        )
    )
    _print(Text(f"dragoman data get NAME brings one. Also {PREFIX}ID for any corpus that mtdata knows."))


def bring(name: str, to: Path | None, copies: Path | None) -> tuple[Path, dict[str, Any], str | None]:
    """Get what the user named; return its directory, the content of its sources.json, and a recipe for it."""
    if name.startswith(PREFIX):
        identifier = name.removeprefix(PREFIX)
        if copies:
            raise UserError("mtdata takes no local copies", where="--from", fix="leave --from out")
        directory = to or Path(CORPORA) / identifier
        return directory, get_from_mtdata(identifier, directory), None
    entry = load_entry(name)
    directory = to or Path(CORPORA) / entry.name
    is_where_recipes_look = to is None
    return directory, get(entry, directory, copies=copies), entry.recipe if is_where_recipes_look else None


def print_sources(directory: Path, sources: dict[str, Any], recipe: str | None) -> None:
    corpora: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for name, file in sources["files"].items():
        corpora.setdefault(file["corpus"], []).append((name, file))
    table = Table(f"in {directory}", box=box.SIMPLE, pad_edge=False)
    for column in ("lines", "MB"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("licence")
    for files in corpora.values():
        names, (first, *_) = zip(*files, strict=True)
        size = sum(file["bytes"] for _, file in files) / MEGABYTE
        table.add_row(", ".join(names), f"{first['lines']:,}", f"{size:,.1f}", first["licence"])
    _print(table)
    if recipe:
        _print(Text(f"next: dragoman train {recipe}"))


def _print(what: Table | Text) -> None:
    Console().print(what, soft_wrap=isinstance(what, Text))
