"""How fast does our trainer learn, beside other toolkits and beside what the machine could do?

    python bench/train_throughput.py --data corpora/multi30k-en-de      both models, 1 and 2 workers; about two hours
    python bench/train_throughput.py --models small --peers eole,huggingface --workers 1
    python bench/train_throughput.py --quick                            the small model, one peer, worker and round

Each peer gets an environment of its own in --environments the first time (minutes, and 1 to 2 GB). All learn from the
same pairs and the same 8,000 subwords, a Transformer of the same shape with the same dropout, label smoothing,
optimizer, clipping and real target tokens in a worker's batch, in float32, on the same cores; in what a peer differs
all the same is printed with the figures. Ours takes a second turn with the precision that `auto` chooses, unless that
is float32 too, and then has a limit of its own. Contestants take turns, in another order in each round, so that other
work on the machine hits all of them: the median of the rounds' ratios counts, and the spread is shown. The ratio by
processor time hardly depends on what else the machine does.

Tokens are real target tokens with end-of-sentence. The limit is what the cores would reach if they did nothing but the
operations that real tokens need, at the best rate of all matrix products of the model, measured in the same run
(`gemm.py`). "First step" is the time from the start of the command, with the text prepared, to the end of step 1.
Memory is that of all processes up to the last step, each at its most, libraries counted once.

The targets: 1.3 times the fastest peer for small, 1.15 for base; 85 % of the limit; memory and first step below all.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import tomli_w
from contest import Failed, Figures, run
from peers import PEERS, SHAPES, Peer, Shape, Step, Training, Unavailable, write_text
from signature import signature

from dragoman.config import Model
from dragoman.data.shards import Dataset
from dragoman.model.flops import training_flops
from dragoman.observe.events import START, STEP, read_events
from dragoman.rundir import RunDir

ENVIRONMENTS = Path("~/.cache/dragoman-bench")
VOCABULARY = 8000
STEPS = {"small": 40, "base": 15}  # that count; about a minute and a half, and two and a half
WARM_STEPS = 3
QUICK_STEPS = 8
OURS, AUTO = "dragoman", "dragoman, auto"
GEMM = str(Path(__file__).with_name("gemm.py"))
DRAGOMAN = [sys.executable, "-m", "dragoman"]


@dataclass(frozen=True)
class Ours:
    """`dragoman train`, with what the peers' classes offer."""

    data: dict[str, Any]
    settings: Sequence[str] = ()
    name: str = OURS
    differs = "each worker's batch is one micro-batch; nothing is padded"

    def recipe(self, path: Path, training: Training) -> Path:
        shape = training.shape
        path.write_text(
            tomli_w.dumps(
                {
                    "data": self.data,
                    "vocab": {"size": VOCABULARY},
                    "model": {
                        **asdict(shape),
                        "dropout": training.dropout,
                        "attention_dropout": training.dropout,
                        "relu_dropout": training.dropout,
                    },
                    "train": {
                        "steps": training.steps,
                        "tokens_per_step": training.tokens * training.workers,
                        "micro_batch_tokens": training.tokens,
                        "label_smoothing": training.label_smoothing,
                        "clip_norm": training.clip_norm,
                        "seed": training.seed,
                        "precision": "auto" if self.name == AUTO else "float32",
                    },
                    "optimizer": {"name": "adam", "betas": list(training.betas)},
                    "schedule": {
                        "name": "inverse_sqrt",
                        "learning_rate": training.learning_rate,
                        "warmup_steps": training.warmup_steps,
                    },
                    "log": {"samples_every": 0, "tensorboard": False},
                }
            )
        )
        return path

    def prepare(self, directory: Path) -> Dataset:
        """Make the dataset if it is not there, and open it."""
        recipe = self.recipe(directory / "prepare.toml", Training(SHAPES["small"], directory, steps=1))
        command = [*DRAGOMAN, "data", "prepare", str(recipe), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr)
        return Dataset.open(Path(json.loads(done.stdout)["path"]))

    def command(self, work: Path, training: Training) -> list[str]:
        recipe = self.recipe(work / "recipe.toml", training)
        options = [part for each in self.settings for part in ("--set", each)]
        workers = ["--workers", str(training.workers)]
        return [*DRAGOMAN, "train", str(recipe), "--run", str(work / "run"), *workers, *options]

    def environment(self, training: Training) -> dict[str, str]:
        return {"OMP_NUM_THREADS": "1"}

    def steps(self, work: Path) -> list[Step]:
        events = RunDir(work / "run").events(0)
        if not events.exists():
            return []
        return [Step(line["time"], line["tokens"]) for line in read_events(events, STEP)]

    def start(self, work: Path) -> tuple[str, float]:
        """Return the precision, and the best rate of products that our own start measured, of all workers together."""
        starts = [read_events(path, START)[0] for path in (work / "run" / "events").glob("rank*.jsonl")]
        return starts[0]["precision"], sum(line["peak_flops"] or 0.0 for line in starts)


