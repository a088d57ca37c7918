"""The report of a run: one HTML file that opens from disk, needs no network, and prints.

A ``View`` is the page as data: text already escaped, figures as JSON. ``write_report`` puts it into a file together
with plotly; ``serve/live.py`` sends it to a page that is open, and draws it with the same script.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from dragoman.files import write_text
from dragoman.observe.explain import Answer
from dragoman.observe.history import History
from dragoman.observe.report import sections
from dragoman.observe.report.charts import charts_of
from dragoman.observe.report.figures import Chart
from dragoman.observe.report.sections import Section, esc

# A page that came from a file talks to nobody, and runs no script but ours, whatever a run has put into it.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True)
class View:
    """A page: its head, its sections in order, its charts."""

    title: str
    head: str
    sections: list[Section]
    charts: dict[str, Chart]

    def to_json(self) -> dict[str, Any]:
        """Return what changes while a run goes on."""
        return {
            "title": self.title,
            "html": {"head": self.head, **{each.name: each.html for each in self.sections if each.html}},
            "charts": {name: chart.to_json() for name, chart in self.charts.items()},
        }


def view(history: History, answers: Sequence[Answer]) -> View:
    """Return the page of one run: the verdicts first, then the charts, then all else."""
    return View(
        title=history.path.resolve().name,
        head=sections.head(history),
        sections=[
            Section("verdicts", "Twelve questions", sections.verdicts(answers)),
            Section("charts", "Charts", ""),
            *(Section(name, title, make(history)) for name, (title, make) in sections.TEXTS.items()),
        ],
        charts=charts_of(history),
    )


def write_report(history: History, answers: Sequence[Answer], path: Path) -> None:
    """Write the report of a run to ``path``, whole or not at all."""
    write_page(view(history, answers), path)


def write_page(shown: View, path: Path) -> None:
    """Write a page to a file that opens from disk and talks to nobody."""
    scripts = [plotly_script(), resource("page.js")]
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    data = f'<script type="application/json" id="data">{script_safe(shown.to_json())}</script>'
    tags = data + "".join(f"<script>{script}</script>" for script in scripts)
    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}; script-src {hashes}">'
    write_text(path, render(shown, meta=policy, scripts=tags))


def render(shown: View, *, meta: str, scripts: str, live: str = "") -> str:
    """Return the HTML of a page, with ``meta`` in its head and ``scripts`` at its end.

    ``live`` is the address where the page asks for news.
    """
    links = "".join(f'<a href="#{esc(each.name)}">{esc(each.title)}</a>' for each in shown.sections)
    parts = {
        "meta": meta,
        "title": esc(shown.title),
        "live": esc(live),
        "style": resource("page.css"),
        "head": shown.head,
        "links": links,
        "sections": "".join(map(_section, shown.sections)),
        "scripts": scripts,
    }
    page = resource("page.html")
    # One pass over the template: what a run says is never taken for a place to fill.
    first, *rest = page.split("{{")
    return first + "".join(parts[name] + text for name, text in (each.split("}}", 1) for each in rest))


def script_safe(value: object) -> str:
    """Return JSON that cannot end the script element it stands in."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


@cache
def resource(name: str) -> str:
    """Return a file of this package."""
    return (files(__name__) / name).read_text(encoding="utf-8")


@cache
def plotly_script() -> str:
    """Return plotly.js, which the plotly package carries."""
    return (files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")


def _section(section: Section) -> str:
    body = f'<div id="{esc(section.name)}-body">{section.html}</div>'
    return f'<section id="{esc(section.name)}"><h2>{esc(section.title)}</h2>{body}</section>'


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
