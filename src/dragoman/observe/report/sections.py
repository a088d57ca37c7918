"""The text of a report: small pieces of HTML made from a history and its answers.

Everything that comes from a run passes through ``esc`` before it is put into HTML; there is no other way in.
A section without evidence says so.
"""

import html
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dragoman.data import overlap
from dragoman.observe import events
from dragoman.observe.console import format_duration
from dragoman.observe.explain import Answer
from dragoman.observe.explain.page import BAD_NEWS, NEITHER
from dragoman.observe.history import History, number
from dragoman.recipe import dump_recipe
from dragoman.rundir import AVERAGE, MANIFEST, MODEL, OPTIMIZER, STATE, SYNC, best_first

NUM_SAMPLES = 24
NUM_NUMBERS = 4  # of a verdict, shown at once; the rest on demand
NUM_CHECKPOINTS = 12

COMPARED = ("q02", "q03", "q04", "q05")  # shown for each of several runs
ENDINGS = {
    "finished": ("good", "finished"),
    "running": ("info", "running"),
    "stopped": ("unclear", "stopped"),
    "failed": ("bad", "failed"),
    "killed": ("bad", "killed"),
}
PURPOSES = {
    MODEL: "the weights",
    OPTIMIZER: "the optimizer's moments, to go on exactly",
    AVERAGE: "the averaged weights",
    SYNC: "what synchronisation remembers between steps",
    STATE: "the step and the counters",
    MANIFEST: "sizes and SHA-256 of the files above",
    "model.bin": "the weights, for CTranslate2",
    "config.json": "how CTranslate2 reads them",
    "dragoman.json": "languages, subwords, beam width",
}


@dataclass(frozen=True)
class Section:
    """A part of the page; the one named ``charts`` is filled by the page itself."""

    name: str
    title: str
    html: str


def esc(value: object) -> str:
    """Return text of a run as HTML shows it: every character stands for itself."""
    return html.escape(str(value))


def head(history: History) -> str:
    """Return the name of the run, how it ended, and its most wanted numbers."""
    kind, word = ENDINGS.get(history.ending, ("unclear", history.ending))
    facts = [f"<h1>{esc(history.path.resolve().name)}</h1>", f'<p class="state {kind}">{esc(word)}</p>']
    lines = [part for part in (_what(history), _where(history)) if part]
    message = (history.outcome or {}).get("message")
    if history.ending == "failed" and message:
        lines.append(f'<span class="bad-text">{esc(message)}</span>')
    figures = "".join(
        f"<div><dt>{esc(name)}</dt><dd>{esc(value)}<small>{esc(more)}</small></dd></div>"
        for name, value, more in _figures(history)
    )
    told = "".join(f"<p>{line}</p>" for line in lines)
    return f'<div class="title">{"".join(facts)}</div>{told}<dl>{figures}</dl>'


def verdicts(answers: Sequence[Answer]) -> str:
    """Return the answers: colour and word, the claim, why, the numbers, what to do."""
    if not answers:
        return _absent("The questions were not answered.")
    return f'<ol class="verdicts">{"".join(map(_verdict, answers))}</ol>'


def tone(key: str, verdict: str) -> str:
    """Return which colour a verdict has: good, bad, info or unclear."""
    if verdict not in ("yes", "no"):
        return "unclear"
    if key in NEITHER:
        return "info"
    return "good" if (verdict == "yes") != (key in BAD_NEWS) else "bad"


def _verdict(answer: Answer) -> str:
    known = {name: value for name, value in answer.evidence.items() if value is not None and _is_short(value)}
    numbers = [(_words(name), quantity(name, value)) for name, value in known.items()]
    shown, rest = numbers[:NUM_NUMBERS], numbers[NUM_NUMBERS:]
    advice = "".join(f"<li>{esc(each)}</li>" for each in answer.advice)
    sure = f"{answer.confidence:.0%} sure" if answer.verdict in ("yes", "no") else ""
    return (
        f'<li id="{esc(answer.key)}" class="{tone(answer.key, answer.verdict)}">'
        f'<header><h3>{esc(answer.question)}</h3><p class="verdict">{esc(answer.verdict)}</p></header>'
        f'<p class="claim">{esc(answer.claim)}: {esc(answer.verdict)}<span>{sure}</span></p>'
        f"<p>{esc(answer.summary)}</p>{_pairs(shown)}"
        + (f"<details><summary>more numbers</summary>{_pairs(rest)}</details>" if rest else "")
        + (f'<ul class="advice">{advice}</ul>' if advice else "")
        + "</li>"
    )


