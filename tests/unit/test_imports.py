"""The shape of the package: imports point down, only cluster/ knows torch.distributed, not all need torch."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import dragoman

ROOT = Path(dragoman.__file__).parent
# The layout in docs/tour.md, lowest first. The longest name that fits a module gives its level.
LEVELS = [
    ["", "errors", "files", "machine", "rundir"],
    ["settings", "corpus", "config", "recipe", "data.catalogue", "data.formats", "data.text"],
    ["data", "model", "cluster", "observe.events"],
    ["train", "decode", "observe"],
    [
        "train.loop",
        "train.run",
        "train.command",
        "train.agent",
        "observe.explain",
        "observe.report",
        "observe.watch",
        "serve",
    ],
    ["commands", "cli", "demo", "__main__"],
]
WITHOUT_TORCH = [
    "config",
    "recipe",
    "data",
    "observe",
    "serve",
    "decode.card",
    "decode.comet",
    "decode.compare",
    "decode.compare_page",
    "decode.confidence",
    "decode.document",
    "decode.evaluate",
    "decode.huggingface",
    "decode.prompt",
    "decode.score",
    "decode.stream",
    "decode.translator",
    "cluster.diagnosis",
    "cluster.estimate",
    "cluster.timeline",
    "cluster.lab",
    "cluster.receive",
    "cluster.send",
    "cluster.watchdog",
    "model.flops",
    "model.weights",
    "train.start",
    "train.schedules",
    "cli",
    "commands",
]
WITH_TORCH = ["data.batches"]


def is_within(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


def source_files() -> dict[str, Path]:
    """Return the modules of the package by their name below ``dragoman``."""
    paths = {path.relative_to(ROOT).with_suffix(""): path for path in ROOT.rglob("*.py")}
    return {".".join(name.parts).removesuffix("__init__").rstrip("."): path for name, path in paths.items()}


MODULES = source_files()


def level(module: str) -> int:
    fits = {name: number for number, names in enumerate(LEVELS) for name in names if is_within(module, name)}
    assert fits, f"dragoman.{module} has no level: add it to LEVELS and to docs/tour.md"
    return fits[max(fits, key=len)]


def imports(module: str) -> Iterator[str]:
    """Yield the modules of ours that ``module`` imports, inside functions too."""
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"dragoman.{module} has a relative import"
            # What is imported may be a module of a package, or a name in a module.
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if is_within(name, "dragoman"):
                inner = name.removeprefix("dragoman").removeprefix(".")
                yield inner if inner in MODULES else inner.rpartition(".")[0]


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down(module):
    for imported in imports(module):
        assert level(imported) <= level(module), (
            f"dragoman.{module} imports dragoman.{imported}, which is above it"
        )


def test_imports_make_no_circle():
    TopologicalSorter({module: set(imports(module)) - {""} for module in MODULES}).prepare()


@pytest.mark.parametrize("module", [module for module in MODULES if not is_within(module, "cluster")])
def test_only_the_cluster_knows_torch_distributed(module):
    assert "torch.distributed" not in MODULES[module].read_text(encoding="utf-8")


def test_what_reports_and_servers_need_imports_without_torch():
    wanted = [
        module
        for module in MODULES
        if any(is_within(module, name) for name in WITHOUT_TORCH)
        and not any(is_within(module, name) for name in WITH_TORCH)
    ]
    program = (
        "import importlib, json, sys\n"
        "for module in json.loads(sys.argv[1]):\n"
        "    importlib.import_module('dragoman.' + module)\n"
        "    if 'torch' in sys.modules: sys.exit(f'dragoman.{module} imports torch')\n"
    )
    subprocess.run([sys.executable, "-c", program, json.dumps(wanted)], check=True, timeout=60)
