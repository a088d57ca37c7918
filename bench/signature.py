"""What figures depend on besides the code under test: it stands beside every result."""

import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil


def signature() -> dict[str, Any]:
    """Return the day, the commit, the machine and what else it does: called before anything is measured."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit.stdout.strip() or "unknown",
        "cores": os.cpu_count(),
        "machine": f"{platform.machine()} {processor()}".strip(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def processor() -> str:
    """Return the name of the processor, where the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
