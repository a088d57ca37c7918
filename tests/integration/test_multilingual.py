"""Two language pairs, one of them from a translation memory and with a weight: prepared, trained, translated."""

from html import escape

import pytest

from dragoman.data import builtin
from dragoman.files import read_json, read_json_lines

RECIPE = """
[[data.train]]
files = "forth.tmx"
name = "forth"
licence = "CC0"
[[data.train]]
files = ["back.de", "back.en"]
src_lang = "de"
tgt_lang = "en"
weight = 2.5
[[data.dev]]
files = "builtin:20"
[[data.dev]]
files = "builtin:20"
src_lang = "de"
tgt_lang = "en"
"""


def write_text(path):
    pairs = list(builtin.sentences("train", 500))
    sides = ((("en-GB", en), ("de", de)) for en, de in pairs[:400])
    units = (
        "".join(f'<tuv xml:lang="{lang}"><seg>{escape(text)}</seg></tuv>' for lang, text in unit)
        for unit in sides
    )
    memory = "".join(f"<tu>{unit}</tu>\n" for unit in units)
    (path / "forth.tmx").write_text(f'<tmx version="1.4"><body>{memory}</body></tmx>', "utf-8")
    for side, language in enumerate(("en", "de")):
        lines = (f"{pair[side]}\n" for pair in pairs[400:])
        (path / f"back.{language}").write_text("".join(lines), "utf-8")


@pytest.fixture
def multilingual(toy):
    """A toy whose recipe has English to German and German to English."""
    recipe = (toy.path / "toy.toml").read_text()
    for line in ('train = "builtin:800"\n', 'dev = "builtin:40"\n', 'test = "builtin:40"\n'):
        assert line in recipe
        recipe = recipe.replace(line, "")
    (toy.path / "toy.toml").write_text(recipe + RECIPE)
    write_text(toy.path)
    return toy


def test_one_model_translates_both_ways(multilingual):
    toy = multilingual
    every = ("--set", "evaluate.every_steps=8", "--set", "checkpoint.every_steps=8")
    run = toy.train("run", "--set", "train.steps=8", *every)
    forth, back = read_json(run.facts)["mixture"]
    assert forth == {"name": "forth en-de", "pairs": forth["pairs"], "weight": 1.0}
    assert back == {"name": "back de-en", "pairs": back["pairs"], "weight": 2.5}
    assert "mixture: forth en-de " in run.log.read_text()
    (score,) = read_json_lines(run.scores)
    assert score["sentences"] == 40
    assert {pair: scores["sentences"] for pair, scores in score["by_pair"].items()} == {
        "en-de": 20,
        "de-en": 20,
    }

    lines = "the lamp\n<2de> the lamp\n"
    german = toy.call("translate", "run", "--to", "de", stdin=lines).stdout.splitlines()
    assert len(german) == 2
    assert german[0] == german[1]
    error = toy.call("translate", "run", stdin=lines, code=2).stderr
    assert "this model translates into several languages (de, en): which one?" in error
    scored = toy.call(
        "evaluate", "run", "--src", "back.de", "--ref", "back.en", "--to", "en", "--json"
    ).stdout
    assert '"sentences": 100' in scored

    recipe = (toy.path / "toy.toml").read_text()
    (toy.path / "toy.toml").write_text(recipe.replace("weight = 2.5", "weight = 3"))
    refused = toy.call("train", "toy.toml", "--run", "run", *every, code=2).stderr
    assert "data.train.weight was [1.0, 2.5], is now [1.0, 3.0]" in refused
