"""What is installed for which use: translating needs the base alone, and what is missing is said."""

import json
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dragoman.cli import EXTRAS
from dragoman.decode.export import export_model
from tests.unit.decode.conftest import make_recipe, make_run, prepare

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
OWNERS = {
    module: {canonicalize_name(name) for name in names} for module, names in packages_distributions().items()
}

# Lets our own package and the allowed modules in, nothing else that is installed; then says what came in.
PROGRAM = """
import json, sys
allowed, installed, command = json.loads(sys.argv[1])

class Gate:
    def find_spec(self, name, path=None, target=None):
        if name in installed and name not in allowed:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Gate())
sys.argv = ["dragoman", *command]
from dragoman.cli import main
try:
    main()
finally:
    print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules} & set(installed))), file=sys.stderr)
"""


def names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(each).name) for each in requirements}


def with_theirs(distributions: set[str]) -> set[str]:
    """Return the distributions and all that they require."""
    found, todo = set(), set(distributions)
    while todo:
        name = todo.pop()
        found.add(name)
        needed = [Requirement(each) for each in requires(name) or []]
        todo |= {
            canonicalize_name(r.name) for r in needed if not r.marker or r.marker.evaluate({"extra": ""})
        } - found
    return found


def run(command: list[str], allowed_distributions: set[str]) -> subprocess.CompletedProcess[str]:
    """Run a command where only some distributions are there."""
    third = {module: owners for module, owners in OWNERS.items() if owners != {"dragoman"}}
    allowed = [module for module, owners in third.items() if owners & allowed_distributions]
    told = json.dumps([allowed, list(third), command])
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, told], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("packaging")
    recipe = make_recipe(path / "text")
    toy = make_run(path / "run", recipe, prepare(recipe, workers=0, progress=False))
    return export_model(
        [toy.save(1)], recipe, toy.dataset.tokenizer_path, path / "model", quantization="int8"
    )


def test_the_base_is_what_translating_and_scoring_need(model):
    base = names(PROJECT["dependencies"])
    text = str(model.parent / "text" / "dev.en")
    used = set()
    for command in (["translate", str(model), text], ["evaluate", str(model), "--src", text, "--ref", text]):
        done = run(command, with_theirs(base))
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("\n") >= 3
        used |= set(json.loads(done.stderr.splitlines()[-1]))
    # Nothing is listed for nothing.
    assert base <= {owner for module in used for owner in OWNERS[module]}


def test_what_is_missing_is_named_with_the_extra_that_brings_it(model):
    done = run(["demo"], with_theirs(names(PROJECT["dependencies"])))
    assert done.returncode == 2
    assert "which is not installed" in done.stderr
    assert "fix:   pip install 'dragoman[train]'" in done.stderr


def test_every_module_of_an_extra_is_known_to_the_command_line():
    for extra, modules in EXTRAS.items():
        listed = names(PROJECT["optional-dependencies"][extra]) - {"dragoman"}
        assert {owner for module in modules for owner in OWNERS[module]} >= listed