def problems(history: History) -> str:
    """Return what could not be read, and what went wrong on the way."""
    told = [f"<li>{esc(problem)}</li>" for problem in history.problems]
    for note in history.noted(events.SKIP, events.ROLLBACK, events.STALL, events.LOST)[-50:]:
        told.append(
            f"<li>{esc(_moment(note['time']))} · rank {esc(note['rank'])} · {esc(describe(note))}</li>"
        )
    return f'<ul class="plain">{"".join(told)}</ul>' if told else "<p>None.</p>"


def describe(note: dict[str, Any]) -> str:
    """Say in one line what an event tells that somebody should know."""
    step = f"step {number(note['step']):,.0f} " if math.isfinite(number(note.get("step"))) else ""
    why = note.get("why") or note.get("what") or note.get("message") or ""
    match note["event"]:
        case events.SKIP:
            return f"{step}skipped: {why}"
        case events.ROLLBACK:
            return f"{step}went back to step {number(note.get('to_step')):,.0f}: {why}"
        case events.LOST:
            return f"the worker gave up: {why}"
    rest = {name: value for name, value in note.items() if name not in ("event", "time", "rank")}
    return f"{note['event']}: {why or json.dumps(rest, ensure_ascii=False)[:300]}"


def samples(history: History) -> str:
    """Return sample translations over time, the newest first, spread over the run."""
    notes = history.noted(events.SAMPLE)
    if not notes:
        return _absent("No sample was translated.")
    places = np.unique(np.linspace(0, len(notes) - 1, min(NUM_SAMPLES, len(notes)), dtype=int))
    rows, before = [], None
    for place in places[::-1]:
        note = notes[place]
        pair = note.get("source", ""), note.get("target", "")
        given = "" if pair == before else f"<p>{esc(pair[0])}</p><p>{esc(pair[1])}</p>"
        before = pair
        step = f"{number(note.get('step')):,.0f}"
        rows.append(
            f'<tr><td class="n">{esc(step)}</td><td>{given}</td><td>{esc(note.get("prediction", ""))}</td></tr>'
        )
    title = "<tr><th>step</th><th>source and reference</th><th>translation</th></tr>"
    return f'<table class="samples"><thead>{title}</thead><tbody>{"".join(rows)}</tbody></table>'


def passport(history: History) -> str:
    """Return the dataset: sizes of each side and corpus, what was dropped, overlaps."""
    facts = history.passport
    if not facts:
        return _absent("The run does not hold the passport of its dataset.")
    try:
        return _passport(facts)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ZeroDivisionError):
        return f"<pre>{esc(json.dumps(facts, indent=2, ensure_ascii=False))}</pre>"


def _passport(facts: dict[str, Any]) -> str:
    src, tgt = facts["languages"]["src"], facts["languages"]["tgt"]
    rows, warnings = [], []
    for name, part in facts["splits"].items():
        corpora = [(", ".join(map(str, each["paths"])), each) for each in part["corpora"]]
        for label, each in [*corpora, ("together", part)] if len(corpora) > 1 else corpora:
            sizes = [f"{size / 1e6:,.1f}" for size in each["bytes"]]
            tokens = [f"{count:,}" for count in each["tokens"]]
            rows.append([name, label, f"{each['lines']:,}", f"{each['pairs']:,}", *sizes, *tokens])
        if told := overlap.in_words(facts.get("overlap"), name):
            warnings.append(told)
        elif number := part.get("overlap_with_train"):  # of a dataset of format 1
            warnings.append(f"{number:,} of {part['pairs']:,} pairs of {name} are in train too")
    titles = ["", "corpus", "lines", "kept", f"MB {src}", f"MB {tgt}", f"tokens {src}", f"tokens {tgt}"]
    lines = facts["splits"]["train"]["lines"]
    dropped = [
        [name, f"{each['pairs']:,}", f"{each['pairs'] / lines:.2%}"]
        for name, each in facts["dropped"].items()
    ]
    vocab = facts["vocab"]
    return (
        _table(titles, rows, texts=2)
        + "".join(f'<p class="bad-text">{esc(warning)}</p>' for warning in warnings)
        + f"<p>{esc(vocab['pieces'])} subwords in one vocabulary for both languages.</p>"
        + ("<h3>Dropped</h3>" + _table(["filter", "pairs", "share of train"], dropped) if dropped else "")
    )


