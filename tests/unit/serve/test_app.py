"""What becomes of a request when translating goes wrong, called without a network."""

import asyncio
import json
from types import SimpleNamespace

import pytest

from dragoman.serve.app import build_app
from dragoman.serve.batching import Batcher
from dragoman.serve.limits import Limits
from dragoman.serve.models import Served
from dragoman.serve.service import Settings
from tests.unit.serve.test_batching import Fake

REQUEST = {"q": "One. Two.", "source": "en", "target": "de"}


class Call:
    """One request to an application."""

    def __init__(self, app, body, *, leave=None):
        self.status, self.headers, self.text = None, {}, b""
        self._app, self._leave = app, leave
        self._messages = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

    async def receive(self):
        if self._messages:
            return self._messages.pop()
        await (self._leave.wait() if self._leave else asyncio.Event().wait())
        return {"type": "http.disconnect"}

    async def send(self, message):
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.text += message["body"]

    async def answer(self):
        scope = {
            "type": "http", "method": "POST", "path": "/translate", "raw_path": b"/translate", "query_string": b"",
            "headers": [(b"content-type", b"application/json")], "client": ("192.0.2.1", 1), "server": ("x", 1),
            "scheme": "http", "http_version": "1.1", "root_path": "", "asgi": {"version": "3.0"},
        }  # fmt: skip
        await self._app(scope, self.receive, self.send)
        return self.status, json.loads(self.text)


def run(scenario, translator, tags=(), **limits):
    pairs = [["en", target] for target in tags or ["de"]]
    translator.card = {"tags": list(tags), "pairs": pairs}

    async def whole():
        bounds = Limits(**limits)
        batcher = Batcher(
            translator,
            cores=1,
            most_characters=bounds.queue_characters,
            longest_wait_seconds=bounds.seconds / 2,
        )
        served = Served(None, None, batcher)
        models = SimpleNamespace(
            by_pair=dict.fromkeys(served.pairs, served), served=[served], sources=lambda: ["en"]
        )
        app, _ = build_app(models, Settings(limits=bounds))
        try:
            await asyncio.wait_for(scenario(app), 30)
            assert batcher.queued == 0
        finally:
            translator.gate.release(10**6)
            batcher.close()
            batcher.join(30)

    asyncio.run(whole())


def test_a_translation_that_takes_too_long_is_given_up():
    async def scenario(app):
        call = Call(app, REQUEST)
        assert await call.answer() == (503, {"error": "the translation took longer than 0.1 s"})
        assert call.headers["retry-after"] == "10"

    run(scenario, Fake(gated=True), seconds=0.1)


def test_a_full_queue_says_when_to_come_back():
    translator = Fake(gated=True)

    async def scenario(app):
        first = asyncio.create_task(Call(app, REQUEST).answer())
        await asyncio.sleep(0)
        while not app._metrics.registry.get_sample_value("dragoman_queued_characters"):
            await asyncio.sleep(0)
        second = Call(app, REQUEST)
        status, value = await second.answer()
        assert (status, value["error"]) == (
            429,
            "the server has more to translate than it can: try again in 1 s",
        )
        assert second.headers["retry-after"] == "1"
        translator.gate.release(10)
        assert await first == (200, {"translatedText": "ONE. TWO."})

    run(scenario, translator, queue_characters=60)


def test_a_client_that_leaves_takes_its_work_along():
    async def scenario(app):
        leave = asyncio.Event()
        call = asyncio.create_task(Call(app, REQUEST, leave=leave).answer())
        await asyncio.sleep(0.01)
        leave.set()
        assert (await call)[0] == 499

    run(scenario, Fake(gated=True))


def test_a_bug_is_a_500_that_says_nothing_and_a_traceback_in_the_log(caplog):
    async def scenario(app):
        status, value = await Call(app, {**REQUEST, "q": "bad"}).answer()
        assert (status, value) == (500, {"error": "the server made a mistake; its log says which"})

    run(scenario, Fake())
    assert "a broken batch" in caplog.text


@pytest.mark.parametrize("target", ["de", "fr"])
def test_a_model_of_several_languages_is_told_which(target):
    async def scenario(app):
        assert await Call(app, {**REQUEST, "q": "One. Two.", "target": target}).answer() == (
            200,
            {"translatedText": f"<2{target}> ONE. ".upper() + f"<2{target}> TWO.".upper()},
        )

    run(scenario, Fake(), tags=["de", "fr"])
