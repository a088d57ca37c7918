"""How much of CTranslate2's speed is left behind `dragoman serve`, and does it survive too much load?

    python bench/serve.py runs/demo                  1, 16 and 64 clients against CTranslate2 itself
    python bench/serve.py runs/demo --soak 600       also ten minutes at twice the capacity
    python bench/serve.py runs/demo --libretranslate    then LibreTranslate with the same model
    python bench/serve.py                            a made-up model
    python bench/serve.py --quick                    a few seconds of each

Clients are connections on loopback; each sends a request of a few sentences, waits for the answer, and sends the next.
Plain CTranslate2 gets the same sentences at once, as tokens, sorted and batched by itself, before and after. Tokens are
those of the translations. The clients run on the same cores as the server, so what they use counts against it.
LibreTranslate is started by bench/libretranslate_server.py; it searches with another length penalty, so that only a
well-trained MODEL gives translations of the same length.

The targets: at 64 clients at least 80 % of CTranslate2's tokens per second; under twice the load no error but 429, and
memory that does not grow.
"""

import argparse
import asyncio
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ctranslate2
import psutil
from exported import export_all, read_text
from figures import options, write_figures
from libretranslate_server import LibreTranslate
from signature import signature

from dragoman.data.text import normalise
from dragoman.data.tokenizer import Tokenizer
from dragoman.decode.translator import BATCH_TOKENS, CARD, TOKENIZER
from dragoman.files import read_json
from dragoman.machine import usable_cores

CLIENTS = (1, 16, 64)
MOST_OUTSTANDING = 800
MOST_SENTENCES = 600
SECONDS, QUICK_SECONDS = 20.0, 4.0
HEAD = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


def plain(
    model: Path, sentences: list[str], threads: int, seconds: float
) -> tuple[float, float, dict[str, int]]:
    """Return CTranslate2's tokens per second and per CPU second, and the tokens of each sentence's translation."""
    tokenizer, card = Tokenizer.load(model / TOKENIZER), read_json(model / CARD)
    pieces = tokenizer.pieces()
    tokens = [
        [pieces[i] for i in ids[:-1]] for ids in tokenizer.encode([normalise(each) for each in sentences])
    ]
    engine = ctranslate2.Translator(str(model), inter_threads=threads, intra_threads=1)
    options = {
        "beam_size": card["beam"], "length_penalty": card["length_penalty"], "max_batch_size": BATCH_TOKENS,
        "batch_type": "tokens", "disable_unk": True, "max_decoding_length": card["positions"],
    }  # fmt: skip
    engine.translate_batch(tokens[:32], **options)
    began, used, done, results = time.monotonic(), time.process_time(), 0, []
    while not done or time.monotonic() - began < seconds:
        results = engine.translate_batch(tokens, **options)
        done += sum(len(result.hypotheses[0]) for result in results)
    rate, cpu_rate = done / (time.monotonic() - began), done / (time.process_time() - used)
    lengths = [len(result.hypotheses[0]) for result in results]
    return rate, cpu_rate, dict(zip(sentences, lengths, strict=True))


class Server:
    """The command itself, in its own process."""

    def __init__(self, model: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dragoman", "serve", str(model), "--port", "0", "--log", "/dev/null"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", self._process.stdout.readline())
        assert found, "the server did not start"
        self.port = int(found[1])
        self._seen = psutil.Process(self._process.pid)

    def memory_mb(self) -> float:
        return round(self._seen.memory_info().rss / 1e6, 1)

    def cpu_seconds(self) -> float:
        times = self._seen.cpu_times()
        return float(times.user + times.system)

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(60)


class Connection:
    """A connection that is kept, with as little work for each request as possible."""

    @classmethod
    async def open(cls, port: int) -> "Connection":
        self = cls()
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port)
        return self

    async def ask(self, body: bytes) -> tuple[int, bytes]:
        self.writer.write(HEAD % len(body) + body)
        answer = await self.reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        return int(answer[9:12]), await self.reader.readexactly(length)


def request(
    chance: random.Random, sentences: list[str], size: int, languages: dict[str, str]
) -> tuple[bytes, list[str]]:
    chosen = chance.sample(sentences, size)
    return json.dumps({"q": " ".join(chosen), **languages}).encode(), chosen


