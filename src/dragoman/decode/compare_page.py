"""What ``dragoman evaluate`` shows: a line a metric for one system, one table for several."""

import csv
import json
from collections.abc import Iterable, Sequence
from typing import IO, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dragoman.data import overlap
from dragoman.decode.compare import NAMES, key


def show_results(results: Sequence[dict[str, Any]], metrics: Sequence[str], console: Console) -> None:
    """Print the scores of systems, each with its interval; of several also who is better, and how sure that is."""
    if len(results) == 1:
        (result,) = results
        for name in metrics:
            low, high = result[key(name, "ci95")]
            score = f"{NAMES[name]} {result[name]:.2f}  (95 % interval {low:.2f} to {high:.2f})"
            console.print(f"{score}  {result[key(name, 'signature')]}", soft_wrap=True)
    else:
        console.print(_table(results, metrics))
        for name in metrics:
            console.print(f"{NAMES[name]}: {results[0][key(name, 'signature')]}", soft_wrap=True)
    seconds = sum(result.get("seconds", 0) for result in results)
    took = f" in {seconds:.1f} s" if seconds else ""
    console.print(f"{results[0]['sentences']:,} sentences{took}", soft_wrap=True)
    for result in results:
        if told := overlap.describe(result.get("overlap"), "this set"):
            console.print(f"{result['system']}: {told}", soft_wrap=True)


def _table(results: Sequence[dict[str, Any]], metrics: Sequence[str]) -> Table:
    table = Table("", "system", box=box.SIMPLE, pad_edge=False)
    for column in ("score", "95 % interval", "difference"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("to the first")
    for name in metrics:
        for number, result in enumerate(results):
            low, high = result[key(name, "ci95")]
            versus = result.get("versus_first", {}).get(name)
            table.add_row(
                "" if number else NAMES[name],
                Text(result["system"]),
                f"{result[name]:.2f}",
                f"{low:.2f} – {high:.2f}",
                f"{versus['difference']:+.2f}" if versus else "",
                Text(versus["verdict"] if versus else ""),
            )
    return table


def write_sentences(lines: Iterable[dict[str, Any]], file: IO[str], *, tabs: bool) -> None:
    """Write a line for each sentence and system: JSON, or with ``tabs`` a table with a head."""
    if not tabs:
        for line in lines:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
        return
    # A value that holds a tab itself is quoted.
    writer: Any = None
    for line in lines:
        if writer is None:
            writer = csv.DictWriter(
                file, list(line), restval="", extrasaction="ignore", dialect="excel-tab", lineterminator="\n"
            )
            writer.writeheader()
        writer.writerow(line)
