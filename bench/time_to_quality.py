"""How good a translation does one get in so many minutes, from raw text, on this machine?

    python bench/time_to_quality.py                              the recipe multi30k, 60 minutes (get the corpus first:
                                                                 dragoman data get multi30k-en-de)
    python bench/time_to_quality.py --corpus DIR --peer eole     its files are elsewhere; then 60 minutes of a peer
    python bench/time_to_quality.py --set train.average=none     another recipe, to tune it on val alone
    python bench/time_to_quality.py --directory DIR              keep all; later, ours is not trained again
    python bench/time_to_quality.py --quick                      the recipe tiny on the built-in corpus, 3 minutes

Starts `dragoman train` without a dataset: preparing, starting and the scoring beside the training all count. Of every
checkpoint the lane scores the exported model on val; all models are kept. At each mark stands the best on val of
those that had been scored by then, and afterwards, not counted, its BLEU on test (test_2016_flickr), by the exported
model, with sacreBLEU's interval. Test chooses nothing.

A peer gets the subwords that we made, which is not counted, then as long on as many cores; it saves every 250
steps, and its own program translates val and test afterwards, which is not counted either, with the same beam. Its
recipe is `documented`, what its documentation says (Eole has nothing for small data: optimizer, schedule and dropout of
its WMT17 recipe, with the shape and batch of ours), or `ours`, our recipe as far as it has words for it.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece
from figures import options, write_figures
from peers import PEERS, Peer, Shape, Training, Unavailable, write_text
from runs import DRAGOMAN
from signature import signature

from dragoman.config import Recipe
from dragoman.data.shards import Dataset
from dragoman.data.tokenizer import Tokenizer
from dragoman.decode.score import Scores, score
from dragoman.decode.translator import Translator
from dragoman.errors import ExitCode
from dragoman.files import read_json, read_json_lines
from dragoman.machine import usable_cores
from dragoman.recipe import load_recipe
from dragoman.rundir import RunDir

SETS = {"train": "train", "dev": "val", "test": "test_2016_flickr"}
MARKS = (1 / 6, 1 / 3, 1 / 2, 1)  # of the minutes
KEEP_ALL = ["checkpoint.keep_best=100000"]
END_SECONDS = 300  # to end by itself when asked to
ENVIRONMENTS = Path("~/.cache/dragoman-bench")
PEER_SAVES = 250  # steps
# Without it Eole 0.6.4 trains an encoder without these biases, and translates with what memory holds in their place.
LOADABLE = {"add_final_linear_bias": True}
# In the peer's own words, beside the shape and the tokens per step of our recipe.
DOCUMENTED = {
    "eole": {
        "learning_rate": 2.0, "warmup_steps": 4000, "adam_beta2": 0.998, "max_grad_norm": 0.0,
        "dropout": [0.1], "attention_dropout": [0.1],
    }
}  # fmt: skip


@dataclass(frozen=True)
class Point:
    """A model that was there so many minutes after the start."""

    minutes: float
    step: int
    dev_bleu: float
    model: Path


def train_for(command: list[str], minutes: float, log: Path, **environment: str) -> float:
    """Run a training, ask it to end when its time is over, and return when it was started."""
    began = time.time()
    with log.open("wb") as said:
        process = subprocess.Popen(
            command, stdout=said, stderr=subprocess.STDOUT, env={**os.environ, **environment}
        )
        try:
            code = process.wait(minutes * 60)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            process.wait(END_SECONDS)
            code = 0
        finally:
            process.kill()
    if code != ExitCode.DONE:
        sys.exit(f"{command[0]} ended with exit code {code}:\n{log.read_text('utf-8', 'replace')[-3000:]}")
    return began


def train_ours(given: Any, directory: Path) -> tuple[RunDir, list[Point]]:
    run, started = RunDir(directory / "run"), directory / "started"
    if not started.exists():
        began = train_recipe(given, run, directory)
        started.write_text(f"{began}\n", "utf-8")
    began = float(started.read_text("utf-8"))
    return run, [
        Point((line["time"] - began) / 60, line["step"], line["bleu"], run.path / line["model"])
        for line in read_json_lines(run.scores)
        if line["set"] == "dev"
    ]


def train_recipe(given: Any, run: RunDir, directory: Path) -> float:
    settings = [*KEEP_ALL, f'data.directory="{directory / "datasets"}"', *given.set]
    if given.corpus:
        for split, name in SETS.items():
            paths = [str((given.corpus / f"{name}.{language}").absolute()) for language in ("en", "de")]
            settings.append(f"data.{split}={paths}")
    command = [*DRAGOMAN, "train", given.recipe, "--run", str(run.path), "--workers", str(given.workers)]
    command += [part for each in settings for part in ("--set", each)]
    return train_for(command, given.minutes, directory / "log", OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")


def train_peer(
    peer: Peer, recipe: Recipe, dataset: Dataset, given: Any, work: Path
) -> tuple[list[Point], Callable[[Path, str], list[str]]]:
    """Let a peer train on our subwords; return its models, and what translates a set with one of them."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    text = write_text(dataset, work / "text")
    tokenizer = Tokenizer.load(dataset.tokenizer_path)
    pieces = tokenizer.pieces()
    for name in ("dev", "test"):
        ids = tokenizer.encode(dataset.text(name)[0])
        lines = [" ".join(pieces[id_] for id_ in each[:-1]) + "\n" for each in ids]
        (text / name).write_text("".join(lines), "utf-8")
    own = DOCUMENTED[peer.name] if given.peer_recipe == "documented" else {}
    model, train = recipe.model, recipe.train
    training = Training(
        shape=Shape(model.layers, model.d_model, model.feed_forward, model.heads),
        text=text,
        steps=10**6,
        tokens=train.tokens_per_step // given.workers,
        workers=given.workers,
        dropout=model.dropout,
        label_smoothing=train.label_smoothing,
        clip_norm=train.clip_norm,
        betas=recipe.optimizer.betas,
        learning_rate=recipe.schedule.learning_rate,
        warmup_steps=recipe.warmup_steps,
        extra={"model": LOADABLE, "training": {"save_checkpoint_steps": PEER_SAVES, **own}},
    )
    command = peer.command(work, training)
    began = train_for(command, given.minutes, work / "log.txt", **peer.environment(training))
    subwords = sentencepiece.SentencePieceProcessor(model_file=str(dataset.tokenizer_path))

    def translate(checkpoint: Path, name: str) -> list[str]:
        output = work / f"{checkpoint.name}.{name}"
        words = [
            str(peer.bin / "eole"),
            "predict",
            "--model_path",
            str(checkpoint),
            "--src",
            str(text / name),
        ]
        words += ["--output", str(output), "--beam_size", str(recipe.evaluate.beam)]
        words += ["--batch_type", "sents", "--batch_size", "64", "--compute_dtype", "fp32"]
        alone = {**os.environ, "OMP_NUM_THREADS": "1"}
        said = subprocess.run(words, capture_output=True, text=True, check=False, cwd=work, env=alone)
        if said.returncode:
            sys.exit(f"{' '.join(words)} failed:\n{said.stderr[-3000:]}")
        return [subwords.decode(line.split()) for line in output.read_text("utf-8").splitlines()]

    def point(checkpoint: Path) -> Point:
        written = max(file.stat().st_mtime for file in checkpoint.iterdir())
        found = score(translate(checkpoint, "dev"), dataset.text("dev")[1], tgt_lang=recipe.data.tgt_lang)
        step = int(checkpoint.name.removeprefix("step_"))
        return Point((written - began) / 60, step, found["bleu"], checkpoint)

    with ThreadPoolExecutor(given.workers) as cores:
        points = list(cores.map(point, (work / "model").glob("step_*")))
    # The last one it wrote when asked to end.
    in_time = [point for point in points if point.minutes <= given.minutes]
    return sorted(in_time, key=lambda point: point.minutes), translate