def find_data(where: str, directory: Path) -> dict[str, Any]:
    """Return [data] of the recipe: the files of Multi30k in a directory, or our built-in corpus."""
    if where == "builtin" or not Path(where).is_dir():
        if where != "builtin":
            print(f"{where} is missing (`dragoman data get multi30k-en-de`): the built-in corpus it is")
        return {"train": "builtin", "dev": "builtin:500", "directory": str(directory)}
    files = {
        split: [str((Path(where) / f"{name}.{side}").absolute()) for side in ("en", "de")]
        for split, name in (("train", "train"), ("dev", "val"))
    }
    return {**files, "directory": str(directory)}


def operations_per_token(shape: Shape, dataset: Dataset) -> float:
    """Return what a real target token needs, its share of the source included, on average over the text."""
    lengths = dataset.split("train").lengths
    model = Model(**asdict(shape))
    return training_flops(model, dataset.vocab_size, lengths) / float(lengths[:, 1].sum())


def rates_on(cores: Sequence[int], shape: str, tokens: int, vocabulary: int) -> list[dict[str, float]]:
    """Return the rates of all products, measured on every core at the same time by a process each."""
    # In processes of their own, also because this one should hold no torch while the contestants' memory is measured.
    options = {"--shape": shape, "--tokens": str(tokens), "--vocabulary": str(vocabulary)}
    command = [sys.executable, GEMM, *(part for option in options.items() for part in option)]
    started = [
        subprocess.Popen(
            ["taskset", "-c", str(core), *command],
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        )
        for core in cores
    ]
    return [json.loads(process.communicate()[0]) for process in started]


def compete(
    contestants: list[Ours | Peer],
    model: str,
    training: Training,
    cores: list[int],
    rounds: int,
    dataset: Dataset,
    directory: Path,
) -> dict[str, Any]:
    """Let all train by turns; return the figures of every round, and the limit."""
    found: dict[str, list[Figures]] = {each.name: [] for each in contestants}
    rates: dict[str, list[float]] = {OURS: [], AUTO: []}
    shapes: dict[str, float] = {}
    racing = list(contestants)
    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, everywhere - set(cores) or everywhere)  # where watching is in nobody's way
    for number in range(rounds):
        measured = rates_on(cores, model, training.tokens, dataset.vocab_size)
        rates[OURS].append(sum(max(each.values()) for each in measured))
        shapes = {name: max(value, shapes.get(name, 0.0)) for name, value in measured[0].items()}
        # Other batches in every round: those of a peer differ much in padding.
        training = replace(training, seed=number + 1)
        turn = number % max(1, len(racing))
        for each in racing[turn:] + racing[:turn]:
            work = directory / "work"
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            try:
                figures = run(
                    each.command(work, training),
                    cores=cores,
                    work=work,
                    steps=lambda each=each, work=work: each.steps(work),
                    num_steps=training.steps,
                    warm_steps=WARM_STEPS,
                    environment=each.environment(training),
                )
            except Failed as failure:
                print(f"{each.name} is left out: it {failure}", file=sys.stderr)
                racing.remove(each)
                continue
            if isinstance(each, Ours):
                precision, rate = each.start(work)
                if each.name == AUTO and precision == "float32":
                    print("auto is float32 here, too", file=sys.stderr)
                    racing.remove(each)
                    continue
                rates[each.name].append(rate)
            found[each.name].append(figures)
            print(
                f"{model}, workers: {training.workers}, round {number + 1}: {each.name} "
                f"{figures.tokens_per_second:,.0f} tokens/s",
                file=sys.stderr,
                flush=True,
            )
    os.sched_setaffinity(0, everywhere)
    operations = operations_per_token(training.shape, dataset)
    limits = {name: max(each) / operations for name, each in rates.items() if each}
    limit = limits[OURS]
    return {
        "model": model,
        "workers": training.workers,
        "tokens_per_batch": training.tokens,
        "limit_tokens_per_second": round(limit, 1),
        "best_gflops": round(max(rates[OURS]) / 1e9, 1),
        "product_gflops": {name: round(value / 1e9, 1) for name, value in shapes.items()},
        "contestants": [
            summary(name, found, limits.get(name, limit)) for name in found if len(found[name]) == rounds
        ],
        "rounds": {
            name: [{key: round(value, 3) for key, value in asdict(each).items()} for each in all_]
            for name, all_ in found.items()
        },
    }


