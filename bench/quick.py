"""Has anything become slower? A few minutes of the benchmarks, beside the last figures that were kept.

    make bench-quick
    python bench/quick.py --only decode,serve       some of them
    python bench/quick.py --keep                    write the figures to bench/last.json, to be committed

Each script of SCRIPTS is run with `--quick`. What is compared are its `ratios`: our speed over that of another tool or
of a limit that was measured in the same minutes on the same machine, so that figures of another machine mean
something, too. More is better. On a machine with other work a ratio moves by a tenth from one time to the next:
look again before you believe in a change. The first time, the peer of train_throughput.py is installed in an
environment of its own, which takes minutes.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from figures import options, write_figures
from signature import signature

BENCH = Path(__file__).parent
# With what each is called besides `--quick`: the same text on every machine.
SCRIPTS = {"train_throughput": ["--data", "builtin"], "decode": [], "prepare": [], "serve": []}
LAST = BENCH / "last.json"
NOISE = 0.1


def run(name: str, directory: Path) -> dict[str, float]:
    """Run a script's quick version; return its ratios, none if it failed. What it says goes to stderr."""
    written = directory / f"{name}.json"
    print(f"{name} …", file=sys.stderr, flush=True)
    began = time.monotonic()
    command = [sys.executable, str(BENCH / f"{name}.py"), "--quick", *SCRIPTS[name], "--json", str(written)]
    code = subprocess.run(command, stdout=sys.stderr, check=False).returncode
    print(f"{name}: {time.monotonic() - began:.0f} s\n", file=sys.stderr, flush=True)
    if code:
        print(f"{name} failed: exit code {code}", file=sys.stderr)
    return dict(json.loads(written.read_text())["ratios"]) if written.exists() else {}


def show(now: dict[str, float], last: dict[str, Any]) -> None:
    """Print each ratio, the one that was kept, and the change."""
    before = last.get("ratios", {})
    head = "ours / the other, in the same run"
    widest = max(map(len, (head, *now, *before)))
    print(f"{head:{widest}}  {'now':>7}  {'last':>7}  {'change':>7}")
    for name, ratio in now.items():
        old = before.get(name)
        change = (
            f"{ratio / old - 1:+7.0%}{' ?' if abs(ratio / old - 1) > NOISE else ''}" if old else "    new"
        )
        print(f"{name:{widest}}  {ratio:7.2f}  {f'{old:7.2f}' if old else '      –'}  {change}")
    for name in before.keys() - now.keys():
        print(f"{name:{widest}}  {'–':>7}  {before[name]:7.2f}")
    if last:
        where = f"{last['date']}, commit {last['commit']}, {last['cores']} cores, {last['machine']}"
        print(f"\nlast: {where}, load before {last['load_before']}")
        print(
            f"Noise is about ±{NOISE:.0%}. What moved more has a question mark: run it again on a quiet machine."
        )
    else:
        print(f"\nNothing to compare with: no figures were kept in bench/{LAST.name} (--keep).")


def main() -> None:
    parser = options(__doc__, quick="it always is; taken so that all scripts are called alike")
    parser.add_argument("--only", default=",".join(SCRIPTS), metavar="NAMES", help="with commas between them")
    parser.add_argument(
        "--keep", action="store_true", help=f"keep the figures in bench/{LAST.name}, if all ran"
    )
    given = parser.parse_args()
    signed = signature()
    with tempfile.TemporaryDirectory() as directory:
        found = {name: run(name, Path(directory)) for name in given.only.split(",")}
    now = {name: ratio for ratios in found.values() for name, ratio in ratios.items()}
    last = json.loads(LAST.read_text()) if LAST.exists() else {}
    show(now, last)
    figures = {**signed, "ratios": now}
    write_figures(given.json, figures)
    if given.keep and all(found.values()):
        write_figures(LAST, figures)
    sys.exit(0 if all(found.values()) else 1)


if __name__ == "__main__":
    main()
