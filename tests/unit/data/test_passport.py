"""The passport says all that a manifest knows, for people and for programs."""

import io
import json

import pytest
from rich.console import Console

from dragoman.commands.data import show
from dragoman.data.passport import Row, coverage, gate, is_contaminated, lengths, overlaps, passport, rows
from dragoman.data.passport_print import print_passport
from dragoman.data.prepare import prepare
from dragoman.data.shards import Dataset
from tests import passports


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


def test_it_is_printed_to_standard_output(dataset, capsys):
    print_passport(dataset)
    captured = capsys.readouterr()
    assert "dropped" in captured.out
    assert captured.err == ""


@pytest.mark.parametrize("width", [80, 120])
def test_everything_of_a_full_manifest_is_shown(width):
    page = shown(passports.dataset(text=""), width)
    assert max(map(len, page.splitlines())) <= width
    words = " ".join(page.split())
    for told in (
        "en → de, en → fr",
        "europarl: CC BY 4.0 , https://example.org/e",
        "seen in an epoch: news × 2",
        "train europarl en ▁█▆▂▁▁ 16 32",
        "language 4,816 66.44% europarl 3,612 · news 1,204",
        "switched off: numbers",
        "language: not applied to fr",
        "overlap: 6 of 175 lines of dev (3.4%) were in train: 2 word for word, 1 but for case and punctuation, 3 by 13",
        "overlap: none of 350 lines of test was in train",
        "removed from train: 9 pairs",
        "for example ( held out, ngram)",
        "7,001 occur in train (88%)",
        "train europarl en 1.27 3 0.029%",
    ):
        assert told in words


def test_rules_that_dropped_nothing_share_a_line():
    facts = passports.manifest()
    facts["dropped"] = {name: {"pairs": 0, "examples": []} for name in ("empty", "ratio")}
    assert "nothing dropped by: empty, ratio" in shown(Dataset("x", facts))


def test_a_gate_that_is_off_is_a_warning():
    facts = passports.manifest(gate=False)
    assert is_contaminated(facts)
    assert gate(facts) == "the gate is off: 9 training pairs overlap with dev or test and were kept"
    assert "warning: 6 of 175 lines of dev" in shown(Dataset("x", facts))
    assert not is_contaminated(passports.manifest())


def test_what_an_old_manifest_does_not_say_is_left_out():
    facts = passports.oldest()
    assert overlaps(facts) == ["3 of 175 pairs of dev are in train too"]
    assert gate(facts) == ""
    assert is_contaminated(facts)
    assert not any(lengths(row) or coverage(row) for row in rows(facts))
    page = shown(Dataset("x", facts))
    assert "warning: 3 of 175 pairs of dev are in train too" in page
    assert "corpora/news.de" in page
    assert "subwords a word" not in page


def test_lengths_are_told_as_exactly_as_bins_can():
    src, tgt = lengths(Row("train", "", {"lengths": [[1, 2, 1, 0, 0], [0, 0, 0, 4, 0]]}))
    assert src.counts == [1, 2, 1, 0]  # as many as both need
    assert list(tgt.names) == ["1–8", "9–16", "17–24", "25–32"]
    assert (src.below(0.25), src.below(0.5), src.below(1), tgt.below(0.01)) == (8, 16, 24, 32)
    (longest, _) = lengths(Row("train", "", {"lengths": [[1, 0, 1], [0, 0, 1]]}))
    assert longest.names[-1] == "over 16"
    assert lengths(Row("train", "", {"lengths": [[0, 0], [0, 0]]})) == []


def test_the_command_shows_it_and_writes_the_page(dataset, tmp_path, capsys):
    show(dataset.path, html=tmp_path / "page.html", verify=True)
    assert "en → de" in capsys.readouterr().out
    assert dataset.path.name in (tmp_path / "page.html").read_text("utf-8")
    show(dataset.path, json=True)
    assert json.loads(capsys.readouterr().out) == passport(dataset)
