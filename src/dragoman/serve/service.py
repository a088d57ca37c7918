"""What the API does: a request is read within its bounds, checked, cut into sentences, queued with everybody else's,
and put together again."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO, Any, NamedTuple, TypeVar

from starlette.requests import Request

from dragoman.decode.alignment import Aligned
from dragoman.decode.document import sentences_of_text as split
from dragoman.decode.translator import Hypothesis, Translation
from dragoman.serve.batching import Full
from dragoman.serve.languages import Detection, Detector, name
from dragoman.serve.limits import Buckets, Keys, Limits, Refusal, network, read_body
from dragoman.serve.markup import Markup
from dragoman.serve.models import Models, Served
from dragoman.serve.record import NOTES, Metrics
from dragoman.serve.shapes import DetectRequest, TranslateRequest, parse, read_values
from dragoman.serve.uploads import FORMATS, Downloads, format_of, name_of_translation, text_of

Shape = TypeVar("Shape", DetectRequest, TranslateRequest)

SPLIT_HERE = 5_000  # characters; cutting a longer text into sentences is left to a thread
CLIENT_LEFT = 499  # what the log says; nobody gets this answer


@dataclass(frozen=True)
class Settings:
    """How to serve, apart from where."""

    limits: Limits
    keys: Keys | None = None
    own_names_only: bool = False  # a page elsewhere whose name was made to point here is refused
    allow_origin: str | None = None
    log: IO[str] | None = None


class Piece(NamedTuple):
    """A text of a request as sentences with the white space after each."""

    parts: list[tuple[str, str]]

    def join(self, translations: Sequence[str]) -> str:
        return "".join(text + space for text, (_, space) in zip(translations, self.parts, strict=True))

    def align(self, translations: Sequence[Translation]) -> Aligned:
        return Aligned(
            (source, space, each.text, each.hypotheses[0].attention)
            for (source, space), each in zip(self.parts, translations, strict=True)
        )


class Service:
    """What the routes do."""

    def __init__(self, models: Models, settings: Settings) -> None:
        self.models, self.settings = models, settings
        self.detector = Detector()
        self.metrics = Metrics(models)
        self.downloads = Downloads()
        self._buckets = Buckets(settings.limits.requests_per_minute)

    def admit(self, request: Request, key: str | None, *, counted: bool = True) -> None:
        """Refuse who has no key where one is needed, or asks too often."""
        caller = network(request.client.host) if request.client else ""
        if self.settings.keys is not None:
            scheme, _, token = request.headers.get("authorization", "").partition(" ")
            given = (
                key or (token if scheme.lower() == "bearer" else "") or request.query_params.get("api_key")
            )
            if not given:
                raise Refusal(400, "An API key is required: get one from whoever runs this server")
            known = self.settings.keys.name(given)
            if known is None:
                raise Refusal(403, "Invalid API key")
            request.scope[NOTES]["client"] = caller = known
        if counted:
            self._buckets.take(caller)

    def languages(self) -> list[dict[str, Any]]:
        sources = self.models.sources()
        codes = dict.fromkeys([*sources, *(target for _, target in self.models.by_pair)])
        return [{"code": code, "name": name(code), "targets": self.models.targets(code)} for code in codes]

    def frontend(self) -> dict[str, Any]:
        source, target = next(iter(self.models.by_pair))
        limits = self.settings.limits
        return {
            "charLimit": limits.characters,
            "frontendTimeout": 300,
            "apiKeys": self.settings.keys is not None,
            "keyRequired": self.settings.keys is not None,
            "suggestions": False,
            "filesTranslation": True,
            "supportedFilesFormat": list(FORMATS),
            "language": {
                "source": {"code": source, "name": name(source)},
                "target": {"code": target, "name": name(target)},
            },
        }

    def detect(self, text: str) -> list[Detection]:
        return self.detector.detect(text, self.models.sources())

    async def translate_file(self, request: Request) -> str:
        """Translate a file, keep it for a while, and return the last part of its address."""
        values = await self._read_values(request)
        key = values.get("api_key")
        self.admit(request, key if isinstance(key, str) else None)
        name, text = text_of(values.get("file"))
        wanted = parse(TranslateRequest, {**values, "q": text, "format": format_of(name), "alternatives": 0})
        answer = await self.translate(request, wanted)
        return self.downloads.keep(name_of_translation(name, wanted.target), answer["translatedText"])

    async def translate(self, request: Request, wanted: TranslateRequest) -> dict[str, Any]:
        """Answer a request for translation."""
        limits, notes = self.settings.limits, request.scope[NOTES]
        texts = [wanted.q] if isinstance(wanted.q, str) else wanted.q
        notes["characters"] = sum(map(len, texts))
        if notes["characters"] > limits.characters:
            raise Refusal(
                400,
                f"Invalid request: request ({notes['characters']}) exceeds text limit ({limits.characters})",
            )
        if wanted.alternatives > limits.alternatives:
            raise Refusal(400, f"Invalid request: alternatives parameter must be <= {limits.alternatives}")
        is_html = wanted.format == "html"
        markups = await asyncio.to_thread(lambda: [Markup(text) for text in texts]) if is_html else []
        plain = (
            [[block.text for block in markup.blocks] for markup in markups]
            if is_html
            else [[text] for text in texts]
        )
        if wanted.source == "auto":
            detections = await asyncio.to_thread(self._detect_for, map("\n".join, plain), wanted.target)
        else:
            detections = [Detection(confidence=100.0, language=wanted.source)] * len(texts)
        chosen = [self._model(detection["language"], wanted.target) for detection in detections]
        if notes["characters"] > SPLIT_HERE:
            pieces = await asyncio.to_thread(_split_all, plain)
        else:
            pieces = _split_all(plain)
        notes["sentences"] = sum(bool(text) for group in pieces for piece in group for text, _ in piece.parts)
        if notes["sentences"] > limits.sentences:
            raise Refusal(
                400,
                f"Invalid request: {notes['sentences']} sentences exceed the limit of {limits.sentences}",
            )
        nbest = 1 if is_html else 1 + wanted.alternatives
        has_elements = any(block.elements for markup in markups for block in markup.blocks)
        translated = await self._queue(request, chosen, pieces, wanted.target, nbest, has_elements)
        if is_html:
            whole = await asyncio.to_thread(_join_markups, markups, pieces, translated)
        else:
            whole = [
                group[0].join([best.text for best in results[0]])
                for group, results in zip(pieces, translated, strict=True)
            ]
        result: dict[str, list[Any]] = {"translatedText": whole}
        if wanted.source == "auto":
            result["detectedLanguage"] = list(detections)
        if wanted.alternatives:
            result["alternatives"] = [
                [] if is_html else _alternatives(group[0], results[0], nbest)
                for group, results in zip(pieces, translated, strict=True)
            ]
        if wanted.sentences:
            result["sentences"] = [
                _sentences(served, group, results)
                for served, group, results in zip(chosen, pieces, translated, strict=True)
            ]
        if isinstance(wanted.q, str):
            return {key: value[0] for key, value in result.items()}
        return dict(result)

    async def read(self, request: Request, shape: type[Shape]) -> Shape:
        """Return a request in its shape, from somebody who may ask."""
        wanted = parse(shape, await self._read_values(request))
        self.admit(request, wanted.api_key)
        return wanted

    async def _read_values(self, request: Request) -> dict[str, Any]:
        body = await read_body(request, self.settings.limits)
        return await read_values(body, request.headers.get("content-type", ""), request.url.query)

    def _detect_for(self, texts: Iterable[str], target: str) -> list[Detection]:
        """Detect each text's language among those that can be translated into ``target``."""
        among = [source for source, into in self.models.by_pair if into == target]
        if not among:
            raise Refusal(400, f"{target[:35]} is not supported")
        return [self.detector.detect(text, among)[0] for text in texts]

    def _model(self, source: str, target: str) -> Served:
        served = self.models.by_pair.get((source, target))
        if served is None:
            known = {code for pair in self.models.by_pair for code in pair}
            for code in (source, target):
                if code not in known:
                    raise Refusal(400, f"{code[:35]} is not supported")
            raise Refusal(
                400,
                f"{name(target)} ({target}) is not available as a target language from {name(source)} ({source})",
            )
        return served

    async def _queue(
        self,
        request: Request,
        chosen: Sequence[Served],
        pieces: Sequence[Sequence[Piece]],
        target: str,
        nbest: int,
        attention: bool,
    ) -> list[list[list[Translation]]]:
        """Translate each sentence of each piece of each text, waiting within bounds and as long as the client does."""
        by_model: dict[int, tuple[Served, list[str]]] = {}
        for served, group in zip(chosen, pieces, strict=True):
            lines = by_model.setdefault(id(served), (served, []))[1]
            lines += [
                served.line(text, target) for piece in group for text, _ in piece.parts if has_words(text)
            ]
        jobs = []
        try:
            for served, lines in by_model.values():
                jobs.append((served, served.batcher.submit(lines, nbest, attention)))
            await self._wait(request, [job.done for _, job in jobs])
        except Full as full:
            raise Refusal(
                429,
                f"the server has more to translate than it can: try again in {full.seconds} s",
                {"Retry-After": str(full.seconds)},
            ) from None
        finally:
            for served, job in jobs:
                served.batcher.cancel(job)  # of what is done, nothing is left to cancel
        results = {id(served): iter(job.done.result()) for served, job in jobs}
        return [
            [
                [next(results[id(served)]) if has_words(text) else unchanged(text) for text, _ in piece.parts]
                for piece in group
            ]
            for served, group in zip(chosen, pieces, strict=True)
        ]

    async def _wait(self, request: Request, waiting: Sequence["asyncio.Future[Any]"]) -> None:
        left: asyncio.Future[Any] = asyncio.ensure_future(_disconnected(request))
        try:
            whole: asyncio.Future[Any] = asyncio.gather(*waiting)
            done, _ = await asyncio.wait(
                {whole, left}, timeout=self.settings.limits.seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if whole in done:
                whole.result()  # raises what a batch raised
            elif left in done:
                raise Refusal(CLIENT_LEFT, "the client left")
            else:
                raise Refusal(
                    503,
                    f"the translation took longer than {self.settings.limits.seconds:g} s",
                    {"Retry-After": "10"},
                )
        finally:
            left.cancel()


def has_words(text: str) -> bool:
    """Whether there is anything to translate: a model would make something up of a dash."""
    return any(map(str.isalnum, text))


def unchanged(text: str) -> Translation:
    return Translation((Hypothesis(text, 0.0, 0),))


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _split_all(texts: Sequence[Sequence[str]]) -> list[list[Piece]]:
    return [[Piece(split(text)) for text in group] for group in texts]


def _join_markups(
    markups: Sequence[Markup],
    pieces: Sequence[Sequence[Piece]],
    translated: Sequence[Sequence[Sequence[Translation]]],
) -> list[str]:
    return [
        markup.join(
            [
                piece.align(translations)
                if block.elements
                else piece.join([each.text for each in translations])
                for block, piece, translations in zip(markup.blocks, group, results, strict=True)
            ]
        )
        for markup, group, results in zip(markups, pieces, translated, strict=True)
    ]


def _alternatives(piece: Piece, translations: Sequence[Translation], nbest: int) -> list[str]:
    """Return other translations of a whole text: the second of each sentence, then the third, …"""
    whole = [
        piece.join([each.hypotheses[min(rank, len(each.hypotheses) - 1)].text for each in translations])
        for rank in range(nbest)
    ]
    return [text for text in dict.fromkeys(whole) if text != whole[0]]


def _sentences(
    served: Served, pieces: Sequence[Piece], results: Sequence[Sequence[Translation]]
) -> list[dict[str, Any]]:
    return [
        {
            "source": source,
            "space": space,
            "translation": each.text,
            "confidence": served.confidence(each.hypotheses[0]),
            "calibrated": served.is_calibrated,
        }
        for piece, translations in zip(pieces, results, strict=True)
        for (source, space), each in zip(piece.parts, translations, strict=True)
    ]
