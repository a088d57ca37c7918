"""``dragoman demo``: the whole way from text to a translating model, on the built-in corpus."""

import json as jsonlib
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from dragoman.data.shards import Dataset
from dragoman.decode.export import export_run
from dragoman.errors import ExitCode
from dragoman.files import read_json
from dragoman.observe.console import format_duration
from dragoman.observe.watch import print_verdicts
from dragoman.rundir import RunDir
from dragoman.train.command import train_recipe

RECIPE = "tiny"
NUM_SHOWN = 5


def run_demo(path: Path, workers: int, *, json: bool) -> ExitCode:
    """Prepare, train, score and export the demo's model, then show five of its translations."""
    started = time.monotonic()
    code, summary = train_recipe(RECIPE, workers=workers, run_path=path, quiet=json)
    assert summary is not None  # a demo has workers of its own
    if code is not ExitCode.DONE:
        print(summary["message"])
        return code
    run = RunDir.open(path)
    exported = export_run(run, path / "model-int8", quantization="int8")
    result = {
        **summary,
        "seconds": time.monotonic() - started,
        "exported": str(exported),
        "translations": examples(run, summary["test"]),
    }
    print(jsonlib.dumps(result, indent=2, ensure_ascii=False)) if json else print_result(result)
    return code


def examples(run: RunDir, test: dict[str, Any]) -> list[dict[str, str]]:
    """Return a few test sentences, spread over the set, with their reference and the scored hypothesis."""
    sources, references = Dataset.open(Path(read_json(run.facts)["dataset"])).text("test")
    hypotheses = (run.path / test["hypotheses"]).read_text("utf-8").split("\n")
    places = range(0, len(sources), max(1, len(sources) // NUM_SHOWN))
    return [
        {"source": sources[place], "reference": references[place], "translation": hypotheses[place]}
        for place in list(places)[:NUM_SHOWN]
    ]


def print_result(result: dict[str, Any]) -> None:
    """Tell the newcomer what was made and what to try next."""
    run, dragoman = result["run"], command_name()
    print("\nFive sentences of the test set, which the model has never seen:\n")
    for example in result["translations"]:
        print(f"  source       {example['source']}")
        print(f"  reference    {example['reference']}")
        print(f"  translation  {example['translation']}\n")
    for name, entry in (("dev", result["best"]), ("test", result["test"])):
        low, high = entry["ci95"]
        print(
            f"{name:5} BLEU {entry['bleu']:.2f} (95 % interval {low:.2f} to {high:.2f})  {entry['signature']}"
        )
        print(f"{'':5} chrF {entry['chrf']:.2f}  {entry['chrf_signature']}")
    print("\nWhat happened, as far as it was measured:\n")
    print_verdicts(Path(run))
    print(
        f"\nThe run is in {run}; it took {format_duration(result['seconds'])}. Its report: {run}/report.html"
    )
    print(f"The same model, eight bits a weight, for small machines: {result['exported']}. Next, try:\n")
    print(f"  echo 'I have already switched on the lamp.' | {dragoman} translate {run}")
    print(f"  {dragoman} explain {run}")
    print(f"  {dragoman.replace('dragoman', 'tensorboard')} --logdir {run}/tensorboard")
    print(f"  {dragoman} recipes tiny > my.toml        # then put your own files under [data], and")
    print(f"  {dragoman} train my.toml --workers 2")


def command_name() -> str:
    """Return how this user can call us: by name, or by path where the environment is not activated."""
    beside_python = Path(sys.executable).with_name("dragoman")
    if shutil.which("dragoman") or not beside_python.is_file():
        return "dragoman"
    return os.path.relpath(beside_python)
