"""Promise 1: one recipe, any number of workers, the same losses, dropout included."""

import pytest

from dragoman.observe.events import read_events
from tests.integration.conftest import step_losses

STEPS = (
    "--set",
    "train.steps=50",
    "--set",
    "evaluate.every_steps=100",
    "--set",
    "checkpoint.every_steps=100",
)


@pytest.fixture(scope="module")
def single(tmp_path_factory, datasets):
    from tests.integration.conftest import TOY, Toy

    path = tmp_path_factory.mktemp("single")
    (path / "toy.toml").write_text(TOY.format(datasets=datasets))
    return step_losses(Toy(path).train("run", *STEPS, workers=1))


@pytest.mark.parametrize("workers", [2, 3])
def test_any_number_of_workers_gives_the_same_losses(toy, single, workers):
    losses = step_losses(toy.train("run", *STEPS, workers=workers))
    assert list(losses) == list(range(1, 51))
    assert losses == pytest.approx(single, rel=1e-4)


def test_the_same_number_of_workers_gives_the_same_bits(toy):
    first, second = (step_losses(toy.train(name, *STEPS, workers=3)) for name in ("a", "b"))
    assert first == second


def test_more_workers_than_micro_batches_still_agree(toy, single):
    # One micro-batch a step leaves two workers idle.
    one = ("--set", "train.micro_batch_tokens=600")
    alone = step_losses(toy.train("alone", *STEPS, *one, workers=1))
    crowd = step_losses(toy.train("crowd", *STEPS, *one, workers=3))
    assert crowd == pytest.approx(alone, rel=1e-4)
    assert crowd != pytest.approx(single, rel=1e-4)  # other micro-batches, other dropout: the test can see it


def test_dropout_and_optimizers_do_not_break_the_agreement(toy):
    muon = ("--set", "optimizer.name=muon", "--set", "train.average=ema", *STEPS)
    alone, pair = (step_losses(toy.train(f"run{n}", *muon, workers=n)) for n in (1, 2))
    assert pair == pytest.approx(alone, rel=1e-4)


def test_half_precision_on_a_cpu_keeps_the_agreement(toy):
    # Rounding to 8 bits turns a difference in the last place of a float32 sum into a larger one, now and then.
    half = ("--set", "train.precision=bf16", *STEPS)
    alone, pair, again = (step_losses(toy.train(f"run{n}", *half, workers=min(n, 2))) for n in (1, 2, 3))
    assert pair == pytest.approx(alone, rel=1e-3)
    assert pair == again


def test_dropout_of_subwords_is_the_same_for_all_and_after_a_restart(toy):
    def trained(run, workers, steps):
        path = toy.train(run, "--set", "vocab.dropout=0.2", "--set", f"train.steps={steps}", workers=workers)
        return step_losses(path), [line["tokens"] for line in read_events(path.events(0), "step")]

    alone, counted = trained("alone", 1, 24)  # into the second epoch
    trained("pair", 2, 12)
    pair, counted_by_two = trained("pair", 2, 24)
    assert pair == pytest.approx(alone, rel=1e-4)
    assert counted_by_two == counted
    assert sum(counted) > 24 * 600 * 1.1  # more tokens than were planned
