import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.config import Corpus, Recipe
from dragoman.errors import UserError
from dragoman.recipe import (
    built_in_recipes,
    changed_fields,
    dump_recipe,
    field_names,
    load_recipe,
    parse_recipe,
    reference,
)

SHORTEST = '[data]\ntrain = "builtin"\ndev = "builtin"\n[train]\nsteps = 1000\ntokens_per_step = 4096\n'


def complaints(text: str, *overrides: str) -> list[tuple[str, str, str]]:
    """Return (what, where, fix) of each error in a recipe."""
    with pytest.raises(UserError) as caught:
        parse_recipe(text, "a.toml", overrides)
    errors = getattr(caught.value, "errors", [caught.value])
    assert str(caught.value) == "\n".join(str(error) for error in errors)
    return [(error.what, error.where, error.fix) for error in errors]


@pytest.mark.parametrize("name", built_in_recipes())
def test_built_in_recipes_load_and_round_trip(name):
    recipe = load_recipe(name)
    assert parse_recipe(dump_recipe(recipe), "copy") == recipe
    assert built_in_recipes()[name].startswith("#"), "a recipe begins by saying what to expect of it"


pair_of_files = st.tuples(*(st.text().map(lambda name, side=side: name + side) for side in (".en", ".de")))
some_files = pair_of_files | st.text().map(lambda name: name + ".tsv")
a_corpus = some_files | st.fixed_dictionaries(
    {"files": some_files},
    optional={"name": st.text(min_size=1), "weight": st.floats(0.01, 1e6), "licence": st.none() | st.text()},
)


@given(
    steps=st.integers(1, 10**9),
    dropout=st.floats(0, 1, exclude_max=True),
    epsilon=st.floats(0, 1e300, exclude_min=True),
    betas=st.tuples(*[st.floats(0, 1, exclude_max=True)] * 2),
    directory=st.text(),
    train=st.lists(a_corpus, min_size=1),
    decoder_layers=st.none() | st.integers(1, 99),
)
def test_a_saved_recipe_reads_back_equal(steps, dropout, epsilon, betas, directory, train, decoder_layers):
    recipe = Recipe.model_validate(
        {
            "data": {"train": train, "dev": "builtin", "directory": directory},
            "train": {"steps": steps, "tokens_per_step": 8},
            "model": {"dropout": dropout, "decoder_layers": decoder_layers},
            "optimizer": {"epsilon": epsilon, "betas": betas},
        }
    )
    assert parse_recipe(dump_recipe(recipe), "copy") == recipe


def test_overrides_are_toml_and_a_bare_word_is_a_string():
    recipe = parse_recipe(
        SHORTEST,
        "a.toml",
        ["model.layers = 2", 'data.dev=["a.en", "a.de"]', "optimizer.name=muon", "train.steps=5"],
    )
    assert recipe.model.layers == 2
    assert [corpus.files for corpus in recipe.data.dev] == [("a.en", "a.de")]
    assert recipe.optimizer.name == "muon"
    assert recipe.train.steps == 5


def test_an_override_may_make_a_section():
    assert parse_recipe(SHORTEST, "a.toml", ["log.tensorboard=false"]).log.tensorboard is False


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("model.layers", ("not of the form section.field=value", "--set model.layers", "write a.b=c")),
        ("=3", ("not of the form section.field=value", "--set =3", "write a.b=c")),
        (
            "model.layers=[1,",
            (
                "the value is not valid TOML: [1,",
                "--set model.layers=[1,",
                """quote it for the shell and for TOML, for example --set 'data.dev=["a.en", "a.de"]'""",
            ),
        ),
        ("train.steps.x=3", ("steps is not a section", "--set train.steps.x=3", "write section.field=value")),
        ("layers=3", ("there is no setting layers", "--set layers", "did you mean model.layers?")),
        ("modl.layers=3", ("there is no setting modl", "--set modl.layers", "did you mean [model]?")),
        ("model.head=3", ("there is no setting model.head", "--set model.head", "did you mean model.heads?")),
        (
            "model.layers=x",
            (
                "model.layers: Input should be a valid integer (given: 'x')",
                "--set model.layers",
                "correct the value",
            ),
        ),
    ],
)
def test_wrong_overrides(override, expected):
    assert complaints(SHORTEST, override) == [expected]


