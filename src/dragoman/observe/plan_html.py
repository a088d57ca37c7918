"""The page of a plan as one HTML file: what the terminal says, and scaling as charts that can be looked into."""

import html
import io
from pathlib import Path

from rich.console import Console

from dragoman.observe.plan import Forecast
from dragoman.observe.plan_page import PAGE_COLUMNS, page, short, title

STYLE = "body{font-family:sans-serif;max-width:70rem;margin:2rem auto}pre{overflow-x:auto;font-size:.8rem}"


def write_html(forecast: Forecast, path: Path) -> None:
    """Write the page; it opens from disk, without a network."""
    import plotly.graph_objects as graph
    from plotly.io import to_html

    devices = [rung.devices for rung in forecast.ladder]
    charts: list[str] = []
    for name, attribute in (("tokens per second", "tokens_per_second"), ("hours", "hours"), ("cost", "cost")):
        if attribute == "cost" and forecast.price is None:
            continue
        lines = [
            graph.Scatter(
                x=devices,
                y=[getattr(rung.outlooks[mode], attribute) for rung in forecast.ladder],
                name=short(outlook.timing.mode),
                mode="lines+markers",
            )
            for mode, outlook in forecast.ladder[0].outlooks.items()
        ]
        axes = {
            "xaxis": {"type": "log", "title": {"text": "devices"}, "tickvals": devices},
            "yaxis": {"type": "log", "title": {"text": name}},
        }
        figure = graph.Figure(
            lines, {"title": {"text": f"{name} by mode"}, "template": "plotly_white", **axes}
        )
        charts.append(to_html(figure, full_html=False, include_plotlyjs=not charts))
    console = Console(file=io.StringIO(), record=True, width=PAGE_COLUMNS)
    console.print(page(forecast), markup=False)
    heading = html.escape(title(forecast))
    path.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{heading}</title><style>{STYLE}</style>'
        f"<pre>{html.escape(console.export_text())}</pre>{''.join(charts)}</html>\n",
        encoding="utf-8",
    )
