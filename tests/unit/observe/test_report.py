"""The report: curves are thinned without losing extremes, words of a run stay words, and it is written whole."""

import json
import math

import numpy as np
import pytest

from dragoman.errors import UserError
from dragoman.observe.explain import Answer, explain
from dragoman.observe.history import History
from dragoman.observe.reading import read_run
from dragoman.observe.report import script_safe, view, write_report
from dragoman.observe.report.charts import compare
from dragoman.observe.report.figures import NUM_POINTS, plain, thin
from dragoman.observe.report.sections import quantity, tell, tone, verdicts
from dragoman.rundir import RunDir
from dragoman.train import command

HOSTILE = "</script><script>alert(1)</script>"


def test_a_thinned_curve_keeps_its_extremes_its_ends_and_its_gaps():
    x = np.arange(300_000.0)
    y = np.sin(x / 9000)
    y[[123_456, 200_001]] = 50, -50
    y[100_000:150_000][:2_000] = math.nan
    few_x, few_y = thin(x, y)
    assert len(few_x) <= NUM_POINTS
    assert (few_x[0], few_x[-1]) == (0, 299_999)
    assert few_x[np.nanargmax(few_y)] == 123_456
    assert few_x[np.nanargmin(few_y)] == 200_001
    assert np.isnan(few_y).any()
    assert (np.diff(few_x) > 0).all()


def test_a_short_curve_is_left_as_it_is():
    x = np.arange(5.0)
    assert thin(x, x)[1] is x


def test_what_is_no_number_is_none():
    assert plain([1.23456789, math.nan, math.inf, -2]) == [1.23457, None, None, -2.0]


def test_json_cannot_end_its_script():
    value = {"a": HOSTILE + "<!-- \u2028 &"}
    assert "<" not in script_safe(value)
    assert json.loads(script_safe(value)) == value


def test_every_word_of_a_run_is_escaped(tmp_path, make_run):
    path = make_run(tmp_path / "run", steps=30, ranks=2, text=HOSTILE, hosts=("a", "b" + HOSTILE))
    history = read_run(path)
    answers = [Answer("q02_trained", HOSTILE, HOSTILE, "yes", HOSTILE, {HOSTILE: HOSTILE}, 0.9, [HOSTILE])]
    write_report(history, answers, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text("utf-8")
    assert "<script>alert" not in text
    assert text.count("&lt;script&gt;alert(1)") >= 8
    assert text.count("<script") == 3  # the data, plotly, ours


@pytest.mark.parametrize(
    ("key", "verdict", "expected"),
    [
        ("q02_trained", "yes", "good"), ("q02_trained", "no", "bad"), ("q05_network", "yes", "bad"),
        ("q05_network", "no", "good"), ("q12_next", "yes", "info"), ("q03_overfitting", "unclear", "unclear"),
    ],
)  # fmt: skip
def test_a_verdict_has_the_colour_of_its_news(key, verdict, expected):
    assert tone(key, verdict) == expected
    answer = Answer(key, "Q?", "it is so", verdict, "since", {}, 0.9, [])
    assert f'class="{expected}"' in verdicts([answer])
    assert f">{verdict}<" in verdicts([answer])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1234567, "1,234,567"),
        (0.012344, "0.01234"),
        (-3.5, "−3.5"),
        ([1.5, 2.5], "1.5 to 2.5"),
        (None, "not known"),
    ],
)
def test_numbers_are_told_for_people(value, expected):
    assert tell(value) == expected


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("cpu_share", 0.7956, "80%"),
        ("peak_flops", 7.1e10, "71.0 GFLOP/s"),
        ("link_bytes_per_second", 1.25e7, "100.0 Mbit/s"),
        ("step_seconds", 1.5, "1.5 s"),
        ("steps", 2400, "2,400"),
        ("cpu_share", None, "not known"),
    ],
)
def test_a_number_has_the_unit_that_its_name_calls_for(name, value, expected):
    assert quantity(name, value) == expected


def test_a_history_of_nothing_has_a_page(tmp_path):
    shown = view(History(tmp_path), [])
    assert all(chart.absent for chart in shown.charts.values())
    json.dumps(shown.to_json(), allow_nan=False)


def test_many_ranks_are_drawn_by_the_busiest(tmp_path, make_run):
    history = read_run(make_run(tmp_path / "run", steps=10, ranks=12))
    chart = view(history, []).charts["split"]
    assert len({trace["stackgroup"] for trace in chart.traces}) == 8
    assert "Of 12 ranks, the 8 with the most work are shown." in chart.note


def test_runs_are_laid_over_each_other(tmp_path, make_run):
    runs = {name: read_run(make_run(tmp_path / name, steps=40, ranks=1)) for name in ("a", "b")}
    charts = compare(runs)
    assert [trace["name"] for trace in charts["losses"].traces] == ["a", "b"]
    assert charts["bleu"].traces[0]["y"] == pytest.approx(
        [x["bleu"] for x in runs["a"].scored("dev")], rel=1e-5
    )


def test_a_run_ends_with_report_and_explanation_also_when_it_fails(tmp_path, make_run, capsys):
    run = RunDir(make_run(tmp_path / "run", steps=20, ranks=1))
    with pytest.raises(UserError, match="no"), command.explained(run, quiet=False):
        raise UserError("no", where="here", fix="that")
    assert (
        json.loads(run.explanation.read_text("utf-8"))["q01_duration"]["verdict"]
        == explain(read_run(run.path))[0].verdict
    )
    assert run.report.read_text("utf-8").startswith("<!DOCTYPE html>")
    assert f"the report is in {run.report}\n" in capsys.readouterr().out


def test_a_report_that_cannot_be_written_is_a_warning(tmp_path, make_run, capsys):
    run = RunDir(make_run(tmp_path / "run", steps=20, ranks=1))
    run.report.mkdir()
    assert command.conclude(run) is False
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith(f"warning: no report was written to {run.report}: ")


def test_only_the_host_that_led_writes(tmp_path, make_run):
    run = RunDir(make_run(tmp_path / "run", steps=20, ranks=2))
    assert command.conclude(run, led_by="bert") is False
    assert not run.report.exists()
    assert command.conclude(run, led_by="anna") is True
