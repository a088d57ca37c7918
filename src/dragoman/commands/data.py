"""``dragoman data``: get text, prepare it, look at what was prepared, send it to other hosts."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from dragoman.commands.options import (
    HostsOption,
    JsonOption,
    RecipeArgument,
    SetOption,
    SshPortOption,
    print_json,
)


def list_(json: JsonOption = False) -> None:
    """List the corpora that `dragoman data get` knows, and which of them are in ./corpora."""
    from dragoman.data.catalogue_page import catalogue, print_catalogue

    print_json(catalogue()) if json else print_catalogue()


def get(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A name of `dragoman data list`, mtdata:ID, or a .toml file with an entry of your own.",
        ),
    ],
    to: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to put the files; corpora/NAME if not given.")
    ] = None,
    from_: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="DIR", help="Use files and archives that lie here in place of downloads."
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Get a corpus: download, verify and unpack it. What is there already is not fetched again."""
    from dragoman.data.catalogue_page import bring, print_sources

    directory, sources, recipe = bring(name, to, from_)
    if json:
        print_json({"directory": str(directory), **sources})
    else:
        print_sources(directory, sources, recipe)


def prepare(
    recipe: RecipeArgument,
    set_: SetOption = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; all cores if not given.")] = None,
    json: JsonOption = False,
) -> None:
    """Read, clean and tokenise the text of a recipe into a dataset; an existing one is used as it is."""
    from dragoman.data.passport import passport
    from dragoman.data.passport_print import print_passport
    from dragoman.data.prepare import prepare
    from dragoman.recipe import load_recipe

    dataset = prepare(load_recipe(recipe, set_ or ()), workers=workers)
    print_json(passport(dataset)) if json else print_passport(dataset)


def show(
    dataset: Annotated[Path, typer.Argument(help="A dataset directory.")],
    json: JsonOption = False,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write a page with charts, which opens from disk."),
    ] = None,
    verify: Annotated[bool, typer.Option(help="Also check the checksum of every file.")] = False,
) -> None:
    """Show a dataset's passport: where it came from, how large it is, what was dropped and why."""
    from dragoman.data.passport import passport
    from dragoman.data.passport_print import print_passport
    from dragoman.data.shards import Dataset

    opened = Dataset.open(dataset)
    if verify:
        opened.verify()
    facts = passport(opened)
    print_json(facts) if json else print_passport(opened)
    if html is not None:
        from dragoman.observe.report.passport import write_passport

        write_passport(facts, html)


def send(
    dataset: Annotated[Path, typer.Argument(help="A dataset directory.")],
    hosts: HostsOption = None,
    ssh_port: SshPortOption = None,
    json: JsonOption = False,
) -> None:
    """Send a dataset to the hosts that lack it, to the same place as here; one that was cut off goes on.

    "dragoman train --hosts" does so by itself; before mpirun or srun it is for you to do."""
    from dragoman.cluster.hosts import choose_hosts
    from dragoman.cluster.send_command import as_json, send_to_hosts

    deliveries = send_to_hosts(dataset, choose_hosts(hosts, ssh_port, None))
    if json:
        print_json(as_json(deliveries))


COMMANDS: dict[str, Callable[..., None]] = {
    "list": list_,
    "get": get,
    "prepare": prepare,
    "show": show,
    "send": send,
}
