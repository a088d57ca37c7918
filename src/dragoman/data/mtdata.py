"""Corpora that ``mtdata`` knows, thousands of them, through its own command in its own process.

It is an optional extra, and pins versions of libraries that we use too; so it is run and never imported, and may as
well live in an environment of its own as long as its command is found.
"""

import importlib.util
import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dragoman.data.archives import copy
from dragoman.data.catalogue import SOURCES
from dragoman.data.get import LOCK, VERSION, read_sources
from dragoman.data.progress import Stages
from dragoman.errors import UserError
from dragoman.files import beside, disk_errors, fsync_directory, locked, remove_unfinished, write_json

PREFIX = "mtdata:"  # before an identifier: mtdata:Statmt-europarl-7-deu-eng


def get_from_mtdata(identifier: str, directory: Path, *, progress: bool = True) -> dict[str, Any]:
    """Let mtdata bring a corpus to ``directory``; return the content of its sources.json."""
    stages = Stages(progress)
    # GROUP-NAME-VERSION-L1-L2, where a language may have a script or region: eng_US, zho_Hant.
    fields = re.fullmatch(r"[^-\s/]+-[^-\s/]+-[^-\s/]+-([\w]+)-([\w]+)", identifier)
    if not fields:
        raise UserError(
            "not an mtdata identifier of two languages",
            where=PREFIX + identifier,
            fix="`mtdata list -l deu-eng -id` prints them, for example Statmt-europarl-7-deu-eng",
        )
    names = [f"{identifier}.{language}" for language in fields.groups()]
    sources = read_sources(directory)
    if all((directory / name).is_file() and name in sources["files"] for name in names):
        stages.say(f"{directory} has all files of {identifier} already")
        return sources
    command = [*_command(identifier), "get", "--langs", "-".join(fields.groups()), "--train", identifier]
    with disk_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        with locked(
            directory / LOCK, lambda: stages.say(f"another process works on {directory}: waiting for it")
        ):
            remove_unfinished(directory)
            temporary = beside(directory / "mtdata")
            try:
                _run([*command, "--out", str(temporary)], identifier, stages)
                parts = temporary / "train-parts"
                facts = {name: copy(parts / name, temporary / name) for name in names}
                for name, each in facts.items():
                    (temporary / name).replace(directory / name)
                    about = {"licence": "see source", "source": PREFIX + identifier}
                    sources["files"][name] = {"corpus": identifier, **asdict(each), **about}
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
            fsync_directory(directory)
            head = {"version": VERSION, "name": identifier, "languages": list(fields.groups())}
            sources = {**head, "files": sources["files"]}
            write_json(directory / SOURCES, sources)
    return sources


def _command(identifier: str) -> list[str]:
    if importlib.util.find_spec("mtdata"):
        return [sys.executable, "-m", "mtdata"]
    if found := shutil.which("mtdata"):
        return [found]
    raise UserError(
        "mtdata is not installed",
        where=PREFIX + identifier,
        fix="`pip install dragoman[mtdata]`, or `pipx install mtdata` to keep its libraries apart",
    )


def _run(command: list[str], identifier: str, stages: Stages) -> None:
    """Run mtdata and pass on what it says, line by line."""
    last = ""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip():
                last = line.strip()
                stages.say(f"mtdata: {line.rstrip()}")
    if process.returncode:
        raise UserError(
            f"mtdata could not get it ({last or f'exit code {process.returncode}'})",
            where=PREFIX + identifier,
            fix="`mtdata list -l L1-L2 -id` prints the identifiers; else try again later",
        )
