"""The demo, on the toy recipe: the real one takes minutes, and CI runs it by itself."""

import json

import dragoman.demo
from dragoman.errors import ExitCode
from dragoman.files import read_json_lines


def test_the_demo_shows_translations_scores_and_what_to_try_next(toy, monkeypatch, capfd):
    monkeypatch.chdir(toy.path)
    monkeypatch.setattr(dragoman.demo, "RECIPE", "toy.toml")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert dragoman.demo.run_demo(toy.path / "run", 2, json=False) is ExitCode.DONE
    output = capfd.readouterr().out
    assert output.count("  translation  ") == output.count("  reference    ") == 5
    assert "nrefs:1|bs:1000" in output
    assert "dragoman translate" in output
    assert read_json_lines(toy.path / "run" / "scores.jsonl")[-1]["set"] == "test"
    assert (toy.path / "run" / "model-int8" / "model.bin").is_file()
    # A second demo finds everything done.
    assert dragoman.demo.run_demo(toy.path / "run", 2, json=True) is ExitCode.DONE
    assert len(json.loads(capfd.readouterr().out)["translations"]) == 5
