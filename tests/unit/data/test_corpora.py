"""Corpora of a recipe, their identity, and the memory of hashes."""

import json
import os

import pytest

from dragoman.data import builtin
from dragoman.data.corpora import (
    BUILTIN_CHUNK_PAIRS,
    BUILTIN_PAIRS,
    HASHES,
    BuiltinCorpus,
    FileCorpus,
    Hashes,
    corpora,
)
from dragoman.errors import UserError


def test_a_recipe_names_files_and_the_built_in_corpus(recipe_with):
    recipe = recipe_with(
        'data.train=[["a.en", "a.de"], "b.tsv.gz"]', 'data.dev=["c.en", "c.de"]', 'data.test="builtin:7"'
    )
    assert corpora(recipe) == {
        "train": [FileCorpus(("a.en", "a.de")), FileCorpus(("b.tsv.gz",))],
        "dev": [FileCorpus(("c.en", "c.de"))],
        "test": [BuiltinCorpus("test", 7)],
    }
    assert corpora(recipe_with()) == {
        "train": [BuiltinCorpus("train", BUILTIN_PAIRS["train"])],
        "dev": [BuiltinCorpus("dev", BUILTIN_PAIRS["dev"])],
    }


def test_the_built_in_corpus_comes_in_ranges():
    pairs = BUILTIN_CHUNK_PAIRS + 3
    chunks = list(BuiltinCorpus("train", pairs).chunks())
    assert [(chunk.first_line, chunk.size) for chunk in chunks] == [
        (1, BUILTIN_CHUNK_PAIRS),
        (BUILTIN_CHUNK_PAIRS + 1, 3),
    ]
    src, tgt = chunks[1].decode()
    assert list(zip(src, tgt, strict=True)) == list(builtin.sentences("train", 3, start=BUILTIN_CHUNK_PAIRS))
    assert chunks[1].label == "builtin/train"


def test_the_identity_is_the_content(tmp_path):
    hashes = Hashes(tmp_path)
    for name, content in {"a": "x", "b": "x", "c": "y"}.items():
        (tmp_path / name).write_text(content)
    a, b, c = (FileCorpus((str(tmp_path / name),)).identity(hashes) for name in "abc")
    assert a == b != c
    sizes = [BuiltinCorpus("train", 5), BuiltinCorpus("train", 6), BuiltinCorpus("dev", 5)]
    assert len({json.dumps(corpus.identity(hashes)) for corpus in sizes}) == 3


def test_hashes_are_remembered_until_the_file_changes(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one")
    hashes = Hashes(tmp_path)
    real = hashes.of(str(path))
    hashes.save()
    memory = json.loads((tmp_path / HASHES).read_text())
    memory[str(path)][-1] = "remembered"
    (tmp_path / HASHES).write_text(json.dumps(memory))
    assert Hashes(tmp_path).of(str(path)) == "remembered"
    os.utime(path, ns=(1, 1))
    assert Hashes(tmp_path).of(str(path)) == real
    path.write_text("two")
    assert Hashes(tmp_path).of(str(path)) not in ("remembered", real)


@pytest.mark.parametrize("broken", ["{", "[]", '{"a": 1}'])
def test_a_broken_memory_is_forgotten(tmp_path, broken):
    (tmp_path / "a.txt").write_text("one")
    expected = Hashes(tmp_path).of(str(tmp_path / "a.txt"))
    (tmp_path / HASHES).write_text(broken)
    assert Hashes(tmp_path).of(str(tmp_path / "a.txt")) == expected


def test_a_directory_that_is_missing_or_read_only_does_no_harm(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    hashes = Hashes(tmp_path / "none")
    hashes.of(str(tmp_path / "a.txt"))
    hashes.save()
    assert not (tmp_path / "none").exists()


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(UserError, match="there is no such file"):
        Hashes(tmp_path).of(str(tmp_path / "none"))
