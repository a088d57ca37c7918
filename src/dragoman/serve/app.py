"""The web page and LibreTranslate's API, as an ASGI application. Imports without torch.

Whatever is sent, the answer is a translation or a refusal that says why.
"""

import asyncio
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from dragoman import __version__
from dragoman.serve.limits import Refusal
from dragoman.serve.models import Models
from dragoman.serve.pages import page, reference
from dragoman.serve.record import NOTES, Recorder
from dragoman.serve.service import Service, Settings
from dragoman.serve.shapes import (
    Detected,
    DetectRequest,
    Failure,
    FileRequest,
    FileResponse,
    Health,
    Language,
    TranslateRequest,
    TranslateResponse,
)

OWN_NAMES = ("127.0.0.1", "localhost", "[::1]")


def _json(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(value), status, headers, "application/json")


def _body(model: Any) -> dict[str, Any]:
    """Describe a request body that is JSON or a form."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    form = {**schema, "properties": {**schema["properties"], "q": {"type": "string", "minLength": 1}}}
    kinds = {"application/json": {"schema": schema}, "application/x-www-form-urlencoded": {"schema": form}}
    return {"requestBody": {"required": True, "content": kinds}}


def _failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": Failure} for status in statuses}


def build_app(models: Models, settings: Settings) -> tuple[ASGIApp, Service]:
    """Return the application and what it does."""
    service = Service(models, settings)
    app = FastAPI(
        title="Dragoman",
        version=__version__,
        description="Translation by LibreTranslate's API.",
        docs_url=None,
        redoc_url=None,
    )
    asked = _failures(400, 403, 408, 413, 415, 429)

    @app.exception_handler(Refusal)
    async def refuse(_: Request, refusal: Refusal) -> Response:
        return _json({"error": refusal.text}, refusal.status, refusal.headers)

    @app.exception_handler(HTTPException)
    async def refuse_path(_: Request, error: HTTPException) -> Response:
        return _json({"error": error.detail}, error.status_code, dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def fail(_: Request, error: Exception) -> Response:
        return _json({"error": "the server made a mistake; its log says which"}, 500)

    @app.post(
        "/translate",
        summary="Translate text",
        response_model=TranslateResponse,
        responses={**asked, **_failures(500, 503)},
        openapi_extra=_body(TranslateRequest),
    )
    async def translate(request: Request) -> Response:
        return _json(await service.translate(request, await service.read(request, TranslateRequest)))

    @app.post(
        "/translate_file",
        summary="Translate a file",
        response_model=FileResponse,
        responses={**asked, **_failures(500, 503)},
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {"multipart/form-data": {"schema": FileRequest.model_json_schema()}},
            }
        },
    )
    async def translate_file(request: Request) -> Response:
        address = await service.translate_file(request)
        return _json({"translatedFileUrl": f"{request.base_url}download_file/{address}"})

    @app.get("/download_file/{address}", include_in_schema=False)
    async def download_file(address: str) -> Response:
        kept = service.downloads.find(address)
        return Response(kept.content, headers=kept.headers, media_type=kept.media_type)

    @app.post(
        "/detect",
        summary="Say which language a text is in",
        response_model=list[Detected],
        responses=asked,
        openapi_extra=_body(DetectRequest),
    )
    async def detect(request: Request) -> Response:
        wanted = await service.read(request, DetectRequest)
        request.scope[NOTES]["characters"] = len(wanted.q)
        return _json(await asyncio.to_thread(service.detect, wanted.q))

    @app.get(
        "/languages",
        summary="Languages, and into which each can be translated",
        response_model=list[Language],
    )
    async def languages() -> Response:
        return _json(service.languages())

    @app.get("/health", summary="Whether the server lives", response_model=Health)
    async def health() -> Response:
        return _json({"status": "ok"})

    @app.get("/frontend/settings", summary="What a page needs to know", response_model=dict[str, Any])
    async def frontend() -> Response:
        return _json(service.frontend())

    @app.get("/metrics", include_in_schema=False)
    async def metrics(request: Request) -> Response:
        service.admit(request, None, counted=False)
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/spec", include_in_schema=False)
    async def spec() -> Response:
        return _json(app.openapi())

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return reference(app.openapi())

    @app.get("/", include_in_schema=False)
    async def home() -> Response:
        return page()

    paths = frozenset(str(getattr(route, "path", "")) for route in app.routes)
    inner: ASGIApp = OwnNames(app, settings.allow_origin) if settings.own_names_only else app
    if settings.allow_origin:
        inner = CORSMiddleware(inner, allow_origins=[settings.allow_origin], allow_headers=["*"])
    return Recorder(inner, service.metrics, paths, settings.log), service


class OwnNames:
    """Answers only to this machine's own names, and not to pages of other servers that a browser here shows."""

    def __init__(self, app: ASGIApp, allow_origin: str | None) -> None:
        self._app, self._allow_origin = app, allow_origin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            host, origin = headers.get("host", ""), headers.get("origin", "")
            stranger = headers.get("sec-fetch-site") == "cross-site" and self._allow_origin not in (
                "*",
                origin,
            )
            if (host not in OWN_NAMES and host.rpartition(":")[0] not in OWN_NAMES) or (
                stranger and scope["method"] == "POST"
            ):
                answer = _json({"error": "this server answers to this machine only (see --open)"}, 403)
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)