def test_text_that_is_not_toml():
    ((what, where, fix),) = complaints("[data\n")
    assert what.startswith("not valid TOML: ")
    assert "line 1" in what
    assert (where, fix) == ("a.toml", "correct that line")


def test_missing_sections_and_fields_are_told_together():
    fix = "add it; `dragoman recipes` shows examples"
    assert complaints("[data]\ntrain = 'builtin'") == [
        ("data.dev is missing", "a.toml, [data] dev", fix),
        ("train.steps is missing", "a.toml, [train] steps", fix),
        ("train.tokens_per_step is missing", "a.toml, [train] tokens_per_step", fix),
    ]


def test_unknown_settings_name_the_nearest_known_one():
    text = SHORTEST + "[model]\nlayer = 1\nsteps = 2\nqqqqq = 3\n[xyz]\n[trian]\n"
    sections = ", ".join(Recipe.model_fields)
    assert complaints(text) == [
        ("there is no setting model.layer", "a.toml, [model] layer", "did you mean model.layers?"),
        ("there is no setting model.steps", "a.toml, [model] steps", "did you mean train.steps?"),
        (
            "there is no setting model.qqqqq",
            "a.toml, [model] qqqqq",
            "remove it; docs/config.md lists the settings of [model]",
        ),
        ("there is no setting xyz", "a.toml, [xyz]", f"the sections are {sections}"),
        ("there is no setting trian", "a.toml, [trian]", "did you mean [train]?"),
    ]


def test_wrong_values_are_told_together_with_what_was_given():
    text = SHORTEST + "[model]\nlayers = 'six'\ndropout = 1.5\nnorm = 'mid'\n[optimizer]\nbetas = [0.9]\n"
    assert [(what, where) for what, where, fix in complaints(text)] == [
        ("model.layers: Input should be a valid integer (given: 'six')", "a.toml, [model] layers"),
        ("model.dropout: Input should be less than 1 (given: 1.5)", "a.toml, [model] dropout"),
        ("model.norm: Input should be 'pre' or 'post' (given: 'mid')", "a.toml, [model] norm"),
        ("optimizer.betas: Field required (given: [0.9])", "a.toml, [optimizer] betas"),
    ]


def test_contradictions_are_told_together():
    text = SHORTEST + "[model]\nd_model = 9\nheads = 2\n[schedule]\nname = 'cosine'\nwarmup_steps = 5000\n"
    assert complaints(text, "train.micro_batch_tokens=5000", "train.average=checkpoints") == [
        (
            "d_model 9 cannot be shared evenly by 2 heads",
            "a.toml, [model] heads",
            "choose a number of heads that divides d_model",
        ),
        ("d_model 9 is odd", "a.toml, [model] d_model", "choose an even d_model"),
        (
            "a micro-batch (5,000 tokens) is larger than a step (4,096 tokens)",
            "--set train.micro_batch_tokens",
            "lower micro_batch_tokens, or raise train.tokens_per_step",
        ),
        (
            "warmup (5,000 steps) is longer than the run (1,000 steps)",
            "a.toml, [schedule] warmup_steps",
            "lower warmup_steps below 1000, or raise train.steps",
        ),
        (
            "average_last is 5 but only 3 checkpoints are kept",
            "a.toml, [checkpoint] keep_last",
            "set checkpoint.keep_last to at least 5, or lower train.average_last",
        ),
    ]
    assert complaints(SHORTEST, "schedule.name=linear", "schedule.decay_steps=1000") == [
        (
            "warmup (100) and decay (1,000 steps) are longer than the run (1,000 steps)",
            "--set schedule.decay_steps",
            "lower decay_steps or warmup_steps, or raise train.steps",
        )
    ]


@pytest.mark.parametrize(
    ("sync", "wire", "fix"),
    [
        ("every-step", "int4", "set wire to float32 or bf16, or leave it out"),
        ("compressed", "float32", "set wire to int4 or int8 or bf16 or fp16 or powersgd, or leave it out"),
        ("local", "powersgd", "set wire to int4 or int8 or bf16, or leave it out"),
        ("auto", "bf16", "leave wire out: auto chooses it"),
    ],
)
def test_a_mode_of_synchronisation_has_its_own_formats(sync, wire, fix):
    assert complaints(SHORTEST, f"cluster.sync={sync}", f"cluster.wire={wire}") == [
        (f"sync = {sync} cannot send {wire}", "--set cluster.wire", fix)
    ]