def files(history: History) -> str:
    """Return which files a checkpoint is made of, what each is for, and how large they are."""
    if not history.checkpoints:
        told = _absent("There is no checkpoint.")
    else:
        newest = max(history.checkpoints)
        rows = [
            [file.name, PURPOSES.get(file.name, ""), size(file.bytes)] for file in history.checkpoints[newest]
        ]
        rows.append(["together", "", size(sum(file.bytes for file in history.checkpoints[newest]))])
        told = f"<h3>The newest checkpoint, step {newest:,}</h3>" + _table(
            ["file", "what it is", "size"], rows, texts=2
        )
        steps = sorted(history.checkpoints)
        listed = ", ".join(f"{step:,}" for step in steps[-NUM_CHECKPOINTS:])
        told += f"<p>On disk: {len(steps):,}, at step {listed}.</p>"
    if history.model_files:
        rows = [[file.name, PURPOSES.get(file.name, ""), size(file.bytes)] for file in history.model_files]
        rows.append(["together", "", size(sum(file.bytes for file in history.model_files))])
        told += "<h3>The best model, exported</h3>" + _table(["file", "what it is", "size"], rows, texts=2)
    return told


def recipe(history: History) -> str:
    if history.recipe is None:
        return _absent("The recipe cannot be read.")
    return f"<details><summary>all settings</summary><pre>{esc(dump_recipe(history.recipe))}</pre></details>"


def versions(history: History) -> str:
    """Return with which software and on which machines the run was made."""
    rows = [[name, version] for name, version in _items(history.facts.get("versions"))]
    rows += [[name, value] for name, value in _items(history.facts.get("machine"))]
    fingerprint = history.facts.get("fingerprint")
    rows += [["dataset", fingerprint]] if fingerprint else []
    workers = history.launches[-1].ranks if history.launches else []
    for each in sorted(workers, key=lambda each: each["rank"]):
        about = [str(each[name]) for name in ("host", "device", "precision", "interface") if each.get(name)]
        peak = number(each.get("peak_flops"))
        about += [f"{peak / 1e9:,.0f} GFLOP/s measured"] if peak > 0 else []
        rows.append([f"rank {each['rank']}", ", ".join(about)])
    return _table([], rows, texts=2) if rows else _absent("Not recorded.")


