"""What tests of several kinds need: run directories made up of numbers, with everything that a real run records."""

import json
import math
import random
import re
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dragoman.recipe import dump_recipe, parse_recipe
from dragoman.rundir import RunDir
from dragoman.train.schedules import learning_rate

# Tests that run in the background may have been told to ignore Ctrl-C, and what they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

RECIPE = """
[data]
src_lang = "en"
tgt_lang = "de"
train = "builtin"
dev = "builtin"
test = "builtin"
[train]
steps = {steps}
tokens_per_step = 16000
[schedule]
name = "noam"
warmup_steps = {warmup}
"""
START = 1_790_000_000.0
SENTENCES = ("The boys are tidying up a modern kitchen.", "Die Jungen räumen eine moderne Küche auf.")


def write_run(
    path: Path,
    *,
    steps: int = 400,
    planned: int | None = None,
    ranks: int = 4,
    hosts: tuple[str, ...] = ("anna", "bert"),
    restart: bool = True,
    ending: str | None = "finish",
    text: str = "",
    start: float = START,
    seed: int = 1,
    bleu: float = 27.0,
) -> Path:
    """Write a run that learns, is restarted once in the middle, and loses half its time to the network.

    ``text`` is added to the sample translations and wherever else a run holds words of others.
    """
    noise, run, every = random.Random(seed), RunDir(path), max(1, steps // 12)
    recipe = parse_recipe(RECIPE.format(steps=planned or steps, warmup=max(2, steps // 10)), "made.toml")
    path.mkdir(parents=True, exist_ok=True)
    run.recipe.write_text(dump_recipe(recipe), "utf-8")
    run.facts.write_text(json.dumps(facts(text)), "utf-8")
    files = {rank: [] for rank in range(ranks)}

    def tell(rank: int, event: str, moment: float, **values: object) -> None:
        files[rank].append({"event": event, **values, "time": moment, "rank": rank})

    def begin(event: str, moment: float, step: int) -> None:
        for rank in range(ranks):
            host = hosts[rank * len(hosts) // ranks]
            about = {"device": "cpu", "precision": "float32", "parameters": 60_900_000, "peak_flops": 9.1e10}
            tell(rank, event, moment, step=step, world=ranks, host=host, interface="eth0", **about)

    begin("start", start, 0)
    tell(0, "link", start, hosts=list(hosts), latency_seconds=2e-4, bytes_per_second=118e6)
    moment, scores = start + 2, []
    for step in range(1, steps + 1):
        loss = 2.1 + 6.5 / (1 + 12 * step / steps) + noise.gauss(0, 0.05)
        compute = [0.8 * noise.uniform(0.97, 1.08) for _ in range(ranks)]
        slowest, transfer = max(compute), 0.5 * noise.uniform(0.9, 1.4)
        for rank in range(ranks):
            phases = {
                "data": 0.004, "compute": compute[rank], "exchange": transfer + slowest - compute[rank],
                "agree": 0.003, "optimizer": 0.03, "logging": 0.001,
            }  # fmt: skip
            tell(
                rank, "step", moment + 1.5, step=step, loss=loss + 0.8, nll=loss, tokens=16000 - step % 50,
                lr=learning_rate(step, recipe), seconds=sum(phases.values()), gradient_norm=1.0, epoch=0,
                micro_batches=4, world=ranks, bytes_sent=487_000_000, exposed_seconds=phases["exchange"],
                flops=3.1e10, phases=phases,
            )  # fmt: skip
        moment += 0.85 + transfer
        if step % every == 0:
            dev = loss_at(step, steps) + 0.15
            tell(0, "evaluation", moment, step=step, dev_loss=dev, train_loss=dev - 0.1, seconds=2.0)
            predicted = f"{SENTENCES[1][: 8 + 36 * step // steps]}{text}"
            tell(
                0,
                "sample",
                moment,
                step=step,
                source=SENTENCES[0] + text,
                target=SENTENCES[1],
                prediction=predicted,
            )
            value = bleu * (1 - math.exp(-4 * step / steps)) + noise.gauss(0, 0.2)
            scores.append(score("dev", step, value))
            moment += 2.0
        if restart and step == steps // 2:
            moment += 30
            begin("resume", moment, step)
    if ending:
        for rank in range(ranks):
            tell(rank, ending, moment, step=steps)
        scores.append(score("test", steps, bleu))
    for rank, lines in files.items():
        write_lines(run.events(rank), lines)
    write_lines(run.scores, scores)
    for host in hosts:
        write_lines(run.telemetry(host.replace("/", "_")), telemetry(host, start, moment, noise))
    for name, size in (("model.safetensors", 2436), ("optimizer.safetensors", 4871), ("state.json", 2)):
        file = run.checkpoint(steps) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"\0" * size * 100)
    return path


def loss_at(step: int, steps: int) -> float:
    return 2.1 + 6.5 / (1 + 12 * step / steps)


def score(name: str, step: int, bleu: float) -> dict[str, object]:
    interval = [bleu - 0.9, bleu + 1.1]
    return {
        "set": name,
        "step": step,
        "bleu": bleu,
        "chrf": 2 * bleu,
        "ci95": interval,
        "model": f"models/{step}",
    }


def telemetry(host: str, begin: float, end: float, noise: random.Random) -> list[dict[str, object]]:
    lines, sent = [], 1e9
    seconds = max(1.0, (end - begin) / 3000)
    moment = begin
    while moment <= end:
        sent += seconds * 45e6 * noise.uniform(0.7, 1.2)
        lines.append(
            {
                "time": moment, "host": host, "interface": "eth0", "cpu": [noise.uniform(60, 99) for _ in range(8)],
                "cpu_run": noise.uniform(5.6, 6.4), "memory_used": 9e9, "memory_total": 32e9, "memory_run": 6e9,
                "received": sent * 0.99, "sent": sent, "read": 1e8, "written": 3e8,
            }
        )  # fmt: skip
        moment += seconds
    return lines


def facts(text: str) -> dict[str, object]:
    corpus = {
        "lines": 4_590_101,
        "pairs": 4_501_877,
        "bytes": [550e6, 630e6],
        "tokens": [123_000_000, 131_000_000],
    }
    small = {"lines": 3000, "pairs": 3000, "bytes": [3.4e5, 3.9e5], "tokens": [80_000, 86_000]}
    return {
        "dataset": "datasets/0123456789abcdef",
        "fingerprint": "0123456789abcdef",
        "versions": {"dragoman": "0.1.0", "python": "3.11.7", "torch": "2.13.0"},
        "machine": {"host": "anna" + text, "system": "Linux", "cores": 8},
        "passport": {
            "languages": {"src": "en", "tgt": "de"},
            "splits": {
                "train": {**corpus, "corpora": [{**corpus, "paths": ["train.en" + text, "train.de"]}]},
                "dev": {
                    **small,
                    "corpora": [{**small, "paths": ["dev.en", "dev.de"]}],
                },
            },
            "overlap": {
                "gate": False,
                "removed": 0,
                "kept": 3,
                "sets": {"dev": {"pairs": small["pairs"], "exact": 3, "normalised": 0, "ngram": 0}},
                "examples": [],
            },
            "dropped": {
                "empty": {"pairs": 1200, "examples": []},
                "too long": {"pairs": 87_024, "examples": []},
            },
            "vocab": {"pieces": 32000, "size": 32000},
        },
    }


def write_lines(path: Path, lines: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), "utf-8")


@pytest.fixture(scope="session")
def make_run() -> Callable[..., Path]:
    """Return ``write_run``, which makes up a run directory."""
    return write_run


@dataclass
class Answer:
    """How a web server answers one request for a file."""

    data: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    etag: str | None = '"1"'
    ranges: bool = True
    sent: int | None = None  # bytes after which the connection is cut
    stalled: bool = False  # then nothing more is sent, and the connection stays open
    before: Callable[[], object] = lambda: None

    def send(self, handler: BaseHTTPRequestHandler, done: threading.Event) -> None:
        self.before()
        start, status = 0, self.status
        wanted = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", ""))
        if (
            status == 200
            and wanted
            and self.ranges
            and handler.headers.get("If-Range", self.etag) == self.etag
        ):
            start, status = int(wanted[1]), 206
        if start and start >= len(self.data):
            start, status = 0, 416
        body = self.data[start:] if status in (200, 206) else b""
        handler.send_response(status)
        if status == 206:
            handler.send_header("Content-Range", f"bytes {start}-{len(self.data) - 1}/{len(self.data)}")
        if self.etag:
            handler.send_header("ETag", self.etag)
        for name, value in {"Content-Length": str(len(body)), **self.headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body[: self.sent])
        handler.wfile.flush()
        if self.stalled:
            done.wait(60)


class Web:
    """A web server whose answers to each path are given in order; the last is given again and again."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Answer]] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.done = threading.Event()
        web = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                web.asked.append((self.path, dict(self.headers)))
                answers = web.answers.get(self.path, [Answer(status=404)])
                (answers.pop(0) if len(answers) > 1 else answers[0]).send(self, web.done)

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *arguments: None  # clients go away in the middle, on purpose
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def serve(self, path: str, *answers: Answer | bytes) -> str:
        """Answer requests for ``path``; return its address."""
        self.answers[path] = [Answer(each) if isinstance(each, bytes) else each for each in answers]
        return self.url + path

    def ranges(self) -> list[str | None]:
        """Return the ranges that were asked for, request by request."""
        return [headers.get("Range") for _, headers in self.asked]


@pytest.fixture
def web(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    web = Web()
    yield web
    web.done.set()
    web.server.shutdown()
    web.server.server_close()


@pytest.fixture(scope="session")
def answer() -> type[Answer]:
    """Return the class of a web server's answers."""
    return Answer
