"""The commands as a user runs them, on a run that a command has trained."""

import json
import subprocess
import sys

import ctranslate2
import pytest
import sentencepiece

from dragoman.files import read_json_lines
from dragoman.observe.events import read_events


def test_a_run_directory_holds_what_the_design_says(trained):
    run = trained.run_dir("run")
    assert sorted(path.name for path in run.path.iterdir() if not path.name.startswith(".")) == [
        "best", "checkpoints", "events", "explain.json", "hypotheses", "lane.log", "log.txt", "models", "outcome.json",
        "recipe.toml", "report.html", "run.json", "samples.txt", "scores.jsonl", "sentence_losses.jsonl", "telemetry",
        "tensorboard",
    ]  # fmt: skip
    newest = sorted(run.checkpoints.iterdir())[-1]
    assert newest.name == "step-00000030"
    assert sorted(path.name for path in newest.iterdir()) == [
        "MANIFEST.json", "model.safetensors", "optimizer.safetensors", "state.json",
    ]  # fmt: skip


def test_every_rank_has_one_step_event_per_step(trained):
    for rank in (0, 1):
        steps = read_events(trained.run_dir("run").events(rank), "step")
        assert [line["step"] for line in steps] == list(range(1, 31))
        for line in steps:
            assert line["loss"] > line["nll"] * 0.5
            assert line["tokens"] == pytest.approx(600, rel=0.2)
            assert line["seconds"] > 0
            assert 0 < line["lr"] <= 0.005


def test_scores_have_their_signature_interval_and_checkpoint(trained):
    run = trained.run_dir("run")
    scores = read_json_lines(run.scores)
    assert scores[-1]["set"] == "test"
    hashes = {json.loads((path / "MANIFEST.json").read_text())["hash"] for path in run.checkpoints.iterdir()}
    for line in scores:
        assert line["signature"].startswith("nrefs:1")
        assert line["ci95"][0] <= line["bleu"] <= line["ci95"][1] or line["bleu"] == 0
    assert scores[-1]["checkpoint"] in hashes


def test_the_console_reads_well_in_a_file(toy):
    output = toy.call("train", "toy.toml", "--run", "run").stdout
    assert "\x1b" not in output
    assert "\r" not in output
    lines = [line for line in output.splitlines() if line.startswith("step ")]
    assert len(lines) == 4  # the first step, then every ten
    assert all("tok/s" in line and "s/step" in line for line in lines)
    assert "sample at step 20" in output
    assert "dev score at step 30" in output
    assert "test score at step" in output


def test_tensorboard_has_the_classic_curves(trained):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(trained.run_dir("run").tensorboard))
    events.Reload()
    assert {
        "train_loss",
        "eval_loss",
        "Eval_BLEU_Score",
        "learning_rate",
        "tokens_per_second",
        "gradient_norm",
    } <= set(events.Tags()["scalars"])
    losses = {line["step"]: line["loss"] for line in read_events(trained.run_dir("run").events(0), "step")}
    assert {point.step: point.value for point in events.Scalars("train_loss")} == pytest.approx(
        {step: losses[step] for step in (1, 10, 20, 30)}
    )


def test_translate_keeps_lines_and_order(trained):
    text = "The dog sleeps.\n\nThe man sees the dog.\n"
    output = trained.call("translate", "run/best", stdin=text).stdout
    assert len(output.split("\n")) == 4
    assert output.split("\n")[1] == ""
    assert trained.call("translate", "run", stdin=text).stdout == output
    reordered = trained.call("translate", "run", stdin="The man sees the dog.\nThe dog sleeps.\n").stdout
    assert reordered.split("\n")[:2] == [output.split("\n")[2], output.split("\n")[0]]
    as_json = trained.call("translate", "run", "--json", stdin=text).stdout
    assert [json.loads(line)["text"] for line in as_json.splitlines()] == output.split("\n")[:3]


