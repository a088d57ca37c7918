"""What is a slow network worth to two hosts, in each mode of synchronisation?

    python bench/slow_link.py                         both models, links of 1 Gbit/s, 100 and 20 Mbit/s; about two hours
    python bench/slow_link.py --models 7.5M --networks 100mbit,20mbit
    python bench/slow_link.py --quick                 the small model at 100 Mbit/s, few steps, for a look

Speed: two hosts of one core each in `dragoman lab`, against one worker on one core (*alone*), and against each of two
that train at the same time and share the machine's memory and caches as the two hosts do (*beside another*).
Tokens per second are those between the time stamps of steps, without the first steps; for auto, after its choice.
Contestants take turns, so that other work on the machine hits all of them.

Quality: dev loss after the same number of tokens, on two hosts without a limit: the network decides how long a step
takes and not what it computes. The mode that auto chose stands for auto. With `--rounds 0` nothing else is measured.

The target, at about one second of computing a step and 7.5 M parameters: auto reaches 1.8 times one host at
100 Mbit/s, with a dev loss within 1 % of plain every-step; 1.6 times at 20 Mbit/s.
"""

import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from figures import options, write_figures
from runs import MODELS, Bench
from signature import signature

NETWORKS = ["1gbit", "100mbit", "20mbit"]
MODES = [
    "every-step float32", "every-step bf16", "compressed int8", "compressed int4", "compressed powersgd",
    "local int4 every 4", "local int4 every 16", "auto",
]  # fmt: skip


def measure_speed(
    bench: Bench, model: str, network: str, modes: list[str], steps: int, rounds: int
) -> list[dict[str, Any]]:
    settings = [*bench.one_second(MODELS[model]), f"train.steps={steps}"]
    rows: dict[str, list[dict[str, Any]]] = {}
    for _ in range(rounds):
        bench.alone(settings, ["alone"])
        rows.setdefault("alone", []).append(bench.figures("alone"))
        bench.alone(settings, ["beside0", "beside1"])
        rows.setdefault("beside another", []).append(bench.figures("beside0"))
        for mode in modes:
            bench.in_lab("pair", [*settings, *as_settings(mode)], network)
            rows.setdefault(mode, []).append(bench.figures("pair"))
    speeds = {name: [each["tokens_per_second"] for each in found] for name, found in rows.items()}

    def times(name: str, other: str) -> float:
        """Return the median of the rounds' ratios: a round is over before the machine has changed much."""
        return round(median(mine / its for mine, its in zip(speeds[name], speeds[other], strict=True)), 2)

    return [
        {
            "model": model,
            "network": network,
            "contestant": name,
            **found[-1],
            "tokens_per_second": round(median(speeds[name])),
            "times_alone": times(name, "alone"),
            "times_beside": times(name, "beside another"),
            "rounds": speeds[name],
        }
        for name, found in rows.items()
    ]


def measure_quality(bench: Bench, model: str, modes: list[str], steps: int) -> list[dict[str, Any]]:
    rows = []
    for mode in modes:
        bench.in_lab("quality", [*MODELS[model], f"train.steps={steps}", *as_settings(mode)], "none")
        figures = bench.figures("quality")
        rows.append({"model": model, "mode": mode, "steps": steps, "dev_loss": figures["dev_loss"]})
    exact = next((row["dev_loss"] for row in rows if row["mode"] == MODES[0]), rows[0]["dev_loss"])
    return [{**row, "times_every_step": round(row["dev_loss"] / exact, 4)} for row in rows]


def as_settings(mode: str) -> list[str]:
    """Return the settings that ask for a mode: how, in what, and every how many steps."""
    keys = ["cluster.sync", "cluster.wire", "cluster.inner_steps"]
    return [f"{key}={word}" for key, word in zip(keys, mode.replace("every ", "").split(), strict=False)]


def name_of(mode: dict[str, Any]) -> str:
    """Return a mode that auto chose by the name that asks for it."""
    every = f" every {mode['inner_steps']}" if mode["sync"] == "local" else ""
    return f"{mode['sync']} {mode['wire']}{every}"


def show(speed: list[dict[str, Any]], quality: list[dict[str, Any]]) -> None:
    print(f"{'model':6} {'network':8} {'contestant':22} {'tokens/s':>9} {'× alone':>8} {'× beside':>9} "
          f"{'s/step':>7} {'waits':>7} {'MB/step':>8}")  # fmt: skip
    for row in speed:
        name = row["contestant"] + (f" ({name_of(row['mode'])})" if row["mode"] else "")
        print(
            f"{row['model']:6} {row['network']:8} {name:22} {row['tokens_per_second']:9,} {row['times_alone']:8.2f} "
            f"{row['times_beside']:9.2f} {row['step_seconds']:7.2f} {row['exposed_seconds']:7.3f} "
            f"{row['mb_per_step']:8.2f}"
        )
    for row in quality:
        print(
            f"{row['model']:6} {row['mode']:22} dev loss {row['dev_loss']:.4f} after {row['steps']} steps, "
            f"{row['times_every_step'] - 1:+.2%} against every-step float32"
        )


def main() -> None:
    parser = options(__doc__, quick="the small model at 100 Mbit/s, few steps")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--steps", type=int, default=40, help="of a measurement of speed")
    parser.add_argument("--quality-steps", type=int, default=400, help="of a measurement of quality; 0: none")
    parser.add_argument(
        "--rounds",
        type=int,
        default=2,
        help="of all contestants; the median of ratios counts; 0: quality alone",
    )
    given = parser.parse_args()
    models, networks, modes = (text.split(",") for text in (given.models, given.networks, given.modes))
    steps, quality_steps, rounds = given.steps, given.quality_steps, given.rounds
    if given.quick:
        models, networks, steps, quality_steps, rounds = ["tiny"], ["100mbit"], 25, 60, 1
    with tempfile.TemporaryDirectory() as directory:
        bench, speed, quality = Bench(Path(directory)), [], []
        signed = signature()
        for model in models:
            for network in networks:
                speed += measure_speed(bench, model, network, modes, steps, rounds) if rounds else []
            if quality_steps:
                chosen = [name_of(row["mode"]) for row in speed if row["model"] == model and row["mode"]]
                fixed = dict.fromkeys([*(mode for mode in modes if mode != "auto"), *chosen])
                quality += measure_quality(bench, model, list(fixed), quality_steps)
    show(speed, quality)
    ratios = {
        f"{row['model']} at {row['network']}, {row['contestant']} / alone": row["times_alone"]
        for row in speed
        if row["contestant"] != "alone"
    }
    write_figures(given.json, {"ratios": ratios, "speed": speed, "quality": quality, **signed})


if __name__ == "__main__":
    main()