async def closed_loop(
    server: "Server | LibreTranslate",
    clients: int,
    seconds: float,
    sentences: list[str],
    size: int,
    languages: dict[str, str],
    tokens: dict[str, int],
) -> dict[str, Any]:
    """Let clients ask as fast as they are answered; count the answers of a window in the middle of it."""
    begin = time.monotonic() + seconds / 2
    end = begin + seconds
    times: list[float] = []
    counts = {"tokens": 0, "errors": 0}
    over = asyncio.Event()

    async def client(seed: int) -> None:
        chance = random.Random(seed)
        connection = await Connection.open(server.port)
        while not over.is_set():
            body, chosen = request(chance, sentences, size, languages)
            asked = time.monotonic()
            status, _ = await connection.ask(body)
            counts["errors"] += status != 200
            if begin <= time.monotonic() <= end:
                times.append(time.monotonic() - asked)
                counts["tokens"] += sum(tokens[each] for each in chosen)
        connection.writer.close()

    running = [asyncio.create_task(client(seed)) for seed in range(clients)]
    await asyncio.sleep(begin - time.monotonic())
    used = server.cpu_seconds()
    await asyncio.sleep(end - time.monotonic())
    used = server.cpu_seconds() - used
    over.set()
    await asyncio.gather(*running)
    if not times:
        sys.exit(
            f"no request was answered within {seconds:g} s: is the model trained, so that it ends its sentences?"
        )
    times.sort()
    return {
        "clients": clients,
        "sentences": size,
        "requests_per_second": round(len(times) / seconds, 1),
        "tokens_per_second": round(counts["tokens"] / seconds, 1),
        "tokens_per_cpu_second": round(counts["tokens"] / used, 1),
        "p50_ms": round(1000 * times[len(times) // 2], 1),
        "p99_ms": round(1000 * times[min(len(times) - 1, len(times) * 99 // 100)], 1),
        "errors": counts["errors"],
    }


async def soak(
    server: Server, rate: float, seconds: float, sentences: list[str], size: int, languages: dict[str, str]
) -> dict[str, Any]:
    """Send requests at a fixed rate, however slowly they are answered; return statuses and the memory over time."""
    chance, idle, waiting = random.Random(7), [], set()
    statuses: dict[str, int] = {}
    memory: list[float] = []
    unsent = 0

    async def one() -> None:
        body, _ = request(chance, sentences, size, languages)
        try:
            try:
                connection = idle.pop() if idle else await Connection.open(server.port)
                status, _ = await connection.ask(body)
            except asyncio.IncompleteReadError as error:
                if error.partial:
                    raise
                # The server closes idle connections, and may do so as we write: every client opens another then.
                connection = await Connection.open(server.port)
                status, _ = await connection.ask(body)
            idle.append(connection)
            key = str(status)
        except (OSError, asyncio.IncompleteReadError, IndexError) as error:
            key = type(error).__name__
        statuses[key] = statuses.get(key, 0) + 1

    began, sent = time.monotonic(), 0
    while (now := time.monotonic() - began) < seconds:
        while sent < now * rate:
            sent += 1
            if len(waiting) >= MOST_OUTSTANDING:
                unsent += 1
                continue
            task = asyncio.create_task(one())
            waiting.add(task)
            task.add_done_callback(waiting.discard)
        if now >= len(memory) * max(1.0, seconds / 60):
            memory.append(server.memory_mb())
        await asyncio.sleep(0.005)
    await asyncio.gather(*waiting)
    return {
        "seconds": seconds,
        "requests_per_second": round(rate, 1),
        "statuses": statuses,
        "not_sent": unsent,
        "memory_mb": memory,
        "errors": sum(count for status, count in statuses.items() if status not in ("200", "429")),
    }


def measure(model: Path, sentences: list[str], given: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Serve a model to more and more clients, then to too many; return what they found beside the others."""
    size, seconds = given.sentences, QUICK_SECONDS if given.quick else SECONDS
    card = read_json(model / CARD)
    languages = {"source": card["src_lang"], "target": card["tgt_lang"]}
    before, cpu_before, tokens = plain(model, sentences, usable_cores(), seconds)

    def ask(server: Server | LibreTranslate) -> list[dict[str, Any]]:
        return [
            asyncio.run(closed_loop(server, clients, seconds, sentences, size, languages, tokens))
            for clients in CLIENTS
        ]

    server = Server(model)
    rows, soaked = ask(server), None
    if given.soak:
        capacity = rows[-1]["requests_per_second"]
        soaked = asyncio.run(soak(server, 2 * capacity, given.soak, sentences, size, languages))
    code = server.stop()
    libretranslate = []
    if given.libretranslate:
        other = LibreTranslate(model, card, max(CLIENTS), work)
        try:
            libretranslate = ask(other)
        finally:
            other.stop()
    after, cpu_after, _ = plain(model, sentences, usable_cores(), seconds)
    for row in (*rows, *libretranslate):
        row["share"] = round(row["tokens_per_second"] / ((before + after) / 2), 3)
        row["cpu_share"] = round(row["tokens_per_cpu_second"] / ((cpu_before + cpu_after) / 2), 3)
    return {
        "plain_tokens_per_second": [before, after],
        "threads": usable_cores(),
        "rows": rows,
        "libretranslate": libretranslate,
        "soak": soaked,
        "server_ended_well": code == 0,
    }


def show(found: dict[str, Any]) -> None:
    before, after = found["plain_tokens_per_second"]
    print(
        f"CTranslate2 itself, {found['threads']} threads: {before:,.0f} tokens/s before, {after:,.0f} after"
    )
    for row in (*found["rows"], *found["libretranslate"]):
        who = "dragoman" if row in found["rows"] else "LibreTranslate"
        print(
            f"{who:14} {row['clients']:3} clients, {row['sentences']} sentences each: "
            f"{row['tokens_per_second']:9,.0f} tokens/s ({row['share']:.0%}; {row['cpu_share']:.0%} by CPU time), "
            f"{row['requests_per_second']:7,.1f} requests/s, p50 {row['p50_ms']:,.1f} ms, "
            f"p99 {row['p99_ms']:,.1f} ms, {row['errors']} errors"
        )
    if soaked := found["soak"]:
        memory = soaked["memory_mb"]
        print(
            f"{soaked['seconds']:g} s at {soaked['requests_per_second']} requests/s: {soaked['statuses']}, "
            f"{soaked['not_sent']} not sent; memory {memory[0]} MB at first, {memory[len(memory) // 2]} in the middle, "
            f"{memory[-1]} at the end"
        )


def main() -> None:
    parser = options(__doc__, quick=f"{QUICK_SECONDS:g} seconds of each instead of {SECONDS:g}")
    parser.add_argument(
        "model", nargs="?", type=Path, help="a run, or an exported model; made up if not given"
    )
    parser.add_argument("--text", type=Path, help="sentences, one a line; built-in if not given")
    parser.add_argument("--sentences", type=int, default=4, help="of a request")
    parser.add_argument("--soak", type=float, default=0, metavar="SECONDS", help="at twice the capacity")
    parser.add_argument(
        "--libretranslate", action="store_true", help="measure it, too; installed the first time"
    )
    given = parser.parse_args()
    if given.libretranslate and not given.model:
        parser.error("--libretranslate needs a MODEL: made-up translations have no end of their own")
    signed = signature()
    sentences = sorted({line.strip() for line in read_text(given.text, MOST_SENTENCES) if line.strip()})
    with tempfile.TemporaryDirectory() as directory:
        [model] = export_all(given.model, ["float32"], sentences, Path(directory)).values()
        found = measure(model, sentences, given, Path(directory))
    show(found)
    most = found["rows"][-1]
    name = f"serve, {most['clients']} clients / ctranslate2"
    ratios = {name: most["share"], f"{name}, by processor time": most["cpu_share"]}
    if found["libretranslate"]:
        their_rate = found["libretranslate"][-1]["tokens_per_second"]
        ratios[f"serve, {most['clients']} clients / LibreTranslate"] = round(
            most["tokens_per_second"] / their_rate, 3
        )
    write_figures(given.json, {"ratios": ratios, **found, **signed})
    wrong = any(each["errors"] for each in (*found["rows"], found["soak"]) if each)
    sys.exit(1 if wrong or not found["server_ended_well"] else 0)


if __name__ == "__main__":
    main()
