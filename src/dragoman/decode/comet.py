"""COMET, in an environment of its own: files in, JSON out.

The package that computes it pins old versions of half the field, so it is never installed beside Dragoman. Its own
``comet-score`` is run, where it is found on PATH or belongs to the Python that ``DRAGOMAN_COMET_PYTHON`` names.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dragoman.errors import UserError
from dragoman.files import read_json, write_text

PYTHON = "DRAGOMAN_COMET_PYTHON"
PROGRAM = "from comet.cli.score import score_command; score_command()"
MODEL = "Unbabel/wmt22-comet-da"
HOW = (
    "python3 -m venv ~/comet && ~/comet/bin/pip install unbabel-comet && "
    f"export {PYTHON}=~/comet/bin/python   (several GB; the model comes with the first use)"
)
LAST_LINES = 5  # of what it said, shown when it fails


def comet_scores(
    systems: Sequence[Sequence[str]], sources: Sequence[str], references: Sequence[str]
) -> list[list[float]]:
    """Return COMET's score of every sentence of every system."""
    command = comet_command()
    with tempfile.TemporaryDirectory(prefix="dragoman-comet-") as directory:
        root = Path(directory)

        def write(name: str, lines: Sequence[str]) -> str:
            write_text(root / name, "".join(f"{line}\n" for line in lines))
            return str(root / name)

        names = [write(f"system{number}.txt", lines) for number, lines in enumerate(systems)]
        files = ["-s", write("src.txt", sources), "-r", write("ref.txt", references), "-t", *names]
        gpus = "1" if Path("/dev/nvidiactl").exists() else "0"
        output = root / "scores.json"
        options = ["--to_json", str(output), "--quiet", "--gpus", gpus, "--model", MODEL]
        done = subprocess.run([*command, *files, *options], capture_output=True, text=True, check=False)
        if done.returncode or not output.is_file():
            said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-LAST_LINES:]
            raise UserError(
                f"comet-score failed with exit code {done.returncode}: {' / '.join(said) or 'it said nothing'}",
                where=" ".join(command[:1]),
                fix="put that right, or leave comet out of --metric",
            )
        found = read_json(output)
        return [[float(segment["COMET"]) for segment in found[name]] for name in names]


def comet_command() -> list[str]:
    """Return the command that scores, or say how to get it."""
    if python := os.environ.get(PYTHON):
        if not shutil.which(python):
            raise UserError(f"there is no such program: {python}", where=PYTHON, fix=f"make one with {HOW}")
        return [python, "-c", PROGRAM]
    if program := shutil.which("comet-score"):
        return [program]
    raise UserError(
        "COMET is not installed", where="--metric comet", fix=f"give it its own environment: {HOW}"
    )
