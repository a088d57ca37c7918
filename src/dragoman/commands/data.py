"""``dragoman data``: prepare text, and look at what was prepared."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from dragoman.commands.options import JsonOption, RecipeArgument, SetOption, print_json


def prepare(
    recipe: RecipeArgument,
    set_: SetOption = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; all cores if not given.")] = None,
    json: JsonOption = False,
) -> None:
    """Read, clean and tokenise the text of a recipe into a dataset; an existing one is used as it is."""
    from dragoman.data.passport import passport, print_passport
    from dragoman.data.prepare import prepare
    from dragoman.recipe import load_recipe

    dataset = prepare(load_recipe(recipe, set_ or ()), workers=workers)
    print_json(passport(dataset)) if json else print_passport(dataset)


def show(
    dataset: Annotated[Path, typer.Argument(help="A dataset directory.")],
    json: JsonOption = False,
    verify: Annotated[bool, typer.Option(help="Also check the checksum of every file.")] = False,
) -> None:
    """Show a dataset's passport: where it came from, how large it is, what was dropped and why."""
    from dragoman.data.passport import passport, print_passport
    from dragoman.data.shards import Dataset

    opened = Dataset.open(dataset)
    if verify:
        opened.verify()
    print_json(passport(opened)) if json else print_passport(opened)


COMMANDS: dict[str, Callable[..., None]] = {
    "prepare": prepare,
    "show": show,
}
