"""LibreTranslate in its own environment with a model of ours: what one would take instead of `dragoman serve`.

It serves packages of Argos Translate, which hold a CTranslate2 model and its SentencePiece model: ours fits. The model
by which it finds the ends of sentences would be downloaded from the internet at the first request. Here a regular
expression stands in its place, which costs next to nothing, so the comparison is kind to it. It translates with the
same beam, on as many threads as there are cores, and has a thread that waits for each client.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import venv
from pathlib import Path
from typing import Any

import psutil

from dragoman.decode.translator import TOKENIZER
from dragoman.machine import usable_cores

RELEASE = "1.9.6"
ENVIRONMENTS = Path("~/.cache/dragoman-bench")
START_SECONDS = 120
PROGRAM = r"""
import re
import minisbd

class Splitter:
    def __init__(self, *_, **__):
        pass
    def sentences(self, text):
        return re.split(r"(?<=[.!?])\s+", text)

minisbd.SBDetect = Splitter
from libretranslate.main import main
main()
"""


def install(environments: Path = ENVIRONMENTS) -> Path:
    """Return the interpreter of its environment, which is made if there is none."""
    directory = environments.expanduser().absolute() / f"libretranslate-{RELEASE}"
    python, ready = directory / "bin" / "python", directory / ".ready"
    if not ready.exists():
        print(f"installing LibreTranslate {RELEASE} in {directory}", file=sys.stderr, flush=True)
        venv.create(directory, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, f"libretranslate=={RELEASE}"], check=True)
        ready.touch()
    return python


def write_packages(model: Path, card: dict[str, Any], directory: Path) -> None:
    """Write a model as packages: with fewer than two of them it would look for more on the internet."""
    for src, tgt in ((card["src_lang"], card["tgt_lang"]), (card["tgt_lang"], card["src_lang"])):
        package = directory / f"translate-{src}_{tgt}"
        package.mkdir(parents=True)
        (package / "model").symlink_to(model.resolve())
        (package / "sentencepiece.model").symlink_to(model.resolve() / TOKENIZER)
        about = {"package_version": "1.0", "argos_version": "1.9", "from_code": src, "to_code": tgt,
                 "from_name": src, "to_name": tgt}  # fmt: skip
        (package / "metadata.json").write_text(json.dumps(about))


class LibreTranslate:
    """The server in its own process, with what `serve.py` asks of ours."""

    def __init__(self, model: Path, card: dict[str, Any], clients: int, work: Path) -> None:
        python = install()
        write_packages(model, card, work / "packages")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "ARGOS_PACKAGES_DIR": str(work / "packages"), "ARGOS_INTRA_THREADS": "1",
            "ARGOS_INTER_THREADS": str(usable_cores()), "ARGOS_BEAM_SIZE": str(card["beam"]),
            "XDG_DATA_HOME": str(work / "data"), "XDG_CONFIG_HOME": str(work / "config"),
            "XDG_CACHE_HOME": str(work / "cache"),
        }  # fmt: skip
        self._log = work / "libretranslate.log"
        command = [str(python), "-c", PROGRAM, "--host", "127.0.0.1", "--port", str(self.port)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--threads", str(clients), "--disable-web-ui"],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=work,
            )
        self._seen = psutil.Process(self._process.pid)
        self._wait()

    def _wait(self) -> None:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.2)
        self.stop()
        sys.exit(f"LibreTranslate did not start:\n{self._log.read_text()[-3000:]}")

    def memory_mb(self) -> float:
        return round(self._seen.memory_info().rss / 1e6, 1)

    def cpu_seconds(self) -> float:
        times = self._seen.cpu_times()
        return float(times.user + times.system)

    def stop(self) -> int:
        self._process.send_signal(signal.SIGKILL)  # it has no other end
        self._process.wait(60)
        return 0
