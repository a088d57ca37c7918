"""What many unit tests need: a recipe in one line, one thread, and the same hypotheses every time."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import settings

from dragoman.config import Recipe
from dragoman.recipe import parse_recipe

settings.register_profile("dragoman", deadline=None, database=None, derandomize=True)
settings.load_profile("dragoman")
# Tiny tensors gain nothing from threads, and where others work too they wait for each other.
torch.set_num_threads(1)

SHORTEST_RECIPE = """
[data]
train = "builtin"
dev = "builtin"
[train]
steps = 1000
tokens_per_step = 4096
"""


@pytest.fixture
def recipe_with() -> Callable[..., Recipe]:
    """Return a function from overrides, as given to ``--set``, to a recipe."""
    return lambda *overrides: parse_recipe(SHORTEST_RECIPE, "test.toml", overrides)
