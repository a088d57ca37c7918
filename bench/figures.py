"""What every script here does alike: `--quick`, `--json FILE`, and figures that say where they come from.

A file of figures holds what the script found, the signature, and `ratios`: our figure over another's that
was measured in the same run, by name; more is better. Seconds of another day
or machine mean little; these ratios can be compared.
"""

import argparse
import json
from pathlib import Path
from typing import Any


def options(doc: str | None, *, quick: str) -> argparse.ArgumentParser:
    """Return a parser that knows what all scripts take; ``quick`` says what is left out then."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"for a look: {quick}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    return parser


def write_figures(path: Path | None, figures: dict[str, Any]) -> None:
    """Write the figures where ``--json`` says, if it does."""
    if path:
        path.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")
