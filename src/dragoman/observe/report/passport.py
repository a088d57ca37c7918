"""The passport of a dataset as one HTML page, made like the report of a run: offline, light and dark, printable.

Everything that comes from a corpus passes through ``esc`` before it is put into HTML, and through ``safe`` before
plotly reads it: a line of text may hold anything.
"""

import json
from collections.abc import Container, Iterable, Sequence
from pathlib import Path

from dragoman.data.passport import (
    KINDS,
    Facts,
    Row,
    coverage,
    directions,
    dropped_by_corpus,
    gate,
    is_contaminated,
    languages,
    lengths,
    overlaps,
    rows,
    rule_notes,
)
from dragoman.files import disk_errors
from dragoman.observe.report import View, write_page
from dragoman.observe.report.figures import Chart, Trace, safe
from dragoman.observe.report.sections import Section, esc

NUM_EXAMPLES = 5  # of what a rule dropped
SIDE_COLOURS = ("--c1", "--c2")
KIND_COLOURS = dict(zip(KINDS, ("--c2", "--c4", "--c5"), strict=True))
ROW_PIXELS = 34  # of a horizontal bar


def write_passport(facts: Facts, path: Path) -> None:
    """Write the page of a passport to ``path``, whole or not at all."""
    with disk_errors(path):
        write_page(view(facts), path)


def view(facts: Facts) -> View:
    """Return the page of a passport."""
    title = ", ".join(f"{src} → {tgt}" for src, tgt in directions(facts))
    return View(
        title=f"{title}: {Path(facts['path']).name}",
        head=_head(facts, title),
        sections=[
            Section("corpora", "Corpora", _corpora(facts)),
            Section("charts", "Charts", ""),
            Section("dropped", "What was dropped", _dropped(facts)),
            Section("overlap", "Overlap with dev and test", _overlap(facts)),
            Section("vocabulary", "Vocabulary", _vocabulary(facts)),
            Section("made", "How it was made", _made(facts)),
        ],
        charts={
            "lengths": _length_chart(facts),
            "kept": _corpus_chart(facts),
            "rules": _rule_chart(facts),
            "overlap": _overlap_chart(facts),
        },
    )


# Text


def _head(facts: Facts, title: str) -> str:
    train = facts["splits"]["train"]
    kind, word = _state(facts)
    figures = [
        ("pairs to train on", f"{train['pairs']:,}", f" of {train['lines']:,}"),
        ("tokens", f"{sum(train['tokens']) / 1e6:,.2f} M", " both sides"),
        ("text", f"{sum(train['bytes']) / 1e6:,.1f} MB", ""),
        ("subwords", f"{facts['vocab']['pieces']:,}", ""),
    ]
    told = "".join(
        f"<div><dt>{esc(name)}</dt><dd>{esc(value)}<small>{esc(more)}</small></dd></div>"
        for name, value, more in figures
    )
    return (
        f'<div class="title"><h1>{esc(title)}</h1><p class="state {kind}">{word}</p></div>'
        f"<p>The passport of {esc(facts['path'])}</p><dl>{told}</dl>"
    )


def _state(facts: Facts) -> tuple[str, str]:
    """Return whether scores on dev and test can be trusted: colour and words."""
    if is_contaminated(facts):
        return "bad", "overlaps with dev or test"
    if "overlap" in facts or any("overlap_with_train" in split for split in facts["splits"].values()):
        return "good", "clear of dev and test"
    return "unclear", "overlap with dev and test not recorded"


def _corpora(facts: Facts) -> str:
    shown = [
        [
            row.split,
            _label(row),
            _lines(languages(row, facts)),
            f"{row.facts.get('weight', 1):g}" if row.split == "train" and not row.together else "",
            f"{row.facts['lines']:,}",
            f"{row.facts['pairs']:,}",
            _lines(f"{size / 1e6:,.2f}" for size in row.facts["bytes"]),
            _lines(f"{count:,}" for count in row.facts["tokens"]),
        ]
        for row in rows(facts)
    ]
    titles = ["", "corpus", "", "weight", "lines", "kept", "MB", "tokens"]
    origins = [
        [row.split, _label(row), esc(row.facts.get("licence") or "not told"), _source(row)]
        for row in rows(facts)
        if not row.together
    ]
    return (
        _table(titles, shown, numbers=range(3, 8))
        + "<h3>Licence and source</h3>"
        + _table(["", "corpus", "licence", "source"], origins)
    )


