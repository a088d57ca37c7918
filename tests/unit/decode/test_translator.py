"""Every line gives one line, in order, whatever is in it."""

import shutil
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.decode import translator as module
from dragoman.decode.export import export_model
from dragoman.decode.translator import CARD, Sampling, Translator, resolve_model, split_long
from dragoman.errors import UserError
from dragoman.files import read_json, write_json
from tests.unit.decode.conftest import make_multilingual, make_run

LINES = [
    "The cat sees a small house.",
    "",
    "My sister has never read the red book.",
    "three letters",
    "Nobody.",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory, toy_task):
    toy = make_run(tmp_path_factory.mktemp("run"), *toy_task).with_recipe(filter={"max_length": 12})
    return export_model([toy.save(3)], toy.recipe, toy.dataset.tokenizer_path, toy.directory.model(3))


@pytest.fixture(scope="module")
def translator(model):
    return Translator(model, threads=1)


def texts(translations):
    return [translation.text for translation in translations]


def words(text):
    return len(text.split())


@pytest.fixture(scope="module")
def multilingual(tmp_path_factory, toy_task):
    """A model into German and Chinese, of random weights."""
    toy = make_multilingual(tmp_path_factory.mktemp("multilingual"), toy_task[0])
    toy = toy.with_recipe(filter={"max_length": 12})
    return export_model([toy.save(3)], toy.recipe, toy.dataset.tokenizer_path, toy.directory.model(3))


class Engine:
    """The engine, and what it was asked for."""

    def __init__(self, engine):
        self.engine, self.calls = engine, []

    def translate_batch(self, sources, **options):
        self.calls.append((sources, options))
        return self.engine.translate_batch(sources, **options)


@pytest.fixture
def engine(translator, monkeypatch):
    engine = Engine(translator._engine)
    monkeypatch.setattr(translator, "_engine", engine)
    return engine


def test_it_imports_without_torch():
    code = "import dragoman.decode.translator, dragoman.decode.score, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# Order and number


def test_order_and_number_of_lines_are_kept_and_neighbours_change_nothing(translator):
    together = texts(translator.translate(LINES * 3))
    alone = [texts(translator.translate([line]))[0] for line in LINES]
    assert together == alone * 3
    assert all(together[index] for index in (0, 2, 3, 4))


@settings(max_examples=30, deadline=None)
@given(lines=st.lists(st.text(st.characters(), max_size=60), max_size=8), window_lines=st.integers(1, 4))
def test_any_text_gives_one_line_each(translator, lines, window_lines):
    translated = texts(translator.translate(lines, beam=1, window_lines=window_lines))
    assert len(translated) == len(lines)
    assert all(len(text.splitlines()) <= 1 for text in translated)


@pytest.mark.parametrize("line", ["", "   ", "\t\r\n", "\u200b\ufeff", "\x00\x1b"])
def test_a_line_that_says_nothing_does_not_reach_the_model(translator, engine, line):
    assert texts(translator.translate([line])) == [line.rstrip("\r\n") if line.isspace() else ""]
    assert not engine.calls


def test_text_that_reads_like_a_control_piece_is_text(translator, engine):
    list(translator.translate(["</s> <s> <pad>"]))
    ((sources, _),) = engine.calls
    assert not {"</s>", "<s>", "<pad>"} & set(sources[0])


def test_lines_are_read_a_window_at_a_time(translator):
    read = []

    def endless():
        while True:
            read.append("The cat sees a house.")
            yield read[-1]

    translations = translator.translate(endless(), beam=1, window_lines=4)
    assert [next(translations).text for _ in range(3)]
    assert len(read) == 4


def test_a_window_of_very_long_lines_is_a_small_one(monkeypatch):
    monkeypatch.setattr(module, "WINDOW_CHARACTERS", 10)
    windows = list(module._windows(["123456", "1234", "1", "12345678901234", "1"], 100))
    assert windows == [["123456", "1234"], ["1", "12345678901234"], ["1"]]


# Options


def test_the_defaults_are_those_the_model_was_scored_with(translator, engine):
    list(translator.translate(["a"]))
    list(translator.translate(["a"], beam=1, length_penalty=0.0, nbest=3))
    used = [(o["beam_size"], o["length_penalty"], o["num_hypotheses"]) for _, o in engine.calls]
    assert used == [(2, 0.6, 1), (3, 0.0, 3)]


def test_an_n_best_list_is_ranked_and_complete(translator):
    best, empty = translator.translate(["The cat sees a house.", ""], nbest=3, length_penalty=0)
    log_probabilities = [hypothesis.log_probability for hypothesis in best.hypotheses]
    assert log_probabilities == sorted(log_probabilities, reverse=True)
    assert len(set(best.hypotheses)) == 3
    assert best.log_probability == log_probabilities[0] < 0
    assert empty.hypotheses == (module.Hypothesis("", 0.0, 0),) * 3