def summary(name: str, found: dict[str, list[Figures]], limit: float) -> dict[str, Any]:
    """Return one contestant's line: medians over rounds, and our speed as a multiple of its, round by round."""
    mine = found[name]
    speeds = [each.tokens_per_second for each in mine]
    by_cpu = [each.tokens_per_cpu_second for each in mine]
    line = {
        "contestant": name,
        "tokens_per_second": round(median(speeds), 1),
        "slowest": round(min(speeds), 1),
        "fastest": round(max(speeds), 1),
        "tokens_per_cpu_second": round(median(by_cpu), 1),
        "of_limit": round(median(speeds) / limit, 3),
        "first_step_seconds": round(median(each.first_step_seconds for each in mine), 1),
        "peak_mb": round(max(each.peak_mb for each in mine)),
        "largest_process_mb": round(max(each.largest_mb for each in mine)),
        "tokens_per_step": round(median(each.tokens_per_step for each in mine)),
    }
    ours = found.get(OURS, [])
    if name != OURS and len(ours) == len(mine):
        ratios = [our.tokens_per_second / speed for our, speed in zip(ours, speeds, strict=True)]
        cpu = [our.tokens_per_cpu_second / speed for our, speed in zip(ours, by_cpu, strict=True)]
        line |= {
            "ours_over_it": round(median(ratios), 3),
            "ratios": [round(ratio, 3) for ratio in ratios],
            "ours_over_it_by_cpu": round(median(cpu), 3),
        }
    return line


def show(result: dict[str, Any]) -> None:
    limit, rate = result["limit_tokens_per_second"], result["best_gflops"]
    print(
        f"\n{result['model']}, workers: {result['workers']}; limit: {limit:,.0f} tokens/s at {rate:,.1f} GFLOP/s"
    )
    print(f"{'':14} {'tokens/s':>8} {'spread':>13} {'ours/it':>8} {'spread':>10} {'per CPU s':>10} {'ours/it':>8} "
          f"{'of limit':>9} {'1st step':>9} {'memory':>9} {'tokens/step':>12}")  # fmt: skip
    for row in result["contestants"]:
        speed = f"{row['tokens_per_second']:8,.0f} {row['slowest']:7,.0f}–{row['fastest']:<5,.0f}"
        ratios = row.get("ratios")
        ratio = f"{row['ours_over_it']:8.2f} {min(ratios):5.2f}–{max(ratios):.2f}" if ratios else f"{'':19}"
        by_cpu = f"{row['tokens_per_cpu_second']:10,.0f} " + (
            f"{row['ours_over_it_by_cpu']:8.2f}" if ratios else f"{'':8}"
        )
        print(
            f"{row['contestant']:14} {speed} {ratio} {by_cpu} {row['of_limit']:9.1%} "
            f"{row['first_step_seconds']:7.1f} s {row['peak_mb']:6,} MB {row['tokens_per_step']:12,}"
        )