def at_marks(points: list[Point], minutes: float, test: Callable[[Path], Scores]) -> list[dict[str, Any]]:
    """Return for each mark the best on val so far, and its score on test."""
    rows = []
    for mark in (minutes * share for share in MARKS):
        known = [point for point in points if point.minutes <= mark]
        if known:
            best = max(known, key=lambda point: (point.dev_bleu, point.step))
            found = test(best.model)
            rows.append(
                {
                    "minutes": round(mark, 2),
                    "step": best.step,
                    "val_bleu": round(best.dev_bleu, 2),
                    "test_bleu": round(found["bleu"], 2),
                    "test_ci95": [round(each, 2) for each in found["ci95"]],
                    "signature": found["signature"],
                }
            )
    return rows


def show(who: str, rows: list[dict[str, Any]]) -> None:
    print(f"{who:10} {'minutes':>8} {'step':>8} {'val BLEU':>9} {'test BLEU':>10}  95 % within")
    for row in rows:
        low, high = row["test_ci95"]
        print(f"{'':10} {row['minutes']:8g} {row['step']:8,} {row['val_bleu']:9.2f} {row['test_bleu']:10.2f}  "
              f"{low:.2f} – {high:.2f}")  # fmt: skip
    print(f"{'':10} {rows[-1]['signature']}" if rows else f"{'':10} no model was scored in that time")


