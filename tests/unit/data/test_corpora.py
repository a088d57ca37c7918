"""Corpora of a recipe, their identity, and the memory of hashes."""

import json
import os

import pytest

from dragoman.data import builtin
from dragoman.data.corpora import (
    BUILTIN_CHUNK_PAIRS,
    BUILTIN_PAIRS,
    HASHES,
    SOURCES,
    About,
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
        "train": [
            FileCorpus(("a.en", "a.de"), About("a"), True),
            FileCorpus(("b.tsv.gz",), About("b"), True),
        ],
        "dev": [FileCorpus(("c.en", "c.de"), About("c"))],
        "test": [BuiltinCorpus("test", 7)],
    }
    assert corpora(recipe_with()) == {
        "train": [BuiltinCorpus("train", BUILTIN_PAIRS["train"])],
        "dev": [BuiltinCorpus("dev", BUILTIN_PAIRS["dev"])],
    }


@pytest.mark.parametrize(
    ("files", "name"),
    [
        (["x/europarl-v7.de-en.en.gz", "x/europarl-v7.de-en.de.gz"], "europarl-v7.de-en"),
        (["newstest2014-ende-src.en.sgm", "newstest2014-ende-ref.de.sgm"], "newstest2014-ende"),
        (["train.en", "train.es"], "train"),
        (["en.txt", "de.txt"], "en.txt"),
        (["x/books.tmx.zst"], "books"),
        (["builtin:50"], "builtin"),
    ],
)
def test_a_corpus_is_called_what_its_files_have_in_common(recipe_with, files, name):
    (corpus,) = corpora(recipe_with(f"data.train=[{{files={json.dumps(files)}}}]"))["train"]
    assert corpus.about.name == name


def test_what_is_said_about_a_corpus(recipe_with):
    recipe = recipe_with(
        "data.src_lang=fr",
        'data.train=[{files="a.tsv", name="A", weight=2, src_lang="en", licence="CC0", source="here"},'
        '{files="b.tsv", tgt_lang="it"}]',
    )
    assert [corpus.about for corpus in corpora(recipe)["train"]] == [
        About("A", "en", "de", "de", 2.0, "CC0", "here"),
        About("b", "fr", "it", "it"),
    ]
    assert About("A", "en", "de", None, 2.0, "CC0", "here").facts() == {
        "name": "A",
        "languages": {"src": "en", "tgt": "de"},
        "weight": 2.0,
        "licence": "CC0",
        "source": "here",
    }


def test_what_is_on_record_beside_the_files(recipe_with, tmp_path):
    known = {"corpus": "europarl-v7", "licence": "free", "source": "https://example.org", "lines": 3}
    (tmp_path / SOURCES).write_text(json.dumps({"version": 1, "name": "x", "files": {"a.de": known}}))
    files = json.dumps([f"{tmp_path}/a.en", f"{tmp_path}/a.de"])

    def about(more=""):
        return corpora(recipe_with(f"data.train=[{{files={files}{more}}}]"))["train"][0].about

    assert about() == About("europarl-v7", licence="free", source="https://example.org")
    assert about(', name="mine", licence="none"') == About(
        "mine", licence="none", source="https://example.org"
    )
    for broken in ("{", "[]", '{"files": 3}'):
        (tmp_path / SOURCES).write_text(broken)
        with pytest.raises(UserError) as caught:
            about()
        assert str(caught.value) == (
            f"error: sources.json cannot be read\n  where: {tmp_path}/sources.json\n"
            "  fix:   get the corpus again, or delete this file"
        )


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


def test_the_built_in_corpus_can_be_turned_round(recipe_with):
    names = 'data.train=["builtin:5", {files="builtin:5", src_lang="de", tgt_lang="en"}]'
    forth, back = (next(iter(corpus.chunks())).decode() for corpus in corpora(recipe_with(names))["train"])
    assert back == forth[::-1]


def test_the_identity_is_the_content(tmp_path):
    hashes = Hashes(tmp_path)
    for name, content in {"a": "x", "b": "x", "c": "y"}.items():
        (tmp_path / name).write_text(content)
    a, b, c = (FileCorpus((str(tmp_path / name),), About(name)).identity(hashes) for name in "abc")
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