def installed(names: Sequence[str], environments: Path) -> list[Peer]:
    """Return the peers that can be had, and say of others why not."""
    peers = []
    for name in names:
        peer = PEERS[name](environments)
        try:
            peer.install()
        except Unavailable as reason:
            print(f"{name} is left out: {reason}", file=sys.stderr)
            continue
        peers.append(peer)
    return peers


def parse() -> argparse.Namespace:
    def names(known: Sequence[str]) -> Any:
        def split(text: str) -> list[str]:
            if unknown := set(text.split(",")) - set(known):
                raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: known are {', '.join(known)}")
            return text.split(",")

        return split

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="corpora/multi30k-en-de", help="its directory, or `builtin`")
    parser.add_argument("--models", type=names(list(SHAPES)), default=list(SHAPES))
    parser.add_argument("--peers", type=names(list(PEERS)), default=list(PEERS))
    parser.add_argument(
        "--workers", type=lambda text: [int(each) for each in text.split(",")], default=[1, 2]
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, help=f"that count; {STEPS} if not given")
    parser.add_argument("--tokens", type=int, default=2000, help="real target tokens of a worker's batch")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for dragoman alone")
    parser.add_argument(
        "--environments", type=Path, default=ENVIRONMENTS, help="where peers and text are kept"
    )
    parser.add_argument("--quick", action="store_true", help="one small model, peer, worker and round")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    given = parser.parse_args()
    if given.quick:
        given.models, given.peers, given.workers, given.rounds = ["small"], given.peers[:1], [1], 1
        given.steps = given.steps or QUICK_STEPS
    return given


def main() -> None:
    given = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no contestant is left behind
    environments = given.environments.expanduser()
    environments.mkdir(parents=True, exist_ok=True)
    cores = sorted(os.sched_getaffinity(0))
    signed = {**signature(), "load_before": round(os.getloadavg()[0], 2)}
    ours = Ours(find_data(given.data, environments / "datasets"), given.set)
    contestants = [ours, replace(ours, name=AUTO), *installed(given.peers, environments)]
    results = []
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        dataset = ours.prepare(directory)
        text = write_text(dataset, directory / "text")
        for model in given.models:
            for workers in given.workers:
                if workers > len(cores):
                    print(
                        f"workers: {workers} is left out for want of cores: {len(cores)} may be used",
                        file=sys.stderr,
                    )
                    continue
                steps = WARM_STEPS + (given.steps or STEPS[model])
                training = Training(SHAPES[model], text, steps, given.tokens, workers)
                result = compete(
                    contestants, model, training, cores[:workers], given.rounds, dataset, directory
                )
                results.append(result)
                show(result)
                if given.json:
                    report = {"ratios": ratios(results), "results": results, **about(contestants), **signed}
                    given.json.write_text(json.dumps(report, indent=1) + "\n")
    print()
    for each in contestants:
        print(f"{each.name}: {each.differs}")
    print("  ".join(f"{name} {value}" for name, value in signed.items()))


def ratios(results: list[dict[str, Any]]) -> dict[str, float]:
    """Return our speed over each peer's and over the limit, by name, as `figures.py` wants them."""
    found = {}
    for result in results:
        name = f"train, {result['model']}, workers: {result['workers']}"
        for row in result["contestants"]:
            if row["contestant"] == OURS:
                found[f"{name} / limit"] = row["of_limit"]
            elif row["contestant"] == AUTO:
                found[f"{name}, auto / float32"] = round(1 / row["ours_over_it"], 3)
                found[f"{name}, auto / limit"] = row["of_limit"]
            elif "ours_over_it" in row:
                found[f"{name} / {row['contestant']}"] = row["ours_over_it"]
                found[f"{name} / {row['contestant']}, by processor time"] = row["ours_over_it_by_cpu"]
    return found


def about(contestants: Sequence[Ours | Peer]) -> dict[str, Any]:
    """Return what was compared: versions, and in what the contestants differ."""
    return {
        "versions": {each.name: each.release for each in contestants if isinstance(each, Peer)},
        "torch": next((each.torch for each in contestants if isinstance(each, Peer)), None),
        "differs": {each.name: each.differs for each in contestants},
    }


if __name__ == "__main__":
    main()
