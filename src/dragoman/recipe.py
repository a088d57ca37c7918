"""Recipes as files: read TOML, apply ``--set``, report every mistake at once, write it back, compare two.

The result is a ``config.Recipe``; nothing here or there does any work beyond reading text.
"""

import difflib
import re
import tomllib
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel, ValidationError

from dragoman.config import Contradictions, Recipe
from dragoman.corpus import Corpus
from dragoman.errors import UserError, UserErrors

CORPORA = ("data.train", "data.dev", "data.test")  # fields that hold tables of their own


def built_in_recipes() -> dict[str, str]:
    """Return the recipes that come with Dragoman: name to text."""
    folder = resources.files("dragoman") / "recipes"
    texts = {file.name.removesuffix(".toml"): file.read_text("utf-8") for file in folder.iterdir()}
    return dict(sorted(texts.items()))


def load_recipe(source: str, overrides: Sequence[str] = ()) -> Recipe:
    """Read the recipe at path ``source`` (or the built-in one of that name), with ``a.b=value`` overrides."""
    path = Path(source)
    if path.is_file():
        return parse_recipe(path.read_bytes().decode("utf-8", "replace"), source, overrides)
    recipes = built_in_recipes()
    if source in recipes:
        return parse_recipe(recipes[source], f"recipe {source}", overrides)
    raise UserError(
        "there is no such recipe",
        where=source,
        fix=f"give the path of a .toml file, or one of: {', '.join(recipes)}",
    )


