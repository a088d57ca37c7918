"""How a recipe names its text: one table a corpus, or one of the short forms that stand for such a table.

A format is known by the ending of a file's name, before any file is looked at: so a recipe can be checked on a
machine that does not hold its text.
"""

from typing import Annotated

from pydantic import BeforeValidator, Field

from dragoman.settings import Section, setting

BUILTIN = "builtin"  # the corpus Dragoman writes itself: "builtin", or "builtin:250000" for a size
COMPRESSIONS = (".gz", ".xz", ".zst", ".bz2")
BOTH_SIDES = (".tsv", ".tmx", ".xml")  # files that hold source and target
SGML = (".sgm", ".sgml")  # one side of a test set
WAYS = 'a pair [src, tgt] of paths, a file that holds both sides (.tsv, .tmx, .xml), or "builtin"'

Language = Annotated[str, Field(pattern=r"^[A-Za-z0-9]+([_-][A-Za-z0-9]+)*$")]


def ending(path: str) -> str:
    """Return what follows the last dot of a file's name, less its compression: ``.tmx`` of ``a/b.tmx.gz``."""
    for compression in COMPRESSIONS:
        path = path.removesuffix(compression)
    name = path.rpartition("/")[2]
    return name[name.rindex(".") :] if "." in name else ""


def _is_builtin(name: str) -> bool:
    name, colon, pairs = name.partition(":")
    return name == BUILTIN and (not colon or (pairs.isdecimal() and int(pairs) > 0))


def holds_both(name: str) -> bool:
    """Whether a corpus of this name needs no second file."""
    return name.partition(":")[0] == BUILTIN or ending(name) in BOTH_SIDES


def _as_files(value: object) -> tuple[str, ...]:
    """Read the files of one corpus: a pair of them, or one that holds both sides."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list | tuple) or not all(isinstance(path, str) for path in value):
        raise ValueError(f"a corpus is {WAYS}")
    match [str(path) for path in value]:
        case [path] if _is_builtin(path) or ending(path) in BOTH_SIDES:
            return (path,)
        case [path]:
            raise ValueError(f'"{path}" is no corpus by itself; give {WAYS}')
        case [src, tgt] if holds_both(src) or holds_both(tgt):
            both = src if holds_both(src) else tgt
            raise ValueError(f'"{both}" holds both sides and cannot be one of two; give {WAYS}')
        case [src, tgt] if (ending(src) in SGML) != (ending(tgt) in SGML):
            raise ValueError(f'of "{src}" and "{tgt}" one is SGML; give two such files, or two of plain text')
        case [src, tgt]:
            return src, tgt
    raise ValueError(f"a corpus is {WAYS}")


Files = Annotated[tuple[str, ...], BeforeValidator(_as_files)]


class Corpus(Section):
    """A corpus in full. Licence and source are for the dataset's passport; where the files lie beside a
    `sources.json` that `dragoman data get` wrote, they and the name come from there if not given here."""

    files: Files = setting(..., f"The text: {WAYS}.", may_change=True)
    name: str | None = setting(None, "What to call it; made from the files' names if not given.",
                               may_change=True, min_length=1)  # fmt: skip
    weight: float = setting(1.0, "How often an epoch sees each pair, for train: 2 is twice, 0.5 every other epoch.",
                            gt=0, le=1e6)  # fmt: skip
    src_lang: Language | None = setting(None, "Language of the source side; that of [data] if not given.",
                                        may_change=True)  # fmt: skip
    tgt_lang: Language | None = setting(None, "Language of the target side; that of [data] if not given. Several "
                                        "make a multilingual model.", may_change=True)  # fmt: skip
    licence: str | None = setting(None, "Its licence, as is.", may_change=True)
    source: str | None = setting(None, "Where it comes from, as is.", may_change=True)


def _as_corpora(value: object) -> object:
    """Read every way to name corpora into one: a tuple of tables."""
    if isinstance(value, str | dict | Corpus):
        value = [value]
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"give {WAYS}, or a list of these")
    items = list(value)
    if len(items) == 2 and all(isinstance(item, str) and not holds_both(item) for item in items):
        items = [items]
    # Short forms are checked here, so that the error is that of the field and not of a table nobody wrote.
    return tuple(item if isinstance(item, dict | Corpus) else Corpus(files=_as_files(item)) for item in items)


Corpora = Annotated[tuple[Corpus, ...], BeforeValidator(_as_corpora)]
