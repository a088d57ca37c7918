"""Systems are compared fairly, what is wrong with a test set is said, and stored scores can be checked."""

import csv
import gzip
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
from rich.console import Console

from dragoman.data.corpora import Hashes
from dragoman.decode import evaluate as module
from dragoman.decode.compare import Comparison, System, require_metrics
from dragoman.decode.compare_page import show_results, write_sentences
from dragoman.decode.evaluate import evaluate, require_unchanged, rescore
from dragoman.decode.export import checkpoint_hash, export_model
from dragoman.decode.score import score
from dragoman.decode.translator import Translator
from dragoman.errors import UserError
from dragoman.files import append_json_line, open_json_lines, write_json
from dragoman.rundir import RunDir
from tests.unit.decode.conftest import SENTENCES

REFERENCES = [f"{line[:-1]}, and {other}" for line in SENTENCES[:9] for other in SENTENCES[:4]]
GOOD = [line.replace("small", "little") for line in REFERENCES]
POOR = [" ".join(line.split()[1::2]) for line in REFERENCES]


@pytest.fixture
def model(toy_run, tmp_path):
    return export_model([toy_run.save(1)], toy_run.recipe, toy_run.dataset.tokenizer_path, tmp_path / "model")


@pytest.fixture
def files(tmp_path):
    """A source and its reference of three lines each."""
    for name in ("src", "ref"):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in REFERENCES[:3]))
    return {"src": tmp_path / "src", "ref": tmp_path / "ref"}


def comparison(metrics, **systems) -> Comparison:
    listed = [System(name, hypotheses) for name, hypotheses in systems.items()]
    return Comparison.of(listed, REFERENCES, REFERENCES, metrics, "en")


def shown(results, metrics) -> str:
    file = io.StringIO()
    show_results(results, metrics, Console(file=file, width=120))
    return file.getvalue()


def error_of(call, *arguments, **options) -> str:
    with pytest.raises(UserError) as raised:
        call(*arguments, **options)
    return str(raised.value)


# Comparing


def test_one_system_has_the_scores_of_a_line_in_scores_jsonl():
    (result,) = comparison(["bleu", "chrf"], good=GOOD).results()
    assert result == {"system": "good", **score(GOOD, REFERENCES)}


def test_of_several_systems_the_better_one_is_named_with_its_p_value():
    metrics = ["bleu", "chrf", "ter"]
    first, better, same = comparison(metrics, poor=POOR, good=GOOD, poor_again=POOR).results()
    assert "versus_first" not in first
    for metric in metrics:
        versus = better["versus_first"][metric]
        assert versus["difference"] == pytest.approx(better[metric] - first[metric], abs=1e-3)
        assert versus["p"] < 0.01
        assert versus["verdict"] == f"good is better, p = {versus['p']:.3f}"
        assert same["versus_first"][metric]["verdict"] == "no difference shown, p = 1.000"
    (_, worse) = comparison(metrics, good=GOOD, poor=POOR).results()
    assert all(worse["versus_first"][metric]["verdict"].startswith("poor is worse") for metric in metrics)
    # Whoever is first: a system's own score, interval and signature are those it has alone.
    for result, hypotheses in ((first, POOR), (better, GOOD)):
        assert result.items() >= score(hypotheses, REFERENCES).items()


def test_p_values_are_those_of_the_sacrebleu_command(tmp_path):
    for name, lines in {"ref": REFERENCES, "base": POOR, "system": GOOD}.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    command = [sys.executable, "-m", "sacrebleu", "ref", "-i", "base", "system", "--paired-bs", "-m", "bleu"]
    printed = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=100
    ).stdout
    _, result = comparison(["bleu"], base=POOR, system=GOOD).results()
    theirs = json.loads(printed)[1]["BLEU"]
    assert result["bleu"] == pytest.approx(theirs["score"], abs=1e-3)
    assert result["versus_first"]["bleu"]["p"] == pytest.approx(theirs["p_value"], abs=1e-3)
    assert result["ci95"] == pytest.approx(
        [theirs["mean"] - theirs["ci"], theirs["mean"] + theirs["ci"]], abs=1e-3
    )


