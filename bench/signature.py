"""What figures depend on besides the code under test: it stands beside every result."""

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import psutil


def signature() -> dict[str, Any]:
    """Return the commit and the machine."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "commit": commit.stdout.strip() or "unknown",
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "python": platform.python_version(),
    }
