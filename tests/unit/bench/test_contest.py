"""What the benchmark of training counts: the steps that peers tell of, and the figures made of them."""

from datetime import datetime
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[3] / "bench"


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    return import_module("peers")


@pytest.fixture
def contest(peers: ModuleType) -> ModuleType:
    return import_module("contest")


@pytest.mark.parametrize(
    "middle",
    [
        "acc: 0.0; ppl: 7923.95; xent: 8.98; aux: 0.000; mtp: 0.000; attn_ent: 0.000; lr: 7.50e-06; sents:      67;",
        "acc: 0.1; ppl: 8402.7; xent: 9.0; lr: 0.00000; sents:     206;",
    ],
    ids=["eole", "opennmt"],
)
def test_steps_are_read_from_the_log_of_eole_and_opennmt(peers: ModuleType, middle: str) -> None:
    log = (
        "  with torch.cuda.amp.autocast(enabled=self.optim.amp):\n"
        "[2026-11-16 11:36:17,229 INFO] Start training loop without validation...\n"
        f"[2026-11-16 11:36:25,820 INFO] Step  1/    6; {middle} bsz: 1474/1895/134; 172/221 tok/s;      9 sec;\n"
        f"[2026-11-16 11:36:31,181 INFO] Step  2/    6; {middle} bsz:  929/ 830/93; 279/299 tok/s;     14 sec;\n"
        "[2026-11-16 11:36:32,000 INFO] Step  3/    6; acc: 0.0; pp"  # still being written
    )
    first, second = peers.parse_log(log)
    assert (first.tokens, second.tokens) == (1895, 830)
    assert second.time - first.time == pytest.approx(5.361)
    assert first.time == datetime(2026, 11, 16, 11, 36, 25, 820000).timestamp()


def test_a_step_of_several_workers_ends_with_the_last_of_them(peers: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "steps-000.jsonl").write_text('{"time": 10.0, "tokens": 5}\n{"time": 12.0, "tokens": 6}\n')
    (tmp_path / "steps-001.jsonl").write_text('{"time": 10.5, "tokens": 7}\n{"time": 12')
    peer = peers.HuggingFace(tmp_path)
    assert peer.steps(tmp_path) == [peers.Step(10.5, 12)]


def test_the_limit_of_a_batch_gives_the_tokens_asked_for(peers: ModuleType, tmp_path: Path) -> None:
    lengths = [(3 + number % 17, 2 + number % 13) for number in range(3000)]
    for side, name in enumerate(("src", "tgt")):
        (tmp_path / name).write_text("".join("a " * pair[side] + "\n" for pair in lengths))
    training = peers.Training(peers.SHAPES["small"], tmp_path, steps=1, tokens=500)
    limit = peers.Eole(tmp_path).budget(training)
    pairs = sorted((src, tgt + 2) for src, tgt in lengths)
    batches = peers.count_batches(pairs, limit)
    assert sum(tgt + 1 for _, tgt in lengths) / batches == pytest.approx(500, rel=0.03)


def test_figures_leave_out_warm_up_and_count_processor_time(contest: ModuleType, peers: ModuleType) -> None:
    steps = [peers.Step(time, tokens) for time, tokens in ((20.0, 9), (22.0, 9), (24.0, 100), (27.0, 200))]
    samples = [
        contest.Sample(10.0, 0.0, 100.0, 80.0),
        contest.Sample(20.0, 5.0, 300.0, 200.0),
        contest.Sample(30.0, 10.0, 900.0, 900.0),  # after the last step
    ]
    found = contest.figures(steps, samples, started=10.0, warm_steps=2)
    assert found.tokens_per_second == pytest.approx(300 / 5)
    assert found.tokens_per_cpu_second == pytest.approx(300 / 2.5)
    assert (found.first_step_seconds, found.tokens_per_step, found.step_seconds) == (10.0, 150, 2.5)
    assert (found.peak_mb, found.largest_mb) == (300.0, 200.0)
