import re
from pathlib import Path

import pytest

from dragoman.data.catalogue import built_in_entries, how_to_get, load_entry, parse_entry, summary
from dragoman.data.formats import open_lines
from dragoman.errors import UserError
from dragoman.recipe import built_in_recipes, load_recipe

MINE = """
what = "ours"
languages = ["en", "de"]
[[corpora]]
name = "manuals"
split = "train"
files = ["manuals.en", "manuals.de"]
from = [["manuals.tgz/en.txt", "manuals.tgz/de.txt"]]
[downloads."manuals.tgz"]
urls = ["https://intranet.example/manuals.tgz"]
"""
FIX = 'correct the entry; "Your own catalogue entry" in docs/data.md shows one'


def complaints(text):
    with pytest.raises(UserError) as caught:
        parse_entry(text, "mine", "mine.toml")
    errors = getattr(caught.value, "errors", [caught.value])
    assert all(error.fix == FIX for error in errors)
    return [(error.what, error.where) for error in errors]


@pytest.mark.parametrize("name", built_in_entries())
def test_built_in_entries(name):
    entry = load_entry(name)
    assert entry.recipe in built_in_recipes()
    used = {
        path.partition("/")[0] for corpus in entry.corpora for origin in corpus.origins for path in origin
    }
    assert used == set(entry.downloads), "every download is of use"
    for corpus in entry.corpora:
        assert [file.rpartition(".")[2] for file in corpus.files] == list(entry.languages)
        assert corpus.lines
        assert corpus.source
    assert {corpus.split for corpus in entry.corpora} == {"train", "dev", "test"}


@pytest.mark.parametrize("name", built_in_recipes())
def test_what_recipes_train_on_is_in_the_catalogue(name):
    recipe = built_in_recipes()[name]
    paths = re.findall(r'"corpora/([^/"]+)/([^/"]+)"', recipe)
    for entry, file in paths:
        assert file in [file for corpus in load_entry(entry).corpora for file in corpus.files]
        assert f"dragoman data get {entry}" in recipe.split("\n[data]")[0]


def test_the_exercise_is_transformer_base_on_its_own_data():
    base, exercise = load_recipe("transformer-base").model_dump(), load_recipe("wmt16-en-de").model_dump()
    assert exercise["vocab"].pop("size") == 32768
    assert base["vocab"].pop("size") == 32000
    assert base.pop("data") != exercise.pop("data")
    assert base == exercise


def test_sizes_of_the_exercise():
    entry = load_entry("wmt16-en-de")
    assert entry.pairs == 1_920_209 + 2_399_123 + 242_770
    assert entry.download_bytes() == (918_311_367 + 75_178_032, False)
    assert parse_entry(MINE, "mine", "mine.toml").pairs is None


def test_an_entry_of_ones_own(tmp_path):
    (tmp_path / "mine.toml").write_text(MINE)
    entry = load_entry(str(tmp_path / "mine.toml"))
    assert (entry.name, entry.corpora[0].licence, entry.recipe) == ("mine", "not stated", None)


@pytest.mark.parametrize("name", ["nowhere", "nowhere.toml"])
def test_an_unknown_name(name):
    with pytest.raises(UserError) as caught:
        load_entry(name)
    assert str(caught.value) == (
        f"error: there is no such corpus in the catalogue\n  where: {name}\n"
        f"  fix:   give one of {', '.join(built_in_entries())}, mtdata:ID, or the path of a .toml file with an entry "
        "of your own"
    )


def test_an_entry_that_is_not_toml():
    with pytest.raises(UserError) as caught:
        parse_entry("[", "mine", "mine.toml")
    assert caught.value.what.startswith("not valid TOML: ")
    assert (caught.value.where, caught.value.fix) == ("mine.toml", "correct that line")


@pytest.mark.parametrize(
    ("old", "new", "what", "where"),
    [
        ('what = "ours"', "", "Field required", "what"),
        ('what = "ours"', 'what = "ours"\nx = 1', "Extra inputs are not permitted (given: 1)", "x"),
        (
            "https://intranet.example/manuals.tgz",
            "ftp://a/b",
            "not an address that begins with http, https, file: ftp://a/b",
            "downloads.manuals.tgz.urls.0",
        ),
        (
            "manuals.tgz/de.txt",
            "other.tgz/x",
            "manuals: other.tgz/x does not begin with the name of a download",
            "",
        ),
        ('/en.txt", "manuals.tgz/de.txt"', '/en.txt"', "manuals: `from` has 1 names for 2 files", ""),
        ("/de.txt", "/en.txt", "manuals: manuals.tgz/en.txt cannot be both sides", ""),
        ('["https://intranet.example/manuals.tgz"]', "[]", "manuals.tgz has no urls", ""),
        ('"manuals.de"', '"manuals.en"', "the name manuals.en is taken", ""),
        ('"manuals.de"', '"sources.json"', "the name sources.json is taken", ""),
        (
            'name = "manuals"',
            'name = "manuals"\nsha256 = ["x"]',
            "manuals: `sha256` has not as many values as `files`",
            "",
        ),
    ],
)
def test_mistakes_in_an_entry(old, new, what, where):
    assert complaints(MINE.replace(old, new)) == [(what, f"mine.toml, {where}".removesuffix(", "))]


@pytest.mark.parametrize("name", ["../evil", "/etc/passwd", "a/b", ".hidden", "", "a\\nb"])
def test_names_of_files_lead_nowhere(name):
    for place in ('"manuals.de"', '"manuals.tgz"]'):
        ((what, where), *_) = complaints(
            MINE.replace(place, place.replace("manuals", name).replace(".de", "").replace(".tgz", ""))
        )
        assert what.startswith("String should match pattern")
        assert "corpora" in where or "downloads" in where


def test_a_missing_file_of_the_catalogue_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        list(open_lines("corpora/multi30k-en-de/train.en"))
    assert caught.value.fix == "run `dragoman data get multi30k-en-de` in this directory"
    assert how_to_get("corpora/mine/train.en") is None
    assert how_to_get("multi30k-en-de/train.en") is None
    with pytest.raises(UserError) as caught:
        list(open_lines("corpora/mine/train.en"))
    assert caught.value.fix == "correct its path (of a corpus: in [data] of the recipe)"


def test_what_is_fetched(tmp_path):
    entry = parse_entry(MINE, "mine", "mine.toml")
    states = [summary(entry, tmp_path)["fetched"]]
    for name in ("manuals.en", "manuals.de"):
        (tmp_path / name).touch()
        states.append(summary(entry, tmp_path)["fetched"])
    assert states == ["no", "partly", "yes"]


def test_the_entry_in_the_documentation_is_one():
    page = (Path(__file__).parents[3] / "docs" / "data.md").read_text("utf-8")
    entry = parse_entry(page.split("```toml\n")[1].split("```")[0], "manuals", "docs/data.md")
    assert entry.corpora[0].lines == 120_000
