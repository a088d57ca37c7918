import math

import pytest

from dragoman.config import Recipe
from dragoman.train.schedules import SCHEDULES, describe, learning_rate


def rates(recipe: Recipe) -> list[float]:
    """Return the rate of every step; the index is the step, and there is no step 0."""
    return [math.nan, *(learning_rate(step, recipe) for step in range(1, recipe.train.steps + 1))]


def test_there_is_a_schedule_for_every_name(recipe_with):
    names = type(recipe_with().schedule).model_fields["name"].annotation.__args__
    assert set(SCHEDULES) == set(names)


def test_noam_is_the_formula_of_the_paper(recipe_with):
    recipe = recipe_with("schedule.warmup_steps=200", "schedule.learning_rate=2.0", "model.d_model=512")
    found = rates(recipe)
    for step in (1, 100, 200, 201, 1000):
        assert found[step] == pytest.approx(2.0 * 512**-0.5 * min(step**-0.5, step * 200**-1.5))
    assert max(found[1:]) == found[200]


def test_inverse_sqrt(recipe_with):
    recipe = recipe_with(
        "schedule.name=inverse_sqrt", "schedule.learning_rate=0.1", "schedule.warmup_steps=100"
    )
    found = rates(recipe)
    assert found[1] == pytest.approx(0.001)
    assert found[100] == pytest.approx(0.1)
    assert found[400] == pytest.approx(0.05)


def test_cosine(recipe_with):
    recipe = recipe_with(
        "schedule.name=cosine",
        "schedule.learning_rate=0.1",
        "schedule.warmup_steps=100",
        "schedule.final_ratio=0.2",
    )
    found = rates(recipe)
    assert found[50] == pytest.approx(0.05)
    assert found[100] == pytest.approx(0.1)
    assert found[550] == pytest.approx(0.06)  # half-way between 0.1 and 0.02
    assert found[1000] == pytest.approx(0.02)
    assert learning_rate(2000, recipe) == pytest.approx(0.02)


def test_linear_rises_stays_and_falls(recipe_with):
    recipe = recipe_with(
        "schedule.name=linear",
        "schedule.learning_rate=0.1",
        "schedule.warmup_steps=100",
        "schedule.decay_steps=200",
        "schedule.final_ratio=0.5",
    )
    found = rates(recipe)
    assert found[25] == pytest.approx(0.025)
    assert found[100:802] == pytest.approx([0.1] * 702)
    assert found[901] == pytest.approx(0.075)
    assert found[1000] == pytest.approx(0.05 + 0.05 / 200)  # the last step still learns
    assert learning_rate(2000, recipe) == pytest.approx(0.05)


def test_constant(recipe_with):
    recipe = recipe_with("schedule.name=constant", "schedule.learning_rate=0.1", "schedule.warmup_steps=10")
    found = rates(recipe)
    assert found[5] == pytest.approx(0.05)
    assert found[10:] == pytest.approx([0.1] * 991)


@pytest.mark.parametrize("name", SCHEDULES)
def test_without_warm_up_the_first_step_is_at_the_peak(recipe_with, name):
    recipe = recipe_with(f"schedule.name={name}", "schedule.learning_rate=0.1", "schedule.warmup_steps=0")
    found = rates(recipe)
    assert max(found[1:]) == found[1]
    assert found[1] == pytest.approx(0.1 if name != "noam" else 0.1 * 512**-0.5, rel=0.002)
    assert all(0 <= rate <= found[1] for rate in found[1:])


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_run_of_one_step(recipe_with, name):
    assert 0 <= learning_rate(1, recipe_with(f"schedule.name={name}", "train.steps=1")) <= 2


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (
            ["train.steps=40000", "schedule.warmup_steps=8000"],
            "noam: 2.0 · 512^-0.5 · min(step^-0.5, step · 8000^-1.5), peak 9.88e-04 at step 8,000",
        ),
        (
            ["schedule.warmup_steps=4000"],
            "noam: 2.0 · 512^-0.5 · min(step^-0.5, step · 4000^-1.5), peak 3.49e-04 at step 1,000 "
            "(the run ends during the warm-up)",
        ),
        (
            ["schedule.name=inverse_sqrt", "schedule.learning_rate=0.0005"],
            "inverse_sqrt: 0.0005 · min(step / 100, sqrt(100 / step)), peak 5.00e-04 at step 100",
        ),
        (
            ["schedule.name=cosine", "schedule.learning_rate=0.001", "schedule.final_ratio=0.1"],
            "cosine: 0.001 · step / 100, then a cosine from 0.001 to 0.0001 at step 1000, "
            "peak 1.00e-03 at step 100",
        ),
        (
            ["schedule.name=linear", "schedule.learning_rate=0.003", "schedule.decay_steps=300"],
            "linear: 0.003 · step / 100, then 0.003, then a line to 0 over the last 300 steps, "
            "peak 3.00e-03 at step 100",
        ),
        (
            ["schedule.name=constant", "schedule.learning_rate=0.01", "schedule.warmup_steps=0"],
            "constant: 0.01 · min(step / 1, 1), peak 1.00e-02 at step 1",
        ),
    ],
)
def test_describe_gives_the_formula_with_the_numbers(recipe_with, overrides, text):
    assert describe(recipe_with(*overrides)) == text