def parse_recipe(text: str, source: str, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe from TOML text; ``source`` names it in errors."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"not valid TOML: {error}", where=source, fix="correct that line") from error
    overridden = set()
    for override in overrides:
        name, value = _parse_override(override)
        _put(values, name, value, override)
        overridden.add(name)
    for section, field in Recipe.model_fields.items():
        if field.is_required():
            values.setdefault(section, {})  # so that what it must have is named
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        raise UserErrors(list(_explain(error, source, overridden))) from error


def dump_recipe(recipe: Recipe) -> str:
    """Return the recipe as TOML with every field, so that it reads back equal."""
    return tomli_w.dumps(recipe.model_dump(exclude_none=True))


def changed_fields(old: Recipe, new: Recipe) -> list[tuple[str, Any, Any]]:
    """Return (field, old value, new value) for every change that a resumed run must not make."""
    changes = []
    for name, may_change in field_names():
        before, after = _get(old, name), _get(new, name)
        if before != after and not may_change:
            changes.append((name, before, after))
    # Other corpora are other data, which the dataset's fingerprint tells; their weights are in no dataset.
    before, after = ([corpus.weight for corpus in recipe.data.train] for recipe in (old, new))
    if before != after and len(before) == len(after):
        changes.append(("data.train.weight", before, after))
    return changes


def field_names() -> Iterator[tuple[str, bool]]:
    """Yield (dotted name, may it change in a resumed run) of every field a recipe has."""
    for section_name, section in Recipe.model_fields.items():
        assert isinstance(section.annotation, type)
        assert issubclass(section.annotation, BaseModel)
        for name, field in section.annotation.model_fields.items():
            extra = field.json_schema_extra
            yield f"{section_name}.{name}", isinstance(extra, dict) and bool(extra.get("may_change"))


def reference() -> str:
    """Return the reference of all settings as Markdown (``docs/config.md``)."""
    lines = [
        "# Settings of a recipe",
        "",
        "Generated from `src/dragoman/config.py` by `make docs`. Settings marked ↻ may change when a run is resumed.",
    ]
    for section_name, section in Recipe.model_fields.items():
        model = section.annotation
        assert isinstance(model, type)
        assert issubclass(model, BaseModel)
        lines += ["", f"## [{section_name}]", *_table(model)]
        if section_name == "data":
            lines += ["", "### [[data.train]], [[data.dev]], [[data.test]]", *_table(Corpus)]
    return "\n".join(lines) + "\n"


def _table(model: type[BaseModel]) -> Iterator[str]:
    """Yield what a section is for, and a row for each of its settings."""
    yield from ("", " ".join((model.__doc__ or "").split()), "")
    yield from ("| setting | default | meaning |", "|---|---|---|")
    for name, field in model.model_fields.items():
        extra = field.json_schema_extra
        mark = " ↻" if isinstance(extra, dict) and extra.get("may_change") else ""
        default = "required" if field.is_required() else _as_toml(field.default)
        yield f"| `{name}`{mark} | {default} | {field.description} |"


def _as_toml(value: object) -> str:
    if value is None:
        return "–"
    one_line = " ".join(tomli_w.dumps({"x": value}).removeprefix("x = ").split())
    return "`" + one_line.replace("[ ", "[").replace(", ]", "]") + "`"


def _parse_override(override: str) -> tuple[str, Any]:
    name, equals, text = override.partition("=")
    name, text = name.strip(), text.strip()
    if not equals or not name:
        raise UserError("not of the form section.field=value", where=f"--set {override}", fix="write a.b=c")
    try:
        return name, tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        if re.fullmatch(r"[^\s\[\]{}=,\"']+", text):
            return name, text  # a bare word is a string: shells make quoting it painful
        raise UserError(
            f"the value is not valid TOML: {text}",
            where=f"--set {override}",
            fix="""quote it for the shell and for TOML, for example --set 'data.dev=["a.en", "a.de"]'""",
        ) from None


def _put(values: dict[str, Any], name: str, value: Any, override: str) -> None:
    *sections, field = name.split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise UserError(
                f"{section} is not a section", where=f"--set {override}", fix="write section.field=value"
            )
    values[field] = value


def _get(recipe: Recipe, name: str) -> Any:
    section, _, field = name.partition(".")
    return getattr(getattr(recipe, section), field)


def _explain(error: ValidationError, source: str, overridden: set[str]) -> Iterator[UserError]:
    """Turn pydantic's findings into what / where / fix."""
    known = [name for name, _ in field_names()]
    known += [f"{corpora}.{field}" for corpora in CORPORA for field in Corpus.model_fields]
    sections = list(Recipe.model_fields)
    seen = set()  # a union reports each of its branches; the first says what was expected
    for found in error.errors():
        cause = found.get("ctx", {}).get("error")
        if isinstance(cause, Contradictions):
            for name, what, fix in cause.problems:
                yield UserError(what, where=_where(source, name, overridden), fix=fix)
            continue
        path = [str(part) for part in found["loc"]]
        name = ".".join(path[:2])
        where = _where(source, name, overridden)
        in_table = name in CORPORA and len(path) == 4  # such as data.train.0.weight
        if in_table:
            name, where = f"{name}.{path[3]}", f"{where}, corpus {int(path[2]) + 1}"
        if (name, where) in seen:
            continue
        seen.add((name, where))
        if found["type"] == "extra_forbidden":
            yield UserError(f"there is no setting {name}", where=where, fix=_suggest(name, known, sections))
        elif found["type"] == "missing" and (in_table or len(path) <= 2):
            yield UserError(
                f"{name} is missing", where=where, fix="add it; `dragoman recipes` shows examples"
            )
        else:
            message = found["msg"].removeprefix("Value error, ")
            given = "" if cause else f" (given: {found['input']!r})"
            yield UserError(f"{name}: {message}{given}", where=where, fix="correct the value")


def _where(source: str, name: str, overridden: set[str]) -> str:
    for override in sorted(overridden):
        if f"{override}.".startswith(f"{name}."):
            return f"--set {override}"
    section, _, field = name.partition(".")
    return f"{source}, [{section}] {field}".rstrip()


def _suggest(name: str, known: list[str], sections: list[str]) -> str:
    section, _, field = name.partition(".")
    same_field = [candidate for candidate in known if candidate.endswith(f".{field or section}")]
    if same_field:
        return f"did you mean {same_field[0]}?"
    if not field:
        near = difflib.get_close_matches(section, sections, 1, 0.5)
        return f"did you mean [{near[0]}]?" if near else f"the sections are {', '.join(sections)}"
    fields = [candidate.partition(".")[2] for candidate in known if candidate.startswith(f"{section}.")]
    near = difflib.get_close_matches(field, fields, 1, 0.6)
    if near:
        return f"did you mean {section}.{near[0]}?"
    return f"remove it; docs/config.md lists the settings of [{section}]"
