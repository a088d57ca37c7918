"""The passport of a dataset: where it came from, how large it is, what was dropped and why.

Everything is read from the manifest, so a passport is shown at once however large the dataset is.
"""

from collections.abc import Iterator
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from dragoman.data import overlap
from dragoman.data.shards import Dataset

MEGABYTE = 1e6
EXAMPLE_CHARS = 100
PATH_CHARS = 20  # its end, which fits beside the numbers on 80 columns


def passport(dataset: Dataset) -> dict[str, Any]:
    """Return all that is known of a dataset but the checksums of its files, as JSON can hold it."""
    manifest = dataset.manifest
    sizes = [facts["bytes"] for facts in manifest["files"].values()]
    return {
        "path": str(dataset.path),
        **{name: value for name, value in manifest.items() if name != "files"},
        "disk": {"files": len(sizes), "bytes": sum(sizes)},
    }


def print_passport(dataset: Dataset, console: Console | None = None) -> None:
    """Print the passport for people."""
    (console or Console(highlight=False)).print(_page(passport(dataset)))


def _page(facts: dict[str, Any]) -> RenderableType:
    vocab, made = facts["vocab"], facts["made"]
    src, tgt = facts["languages"]["src"], facts["languages"]["tgt"]
    fallback = "spelled in bytes" if vocab["byte_fallback"] else "unknown"
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    return Group(
        Text(f"{facts['path']}: {src} → {tgt}", style="bold"),
        _corpora(facts["splits"], f"{src}\n{tgt}"),
        _filters(facts["dropped"], facts["splits"]["train"]["lines"]),
        *(Text(warning, style="yellow") for warning in _warnings(facts)),
        Text(
            f"vocabulary: {vocab['pieces']:,} subwords, {vocab['size']:,} with padding, learned from "
            f"{vocab['sample_pairs']:,} pairs; characters without a subword are {fallback}"
        ),
        Text(
            f"{facts['disk']['bytes'] / MEGABYTE:,.1f} MB on disk, made {made['at']} on {made['host']} in "
            f"{sum(made['seconds'].values()):,.0f} s by {made['workers']} workers with {versions}"
        ),
    )


def _corpora(splits: dict[str, Any], sides: str) -> Table:
    """Return a table with two lines a corpus, one for each side."""
    table = _table("", "corpus")
    for column in ("lines", "kept", "", "MB", "tokens"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, split in splits.items():
        rows = [("\n".join(map(_tail, corpus["paths"])), corpus, "") for corpus in split["corpora"]]
        for label, facts, style in [*rows, ("together", split, "bold")] if len(rows) > 1 else rows:
            megabytes = "\n".join(f"{size / MEGABYTE:,.1f}" for size in facts["bytes"])
            tokens = "\n".join(f"{number:,}" for number in facts["tokens"])
            numbers = f"{facts['lines']:,}", f"{facts['pairs']:,}"
            table.add_row(name, Text(label), *numbers, sides, megabytes, tokens, style=style)
    return table


def _filters(dropped: dict[str, Any], lines: int) -> Table:
    table = _table("dropped")
    for column in ("pairs", "share"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("for example")
    for name, facts in dropped.items():
        examples = [
            f"{each['where']}\n{each['src'][:EXAMPLE_CHARS]}\n{each['tgt'][:EXAMPLE_CHARS]}"
            for each in facts["examples"][:1]
        ]
        table.add_row(name, f"{facts['pairs']:,}", f"{facts['pairs'] / lines:.2%}", Text("".join(examples)))
    return table


def _tail(path: str) -> str:
    return path if len(path) <= PATH_CHARS else "…" + path[1 - PATH_CHARS :]


def _table(*columns: str) -> Table:
    return Table(*columns, box=box.SIMPLE, pad_edge=False)


def _warnings(facts: dict[str, Any]) -> Iterator[str]:
    for name in facts["splits"]:
        if told := overlap.in_words(facts["overlap"], name):
            yield told
    for name, rule in facts["dropped"].items():
        if "note" in rule:
            yield f"the rule {name} was {rule['note']}"