def test_the_table_says_who_is_better_and_one_system_needs_none():
    metrics = ["bleu", "ter"]
    table = shown(comparison(metrics, poor=POOR, good=GOOD).results(), metrics)
    assert "good is better, p = 0.001" in table
    assert f"|version:{sacrebleu.__version__}" in table
    assert "36 sentences" in table
    assert "┃" not in table
    line = shown(comparison(["chrf"], good=GOOD).results(), ["chrf"]).splitlines()[0]
    assert line.startswith("chrF ")
    assert "(95 % interval " in line


def test_sentences_are_written_with_their_scores_as_json_or_as_a_table():
    one = comparison(["bleu", "chrf", "ter"], good=GOOD, poor=POOR)
    file = io.StringIO()
    write_sentences(one.sentences(), file, tabs=False)
    lines = [json.loads(line) for line in file.getvalue().splitlines()]
    assert [(line["line"], line["system"]) for line in lines[:4]] == [
        (1, "good"),
        (1, "poor"),
        (2, "good"),
        (2, "poor"),
    ]
    perfect = next(line for line in lines if line["hyp"] == line["ref"])
    assert (perfect["bleu"], perfect["chrf"], perfect["ter"]) == (100, 100, 0)
    assert perfect.keys() == {"line", "system", "src", "ref", "hyp", "bleu", "chrf", "ter"}
    table = io.StringIO(newline="")
    write_sentences(one.sentences(), table, tabs=True)
    rows = list(csv.DictReader(io.StringIO(table.getvalue()), dialect="excel-tab"))
    assert [row["hyp"] for row in rows] == [line["hyp"] for line in lines]
    assert rows[0]["bleu"] == str(lines[0]["bleu"])


def test_an_unknown_metric_is_refused_with_the_known_ones():
    assert "choose from bleu, chrf, ter, comet" in error_of(require_metrics, ["bleu", "blue"])
    assert require_metrics(["ter", "bleu", "ter"]) == ["ter", "bleu"]


# COMET, which lives elsewhere

FAKE = """#!{python}
import json, sys
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
if "{ending}" == "broken": sys.exit("no such model")
systems = sys.argv[sys.argv.index("-t") + 1 : sys.argv.index("--to_json")]
read = lambda path: open(path, encoding="utf-8").read().splitlines()
ref = read(sys.argv[sys.argv.index("-r") + 1])
assert len(read(sys.argv[sys.argv.index("-s") + 1])) == len(ref)
score = lambda mt, ref: len(set(mt.split()) & set(ref.split())) / len(ref.split())
found = {{path: [{{"mt": m, "COMET": score(m, r)}} for m, r in zip(read(path), ref)] for path in systems}}
json.dump(found, open(sys.argv[sys.argv.index("--to_json") + 1], "w"))
"""


def fake_comet(directory: Path, monkeypatch, ending: str = "") -> None:
    program = directory / "bin" / "comet-score"
    program.parent.mkdir()
    program.write_text(FAKE.format(python=sys.executable, ending=ending))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    monkeypatch.delenv("DRAGOMAN_COMET_PYTHON", raising=False)


def test_comet_is_asked_in_its_own_process_and_compared_like_the_others(tmp_path, monkeypatch):
    fake_comet(tmp_path, monkeypatch)
    both = comparison(["comet"], poor=POOR, good=GOOD)
    poor, good = both.results()
    segments = [
        len(set(h.split()) & set(r.split())) / len(r.split()) for h, r in zip(GOOD, REFERENCES, strict=True)
    ]
    assert good["comet"] == pytest.approx(100 * np.mean(segments), abs=1e-3)
    low, high = good["comet_ci95"]
    assert low < good["comet"] < high
    assert good["versus_first"]["comet"]["verdict"] == "good is better, p = 0.001"
    assert "Unbabel/wmt22-comet-da" in poor["comet_signature"]
    assert next(iter(both.sentences())).keys() == {"line", "system", "src", "ref", "hyp", "comet"}


def test_without_comet_the_way_to_get_it_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("DRAGOMAN_COMET_PYTHON", raising=False)
    error = error_of(comparison, ["comet"], good=GOOD)
    assert "COMET is not installed" in error
    assert "pip install unbabel-comet" in error
    assert "COMET is not installed" in error_of(
        evaluate, [tmp_path / "no model"], metrics=["comet"]
    )  # first of all
    monkeypatch.setenv("DRAGOMAN_COMET_PYTHON", "/nowhere/python")
    assert "there is no such program: /nowhere/python" in error_of(comparison, ["comet"], good=GOOD)
    monkeypatch.setenv("DRAGOMAN_COMET_PYTHON", sys.executable)  # which has no comet
    assert "No module named 'comet'" in error_of(comparison, ["comet"], good=GOOD)