def _source(row: Row) -> str:
    told = row.facts.get("source")
    return esc(told) if told else _lines(row.facts["paths"])


def _dropped(facts: Facts) -> str:
    total = max(facts["splits"]["train"]["lines"], 1)
    told = []
    for rule, found in facts["dropped"].items():
        if found.get("off"):
            told.append([esc(rule), '<span class="note">off</span>', "", "", ""])
            continue
        by_corpus = _lines(f"{name} {count:,}" for name, count in dropped_by_corpus(facts, rule).items())
        share = f"{found['pairs'] / total:.2%}"
        told.append([esc(rule), f"{found['pairs']:,}", share, by_corpus, _examples(found["examples"])])
    counts = _table(["rule", "pairs", "share", "of which", "for example"], told, numbers=(1, 2))
    notes = [
        "Rules are applied in this order; a pair is counted by the first that drops it.",
        *rule_notes(facts),
    ]
    return counts + "".join(f'<p class="note">{esc(note)}</p>' for note in notes)


def _examples(examples: Sequence[Facts]) -> str:
    told = [_pair(each, each["where"]) for each in examples[:NUM_EXAMPLES]]
    if len(told) < 2:
        return "".join(told)
    return f"{told[0]}<details><summary>{len(told) - 1} more</summary>{''.join(told[1:])}</details>"


def _pair(example: Facts, where: str) -> str:
    lines = _lines([example["src"], example["tgt"]])
    return f'<div class="pair">{lines} <span class="note">{esc(where)}</span></div>'


def _overlap(facts: Facts) -> str:
    kind = ' class="bad-text"' if is_contaminated(facts) else ""
    told = [
        f"<p{kind}>{esc(sentence[0].upper() + sentence[1:])}.</p>"
        for sentence in [*overlaps(facts), gate(facts)]
        if sentence
    ]
    examples = [
        [_pair(each, each["where"]), f'<div class="pair">{esc(each["held_out"])}</div>', esc(each["how"])]
        for each in facts.get("overlap", {}).get("examples", [])
    ]
    shown = _table(["training pair", "held out", "how"], examples) if examples else ""
    return "".join(told) + shown or '<p class="absent">Not recorded, or none.</p>'


def _vocabulary(facts: Facts) -> str:
    vocab = facts["vocab"]
    used = (
        f", of which {vocab['used']:,} occur in train ({vocab['used'] / vocab['pieces']:.1%})"
        if "used" in vocab
        else ""
    )
    fallback = "spelled in bytes" if vocab["byte_fallback"] else "unknown"
    told = (
        f"<p>{vocab['pieces']:,} subwords in one vocabulary for all languages{used}; learned from "
        f"{vocab['sample_pairs']:,} pairs. Characters without a subword are {fallback}.</p>"
    )
    shown = [
        [
            row.split,
            _label(row),
            _lines(languages(row, facts)),
            _lines(f"{side.tokens_per_word:.2f}" for side in known),
            _lines(f"{side.unknown:,}" for side in known),
            _lines(f"{side.unknown_share:.3%}" for side in known),
        ]
        for row in rows(facts)
        if (known := coverage(row))
    ]
    titles = ["", "corpus", "", "subwords a word", f"tokens {fallback}", "share"]
    return told + (_table(titles, shown, numbers=range(3, 6)) if shown else "")


def _made(facts: Facts) -> str:
    made = facts["made"]
    seconds = ", ".join(f"{name} {spent:,.1f} s" for name, spent in made["seconds"].items())
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    about = [
        ["made", esc(f"{made['at']} on {made['host']}, by {made['workers']} workers")],
        ["time", esc(seconds)],
        ["versions", esc(versions)],
        ["on disk", esc(f"{facts['disk']['bytes'] / 1e6:,.1f} MB in {facts['disk']['files']:,} files")],
        ["fingerprint", esc(facts["fingerprint"])],
    ]
    settings = esc(json.dumps(facts["settings"], indent=2, ensure_ascii=False))
    return _table([], about) + f"<details><summary>settings</summary><pre>{settings}</pre></details>"


def _label(row: Row) -> str:
    label = _lines(row.label.split("\n"))
    return f"<b>{label}</b>" if row.together else label


def _lines(parts: Iterable[object]) -> str:
    return "<br>".join(map(esc, parts))


