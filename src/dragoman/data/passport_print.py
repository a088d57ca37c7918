"""The passport for the terminal; 80 columns are enough."""

from collections.abc import Iterator
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from dragoman.data.passport import (
    BIN,
    Row,
    coverage,
    directions,
    dropped_by_corpus,
    gate,
    is_contaminated,
    languages,
    lengths,
    overlaps,
    passport,
    rows,
    rule_notes,
    sources,
    weights,
)
from dragoman.data.shards import Dataset

MEGABYTE = 1e6
EXAMPLE_CHARS = 100
LABEL_CHARS = 20  # of a corpus, its end, which fits beside the numbers on 80 columns
BARS = " ▁▂▃▄▅▆▇█"


def print_passport(dataset: Dataset, console: Console | None = None) -> None:
    """Print the passport for people."""
    (console or Console(highlight=False)).print(_page(passport(dataset)))


def _page(facts: dict[str, Any]) -> RenderableType:
    pairs = ", ".join(f"{src} → {tgt}" for src, tgt in directions(facts))
    return Group(
        Text(f"{facts['path']}: {pairs}", style="bold"),
        _corpora(facts),
        *_origins(facts),
        *_lengths(facts),
        *_filters(facts),
        *_overlap(facts),
        *_vocabulary(facts),
        _made(facts),
    )


def _corpora(facts: dict[str, Any]) -> Table:
    """Return a table with two lines a corpus, one for each side."""
    table = _table("", "corpus")
    for column in ("lines", "kept", "", "MB", "tokens"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows(facts):
        megabytes = "\n".join(f"{size / MEGABYTE:,.1f}" for size in row.facts["bytes"])
        tokens = "\n".join(f"{number:,}" for number in row.facts["tokens"])
        numbers = f"{row.facts['lines']:,}", f"{row.facts['pairs']:,}"
        _add(table, row, *numbers, "\n".join(languages(row, facts)), megabytes, tokens)
    return table


def _origins(facts: dict[str, Any]) -> Iterator[Text]:
    """Yield where corpora come from and how much they weigh."""
    for label, text in sources(facts).items():
        yield Text(f"{label}: {text}")
    if told := weights(facts):
        yield Text(
            "seen in an epoch: " + ", ".join(f"{label} × {weight:g}" for label, weight in told.items())
        )


def _lengths(facts: dict[str, Any]) -> Iterator[Table]:
    """Yield how long the sentences are, a bar for every eight subwords."""
    known = [(row, told) for row in rows(facts) if (told := lengths(row))]
    if not known:
        return
    bins = max(len(side.counts) for _, told in known for side in told)
    table = _table("subwords", "corpus", "")
    table.add_column(_scale(bins), no_wrap=True)
    for column in ("half ≤", "95 % ≤"):
        table.add_column(column, justify="right", no_wrap=True)
    for row, told in known:
        bars = "\n".join(_bars(side.counts) for side in told)
        quantiles = ["\n".join(str(side.below(share)) for side in told) for share in (0.5, 0.95)]
        _add(table, row, "\n".join(languages(row, facts)), bars, *quantiles)
    yield table


def _scale(bins: int) -> str:
    """Return the axis over bars: 1 at the left, the longest at the right."""
    last = str(BIN * bins)
    return "1" + " " * max(1, bins - 1 - len(last)) + last


def _bars(counts: Any) -> str:
    highest = max(counts) or 1
    # A bin that is not empty shows, however little is in it.
    return "".join(BARS[-(-count * (len(BARS) - 1) // highest)] for count in counts)


def _filters(facts: dict[str, Any]) -> Iterator[RenderableType]:
    """Yield what each rule dropped; those that dropped nothing or are off share a line."""
    table = _table("dropped")
    for column in ("pairs", "share"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("for example")
    lines = max(facts["splits"]["train"]["lines"], 1)
    for rule, told in facts["dropped"].items():
        if told["pairs"]:
            parts = [f"{label} {count:,}" for label, count in dropped_by_corpus(facts, rule).items()]
            examples = [_example(each) for each in told["examples"][:1]]
            text = "\n".join([*([" · ".join(parts)] if parts else []), *examples])
            table.add_row(rule, f"{told['pairs']:,}", f"{told['pairs'] / lines:.2%}", Text(text))
    if table.row_count:
        yield table
    idle = {
        "nothing dropped by": [
            rule for rule, told in facts["dropped"].items() if not told["pairs"] and not told.get("off")
        ],
        "switched off": [rule for rule, told in facts["dropped"].items() if told.get("off")],
    }
    for words, rules in idle.items():
        if rules:
            yield Text(f"{words}: {', '.join(rules)}")
    yield from (Text(note, style="yellow") for note in rule_notes(facts))


def _example(each: dict[str, Any]) -> str:
    return f"{each['where']}\n{each['src'][:EXAMPLE_CHARS]}\n{each['tgt'][:EXAMPLE_CHARS]}"


def _overlap(facts: dict[str, Any]) -> Iterator[RenderableType]:
    contaminated = is_contaminated(facts)
    for sentence in overlaps(facts):
        yield Text(
            f"{'warning' if contaminated else 'overlap'}: {sentence}", "yellow" if contaminated else ""
        )
    if told := gate(facts):
        yield Text(told, style="yellow" if contaminated else "")
    for each in facts.get("overlap", {}).get("examples", [])[:1]:
        yield Text(f"for example ({each['held_out']}, {each['how']}):\n{_example(each)}", style="dim")


def _vocabulary(facts: dict[str, Any]) -> Iterator[RenderableType]:
    vocab = facts["vocab"]
    fallback = "spelled in bytes" if vocab["byte_fallback"] else "unknown"
    used = (
        f"; {vocab['used']:,} occur in train ({vocab['used'] / vocab['pieces']:.0%})"
        if "used" in vocab
        else ""
    )
    yield Text(
        f"vocabulary: {vocab['pieces']:,} subwords, {vocab['size']:,} with padding, learned from "
        f"{vocab['sample_pairs']:,} pairs{used}; characters without a subword are {fallback}"
    )
    known = [(row, told) for row in rows(facts) if (told := coverage(row))]
    if not known:
        return
    table = _table("", "corpus", "")
    for column in ("subwords a word", "in bytes" if vocab["byte_fallback"] else "unknown", "share"):
        table.add_column(column, justify="right", no_wrap=True)
    for row, told in known:
        columns = [
            [f"{side.tokens_per_word:.2f}" for side in told],
            [f"{side.unknown:,}" for side in told],
            [f"{side.unknown_share:.3%}" for side in told],
        ]
        _add(table, row, "\n".join(languages(row, facts)), *("\n".join(each) for each in columns))
    yield table


def _made(facts: dict[str, Any]) -> Text:
    made = facts["made"]
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    return Text(
        f"{facts['disk']['bytes'] / MEGABYTE:,.1f} MB on disk, made {made['at']} on {made['host']} in "
        f"{sum(made['seconds'].values()):,.0f} s by {made['workers']} workers with {versions}"
    )


def _add(table: Table, row: Row, *cells: str) -> None:
    label = "\n".join(
        line if len(line) <= LABEL_CHARS else "…" + line[1 - LABEL_CHARS :] for line in row.label.split("\n")
    )
    table.add_row(row.split, Text(label), *map(Text, cells), style="bold" if row.together else "")


def _table(*columns: str) -> Table:
    return Table(*columns, box=box.SIMPLE, pad_edge=False)
