import pytest
from pydantic import ValidationError

from dragoman.config import Corpus, Data, Optimizer, Train

WAYS = 'a pair [src, tgt] of paths, a file that holds both sides (.tsv, .tmx, .xml), or "builtin"'


@pytest.mark.parametrize(
    ("given", "files"),
    [
        ("builtin", [("builtin",)]),
        ("builtin:250000", [("builtin:250000",)]),
        ("a.tsv", [("a.tsv",)]),
        ("a.b/a.tmx.zst", [("a.b/a.tmx.zst",)]),
        (["a.en", "a.de"], [("a.en", "a.de")]),
        (["a-src.en.sgm", "a-ref.de.sgm.gz"], [("a-src.en.sgm", "a-ref.de.sgm.gz")]),
        ([["a.en", "a.de"], "b.tsv.gz"], [("a.en", "a.de"), ("b.tsv.gz",)]),
        (["a.tsv", "b.xml"], [("a.tsv",), ("b.xml",)]),
        ({"files": ["a.en", "a.de"]}, [("a.en", "a.de")]),
        ([{"files": "a.tsv"}, ["a.en", "a.de"], "builtin"], [("a.tsv",), ("a.en", "a.de"), ("builtin",)]),
    ],
)
def test_every_way_to_name_a_corpus(given, files):
    assert Data(train=given, dev="builtin").train == tuple(Corpus(files=each) for each in files)


def test_a_corpus_in_full():
    given = {"files": ["a.en", "a.de"], "name": "a", "weight": 2, "src_lang": "en", "tgt_lang": "pt-BR"}
    (corpus,) = Data(train=[{**given, "licence": "CC0", "source": "here"}], dev="builtin").train
    assert (corpus.name, corpus.weight, corpus.licence, corpus.source) == ("a", 2.0, "CC0", "here")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("foo", f'"foo" is no corpus by itself; give {WAYS}'),
        ("builtin:0", f'"builtin:0" is no corpus by itself; give {WAYS}'),
        ([], f"give {WAYS}, or a list of these"),
        (3, f"give {WAYS}, or a list of these"),
        (["a.en"], f'"a.en" is no corpus by itself; give {WAYS}'),
        ([["a", "b", "c"]], f"a corpus is {WAYS}"),
        ([["a", 3]], f"a corpus is {WAYS}"),
        ([{"files": "a.en"}], f'"a.en" is no corpus by itself; give {WAYS}'),
        ([["a.en", "a.tmx.gz"]], f'"a.tmx.gz" holds both sides and cannot be one of two; give {WAYS}'),
        (["a.sgm", "b.de"], 'of "a.sgm" and "b.de" one is SGML; give two such files, or two of plain text'),
        ([["builtin:5", "a.de"]], f'"builtin:5" holds both sides and cannot be one of two; give {WAYS}'),
    ],
)
def test_what_is_no_corpus(given, text):
    with pytest.raises(ValidationError) as caught:
        Data(train=given, dev="builtin")
    assert caught.value.errors()[0]["msg"] == f"Value error, {text}"


def test_several_target_languages_need_tags():
    def data(*pairs):
        corpora = [{"files": "a.tsv", "src_lang": src, "tgt_lang": tgt} for src, tgt in pairs]
        return Data(train=corpora, dev="builtin", src_lang="en", tgt_lang="de")

    assert data((None, None)).language_pairs == (("en", "de"),)
    assert data(("fr", None), ("fr", "de"), (None, None)).language_pairs == (("fr", "de"), ("en", "de"))
    assert data(("fr", None), (None, None)).tags == ()
    assert data((None, "fr"), (None, None), (None, "fr")).tags == ("de", "fr")


def test_a_recipe_is_frozen(recipe_with):
    with pytest.raises(ValidationError, match="frozen"):
        recipe_with().train.steps = 3


def test_numbers_are_finite_and_betas_below_one():
    for wrong in ({"epsilon": float("inf")}, {"betas": [0.9, 1.0]}):
        with pytest.raises(ValidationError):
            Optimizer(**wrong)


def test_what_is_left_out_is_derived(recipe_with):
    recipe = recipe_with("model.layers=4")
    assert (recipe.warmup_steps, recipe.decay_steps) == (100, 900)
    assert recipe.model.num_decoder_layers == 4
    assert recipe.train.tokens_per_micro_batch == 1024
    assert Train(steps=1, tokens_per_step=3).tokens_per_micro_batch == 1
    given = recipe_with("model.decoder_layers=2", "schedule.warmup_steps=0", "schedule.decay_steps=7")
    assert (given.warmup_steps, given.decay_steps, given.model.num_decoder_layers) == (0, 7, 2)
