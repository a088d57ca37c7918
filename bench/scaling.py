"""What do two workers gain over one, on one machine and over slow links, beside plain DDP?

    python bench/scaling.py                             7.5 M parameters, links of 1 Gbit/s, 100 and 20 Mbit/s; an hour
    python bench/scaling.py --networks 100mbit          one link
    python bench/scaling.py --quick                     the small model, one round at 100 Mbit/s; minutes

One worker on one core; two on one machine; two hosts of one core each in `dragoman lab`, with links of each rate.
*Dragoman* synchronises as `cluster.sync = auto` chooses, after which its steps count. *Plain DDP* is the loop around
Hugging Face's Marian model of bench/huggingface_loop.py, as one writes it by hand and starts it with `torchrun`:
the same shape, dataset, dropout and tokens per step, which take each of two workers of ours about a second in float32.
They take turns.

Efficiency is tokens per second over those of two workers that never waited: twice the contestant's own single
worker, in the same round. What is shown is the median over rounds. Two workers of one machine share its memory and
caches (and its cores' clock), so that they lose some without any network; bench/slow_link.py measures that by itself.
"""

import shlex
import shutil
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from figures import options, write_figures
from peers import PEERS, Peer, Shape, Training, write_text
from runs import MODELS, Bench, lab
from signature import signature

from dragoman.cluster.lab.client import exec_line
from dragoman.data.shards import Dataset
from dragoman.files import read_json
from dragoman.recipe import load_recipe

NETWORKS = ("1gbit", "100mbit", "20mbit")
ONE, TWO = "1 worker", "2 workers"
OURS, PLAIN = "dragoman", "plain DDP"
ALIKE = [f"model.{name}=0.1" for name in ("dropout", "attention_dropout", "relu_dropout")]
QUICK = ["train.tokens_per_step=2048", "train.micro_batch_tokens=1024"]
STEPS = 40  # of ours, of which auto takes some before it has chosen
# Of plain DDP: to warm up and to measure. Over a slow link each takes many seconds, and all take the same.
PLAIN_STEPS = {ONE: (5, 20), TWO: (5, 20), "1gbit": (5, 20), "100mbit": (2, 10), "20mbit": (1, 4)}
MEETING = ("--nnodes=2", "--master-addr=10.77.0.1", "--master-port=29401")  # the first host of a lab


def train_ours(bench: Bench, place: str, settings: list[str]) -> dict[str, Any]:
    """Train at a place; return the figures."""
    if place == ONE:
        bench.alone(settings, ["one"])
        return bench.figures("one")
    settings = [*settings, "cluster.sync=auto"]
    if place == TWO:
        bench.finish("two", bench.start("two", [*bench.command("two", settings), "--workers", "2"]))
    else:
        bench.in_lab("two", settings, place)
    return bench.figures("two")


def train_plain(bench: Bench, place: str) -> dict[str, Any]:
    """Train what the run "one" trained with plain DDP; return the figures."""
    warm_steps, steps = PLAIN_STEPS.get(place, PLAIN_STEPS["20mbit"])
    work = bench.directory / "plain"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    training = make_training(bench, warm_steps + steps, workers=1 if place == ONE else 2)
    peer = PEERS["huggingface"](bench.directory)
    peer.bin = Path(sys.executable).parent  # transformers is here, too
    if place in (ONE, TWO):
        process = bench.start("plain", peer.command(work, training), core=0 if place == ONE else None)
    else:
        process = bench.start("plain", [*lab(place), "sh", "-c", on_two_hosts(peer, work, training)])
    bench.finish("plain", process)
    counted = peer.steps(work)[warm_steps - 1 :]
    seconds = counted[-1].time - counted[0].time
    return {
        "tokens_per_second": round(sum(step.tokens for step in counted[1:]) / seconds),
        "step_seconds": round(seconds / steps, 3),
    }


def make_training(bench: Bench, steps: int, workers: int) -> Training:
    run = bench.run("one")
    recipe = load_recipe(str(run.recipe))
    text = bench.directory / "text"
    if not text.exists():
        write_text(Dataset.open(Path(read_json(run.facts)["dataset"])), text)
    model = recipe.model
    shape = Shape(model.layers, model.d_model, model.feed_forward, model.heads)
    tokens = recipe.train.tokens_per_step // workers
    return Training(shape=shape, text=text, steps=steps, tokens=tokens, workers=workers)