def test_what_comet_said_when_it_failed_is_shown(tmp_path, monkeypatch):
    fake_comet(tmp_path, monkeypatch, ending="broken")
    assert "comet-score failed with exit code 1: no such model" in error_of(comparison, ["comet"], good=GOOD)


# Test sets and models


def test_models_translate_the_set_and_others_bring_their_translation(model, files, tmp_path):
    (tmp_path / "theirs").write_text("".join(f"{line}\n" for line in GOOD[:3]))
    found = evaluate([model, model], **files, hyps=[tmp_path / "theirs"], beam=1)
    translations = list(Translator(model).translate(REFERENCES[:3], beam=1))
    ours, again, theirs = found.results()
    assert ours.items() >= score([each.text for each in translations], REFERENCES[:3]).items()
    assert (ours["model"], ours["beam"], ours["sentences"], ours["quantization"]) == (
        str(model),
        1,
        3,
        "float32",
    )
    assert [each["system"] for each in (ours, again)] == [str(model), f"{model} (2)"]
    assert theirs.items() >= score(GOOD[:3], REFERENCES[:3]).items()
    assert next(found.sentences())["log_probability"] == pytest.approx(
        translations[0].log_probability, abs=1e-3
    )
    assert json.loads(json.dumps([ours, theirs])) == [ours, theirs]


def test_compressed_files_are_read(model, files, tmp_path):
    (tmp_path / "src.gz").write_bytes(gzip.compress(files["src"].read_bytes()))
    plain, compressed = (
        evaluate([model], **files),
        evaluate([model], src=tmp_path / "src.gz", ref=files["ref"]),
    )
    assert compressed.systems[0].hypotheses == plain.systems[0].hypotheses


def test_test_sets_of_other_formats_are_read(model, files, tmp_path):
    src, ref = (path.read_text().splitlines() for path in files.values())
    for name, lines in (("src", src), ("ref", ref)):
        segments = "".join(f'<seg id="{number}">{line}</seg>\n' for number, line in enumerate(lines))
        (tmp_path / f"{name}.sgm").write_text(f'<doc docid="a">{segments}</doc>')
    units = "".join(
        f'<tu><tuv xml:lang="en"><seg>{one}</seg></tuv><tuv xml:lang="de"><seg>{other}</seg></tuv></tu>'
        for one, other in zip(src, ref, strict=True)
    )
    (tmp_path / "both.tmx").write_text(f"<tmx><body>{units}</body></tmx>")
    plain = evaluate([model], **files).results()[0]
    for one, other in (("src.sgm", "ref.sgm"), ("both.tmx", "both.tmx")):
        found = evaluate([model], src=tmp_path / one, ref=tmp_path / other).results()[0]
        assert found | {"seconds": 0} == plain | {"seconds": 0}


def test_a_file_of_hypotheses_alone_can_be_scored(tmp_path):
    for name, lines in {"hyp": ["猫看见一座小房子。"], "ref.zh": ["猫看到一座小房子。"]}.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    found = evaluate([], src=tmp_path / "hyp", ref=tmp_path / "ref.zh", hyps=[tmp_path / "hyp"])
    assert "|tok:zh|" in found.results()[0]["signature"]


