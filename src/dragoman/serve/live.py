"""``dragoman watch --web``: the report of a run, or of several, as a page that keeps itself up to date.

The page asks for news every two seconds; what it gets is the same view that a report is written from. Only this
machine can reach it, and only under its own name: a page of somebody else that gets its name to point here
(DNS rebinding) is refused. Needs no torch.
"""

import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response

from dragoman.errors import UserError
from dragoman.observe.report import View, plotly_script, render, resource, view
from dragoman.observe.report.charts import compare
from dragoman.observe.report.sections import Section, run_table
from dragoman.observe.watch import Watched, find_runs

HOST = "127.0.0.1"
NAMES = ("127.0.0.1", "localhost")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; img-src data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
SHORTEST_PAUSE = 1.0  # seconds between two looks at a run


@dataclass(frozen=True)
class News:
    """A view as JSON text, whether the run still goes on, and until when (monotonic) this need not be made again."""

    version: str
    running: bool
    text: str
    good_until: float

    def after(self, version: str) -> str:
        """Return what a page that has ``version`` does not know yet."""
        head = json.dumps({"version": self.version, "running": self.running})
        return head if version == self.version else f"{head[:-1]}, {self.text[1:]}"


class Live:
    """The views of one or more runs, made anew when somebody asks and they are not fresh."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.single = [self.path] == find_runs(self.path)
        self._lock = threading.Lock()
        self._watched: dict[str, Watched] = {}
        self._made: dict[str, News] = {}  # by name of the run, "" for all

    def names(self) -> dict[str, Path]:
        """Return the runs by name; new ones appear while we serve."""
        return {path.name: path for path in find_runs(self.path)}

    def page(self, name: str) -> View:
        """Return a view with its places, still empty of charts: the page asks for those."""
        with self._lock:
            return self._view(name)[0]

    def news(self, name: str) -> "News":
        """Return what there is to draw, made anew if it is not fresh."""
        with self._lock:
            known = self._made.get(name)
            if known is None or time.monotonic() >= known.good_until:
                began = time.monotonic()
                shown, running = self._view(name)
                text = json.dumps(shown.to_json(), allow_nan=False)
                # On a long run a look may take a second: it shall take no more than a fifth of the time.
                now = time.monotonic()
                known = News(f"{hash(text):x}", running, text, now + max(SHORTEST_PAUSE, 4 * (now - began)))
                self._made[name] = known
            return known

    def _view(self, name: str) -> tuple[View, bool]:
        if name:
            watched = self._look(name, self.names()[name])
            return view(watched.history, watched.answers), watched.history.ending == "running"
        all_runs = {each: self._look(each, path) for each, path in self.names().items()}
        rows = [(f"/run/{quote(each)}", each, run.history, run.answers) for each, run in all_runs.items()]
        histories = {each: run.history for each, run in all_runs.items()}
        shown = View(
            title=self.path.resolve().name,
            head=f'<div class="title"><h1>{len(rows)} runs</h1></div>',
            sections=[Section("runs", "Runs", run_table(rows)), Section("charts", "Compared, by step", "")],
            charts=compare(histories),
        )
        return shown, any(history.ending == "running" for history in histories.values())

    def _look(self, name: str, path: Path) -> Watched:
        if name in self._watched:
            self._watched[name].look()
        else:
            self._watched[name] = Watched(path)
        return self._watched[name]


def build_app(path: Path) -> FastAPI:
    """Return the pages: / for one run or a comparison, /run/NAME for each of several."""
    live = Live(path)
    app = FastAPI(openapi_url=None)

    @app.middleware("http")
    async def only_us(request: Request, call_next: Callable[[Request], Any]) -> Response:
        name = request.headers.get("host", "").rsplit(":", 1)[0]
        if name not in NAMES:
            return Response("this page has another name", status_code=403, headers=HEADERS)
        answer: Response = await call_next(request)
        answer.headers.update(HEADERS)
        return answer

    def known(name: str) -> str:
        if name and name not in live.names():
            raise HTTPException(404, "there is no such run")
        return name

    def page(name: str) -> Response:
        address = f"/data/{quote(name)}" if name else "/data"
        scripts = '<script src="/plotly.js"></script><script src="/page.js"></script>'
        return Response(
            render(live.page(name), meta="", scripts=scripts, live=address), media_type="text/html"
        )

    def first() -> str:
        return next(iter(live.names())) if live.single else ""

    @app.get("/")
    def home() -> Response:
        return page(first())

    @app.get("/run/{name}")
    def run(name: str) -> Response:
        return page(known(name))

    @app.get("/data")
    def all_data(version: str = "") -> Response:
        return data("", version)

    @app.get("/data/{name}")
    def data(name: str, version: str = "") -> Response:
        text = live.news(known(name)).after(version)
        return Response(text, media_type="application/json", headers={"Cache-Control": "no-store"})

    @app.get("/plotly.js")
    def plotly() -> Response:
        return Response(
            plotly_script(), media_type="text/javascript", headers={"Cache-Control": "max-age=86400"}
        )

    @app.get("/page.js")
    def script() -> Response:
        return Response(resource("page.js"), media_type="text/javascript")

    return app


class Server(uvicorn.Server):
    """Uvicorn that calls back with its address once it listens, and that Ctrl-C ends without a traceback."""

    def __init__(self, app: FastAPI, port: int, ready: Callable[[str], None]) -> None:
        super().__init__(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2))
        self._port, self._ready = port, ready

    def listen(self) -> None:
        """Serve until asked to end."""
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((HOST, self._port))
            except OSError as error:
                raise UserError(
                    f"port {self._port} cannot be used ({error.strerror})",
                    where=f"--port {self._port}",
                    fix="choose another port, or --port 0 for a free one",
                ) from error
            listener.listen()
            self._ready(f"http://{HOST}:{listener.getsockname()[1]}/")
            with suppress(KeyboardInterrupt):
                self.run(sockets=[listener])


def serve_live(path: Path, port: int, ready: Callable[[str], None]) -> None:
    """Serve the live page of a run, or of the runs in a directory, until Ctrl-C."""
    Server(build_app(path), port, ready).listen()