def on_two_hosts(peer: Peer, work: Path, training: Training) -> str:
    """Return a line for the shell that starts one worker on each host of a lab and waits for both."""
    alone = replace(training, workers=1)
    lines = [
        shlex.join(exec_line(f"host{rank + 1}", peer.command(work, alone, (*MEETING, f"--node-rank={rank}"))))
        for rank in range(2)
    ]
    return f"{lines[1]} & {lines[0]} && wait"


def measure(bench: Bench, settings: list[str], networks: list[str], rounds: int) -> list[dict[str, Any]]:
    """Let both train at every place, round by round; return a row for each."""
    places = [ONE, TWO, *networks]
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for number in range(rounds):
        for place in places:
            ours = train_ours(bench, place, settings)
            found.setdefault((place, OURS), []).append(ours)
            found.setdefault((place, PLAIN), []).append(train_plain(bench, place))
            print(f"round {number + 1}: {place} done", file=sys.stderr, flush=True)
    return [
        make_row(place, who, each, found[ONE, who], found[place, PLAIN])
        for (place, who), each in found.items()
    ]


def make_row(
    place: str,
    who: str,
    found: list[dict[str, Any]],
    alone: list[dict[str, Any]],
    plain: list[dict[str, Any]],
) -> dict[str, Any]:
    speeds, of_one, of_plain = (
        [each["tokens_per_second"] for each in rows] for rows in (found, alone, plain)
    )
    workers = 1 if place == ONE else 2
    times_plain = [ours / theirs for ours, theirs in zip(speeds, of_plain, strict=True)]
    efficiencies = [speed / one / workers for speed, one in zip(speeds, of_one, strict=True)]
    return {
        "place": place,
        "contestant": who,
        "tokens_per_second": round(statistics.median(speeds)),
        "efficiency": round(statistics.median(efficiencies), 3),
        "efficiencies": [round(each, 3) for each in efficiencies],
        "times_plain": round(statistics.median(times_plain), 3),
        "all_times_plain": [round(each, 3) for each in times_plain],
        "step_seconds": found[-1]["step_seconds"],
        "mode": found[-1].get("mode"),
    }


def show(rows: list[dict[str, Any]]) -> None:
    print(
        f"{'place':10} {'contestant':10} {'tokens/s':>9} {'efficiency':>11} {'/ plain':>8} {'s/step':>7}  mode"
    )
    for row in rows:
        mode = row["mode"]
        print(
            f"{row['place']:10} {row['contestant']:10} {row['tokens_per_second']:9,} {row['efficiency']:11.1%} "
            f"{row['times_plain']:8.2f} {row['step_seconds']:7.2f}  {mode['sync'] + ' ' + mode['wire'] if mode else ''}"
        )


def main() -> None:
    parser = options(__doc__, quick="the small model, one round at 100 Mbit/s")
    parser.add_argument("--model", choices=list(MODELS), default="7.5M")
    parser.add_argument(
        "--networks", default=",".join(NETWORKS), help="rates of links, with commas between them"
    )
    parser.add_argument("--steps", type=int, default=STEPS, help="of each of our trainings")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    if given.quick:
        given.model, given.networks, given.steps, given.rounds = "tiny", "100mbit", 25, 1
    signed = signature()
    model = [*MODELS[given.model], *ALIKE]
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(Path(directory))
        settings = [
            *(model + QUICK if given.quick else bench.one_second(model)),
            f"train.steps={given.steps}",
        ]
        rows = measure(bench, settings, given.networks.split(","), given.rounds)
    show(rows)
    about = {"model": given.model, "steps": given.steps, "rounds": given.rounds, **signed}
    print("  ".join(f"{name} {value}" for name, value in about.items()))
    ratios = {
        f"{row['place']}, tokens per second / plain DDP": row["times_plain"]
        for row in rows
        if row["contestant"] == OURS
    }
    write_figures(given.json, {"ratios": ratios, "rows": rows, **about})


if __name__ == "__main__":
    main()