def test_evaluate_equals_sacrebleu_on_the_same_hypotheses(trained, tmp_path):
    from dragoman.data.builtin import sentences

    pairs = list(sentences("dev", 30))
    (tmp_path / "src").write_text("".join(src + "\n" for src, _ in pairs))
    (tmp_path / "ref").write_text("".join(tgt + "\n" for _, tgt in pairs))
    src, ref = str(tmp_path / "src"), str(tmp_path / "ref")
    result = json.loads(trained.call("evaluate", "run", "--src", src, "--ref", ref, "--json").stdout)
    (tmp_path / "hyp").write_text(trained.call("translate", "run", src).stdout)
    command = [sys.executable, "-m", "sacrebleu", ref, "-i", str(tmp_path / "hyp"), "-w", "4", "-b", "-m"]
    for metric in ("bleu", "chrf"):
        own = subprocess.run([*command, metric], capture_output=True, text=True, check=True).stdout
        assert result[metric] == pytest.approx(float(own), abs=1e-3)
    assert result["sentences"] == 30
    assert "BLEU" in trained.call("evaluate", "run", "--src", src, "--ref", ref).stdout


def test_recorded_scores_are_reproducible_from_the_stored_hypotheses(trained):
    lines = json.loads(trained.call("evaluate", "run", "--stored", "--json").stdout)
    assert {line["set"] for line in lines} == {"dev", "test"}
    assert not any(line["changed"] for line in lines)
    assert "as in scores.jsonl" in trained.call("evaluate", "run", "--stored").stdout


def test_several_models_are_compared_in_one_table(trained, tmp_path):
    (tmp_path / "src").write_text("The dog sleeps.\nThe man sees the dog.\n")
    (tmp_path / "ref").write_text("Der Hund schläft.\nDer Mann sieht den Hund.\n")
    test_set = ("--src", str(tmp_path / "src"), "--ref", str(tmp_path / "ref"))
    sentences = ("--sentences", str(tmp_path / "sentences.tsv"))
    table = trained.call(
        "evaluate", "run", "run/best", *test_set, *sentences, "--hyp", str(tmp_path / "ref")
    ).stdout
    assert "no difference shown" in table
    assert "is better, p = " in table
    head, *rows = (tmp_path / "sentences.tsv").read_text().splitlines()
    assert head.split("\t") == ["line", "system", "src", "ref", "hyp", "bleu", "chrf", "log_probability"]
    assert len(rows) == 2 * 3
    printed = trained.call("evaluate", "run", *test_set, "--sentences", "-", "--metric", "ter")
    assert [json.loads(line)["line"] for line in printed.stdout.splitlines()] == [1, 2]
    assert "TER" in printed.stderr


def test_translations_can_be_ranked_scored_and_drawn(trained):
    text = "The dog sleeps.\nThe man sees the dog. The dog sleeps.\n"
    rows = [
        line.split("\t")
        for line in trained.call("translate", "run", "--nbest", "2", stdin=text).stdout.splitlines()
    ]
    assert [row[:2] for row in rows] == [["1", "1"], ["1", "2"], ["2", "1"], ["2", "2"]]
    assert float(trained.call("translate", "run", "--scores", stdin=text).stdout.split("\t")[0]) < 0
    drawn = [
        trained.call("translate", "run", "--sampling", "2", "--seed", "7", stdin=text).stdout
        for _ in range(2)
    ]
    assert drawn[0] == drawn[1] != trained.call("translate", "run", stdin=text).stdout


def test_export_for_hugging_face_says_how_to_use_it(trained, tmp_path):
    output = trained.call("export", "run", "--to", str(tmp_path / "model"), "--format", "huggingface").stdout
    assert "README.md says how to use it" in output
    assert (tmp_path / "model" / "model.safetensors").is_file()
    assert "AutoTokenizer" in (tmp_path / "model" / "README.md").read_text("utf-8")


@pytest.mark.parametrize("options", [(), ("--quantize", "int8"), ("--average", "2"), ("--step", "30")])
def test_export_makes_a_folder_that_ctranslate2_itself_uses(trained, tmp_path, options):
    to = tmp_path / "model"
    report = json.loads(trained.call("export", "run", "--to", str(to), "--json", *options).stdout)
    assert report["bytes"] == sum(file.stat().st_size for file in to.iterdir())
    assert ("before" in (report["cost"] or {})) == ("int8" in options)
    translator = ctranslate2.Translator(str(to))
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(to / "sentencepiece.model"))
    [result] = translator.translate_batch([pieces.encode("The dog sleeps.", out_type=str)])
    assert result.hypotheses[0]