def _table(titles: Sequence[str], shown: Sequence[Sequence[str]], numbers: Container[int] = ()) -> str:
    """Return a table of cells that are HTML; ``numbers`` are columns that align at the right."""

    def line(cells: Sequence[str], tag: str) -> str:
        kinds = [' class="n"' if place in numbers else "" for place in range(len(cells))]
        return "".join(f"<{tag}{kind}>{cell}</{tag}>" for kind, cell in zip(kinds, cells, strict=True))

    top = f"<thead><tr>{line([esc(each) for each in titles], 'th')}</tr></thead>" if titles else ""
    body = "".join(f"<tr>{line(cells, 'td')}</tr>" for cells in shown)
    return f"<table>{top}<tbody>{body}</tbody></table>"


# Charts


def _length_chart(facts: Facts) -> Chart:
    """How long the training sentences are."""
    title = "Lengths of training sentences"
    row = next(
        row for row in [*rows(facts)][::-1] if row.split == "train"
    )  # the sum, where there are several
    told = lengths(row)
    if not told:
        return Chart(title, absent="Not recorded.")
    traces: list[Trace] = [
        {
            "type": "bar",
            "name": safe(name),
            "x": list(side.names),
            "y": list(side.counts),
            "marker": {"color": colour},
        }
        for name, side, colour in zip(languages(row, facts), told, SIDE_COLOURS, strict=True)
    ]
    middle = " and ".join(dict.fromkeys(str(side.below(0.5)) for side in told))
    layout = {
        "xaxis": _axis("subwords", type="category"),
        "yaxis": _axis("pairs"),
        "barmode": "group",
        "height": 340,
    }
    note = f"In subwords with end-of-sentence; half of the sentences have at most {middle}."
    return Chart(title, note, axis="lengths", traces=traces, layout=layout)


def _corpus_chart(facts: Facts) -> Chart:
    """What was kept and what was dropped of each training corpus."""
    train = [row for row in rows(facts) if row.split == "train" and not row.together]
    kept = [row.facts["pairs"] for row in train]
    lost = [row.facts["lines"] - row.facts["pairs"] for row in train]
    return _bars(
        "Training corpora",
        [row.label.split("\n")[0] for row in train],
        {"kept": (kept, "--c3"), "dropped": (lost, "--c8")},
        "pairs",
    )


def _rule_chart(facts: Facts) -> Chart:
    """How many pairs each rule dropped."""
    title = "Dropped by each rule"
    found = {rule: told["pairs"] for rule, told in facts["dropped"].items() if told["pairs"]}
    if not found:
        return Chart(title, absent="No rule dropped anything.")
    return _bars(title, list(found), {"dropped": (list(found.values()), "--c1")}, "pairs")


def _overlap_chart(facts: Facts) -> Chart:
    """How many lines of dev and test train had."""
    title = "Overlap with dev and test"
    found = facts.get("overlap", {}).get("sets", {})
    shown = {
        words: ([100 * each[kind] / max(each["pairs"], 1) for each in found.values()], KIND_COLOURS[kind])
        for kind, words in KINDS.items()
    }
    if not any(sum(shares) for shares, _ in shown.values()):
        return Chart(title, absent="Train had no line of dev or test." if found else "Not recorded.")
    note = "Lines of dev and test that were in train before the gate."
    return _bars(title, list(found), shown, "% of its lines", note)


def _bars(
    title: str, names: Sequence[str], shown: dict[str, tuple[list[float], str]], unit: str, note: str = ""
) -> Chart:
    """Return horizontal bars, stacked, the first on top."""
    traces: list[Trace] = [
        {"type": "bar", "orientation": "h", "name": safe(part), "x": values, "y": list(map(safe, names))}
        | {"marker": {"color": colour}}
        for part, (values, colour) in shown.items()
    ]
    layout = {
        "xaxis": _axis(unit, rangemode="tozero"),
        "yaxis": {"autorange": "reversed", "type": "category", "title": {"text": ""}},
        "barmode": "stack",
        "hovermode": "closest",
        "showlegend": len(shown) > 1,
        "height": 130 + ROW_PIXELS * len(names),
    }
    return Chart(title, note, axis=title, traces=traces, layout=layout)


def _axis(title: str, **more: object) -> dict[str, object]:
    return {"title": {"text": title}, **more}
