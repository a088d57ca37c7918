"""The report in a real browser: drawn, true to the events, offline, safe, printable."""

import pytest

from dragoman.observe.explain import explain
from dragoman.observe.reading import read_run
from dragoman.observe.report import write_report

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>{{head}}\u2028"


def report_of(path):
    history = read_run(path)
    write_report(history, explain(history), path / "report.html")
    return history, (path / "report.html").as_uri()


def test_all_charts_are_drawn_offline_and_hold_the_events(tab, tmp_path, make_run):
    history, address = report_of(make_run(tmp_path / "run", steps=120))
    tab.page.context.set_offline(True)
    tab.open(address)
    assert tab.page.locator("#charts figure .plot .main-svg").count() >= 7
    assert tab.page.locator("#charts .absent:visible").count() == 0
    dev = {each.step: pytest.approx(each.dev_loss, rel=1e-5) for each in history.evaluations}
    assert tab.curve("losses", "dev") == dev
    leader = history.leader
    rates = dict(zip(leader["step"], (pytest.approx(rate, rel=1e-5) for rate in leader["lr"]), strict=True))
    assert tab.curve("rate", "measured") == rates == tab.curve("rate", "formula")
    assert tab.curve("bleu", "dev") == {
        x["step"]: pytest.approx(x["bleu"], rel=1e-5) for x in history.scored("dev")
    }
    words = tab.page.locator(".verdicts .verdict").all_inner_texts()
    assert words == [answer.verdict for answer in explain(history)]
    marks = tab.page.evaluate(
        "document.querySelector('#chart-speed .plot').layout.shapes.map((each) => each.name)"
    )
    assert marks.count("restart") == 1
    assert marks.count("evaluation") == len(history.evaluations)


def test_charts_stay_within_their_frames(tab, tmp_path, make_run):
    _, address = report_of(make_run(tmp_path / "run", steps=60))
    tab.page.set_viewport_size({"width": 1360, "height": 900})
    tab.open(address)
    wider = "[...document.querySelectorAll('.plot')].filter((each) => each.scrollWidth > each.clientWidth + 1).length"
    assert tab.page.evaluate(wider) == 0


def test_words_of_a_run_are_only_shown(tab, tmp_path, make_run):
    path = make_run(tmp_path / HOSTILE.replace("/", "∕"), steps=60, text=HOSTILE, hosts=("a" + HOSTILE, "b"))
    _, address = report_of(path)
    tab.open(address)
    assert HOSTILE.replace("/", "∕") == tab.page.locator("h1").inner_text()
    assert HOSTILE.strip() in tab.page.locator("#samples").inner_text()
    assert tab.page.evaluate("document.querySelectorAll('img').length") == 0
    assert HOSTILE.strip()[:30] in tab.page.locator("#chart-devices").text_content()


def test_zooming_one_chart_zooms_those_over_the_same_axis(tab, tmp_path, make_run):
    _, address = report_of(make_run(tmp_path / "run", steps=60))
    tab.open(address)
    tab.page.evaluate(
        "Plotly.relayout(document.querySelector('#chart-losses .plot'), {'xaxis.range': [10, 20]})"
    )
    tab.wait("document.querySelector('#chart-bleu .plot').layout.xaxis.range[1] === 20")
    assert tab.page.evaluate("document.querySelector('#chart-speed .plot').layout.xaxis.autorange") is True


def test_it_prints_with_its_charts(tab, tmp_path, make_run):
    _, address = report_of(make_run(tmp_path / "run", steps=60))
    tab.open(address)
    tab.page.evaluate(
        """window.addEventListener("beforeprint", () => (window.printed =
             [...document.querySelectorAll(".plot")].map((plot) => plot.layout.width)))"""
    )
    pdf = tab.page.pdf(prefer_css_page_size=True)
    assert pdf.startswith(b"%PDF")
    assert pdf.count(b"/Type /Page\n") >= 3
    assert set(tab.page.evaluate("window.printed")) == {660}
    fits = "[...document.querySelectorAll('.plot')].every((plot) => plot.layout.width === plot.clientWidth)"
    tab.wait(fits)  # on the screen again
    tab.page.set_viewport_size({"width": 500, "height": 900})
    tab.wait(fits)
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 500


def test_a_run_without_evidence_says_so(tab, tmp_path):
    (tmp_path / "events").mkdir()
    history = read_run(tmp_path)
    write_report(history, explain(history), tmp_path / "report.html")
    tab.open((tmp_path / "report.html").as_uri())
    assert tab.page.locator("#charts .absent:visible").count() == 7
    assert set(tab.page.locator(".verdicts .verdict").all_inner_texts()) <= {"no", "unclear"}