def main() -> None:
    parser = options(__doc__, quick="the recipe tiny on the built-in corpus, 3 minutes")
    parser.add_argument("--recipe", default="multi30k")
    parser.add_argument(
        "--corpus", type=Path, help=f"directory with {', '.join(SETS.values())} in .en and .de"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the recipe")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--workers", type=int, default=usable_cores())
    parser.add_argument("--peer", choices=list(DOCUMENTED), help="let it have as long afterwards")
    parser.add_argument("--peer-recipe", choices=("documented", "ours"), default="documented")
    parser.add_argument("--environments", type=Path, default=ENVIRONMENTS, help="where peers are kept")
    parser.add_argument("--directory", type=Path, help="keep what is made there")
    given = parser.parse_args()
    if given.quick:
        given.recipe, given.minutes, given.corpus = "tiny", 3, None
    signed = signature()
    with tempfile.TemporaryDirectory() as temporary:
        directory = given.directory or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        figures = measure(given, directory)
    print("  ".join(f"{name} {value}" for name, value in signed.items()))
    write_figures(given.json, {**figures, "minutes": given.minutes, "workers": given.workers, **signed})


def measure(given: Any, directory: Path) -> dict[str, Any]:
    """Let us and the peer train one after the other, and show what each had when."""
    if (directory / "run").exists() and not (directory / "started").exists():
        sys.exit(f"{directory / 'run'} exists: a run that goes on would not begin with raw text")
    run, points = train_ours(given, directory)
    recipe, dataset = load_recipe(str(run.recipe)), Dataset.open(Path(read_json(run.facts)["dataset"]))
    sources, references = dataset.text("test")

    def translate_ours(model: Path) -> list[str]:
        return [each.text for each in Translator(model).translate(sources, beam=recipe.evaluate.beam)]

    def scored(translate: Callable[[Path], list[str]]) -> Callable[[Path], Scores]:
        return cache(lambda model: score(translate(model), references, tgt_lang=recipe.data.tgt_lang))

    ours = at_marks(points, given.minutes, scored(translate_ours))
    show("dragoman", ours)
    figures: dict[str, Any] = {"ratios": {}, "ours": ours, "recipe": given.recipe, "settings": given.set}
    if not given.peer:
        return figures
    peer = PEERS[given.peer](given.environments)
    try:
        peer.install()
    except Unavailable as error:
        print(error)
        return figures
    their_points, translate = train_peer(peer, recipe, dataset, given, (directory / peer.name).absolute())
    theirs = at_marks(their_points, given.minutes, scored(lambda model: translate(model, "test")))
    show(f"{peer.name} {peer.release}", theirs)
    goal = max((point.dev_bleu for point in their_points), default=None)
    reached = [point.minutes for point in points if goal is not None and point.dev_bleu >= goal]
    if reached:
        theirs_at = min(point.minutes for point in their_points if point.dev_bleu == goal)
        print(
            f"dragoman had the peer's best val BLEU ({goal:.2f}, minute {theirs_at:.1f}) at minute {reached[0]:.1f}"
        )
        figures["ratios"][f"minutes to the best val BLEU of {peer.name}"] = round(theirs_at / reached[0], 3)
    return {
        **figures,
        "peer": f"{peer.name} {peer.release}",
        "peer_recipe": given.peer_recipe,
        "theirs": theirs,
    }


if __name__ == "__main__":
    main()
