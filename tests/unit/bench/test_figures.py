"""What the benchmarks make of what they measured: changes, marks in time, efficiencies."""

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCH = Path(__file__).parents[3] / "bench"
PARTS = ("gemm",)  # started by other scripts


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return import_module


@pytest.mark.parametrize("path", sorted(BENCH.glob("*.py")), ids=lambda path: path.stem)
def test_every_script_takes_quick_and_json(path: Path) -> None:
    text = path.read_text("utf-8")
    if "parse_args()" in text and path.stem not in PARTS:
        own = '"--quick", action="store_true"' in text and '"--json", type=Path' in text
        assert own or "options(__doc__, quick=" in text


def test_the_change_since_the_figures_that_were_kept(load: Any, capsys: pytest.CaptureFixture[str]) -> None:
    quick: ModuleType = load("quick")
    last = {"ratios": {"a": 1.0, "b": 2.0, "gone": 1.5}, "date": "2026-01-01", "commit": "abc", "cores": 2,
            "machine": "x86_64", "load_before": 0.1}  # fmt: skip
    quick.show({"a": 1.05, "b": 1.0, "c": 3.0}, last)
    lines = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines() if line}
    assert lines["a"] == ["1.05", "1.00", "+5%"]
    assert lines["b"] == ["1.00", "2.00", "-50%", "?"]
    assert lines["c"] == ["3.00", "–", "new"]
    assert lines["gone"] == ["–", "1.50"]


def test_at_each_mark_stands_the_best_on_val_of_what_was_known(load: Any) -> None:
    module: ModuleType = load("time_to_quality")
    points = [
        module.Point(5.0, 100, 10.0, Path("a")),
        module.Point(15.0, 200, 30.0, Path("b")),
        module.Point(25.0, 300, 29.0, Path("c")),
        module.Point(61.0, 400, 40.0, Path("late")),
    ]
    found = {"bleu": 1.0, "ci95": [0.5, 1.5], "signature": "s"}
    asked: list[Path] = []
    rows = module.at_marks(points, 60, lambda model: asked.append(model) or found)
    assert [(row["minutes"], row["step"], row["val_bleu"]) for row in rows] == [
        (10, 100, 10.0), (20, 200, 30.0), (30, 200, 30.0), (60, 200, 30.0),
    ]  # fmt: skip
    assert Path("late") not in asked


def test_efficiency_is_over_the_contestants_own_single_worker_of_the_same_round(load: Any) -> None:
    scaling: ModuleType = load("scaling")
    two = [{"tokens_per_second": speed, "step_seconds": 1.0} for speed in (150, 300, 90)]
    one = [{"tokens_per_second": speed} for speed in (100, 150, 100)]
    plain = [{"tokens_per_second": speed} for speed in (100, 100, 100)]
    row = scaling.make_row("100mbit", scaling.OURS, two, one, plain)
    assert row["efficiencies"] == [0.75, 1.0, 0.45]
    assert (row["efficiency"], row["times_plain"], row["tokens_per_second"]) == (0.75, 1.5, 150)
    single = scaling.make_row(scaling.ONE, scaling.OURS, two, two, plain)
    assert single["efficiency"] == 1.0
