"""Languages in batches: as py3langid says, line by line."""

import numpy as np
import pytest
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from dragoman.data import language
from dragoman.data.builtin import sentences
from dragoman.data.language import COMMON, NEIGHBOURS, is_known, other_probabilities

LINES = [
    "",
    "a",
    "12345 !!",
    "Je ne sais pas ce que tu veux dire.",
    "Это предложение написано по-русски.",
    "ALL IN CAPITALS, AS HEADLINES ARE",
    "这是一个句子。",
    "Ein Satz. " * 20,
]


@pytest.fixture(scope="module")
def theirs():
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    known = list(identifier.nb_classes)
    identifier.set_languages(COMMON.split())
    return identifier, known


def test_probabilities_are_those_of_py3langid(theirs):
    lines = [*LINES, *(line for pair in sentences("dev", 300) for line in pair)]
    model = language._model("en")
    ours = model.probabilities(lines)
    names = list(dict.fromkeys(model.classes))
    merged = np.stack(
        [ours[:, [name == each for each in model.classes]].sum(axis=1) for name in names], axis=1
    )
    for line, found in zip(lines, merged, strict=True):
        expected = dict(theirs[0].rank(line.encode()[: language.MAX_BYTES]))
        assert found == pytest.approx([expected[name] for name in names], abs=1e-4), line


def test_the_languages_we_name_are_known(theirs):
    assert set(COMMON.split()) <= set(theirs[1])
    assert {code for group in NEIGHBOURS for code in group.split()} <= set(theirs[1])
    assert is_known("de")
    assert is_known("pt-BR")
    assert is_known("cy")  # not a common one
    assert not is_known("tlh")


def test_other_languages_are_noticed_and_neighbours_are_not():
    french, croatian = LINES[3], "Ovo je rečenica na hrvatskom jeziku koju svi razumiju."
    assert other_probabilities([french], "de")[0] > 0.8
    assert other_probabilities([french], "fr")[0] < 0.2
    assert other_probabilities([croatian], "sr")[0] < 0.2
    assert other_probabilities([croatian], "de")[0] > 0.8
    welsh = "Mae hi'n bwrw glaw heddiw, ond bydd hi'n braf yfory."
    assert other_probabilities([welsh], "cy")[0] < 0.2


def test_no_lines_are_no_problem():
    assert other_probabilities([], "en").tolist() == []
