"""What requests and answers look like: LibreTranslate's, and one field more (``sentences``)."""

from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import parse_qsl

import orjson
from pydantic import BaseModel, Field, StringConstraints, ValidationError

from dragoman.serve.limits import Refusal
from dragoman.serve.uploads import read_multipart

T = TypeVar("T", bound=BaseModel)
Code = Annotated[str, StringConstraints(min_length=1, max_length=35)]


class DetectRequest(BaseModel):
    """A text whose language is asked for."""

    q: str = Field(min_length=1, description="Text.", examples=["Where is the lamp?"])
    api_key: str | None = Field(None, description="API key, where the server wants one.")


class TranslateRequest(BaseModel):
    """Text to translate, as JSON or as a form."""

    q: Annotated[str, Field(min_length=1)] | Annotated[list[str], Field(min_length=1)] = Field(
        description="Text, or (in JSON) a list of texts.", examples=["I have already switched on the lamp."]
    )
    source: Code = Field(description='Language of the text, or "auto".', examples=["en"])
    target: Code = Field(description="Language to translate into.", examples=["de"])
    format: Literal["text", "html"] = Field("text", description="html: tags are kept as they are.")
    alternatives: int = Field(0, ge=0, description="How many other translations to give.")
    sentences: bool = Field(False, description="Also give each sentence with its confidence.")
    api_key: str | None = Field(None, description="API key, where the server wants one.")


class Detected(BaseModel):
    """A language that a text may be in."""

    confidence: float = Field(ge=0, le=100, description="Percent.")
    language: str


class Sentence(BaseModel):
    """A sentence and what it became; sources and spaces in order are the text."""

    source: str
    space: str = Field(description="White space after it.")
    translation: str
    confidence: float | None = Field(
        ge=0,
        le=1,
        description="Expected sentence chrF, 0 to 1, if calibrated; null where nothing was translated.",
    )
    calibrated: bool = Field(description="Whether the model's confidence was fitted to its dev set.")


class TranslateResponse(BaseModel):
    """The translation; lists where ``q`` was a list. What was not asked for is left out."""

    translatedText: str | list[str]
    alternatives: list[str] | list[list[str]] | None = None
    detectedLanguage: Detected | list[Detected] | None = None
    sentences: list[Sentence] | list[list[Sentence]] | None = None


class FileRequest(BaseModel):
    """A file to translate, as a form."""

    file: str = Field(description="UTF-8 text or HTML.", json_schema_extra={"format": "binary"})
    source: Code = Field(description='Language of the text, or "auto".', examples=["en"])
    target: Code = Field(description="Language to translate into.", examples=["de"])
    api_key: str | None = Field(None, description="API key, where the server wants one.")


class FileResponse(BaseModel):
    """Where the translated file is to be fetched, for ten minutes."""

    translatedFileUrl: str


class Language(BaseModel):
    """A language that can be translated from, and into which."""

    code: str
    name: str
    targets: list[str]


class Failure(BaseModel):
    """Why there is no translation."""

    error: str


class Health(BaseModel):
    status: Literal["ok"]


async def read_values(body: bytes, content_type: str, query: str) -> dict[str, Any]:
    """Return the fields of a request, or refuse what is none, saying where."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise Refusal(400, f"Invalid request: the body is not JSON ({error})") from None
        if not isinstance(value, dict):
            raise Refusal(400, "Invalid request: the body is not a JSON object")
        return value
    if kind not in ("application/x-www-form-urlencoded", "multipart/form-data", ""):
        raise Refusal(415, f"send JSON or a form, not {kind[:80]}")
    try:
        values: dict[str, Any] = dict(parse_qsl(query, errors="strict", max_num_fields=50))
        if kind == "multipart/form-data":
            return {**values, **await read_multipart(body, content_type)}
        text = body.decode("utf-8")
        return values | dict(parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=50))
    except ValueError as error:  # also of what is not UTF-8
        raise Refusal(400, f"Invalid request: the form cannot be read ({error})") from None


def parse(model: type[T], values: dict[str, Any]) -> T:
    """Return a request in its shape, or refuse it, saying where it is wrong."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise Refusal(400, f"Invalid request: {_explain(error)}") from None


def _explain(error: ValidationError) -> str:
    """Say what is wrong, of an absent field in LibreTranslate's words."""
    errors = error.errors(include_url=False, include_input=False)
    for each in errors:
        if each["type"] in ("missing", "string_too_short", "too_short"):
            return f"missing {each['loc'][0]} parameter"
    return f"{errors[0]['loc'][0]}: {errors[0]['msg'].lower()}"
