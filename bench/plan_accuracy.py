"""How well does `dragoman plan --measure` predict the step time of two hosts?

    python bench/plan_accuracy.py --json all.json                             all settings, about half an hour
    python bench/plan_accuracy.py --only 7.5M/100mbit --json all.json --join  one model and network, beside the rest
    python bench/plan_accuracy.py --quick                                     the small model at 100 Mbit/s

In a lab of two hosts of one core each, `dragoman plan --measure` calibrates once for every model and network:
micro-batches without any exchange, the link, rounding. From that alone it predicts the seconds of a step in every mode.
Then each mode trains for a few steps, and the mean time between its steps is compared with the prediction.

The target: median error at most 15 %, worst at most 35 %.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from figures import options, write_figures
from runs import DRAGOMAN, MODELS, QUIET, WARM_STEPS, Bench, lab
from signature import signature
from slow_link import MODES, NETWORKS

COMPARED = {  # the names of bench/slow_link.py, and the plan's
    "every-step float32": "every-step, float32",
    "every-step bf16": "every-step, bf16",
    "compressed int4": "compressed, int4",
    "local int4 every 4": "local, int4, each weight every 4 steps",
}
LONGEST_STEP_SECONDS = 6.0  # a setting that would take longer tells nothing new
MEASURED_SECONDS, MEASURED_STEPS = 20.0, (8, 16)


def predict(bench: Bench, model: str, network: str) -> dict[str, Any]:
    """Return what the plan says after calibrating in the lab."""
    changes = [*QUIET, f'data.directory="{bench.directory / "datasets"}"', *MODELS[model]]
    options = [part for each in changes for part in ("--set", each)]
    plan = [*DRAGOMAN, "plan", "tiny", *options, "--measure", "--json"]
    output = subprocess.run([*lab(network), *plan], check=True, capture_output=True, text=True).stdout
    return dict(json.loads(output[output.index("{") :]))


def prepare(bench: Bench, model: str) -> None:
    """Make the dataset, so that calibrating knows the sentences' lengths."""
    changes = [*QUIET, f'data.directory="{bench.directory / "datasets"}"', *MODELS[model]]
    options = [part for each in changes for part in ("--set", each)]
    subprocess.run(
        [*DRAGOMAN, "data", "prepare", "tiny", *options, "--json"], check=True, capture_output=True
    )


def compare(bench: Bench, model: str, network: str, modes: list[str]) -> list[dict[str, Any]]:
    prepare(bench, model)
    plan = predict(bench, model, network)
    predicted = {each["mode"]: each for each in plan["modes"]}
    rows = []
    for mode in modes:
        expected = predicted[COMPARED[mode]]
        if expected["step_seconds"] > LONGEST_STEP_SECONDS:
            continue
        fewest, most = MEASURED_STEPS
        steps = WARM_STEPS + min(max(round(MEASURED_SECONDS / expected["step_seconds"]), fewest), most)
        bench.in_lab("pair", [*MODELS[model], f"train.steps={steps}", *MODES[mode]], network)
        found = bench.figures("pair")
        rows.append(
            {
                "model": model,
                "network": network,
                "mode": mode,
                "predicted_seconds": round(expected["step_seconds"], 3),
                "measured_seconds": found["step_seconds"],
                "error": round(expected["step_seconds"] / found["step_seconds"] - 1, 3),
                "predicted_exposed_seconds": round(expected["exposed_seconds"], 3),
                "measured_exposed_seconds": found["exposed_seconds"],
                "rates": plan["rates"],
                "link_mbit_per_second": round(plan["cluster"]["between_mbit_per_second"], 1),
                "compute_seconds": round(expected["compute_seconds"], 3),
            }
        )
        show(rows[-1:])
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        print(
            f"{row['model']:6} {row['network']:8} {row['mode']:20} predicted {row['predicted_seconds']:6.3f} s "
            f"(waiting {row['predicted_exposed_seconds']:6.3f}), measured {row['measured_seconds']:6.3f} s "
            f"(waiting {row['measured_exposed_seconds']:6.3f}): {row['error']:+.1%}",
            flush=True,
        )


def main() -> None:
    parser = options(__doc__, quick="the small model at 100 Mbit/s")
    parser.add_argument("--only", metavar="MODEL/NETWORK[/MODE]", help="one part of the settings")
    parser.add_argument("--directory", type=Path, help="keep datasets there")
    parser.add_argument("--join", action="store_true", help="keep the other settings that are in --json FILE")
    given = parser.parse_args()
    if given.join and not given.json:
        parser.error("--join needs --json FILE")
    only = given.only.split("/") if given.only else ["tiny", "100mbit"] if given.quick else []
    chosen = [(model, network) for model in (only[:1] or MODELS) for network in (only[1:2] or NETWORKS)]
    rows = json.loads(given.json.read_text())["rows"] if given.join and given.json.exists() else []
    signed = signature()
    with tempfile.TemporaryDirectory() as temporary:
        directory = given.directory or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        for model, network in chosen:
            new = compare(Bench(directory), model, network, only[2:3] or list(COMPARED))
            fresh = {(row["model"], row["network"], row["mode"]) for row in new}
            rows = [row for row in rows if (row["model"], row["network"], row["mode"]) not in fresh] + new
            write_figures(given.json, {"ratios": {}, "rows": rows, **signed})
    errors = [abs(row["error"]) for row in rows]
    print()
    show(rows)
    print(f"{len(rows)} settings: median error {median(errors):.1%}, worst {max(errors):.1%}")
    sys.exit(0 if median(errors) <= 0.15 and max(errors) <= 0.35 else 1)


if __name__ == "__main__":
    main()
