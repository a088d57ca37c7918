"""Test sets as WMT publishes them: two SGML files until 2020, one XML file since.

Segments are matched by document and number, not by place: the files of one set need not have the same order. Sets
are small and are read whole.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dragoman.data.formats import decode_text, decompressed, reading
from dragoman.data.markup import is_language, one_line, parse_xml, utf8_blocks, wrong_languages
from dragoman.errors import UserError

BLOCK_BYTES = 1 << 20
CHUNK_PAIRS = 5_000
ENTITIES = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}
_ENTITY = re.compile(r"&(?:(amp|lt|gt|quot|apos)|#(\d{1,7})|#x([0-9a-fA-F]{1,6}));")
_ELEMENT = re.compile(r"<doc\b(?P<doc>[^>]*)>|<seg\b(?P<seg>[^>]*)>(?P<text>.*?)(?P<end></seg\s*>|(?=<seg\b)|\Z)",
                      re.DOTALL | re.IGNORECASE)  # fmt: skip
_ATTRIBUTE = re.compile(r"""([\w:.-]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""")

Key = tuple[str, str]  # document and segment


@dataclass(frozen=True)
class Pairs:
    """Consecutive pairs, decoded already."""

    label: str
    first_line: int
    size: int
    src: list[str]
    tgt: list[str]

    def decode(self) -> tuple[list[str], list[str]]:
        return self.src, self.tgt


@dataclass(frozen=True)
class Segment:
    text: str
    line: int


def read_sgml(paths: tuple[str, ...]) -> Iterator[Pairs]:
    """Yield the pairs of a source and a reference file, in the order of the source."""
    src, ref = (_parse_sgml(path) for path in paths)
    _require_all(src, ref, *paths)
    _require_all(ref, src, *reversed(paths))
    return _chunks(paths[0], [(segment.text, ref[key].text) for key, segment in src.items()])


def _require_all(segments: dict[Key, Segment], others: dict[Key, Segment], path: str, other: str) -> None:
    for (document, number), segment in segments.items():
        if (document, number) not in others:
            raise UserError(
                f'document "{document}", segment {number} is not in {other}',
                where=f"{path}, line {segment.line}",
                fix="give the source and the reference file of the same test set",
            )


def _parse_sgml(path: str) -> dict[Key, Segment]:
    """Return the segments of the first system in a file; there is but one in a source or reference file."""
    text = decode_text(_read(path), path, 1)
    segments: dict[Key, Segment] = {}
    document = system = first_system = None
    number, line, place = 0, 1, 0
    for match in _ELEMENT.finditer(text):
        attributes = _attributes(match["doc"] if match["seg"] is None else match["seg"])
        line, place = line + text.count("\n", place, match.start()), match.start()
        if match["seg"] is None:
            document, system, number = attributes.get("docid", ""), attributes.get("sysid"), 0
            first_system = first_system or system
            continue
        number += 1
        key = (document or "", attributes.get("id", str(number)))
        if not match["end"]:
            raise UserError("a segment has no </seg>", where=f"{path}, line {line}", fix="correct the line")
        if system != first_system:
            continue
        if key in segments:
            raise UserError(
                f'document "{key[0]}", segment {key[1]} is there twice',
                where=f"{path}, line {line}",
                fix="get the file again",
            )
        segments[key] = Segment(_unescape(one_line(match["text"])), line)
    if not segments:
        raise UserError("there is no <seg> in this file", where=path, fix="give an SGML file of a test set")
    return segments


def _attributes(text: str) -> dict[str, str]:
    return {name.lower(): "".join(value) for name, *value in _ATTRIBUTE.findall(text)}


def _unescape(text: str) -> str:
    # Not html.unescape: it finds entities without a semicolon in text that has a bare "&".
    def character(match: re.Match[str]) -> str:
        name, decimal, hexadecimal = match.groups()
        try:
            return ENTITIES[name] if name else chr(int(decimal) if decimal else int(hexadecimal, 16))
        except ValueError:  # beyond Unicode
            return match[0]

    return _ENTITY.sub(character, text)


def read_xml(path: str, languages: tuple[str, str]) -> Iterator[Pairs]:
    """Yield the pairs of an XML test set with its first translator's reference.

    A document without one by that translator is taken with its own first; one without any is left out.
    """
    reader = _SetReader(languages)
    parse_xml(_read(path), path, 1, start=reader.start, end=reader.end, text=reader.text)
    pairs = []
    for document in reader.documents:
        references = document.references
        if not document.src or not references:
            continue
        reference = references.get(reader.first_translator) or next(iter(references.values()))
        for number, segment in document.src.items():
            if number not in reference:
                raise UserError(
                    f'document "{document.name}", segment {number} has no reference',
                    where=f"{path}, line {segment.line}",
                    fix="get the file again",
                )
            pairs.append((segment.text, reference[number].text))
    if not pairs:
        raise wrong_languages(path, languages, reader.found)
    return _chunks(path, pairs)


@dataclass
class _Document:
    name: str
    src: dict[str, Segment] = field(default_factory=dict)
    references: dict[str, dict[str, Segment]] = field(default_factory=dict)  # by translator


@dataclass
class _SetReader:
    """Hears of elements and gathers documents."""

    languages: tuple[str, str]
    documents: list[_Document] = field(default_factory=list)
    found: set[str] = field(default_factory=set)
    first_translator: str = ""
    _segments: dict[str, Segment] | None = None  # of the side we are in, if it is one we want
    _segment: tuple[str, int] = ("", 0)
    _pieces: list[str] | None = None

    def start(self, name: str, attributes: dict[str, str], line: int) -> None:
        if name == "doc":
            self.documents.append(_Document(attributes.get("id", "")))
        elif name in ("src", "ref", "hyp"):
            self._segments = self._side(name, attributes) if self.documents else None
        elif name == "seg" and self._segments is not None:
            self._segment, self._pieces = (attributes.get("id", str(len(self._segments) + 1)), line), []

    def _side(self, name: str, attributes: dict[str, str]) -> dict[str, Segment] | None:
        language, document = attributes.get("lang", ""), self.documents[-1]
        if name == "hyp":
            return None
        self.found.add(language)
        if not is_language(language, self.languages[name == "ref"]):
            return None
        if name == "src":
            return document.src
        translator = attributes.get("translator", "")
        self.first_translator = self.first_translator or translator
        return document.references.setdefault(translator, {})

    def text(self, text: str) -> None:
        if self._pieces is not None:
            self._pieces.append(text)

    def end(self, name: str) -> None:
        if name == "seg" and self._segments is not None and self._pieces is not None:
            number, line = self._segment
            self._segments[number] = Segment(one_line("".join(self._pieces)), line)
            self._pieces = None
        elif name in ("src", "ref", "hyp"):
            self._segments = None


def _read(path: str) -> bytes:
    with reading(path), open(path, "rb", buffering=0) as file, decompressed(file, path) as reader:
        return b"".join(utf8_blocks(reader, path, BLOCK_BYTES))


def _chunks(path: str, pairs: list[tuple[str, str]]) -> Iterator[Pairs]:
    size = Path(path).stat().st_size
    for start in range(0, len(pairs), CHUNK_PAIRS):
        part = pairs[start : start + CHUNK_PAIRS]
        before, after = (size * count // len(pairs) for count in (start, start + len(part)))
        yield Pairs(path, start + 1, after - before, [src for src, _ in part], [tgt for _, tgt in part])
