"""The passport says all that a manifest knows, for people and for programs."""

import io
import json

import pytest
from rich.console import Console

from dragoman.data.passport import passport, print_passport
from dragoman.data.prepare import prepare


@pytest.fixture
def dataset(tmp_path, recipe_with):
    pairs = [(f"This is sentence {i}.", f"Das ist Satz {i}.") for i in range(1200)]
    more = [("same", "same"), ("[bold]marked[/bold] up", "aus[ge]zeichnet"), ("[b]x[/b]", "")]
    sides = zip(*pairs, *more, strict=True)
    for lang, lines in zip(("en", "de"), sides, strict=True):
        (tmp_path / f"a.{lang}").write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "b.tsv").write_text("Two files.\tZwei Dateien.\n")
    (tmp_path / "dev.tsv").write_text("This is sentence 7.\tDas ist Satz 7.\nNew.\tNeu.\n")
    train = [[str(tmp_path / "a.en"), str(tmp_path / "a.de")], str(tmp_path / "b.tsv")]
    recipe = recipe_with(
        f"data.train={json.dumps(train)}",
        f"data.dev={json.dumps(str(tmp_path / 'dev.tsv'))}",
        f"data.directory={json.dumps(str(tmp_path / 'datasets'))}",
        "vocab.size=200",
    )
    return prepare(recipe, workers=0, progress=False)


def shown(dataset, width=80):
    output = io.StringIO()
    print_passport(dataset, Console(file=output, width=width))
    return output.getvalue()


def test_the_dict_is_json_and_complete(dataset):
    facts = passport(dataset)
    assert json.loads(json.dumps(facts)) == facts
    assert facts["path"] == str(dataset.path)
    assert facts["fingerprint"] == dataset.fingerprint
    assert facts["splits"]["train"]["pairs"] == 1201
    assert facts["dropped"]["identical"]["pairs"] == 1
    assert facts["disk"]["files"] == len(dataset.manifest["files"])
    assert facts["disk"]["bytes"] == sum(file["bytes"] for file in dataset.manifest["files"].values())


def test_the_page_fits_80_columns_and_shows_sizes_and_losses(dataset):
    page = shown(dataset)
    assert max(map(len, page.splitlines())) <= 80
    assert "en → de" in page
    for number in ("1,203", "1,204", "1,201"):  # lines of the first corpus and of all, pairs kept
        assert number in page
    assert "together" in page
    assert "identical 1 0.08%" in " ".join(page.split())
    assert "[b]x[/b]" in page  # text is no mark-up
    assert "characters without a subword are unknown" in " ".join(page.split())
    assert "1 of 2 pairs of dev were in train too (1 exact) and were removed" in " ".join(page.split())


def test_it_is_printed_to_standard_output(dataset, capsys):
    print_passport(dataset)
    captured = capsys.readouterr()
    assert "dropped" in captured.out
    assert captured.err == ""
