"""What the server tells about itself: a line of JSON for each request, and counts for Prometheus. Never a text."""

import json
import logging
import time
from typing import IO, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dragoman.serve.models import Models

logger = logging.getLogger(__name__)

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
NOTES = "dragoman"  # where a request's handler leaves what it knows: characters, sentences, client
FAILED = b'{"error":"the server made a mistake; its log says which"}'
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
]


class Metrics:
    """Counts in a registry of their own."""

    def __init__(self, models: Models) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "dragoman_requests", "Requests answered.", ["path", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "dragoman_request_seconds",
            "From a request's first byte to its answer.",
            ["path"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.characters = Counter("dragoman_characters", "Characters translated.", registry=self.registry)
        self.sentences = Counter("dragoman_sentences", "Sentences translated.", registry=self.registry)
        self.reloads = Counter("dragoman_reloads", "Models replaced by newer ones.", registry=self.registry)
        queued = Gauge("dragoman_queued_characters", "Waiting or at work.", registry=self.registry)
        queued.set_function(lambda: sum(served.batcher.queued for served in models.served))


class Recorder:
    """The outermost layer: times, counts and logs each request, adds headers, and turns a bug into a 500."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: frozenset[str], log: IO[str] | None) -> None:
        self._app, self._metrics, self._paths, self._log = app, metrics, paths, log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        notes: dict[str, Any] = {}
        scope[NOTES] = notes
        status = 0

        async def tell(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        try:
            await self._app(scope, receive, tell)
        except Exception:
            logger.exception("a request failed")
            if not status:
                await tell(
                    {
                        "type": "http.response.start",
                        "status": 500,
                        "headers": [
                            (b"content-type", b"application/json"),
                            (b"content-length", str(len(FAILED)).encode()),
                        ],
                    }
                )
                await tell({"type": "http.response.body", "body": FAILED})
        finally:
            self._note(scope, status, time.perf_counter() - began, notes)

    def _note(self, scope: Scope, status: int, seconds: float, notes: dict[str, Any]) -> None:
        path = scope["path"] if scope["path"] in self._paths else "other"  # as many labels as routes
        metrics = self._metrics
        metrics.requests.labels(path, str(status)).inc()
        metrics.seconds.labels(path).observe(seconds)
        if status == 200 and "sentences" in notes:
            metrics.characters.inc(notes["characters"])
            metrics.sentences.inc(notes["sentences"])
        if self._log is not None:
            line = {
                "time": round(time.time(), 3),
                "method": scope["method"],
                "path": path,
                "status": status,
                "ms": round(1000 * seconds, 1),
                **notes,
            }
            self._log.write(json.dumps(line) + "\n")
            self._log.flush()