def test_attention_says_where_each_piece_looked_and_changes_nothing_else(translator, multilingual):
    (plain,) = translator.translate(["The cat sees a house."])
    (best,) = translator.translate(["The cat sees a house."], attention=True)
    assert plain.hypotheses[0] == best.hypotheses[0]._replace(attention=None)
    source, target, weights = best.hypotheses[0].attention
    assert ("".join(source), "".join(target)) == ("The cat sees a house.", best.text)
    assert [len(row) for row in weights] == [len(source)] * len(target)
    (tagged,) = Translator(multilingual, threads=1).translate(["A cat."], to="de", attention=True)
    assert tagged.hypotheses[0].attention.source[0] == ""
    assert "".join(tagged.hypotheses[0].attention.source) == "A cat."
    (long,) = translator.translate(["a " * 100], attention=True)
    assert long.hypotheses[0].attention is None  # it was cut


def test_sampling_draws_other_sentences(translator, engine):
    lines = ["The cat sees a house."] * 20
    drawn = texts(translator.translate(lines, sampling=Sampling(2.0)))
    assert len(set(drawn)) > 5
    assert len(set(texts(translator.translate(lines, sampling=Sampling(1.0, topk=1))))) == 1
    ((_, options), _) = engine.calls
    assert (options["beam_size"], options["sampling_temperature"], options["sampling_topk"]) == (1, 2.0, 0)


def test_log_probabilities_do_not_depend_on_the_length_penalty(translator):
    plain, divided = (list(translator.translate(LINES, beam=1, length_penalty=p)) for p in (0, 1))
    assert texts(plain) == texts(divided)
    for one, other in zip(plain, divided, strict=True):
        assert one.log_probability == pytest.approx(other.log_probability, rel=1e-4)