def test_a_set_of_the_catalogue_is_found_by_its_name(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    directory = tmp_path / "corpora" / "tiny-en-de"
    error = error_of(evaluate, [model], set_name="tiny-en-de/test")
    assert 'there is no test set "tiny-en-de/test" here from en to de' in error
    assert "dragoman data get tiny-en-de" in error
    directory.mkdir(parents=True)
    for language in ("en", "de"):
        (directory / f"test.{language}").write_text("The cat sees.\nMy sister.\n")
    assert evaluate([model], set_name="tiny-en-de/test").results()[0]["sentences"] == 2
    assert "choose from tiny-en-de/test" in error_of(evaluate, [model], set_name="tiny-en-de/dev")
    assert "which way round" in error_of(
        evaluate, [], set_name="tiny-en-de/test", hyps=[directory / "test.de"]
    )


def test_what_is_missing_or_wrong_is_named(model, files, tmp_path):
    assert "there is nothing to evaluate" in error_of(evaluate, [], **files)
    assert "the test set is missing" in error_of(evaluate, [model], src=files["src"])
    assert "where: --ref /nowhere" in error_of(evaluate, [model], src=files["src"], ref=Path("/nowhere"))
    assert "where: --hyp /nowhere" in error_of(evaluate, [model], **files, hyps=[Path("/nowhere")])
    (tmp_path / "short").write_text("one line\n")
    error = error_of(evaluate, [model], **files, hyps=[tmp_path / "short"])
    assert "the test set has 3 lines, this translation of it 1" in error
    (tmp_path / "empty").touch()
    assert f"where: {tmp_path / 'empty'}" in error_of(
        evaluate, [model], src=files["src"], ref=tmp_path / "empty"
    )
    (tmp_path / "longer").write_text("a\nb\nc\nd\n")
    error = error_of(evaluate, [model], src=files["src"], ref=tmp_path / "longer")
    assert f"{files['src']} has 3 lines" in error
    assert f"{tmp_path / 'longer'} has 4 lines" in error
    (tmp_path / "latin1").write_bytes(b"a\nb\xe9\nc\n")
    error = error_of(evaluate, [model], src=tmp_path / "latin1", ref=files["ref"])
    assert f"where: {tmp_path / 'latin1'}, line 2" in error


# Stored hypotheses


def test_recorded_scores_come_out_again_from_the_stored_hypotheses(toy_run):
    run = toy_run.directory
    checkpoint = checkpoint_hash([toy_run.save(1)])
    assert "no scores yet" in error_of(rescore, run)
    _, references = toy_run.dataset.text("dev")
    hypotheses = [line.replace("HOUSE", "HOME") for line in references]
    run.hypotheses.mkdir()
    (run.hypotheses / "dev-1.txt").write_text("".join(f"{line}\n" for line in hypotheses))
    recorded = {"set": "dev", "step": 1, "checkpoint": checkpoint, "hypotheses": "hypotheses/dev-1.txt"}
    with open_json_lines(run.scores) as file:
        append_json_line(
            file, recorded | dict(score(references, references, tgt_lang="de"))
        )  # before a rollback
        append_json_line(file, recorded | dict(score(hypotheses, references, tgt_lang="de")))
    (line,) = rescore(run)
    assert line["changed"] == {}
    assert 0 < line["bleu"] < 100
    require_unchanged(run.path, [line])
    (run.hypotheses / "dev-1.txt").write_text("".join(f"{line}\n" for line in references))
    (line,) = rescore(run)
    assert line["changed"]["bleu"][1] == 100
    assert "bleu of the stored hypotheses is 100" in error_of(require_unchanged, run.path, [line])


def test_a_run_knows_its_own_sets_by_their_content_and_says_what_train_had_of_them(toy_run, files, tmp_path):
    run = tmp_path / "run"
    path = run / "models" / "step-00000001"
    model = export_model([toy_run.save(1)], toy_run.recipe, toy_run.dataset.tokenizer_path, path)
    (alone,) = evaluate([model], **files).results()
    assert alone["overlap"] is None  # no run is around it
    known = {"pairs": 3, "exact": 2, "normalised": 0, "ngram": 0}
    content = [Hashes(tmp_path).of(str(files[side])) for side in ("src", "ref")]
    passport = {
        "splits": {"test": {"corpora": [{"content": content}]}},
        "overlap": {"gate": True, "removed": 5, "sets": {"test": known}},
    }
    write_json(RunDir(run).facts, {"passport": passport})
    results = evaluate([model], **files).results()
    assert results[0]["overlap"] == {**known, "gate": True, "removed": 5}
    assert "2 of 3 pairs of this set were in train too (2 exact) and were removed" in shown(results, ["bleu"])
    files["ref"].write_text("another\n" * 3)
    (other,) = evaluate([model], **files).results()
    assert other["overlap"] is None


def test_names_of_models_stay_apart():
    assert module._names([Path("a"), Path("b"), Path("a")]) == ["a", "b", "a (3)"]