def test_json_of_a_training_is_one_object_on_standard_output(toy):
    result = toy.call("train", "toy.toml", "--run", "run", "--workers", "2", "--json")
    summary = json.loads(result.stdout)
    assert summary["test"]["set"] == "test"
    assert summary["best"]["set"] == "dev"
    assert "step" in result.stderr


def test_training_a_finished_run_again_changes_nothing(trained):
    run = trained.run_dir("run")
    before = run.events(0).read_text().count('"step"'), run.scores.read_text()
    output = trained.call("train", "toy.toml", "--run", "run", "--workers", "2").stdout
    assert "resuming after step 30" in output
    steps = [line["step"] for line in read_events(run.events(0), "step")]
    assert steps == list(range(1, 31))
    assert run.scores.read_text() == before[1]


USER_ERRORS = {
    "no such recipe": (["train", "nowhere.toml"], "there is no such recipe"),
    "unknown setting": (["train", "toy.toml", "--set", "train.stepz=3"], "did you mean train.steps?"),
    "wrong type": (["train", "toy.toml", "--set", 'train.steps="many"'], "valid integer"),
    "missing file": (["train", "toy.toml", "--run", "x", "--set", 'data.train=["no.en","no.de"]'], "no.en"),
    "not a run": (["export", ".", "--to", "m"], "this is not a run"),
    "not a model": (["translate", "."], "there is no model here"),
    "no model yet": (["evaluate", "nowhere", "--src", "a", "--ref", "b"], "no such directory"),
    "nothing to evaluate": (["evaluate", "--src", "a", "--ref", "b"], "name a model"),
    "a seed for nothing": (["translate", ".", "--seed", "1"], "there is nothing to draw"),
    "unknown command": (["trian"], "trian"),
    "unknown option": (["train", "toy.toml", "--wokers", "2"], "--workers"),
    "unknown recipe": (["recipes", "huge"], "choose one of"),
    "not a dataset": (["data", "show", "."], "where:"),
    "bad quantization": (["export", "../run-does-not-exist", "--to", "m"], "recipe.toml"),
}


@pytest.mark.parametrize(("arguments", "expected"), USER_ERRORS.values(), ids=USER_ERRORS)
def test_a_user_error_says_what_where_and_fix_and_exits_with_2(toy, arguments, expected):
    result = toy.call(*arguments, code=2)
    assert expected in result.stderr
    assert result.stderr.startswith("error: ")
    assert "\n  where: " in result.stderr
    assert "\n  fix:   " in result.stderr
    assert "Traceback" not in result.stderr


def test_a_changed_recipe_is_refused_and_each_change_named(toy):
    toy.train("run", "--set", "train.steps=6")
    changed = ("--set", "model.d_model=48", "--set", "train.seed=9", "--set", "log.every_steps=3")
    errors = toy.call("train", "toy.toml", "--run", "run", "--set", "train.steps=6", *changed, code=2).stderr
    assert "model.d_model was 32, is now 48" in errors
    assert "train.seed was 1, is now 9" in errors
    assert "log.every_steps" not in errors
    toy.train("run", "--set", "train.steps=8", "--set", "log.every_steps=3")  # these may change
    assert max(line["step"] for line in read_events(toy.run_dir("run").events(0), "step")) == 8


def test_other_data_is_refused(toy):
    toy.train("run", "--set", "train.steps=6")
    other = ("--set", 'data.train="builtin:700"')
    errors = toy.call("train", "toy.toml", "--run", "run", "--set", "train.steps=6", *other, code=2).stderr
    assert "other data" in errors


def test_a_directory_that_is_no_run_is_left_alone(toy):
    (toy.path / "precious").mkdir()
    (toy.path / "precious" / "thesis.tex").write_text("x")
    errors = toy.call("train", "toy.toml", "--run", "precious", code=2).stderr
    assert "is not a run" in errors


def test_help_is_there_without_torch():
    code = (
        "import sys, dragoman.cli as cli; cli.build_app(); "
        "print([name for name in ('torch', 'numpy', 'ctranslate2') if name in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "[]\n"
    )


def test_recipes_are_listed_and_printed(toy):
    assert set(json.loads(toy.call("recipes", "--json").stdout)) == {
        "tiny", "multi30k", "transformer-base", "transformer-big", "wmt16-en-de",
    }  # fmt: skip
    (toy.path / "my.toml").write_text(toy.call("recipes", "tiny").stdout)
    assert "builtin" in (toy.path / "my.toml").read_text()
