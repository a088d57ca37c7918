"""Documents that say what the code says."""

import re
from pathlib import Path

import pytest

from dragoman.cli import COMMANDS
from dragoman.commands.data import COMMANDS as DATA_COMMANDS
from dragoman.recipe import built_in_recipes, reference

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_reference_of_settings_is_current():
    assert (ROOT / "docs" / "config.md").read_text("utf-8") == reference(), "run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_commands_in_the_readme_exist():
    text = (ROOT / "README.md").read_text("utf-8")
    lines = re.findall(r"^dragoman .*$", text, re.MULTILINE)
    used = {re.match(r"dragoman (?:data )?([a-z]+)", line)[1] for line in lines}
    assert used
    assert used <= {*COMMANDS, *DATA_COMMANDS, "lab"}


@pytest.mark.parametrize("name", built_in_recipes())
def test_every_setting_of_a_recipe_is_explained(name):
    for line in built_in_recipes()[name].splitlines():
        if "=" in line and not line.startswith("#"):
            assert "  # " in line, line
