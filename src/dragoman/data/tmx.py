"""Translation memories (TMX 1.4): units with the same text in several languages.

One process finds where units end and cuts the file there, which takes a search for bytes; parsing is left to
whoever decodes the chunk. Memory does not grow with the file.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from dragoman.data.formats import CHUNK_BYTES, decompressed, reading
from dragoman.data.markup import (
    defines_entities,
    is_language,
    one_line,
    parse_xml,
    utf8_blocks,
    wrong_languages,
)
from dragoman.errors import UserError

MOST_BYTES = 1 << 24  # of a header, or of a unit
CODES = ("bpt", "ept", "it", "ph", "ut")  # marks of a format, whose content is no text; that of <hi> is
UNIT_ENDS = (b"</tu>", b"</tu ", b"</tu\t", b"</tu\r", b"</tu\n")
SPANS = ((b"<!--", b"-->"), (b"<![CDATA[", b"]]>"))  # in which an end is none
_BODY = re.compile(rb"<body\b[^>]*>")
_UNIT_END = re.compile(rb"</tu\s*>")
_LANGUAGE = re.compile(rb"""<tuv\b[^>]*?\blang\s*=\s*["']([^"']*)""")


@dataclass(frozen=True)
class Units:
    """Consecutive units, not parsed yet."""

    path: str
    first_line: int  # the number of the first unit
    size: int
    data: bytes
    line: int  # of the file, at which the data begins
    languages: tuple[str, str]
    keep_partial: bool

    @property
    def label(self) -> str:
        return self.path

    def decode(self) -> tuple[list[str], list[str]]:
        """Return the two sides of the units. One that a unit lacks is empty, or else the unit is left out."""
        reader = _UnitReader(self.languages)
        parse_xml(
            b"<body>" + self.data + b"</body>",
            self.path,
            self.line,
            start=reader.start,
            end=reader.end,
            text=reader.text,
        )
        pairs = [pair for pair in reader.pairs if self.keep_partial or all(pair)]
        return [src for src, _ in pairs], [tgt for _, tgt in pairs]


@dataclass
class _UnitReader:
    """Hears of elements and gathers pairs."""

    languages: tuple[str, str]
    pairs: list[tuple[str, str]] = field(default_factory=list)
    _sides: list[str] = field(default_factory=list)
    _language: str = ""
    _pieces: list[str] | None = None  # of the segment we are in
    _codes: int = 0  # how deep in marks we are

    def start(self, name: str, attributes: dict[str, str], line: int) -> None:
        if name == "tu":
            self._sides = ["", ""]
        elif name == "tuv":
            self._language = attributes.get("xml:lang") or attributes.get("lang", "")
        elif name == "seg":
            self._pieces, self._codes = [], 0
        elif name in CODES:
            self._codes += 1

    def text(self, text: str) -> None:
        if self._pieces is not None and not self._codes:
            self._pieces.append(text)

    def end(self, name: str) -> None:
        if name == "tu":
            self.pairs.append((self._sides[0], self._sides[1]))
        elif name == "seg":
            for side, wanted in enumerate(self.languages):
                if is_language(self._language, wanted) and not self._sides[side]:
                    self._sides[side] = one_line("".join(self._pieces or ()))
            self._pieces = None
        elif name in CODES:
            self._codes -= 1


def read_tmx(
    path: str, languages: tuple[str, str], *, keep_partial: bool, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[Units]:
    """Yield the units of a file in chunks; with ``keep_partial`` also those that lack a language."""
    text, line, unit, position, in_body = b"", 1, 1, 0, False
    found: set[str] = set()
    with reading(path), open(path, "rb", buffering=0) as file, decompressed(file, path) as reader:
        for block in utf8_blocks(reader, path, chunk_bytes):
            text += block
            if not in_body and (body := _BODY.search(text)):
                if b"<!ENTITY" in text[: body.end()]:
                    raise defines_entities(path)
                line += text.count(b"\n", 0, body.end())
                text, in_body = text[body.end() :], True
            end = _last_unit_end(text) if in_body else 0
            if end:
                data, text = text[:end], text[end:]
                found.update(name.decode("utf-8", "replace") for name in _LANGUAGE.findall(data))
                last_position, position = position, file.tell()
                yield Units(path, unit, position - last_position, data, line, languages, keep_partial)
                line += data.count(b"\n")
                unit += len(_UNIT_END.findall(data))
            elif len(text) > MOST_BYTES:
                break
    if not in_body:
        raise UserError("this is no TMX file: it has no <body>", where=path, fix="give a translation memory")
    if b"</body" not in text:
        raise UserError(
            "the file ends in the middle, or a unit has no end",
            where=f"{path}, after line {line}",
            fix="get the file again",
        )
    if not all(any(is_language(given, wanted) for given in found) for wanted in languages):
        raise wrong_languages(path, languages, found)


def _last_unit_end(text: bytes) -> int:
    """Return where the last whole unit ends; 0 if there is none."""
    limit = len(text)
    while (place := max(text.rfind(end, 0, limit) for end in UNIT_ENDS)) >= 0:
        opened = [text.rfind(begin, 0, place) for begin, _ in SPANS]
        inside = [at for at, (_, end) in zip(opened, SPANS, strict=True) if at > text.rfind(end, 0, place)]
        if not inside:
            return text.find(b">", place) + 1
        limit = min(inside)
    return 0