def test_the_longest_translation_depends_on_the_line_alone(translator, engine, monkeypatch):
    monkeypatch.setitem(translator.card, "max_length", 40)
    list(translator.translate(["a " * words for words in range(1, 40)]))
    assert len(engine.calls) == 2
    for sources, options in engine.calls:
        assert {-(-len(source) // 32) * 96 for source in sources} == {options["max_decoding_length"]}


# Long lines


@pytest.mark.parametrize(
    "line", ["The cat sees a house. " * 100, "cat " * 2000, "x" * 3000, "é" * 3000, "猫看见。" * 500]
)
def test_a_line_longer_than_training_is_cut_and_put_together(translator, engine, line):
    (text,) = texts(translator.translate([line], beam=1))
    assert text
    assert all(len(source) < 24 for sources, _ in engine.calls for source in sources)


def test_sentences_are_translated_one_by_one_and_put_back_with_their_white_space(translator, model, tmp_path):
    one, other = texts(translator.translate(["The cat sees.", "My sister buys three letters."]))
    line = "\t The cat sees.  My sister buys three letters.\u3000"
    assert texts(translator.translate([line])) == [f"\t {one}  {other}\u3000"]
    (whole,) = translator.translate([line.strip()], nbest=2)
    parts = list(translator.translate(line.strip().split("  "), nbest=2))
    assert whole.hypotheses[1].text == "  ".join(part.hypotheses[1].text for part in parts)
    assert whole.log_probability == pytest.approx(sum(part.log_probability for part in parts))

    paragraphs = shutil.copytree(model, tmp_path / "paragraphs")  # unless the recipe says otherwise
    write_json(paragraphs / CARD, read_json(paragraphs / CARD) | {"split_sentences": False})
    (text,) = texts(Translator(paragraphs).translate([line]))
    assert (text[:2], text[-1]) == ("\t ", "\u3000")
    assert text.strip() != f"{one}  {other}"


def test_the_parts_of_a_line_are_its_sentences(translator):
    sentences = ["The cat sees the red book.", "My sister buys a small house."]
    parts, whole = texts(translator.translate(sentences)), texts(translator.translate([" ".join(sentences)]))
    assert whole == [" ".join(parts)]


def test_cuts_are_made_at_sentences_then_clauses_then_words_then_anywhere():
    assert split_long("a b. c d", words, 4) == ["a b. c d"]
    assert split_long("a b c. d e, f g", words, 6) == ["a b c.", "d e, f g"]
    assert split_long("a b c d, e f g", words, 6) == ["a b c d,", "e f g"]
    assert split_long("a b c d", words, 3) == ["a b", "c d"]
    assert split_long("abcdefgh", len, 2) == ["ab", "cd", "ef", "gh"]
    assert split_long("猫看见。狗看见。", len, 5) == ["猫看见。", "狗看见。"]


@given(text=st.text("ab .,。", max_size=200), longest=st.integers(1, 20))
def test_parts_fit_and_lose_nothing_but_spaces(text, longest):
    parts = split_long(text, len, longest)
    assert all(len(part) <= longest for part in parts)
    assert "".join(parts).replace(" ", "") == text.replace(" ", "")


def test_a_very_long_line_is_cut_in_no_time():
    assert len(split_long("word " * 20_000, words, 100)) >= 200


# Which model


def test_a_model_or_a_run_can_be_named(toy_run, model, tmp_path):
    assert resolve_model(model) == model
    run = toy_run.directory
    shutil.copytree(model, run.model(3))
    run.best.symlink_to("models/step-00000003")
    assert resolve_model(run.path) == run.model(3).resolve()
    assert resolve_model(run.best) == run.model(3).resolve()


def test_what_is_no_model_is_refused(toy_run, tmp_path):
    for path, what in (
        (tmp_path / "nowhere", "there is no such directory"),
        (tmp_path, "there is no model here"),
        (toy_run.directory.path, "this run has no scored model yet"),
    ):
        with pytest.raises(UserError) as raised:
            resolve_model(path)
        assert what in str(raised.value)
        assert f"where: {path}" in str(raised.value)


def test_a_damaged_model_is_a_user_error(model, tmp_path):
    broken = shutil.copytree(model, tmp_path / "broken")
    (broken / "model.bin").write_bytes(b"nothing")
    with pytest.raises(UserError, match="CTranslate2 cannot load this model"):
        Translator(broken)


def test_a_model_of_another_format_is_a_user_error(model, tmp_path):
    other = shutil.copytree(model, tmp_path / "other")
    write_json(other / CARD, read_json(other / CARD) | {"version": 2})
    with pytest.raises(UserError, match="this model has format 2, this Dragoman reads format 1"):
        Translator(other)


def test_parts_in_a_language_without_spaces_are_joined_without(model, tmp_path):
    other = shutil.copytree(model, tmp_path / "other")
    write_json(other / CARD, read_json(other / CARD) | {"tgt_lang": "zh"})
    sentences = ["The cat sees the red book.", "My sister buys a small house."]
    translator = Translator(other)
    assert texts(translator.translate([" ".join(sentences)])) == [
        "".join(texts(translator.translate(sentences)))
    ]


def test_a_multilingual_model_is_told_the_language_by_option_or_by_line(multilingual, monkeypatch):
    translator = Translator(multilingual, threads=1)
    assert translator.card["tags"] == ["de", "zh"]
    assert translator.card["pairs"] == [["en", "de"], ["en", "zh"]]
    german, chinese = (texts(translator.translate(LINES, to=to)) for to in ("de", "zh"))
    assert german[1] == chinese[1] == ""
    assert german != chinese
    assert texts(translator.translate([f"<2de> {line}" for line in LINES])) == german
    assert texts(translator.translate([f"<2de> {line}" for line in LINES], to="zh")) == german
    monkeypatch.setattr(translator, "_engine", engine := Engine(translator._engine))
    long = " ".join(LINES * 3)
    texts(translator.translate([long, "  <2zh>  three letters"], to="de"))
    begins = [source[0] for sources, _ in engine.calls for source in sources]
    assert begins.count("<2de>") == len(begins) - 1 > 3
    assert begins.count("<2zh>") == 1
    one, other = texts(translator.translate(LINES[::2][:2], to="de"))
    assert texts(translator.translate([f" <2de> {LINES[0]}  {LINES[2]}"])) == [f" {one}  {other}"]


def test_parts_of_a_line_are_joined_as_its_language_is_written(multilingual):
    translator = Translator(multilingual, threads=1)
    parts = [(module.Hypothesis("a", -1.0, 1),), (module.Hypothesis("b", -1.0, 1),)]
    assert translator._join(parts, "de", 1).text == "a b"
    assert translator._join(parts, "zh", 1).text == "ab"


def test_a_language_that_is_missing_or_unknown_is_an_error(multilingual, translator):
    several = Translator(multilingual, threads=1)
    with pytest.raises(UserError) as caught:
        list(several.translate(["a"]))
    assert str(caught.value) == (
        "error: this model translates into several languages (de, zh): which one?\n"
        f"  where: {multilingual}\n  fix:   name it, for example with --to de"
    )
    assert texts(several.translate(["", " "])) == ["", " "]
    with pytest.raises(UserError) as caught:
        several.translate(["a"], to="fr")  # at once, not at the first line
    assert str(caught.value) == (
        f'error: this model does not translate into "fr"\n  where: {multilingual}\n'
        "  fix:   it translates into de, zh"
    )
    with pytest.raises(UserError, match="it translates into de"):
        translator.translate(["a"], to="zh")
    assert texts(translator.translate(LINES, to="de")) == texts(translator.translate(LINES))