def size(count: float) -> str:
    """Return bytes as people say them."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:,.1f} {unit}"
    return f"{count:,.0f} bytes"


def quantity(name: str, value: Any) -> str:
    """Return a number of the evidence in the unit that its name calls for."""
    if not isinstance(value, float) or not math.isfinite(value):
        return tell(value)
    if "share" in name or name in ("gpu_utilisation", "average_use_of_link"):
        return f"{value:.0%}"
    if "flops" in name:
        return f"{value / 1e9:,.1f} GFLOP/s"
    if name.endswith("bytes_per_second"):
        return f"{value * 8 / 1e6:,.1f} Mbit/s"
    return f"{tell(value)} s" if name.endswith("seconds") else tell(value)


def tell(value: Any) -> str:
    """Return a number of the evidence with four digits, or any other value as text."""
    match value:
        case None:
            return "not known"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            if not math.isfinite(value):
                return "not known"
            return (f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}").replace("-", "−")
        case list() | tuple():
            return " to ".join(map(tell, value)) if len(value) == 2 else ", ".join(map(tell, value))
        case dict():
            return ", ".join(f"{_words(name)} {tell(each)}" for name, each in value.items())
    return str(value)


def run_table(rows: Iterable[tuple[str, str, History, Sequence[Answer]]]) -> str:
    """Return the runs with how they stand and what was found, one a line: (address, name, history, answers)."""
    lines = []
    for address, name, history, answers in rows:
        kind, word = ENDINGS.get(history.ending, ("unclear", history.ending))
        best = best_first({"model": line["step"], **line} for line in history.scored("dev"))
        score = f"{number(best[0]['bleu']):.2f}" if best else ""
        told = "".join(
            f'<a class="chip {tone(each.key, each.verdict)}" href="{esc(address)}#{esc(each.key)}" '
            f'title="{esc(each.question)} {esc(each.claim)}">{esc(_words(each.key[4:]))}: {esc(each.verdict)}</a>'
            for each in answers
            if each.key[:3] in COMPARED
        )
        figures = {label: value for label, value, _ in _figures(history)}
        lines.append(
            f'<tr><td><a href="{esc(address)}">{esc(name)}</a></td>'
            f'<td><span class="chip {kind}">{esc(word)}</span></td>'
            + "".join(
                f'<td class="n">{esc(figures.get(label, ""))}</td>'
                for label in ("steps", "time", "tokens a second")
            )
            + f'<td class="n">{esc(score)}</td><td>{told}</td></tr>'
        )
    titles = ("run", "", "steps", "time", "tokens/s", "best BLEU", "verdicts")
    head_row = "".join(f"<th>{title}</th>" for title in titles)
    return f'<table class="runs"><thead><tr>{head_row}</tr></thead><tbody>{"".join(lines)}</tbody></table>'


def _what(history: History) -> str:
    recipe = history.recipe
    if recipe is None:
        return ""
    ranks = [rank for launch in history.launches for rank in launch.ranks]
    parameters = next((count for rank in ranks if (count := number(rank.get("parameters"))) > 0), math.nan)
    parts = [
        f"{recipe.data.src_languages} → {recipe.data.tgt_languages}",
        f"{recipe.model.layers}+{recipe.model.layers} layers of width {recipe.model.d_model}",
        f"{parameters / 1e6:,.1f} M parameters" if parameters > 0 else "",
        f"{recipe.train.tokens_per_step:,} tokens a step",
    ]
    return esc(" · ".join(part for part in parts if part))


def _where(history: History) -> str:
    if not history.launches:
        return ""
    first, last = history.launches[0], history.launches[-1]
    hosts = {str(rank.get("host", "")) for rank in last.ranks} - {""}
    parts = [
        f"started {_moment(first.time)} UTC",
        f"{last.world} worker{'s' * (last.world > 1)} on {len(hosts)} host{'s' * (len(hosts) > 1)}"
        if hosts
        else "",
        f"{len(history.launches) - 1} restart{'s' * (len(history.launches) > 2)}"
        if len(history.launches) > 1
        else "",
    ]
    return esc(" · ".join(part for part in parts if part))


def _figures(history: History) -> list[tuple[str, str, str]]:
    """Return (name, value, in addition) of what everybody asks first."""
    found, leader = [], history.leader
    if leader is not None:
        planned = f" of {history.recipe.train.steps:,}" if history.recipe else ""
        found.append(("steps", f"{leader['step'][-1]:,.0f}", planned))
        begin = history.launches[0].time if history.launches else float(leader["time"][0])
        found.append(("time", format_duration(float(leader["time"][-1]) - begin), ""))
    dev, test = best_first({"model": x["step"], **x} for x in history.scored("dev")), history.scored("test")
    if dev:
        found.append(("best BLEU on dev", f"{number(dev[0]['bleu']):.2f}", f" at step {dev[0]['step']:,}"))
    if test:
        found.append(("BLEU on test", f"{number(test[-1]['bleu']):.2f}", ""))
    if history.evaluations:
        lowest = min(history.evaluations, key=lambda each: (math.isnan(each.dev_loss), each.dev_loss))
        found.append(("lowest dev loss", f"{lowest.dev_loss:.3f}", f" at step {lowest.step:,}"))
    if leader is not None:
        seconds = float(np.nansum(leader["seconds"]))
        if seconds > 0:
            found.append(("tokens a second", f"{np.nansum(leader['tokens']) / seconds:,.0f}", ""))
            found.append(("seconds a step", f"{np.nanmedian(leader['seconds']):.3g}", " median"))
    return found


def _table(titles: Sequence[str], rows: Sequence[Sequence[object]], texts: int = 1) -> str:
    """Return a table; all but the first ``texts`` columns are numbers."""

    def cells(row: Sequence[object], tag: str) -> str:
        kinds = ["" if place < texts else ' class="n"' for place in range(len(row))]
        return "".join(f"<{tag}{kind}>{esc(cell)}</{tag}>" for kind, cell in zip(kinds, row, strict=True))

    top = f"<thead><tr>{cells(titles, 'th')}</tr></thead>" if titles else ""
    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f"<table>{top}<tbody>{body}</tbody></table>"


def _pairs(numbers: Sequence[tuple[str, str]]) -> str:
    if not numbers:
        return ""
    told = "".join(f"<div><dt>{esc(name)}</dt><dd>{esc(value)}</dd></div>" for name, value in numbers)
    return f"<dl>{told}</dl>"


def _is_short(value: Any) -> bool:
    """Whether a piece of evidence can be read at a glance; curves and long lists are in explain.json."""
    return not isinstance(value, dict | list | tuple) or (
        len(value) <= 6 and not any(map(_is_nested, _inner(value)))
    )


def _is_nested(value: Any) -> bool:
    return isinstance(value, dict | list | tuple)


def _inner(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    return value.items() if isinstance(value, dict) else ()


def _words(name: object) -> str:
    return str(name).replace("_", " ")


def _moment(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(moment))


def _absent(why: str) -> str:
    return f'<p class="absent">{esc(why)}</p>'


TEXTS: dict[str, tuple[str, Callable[[History], str]]] = {
    "samples": ("Samples over time", samples),
    "passport": ("The dataset", passport),
    "files": ("Checkpoints and model", files),
    "problems": ("Problems", problems),
    "recipe": ("The recipe", recipe),
    "versions": ("Versions and machines", versions),
}
