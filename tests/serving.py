"""Small models and a real server for tests of several kinds."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dragoman.data.prepare import prepare
from dragoman.decode.export import export_model
from dragoman.files import read_json, write_json
from tests.unit.decode.conftest import SENTENCES, make_recipe, make_run

CALIBRATION = {"measure": "mean sentence chrF on dev", "sentences": 100, "points": [[-3.0, 0.4], [-0.1, 0.9]]}


def make_models(path: Path) -> dict[str, Path]:
    """Write untrained models: en-de, which is calibrated, de-en, and newer, an en-de with other weights."""
    recipe = make_recipe(path / "text")
    toy = make_run(path / "run", recipe, prepare(recipe, workers=0, progress=False))
    models = {}
    for step, name in enumerate(("en-de", "de-en", "newer"), 1):
        models[name] = export_model(
            [toy.save(step)], toy.recipe, toy.dataset.tokenizer_path, path / name, extra={}
        )
    change_card(models["en-de"], confidence=CALIBRATION)
    change_card(models["de-en"], src_lang="de", tgt_lang="en", pairs=[["de", "en"]])
    return models


def change_card(model: Path, **values: object) -> None:
    write_json(model / "dragoman.json", {**read_json(model / "dragoman.json"), **values})


def replace_model(old: Path, new: Path) -> None:
    """Put a model in another's place, as an export does."""
    shutil.copytree(new, old.with_name("beside"))
    old.rename(old.with_name("earlier"))
    old.with_name("beside").rename(old)
    shutil.rmtree(old.with_name("earlier"))


class Running:
    """A server in a process of its own."""

    def __init__(self, *arguments: str) -> None:
        # Not a pipe: one that nobody empties would stop the server.
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dragoman", "serve", *arguments, "--port", "0"],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )
        line = self.process.stdout.readline()
        assert line.startswith("Serving "), self.said()
        self.address = line.split(" at ")[1].split()[0].rstrip("/")

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def ask(
        self, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any, Any]:
        """Return status, value and headers; a body is sent as it is if it is bytes, else as JSON."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data=data)
        request.add_header("Content-Type", "application/json")
        for name, value in (headers or {}).items():
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text, status, got = answer.read(), answer.status, answer.headers
        except urllib.error.HTTPError as error:
            text, status, got = error.read(), error.code, error.headers
        is_json = got.get_content_type() == "application/json"
        return status, json.loads(text) if is_json else text.decode(), got

    def translate(self, q: object, **fields: object) -> tuple[int, Any, Any]:
        return self.ask("/translate", {"q": q, "source": "en", "target": "de", **fields})

    def stop(self) -> tuple[int, str]:
        """Ask it to end; return its exit code and what it had to say."""
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=60)
        return self.process.returncode, self.said()

    def said(self) -> str:
        """Return what it wrote to standard error."""
        self._said.seek(0)
        return self._said.read()


@contextmanager
def running(*arguments: str):
    server = Running(*arguments)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
        server.process.communicate()
        server._said.close()


__all__ = ["SENTENCES", "change_card", "make_models", "replace_model", "running"]
