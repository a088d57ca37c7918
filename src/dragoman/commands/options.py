"""Arguments and options that several commands have, and how all of them print JSON."""

import json as jsonlib
from pathlib import Path
from typing import Annotated

import typer

RecipeArgument = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A .toml file, or the name of a built-in recipe.")
]
ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="A run, or an exported model.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a setting of the recipe (TOML value); repeatable."
    ),
]
HostsOption = Annotated[
    str | None,
    typer.Option(
        metavar="A:2,B:2", help="Hosts and their workers, or a file with one a line; reached by ssh."
    ),
]
SshPortOption = Annotated[int | None, typer.Option(min=1, max=65535, help="Port of the hosts' sshd.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
DeviceOption = Annotated[str, typer.Option(help="cpu or cuda.")]
ThreadsOption = Annotated[int | None, typer.Option(min=1, help="Cores to use; all if not given.")]
ToOption = Annotated[
    str | None,
    typer.Option(
        metavar="LANGUAGE", help="Language to translate into, such as de; for a multilingual model."
    ),
]
BeamOption = Annotated[int | None, typer.Option(min=1, help="Beam width; the model's own if not given.")]


def print_json(value: object) -> None:
    print(jsonlib.dumps(value, indent=2, ensure_ascii=False))