def test_a_corpus_can_be_set_and_its_mistakes_are_told_by_number():
    recipe = parse_recipe(SHORTEST, "a.toml", ['data.train=[{files="a.tmx", weight=2}, ["b.en", "b.de"]]'])
    assert [(corpus.files, corpus.weight) for corpus in recipe.data.train] == [
        (("a.tmx",), 2.0),
        (("b.en", "b.de"), 1.0),
    ]
    tables = (
        "[[data.train]]\nfiles = 'a.tsv'\nweigth = 1\n[[data.train]]\nweight = 0\n[[data.dev]]\nfiles = 'x'\n"
    )
    steps = "[train]\nsteps = 1\ntokens_per_step = 1\n"
    where = "a.toml, [data] train, corpus"
    assert complaints(tables + steps) == [
        ("there is no setting data.train.weigth", f"{where} 1", "did you mean data.train.weight?"),
        ("data.train.files is missing", f"{where} 2", "add it; `dragoman recipes` shows examples"),
        (
            "data.train.weight: Input should be greater than 0 (given: 0)",
            f"{where} 2",
            "correct the value",
        ),
        (
            'data.dev.files: "x" is no corpus by itself; give a pair [src, tgt] of paths, a file that holds both '
            'sides (.tsv, .tmx, .xml), or "builtin"',
            "a.toml, [data] dev, corpus 1",
            "correct the value",
        ),
    ]


def test_dev_has_no_weight_and_no_language_that_is_not_trained():
    dev = '[{files="a.tsv", tgt_lang="fr"}, {files="b.tsv", weight=2}]'
    assert complaints(SHORTEST, f"data.dev={dev}") == [
        (
            "dev is translated into fr, which no training corpus is",
            "--set data.dev",
            'correct tgt_lang, or train on a corpus with tgt_lang = "fr"',
        ),
        ("dev has a weight, but is always used once", "--set data.dev", "remove the weight"),
    ]


def test_a_resumed_run_keeps_its_weights_but_may_find_its_files_elsewhere():
    def weighted(path, *weights):
        tables = ", ".join(f'{{files="{path}{i}.tsv", weight={weight}}}' for i, weight in enumerate(weights))
        return parse_recipe(SHORTEST, "a.toml", [f"data.train=[{tables}]"])

    assert changed_fields(weighted("a", 1, 2), weighted("b", 1, 2)) == []
    assert changed_fields(weighted("a", 1, 2), weighted("a", 1, 3)) == [
        ("data.train.weight", [1.0, 2.0], [1.0, 3.0])
    ]


def test_a_recipe_is_a_path_or_a_built_in_name(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(SHORTEST)
    assert load_recipe(str(path), ["train.seed=7"]).train.seed == 7
    with pytest.raises(UserError) as caught:
        load_recipe("nowhere")
    names = ", ".join(built_in_recipes())
    assert str(caught.value) == (
        "error: there is no such recipe\n  where: nowhere\n"
        f"  fix:   give the path of a .toml file, or one of: {names}"
    )


@pytest.mark.parametrize(("name", "may_change"), list(field_names()))
def test_a_resumed_run_may_change_some_fields_and_no_others(name, may_change):
    old = parse_recipe(SHORTEST, "a.toml")
    section, _, field = name.partition(".")
    values = getattr(old, section)
    other = (Corpus(files=("a.en", "a.de")),) if name == "data.train" else "other"
    new = old.model_copy(update={section: values.model_copy(update={field: other})})
    expected = [] if may_change else [(name, getattr(values, field), other)]
    assert changed_fields(old, new) == expected
    assert changed_fields(old, old) == []


def test_the_reference_covers_every_setting():
    text = reference()
    for name, may_change in field_names():
        section, _, field = name.partition(".")
        table = text.split(f"## [{section}]\n")[1].split("\n## ")[0]
        mark = " ↻" if may_change else ""
        assert f"| `{field}`{mark} | " in table
    corpus = text.split("### [[data.train]], [[data.dev]], [[data.test]]\n")[1].split("\n## ")[0]
    assert all(f"| `{field}`" in corpus for field in Corpus.model_fields)
    assert "| `weight` | `1.0` |" in corpus
    assert "| `betas` | `[0.9, 0.997]` |" in text
    assert "| `steps` ↻ | required |" in text
    assert "| `decoder_layers` | – |" in text
