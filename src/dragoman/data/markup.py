"""Marked-up text: its characters as UTF-8, whatever it was written in, and its elements, without trusting it.

A file may say anything; it may not make us read other files, nor grow: a document that defines entities, with
which a few lines can stand for gigabytes, is refused.
"""

import codecs
import io
import re
from collections.abc import Callable, Iterator
from typing import NoReturn
from xml.parsers import expat

from dragoman.data.formats import decode_text
from dragoman.errors import UserError

HEAD_BYTES = 256  # in which a document names its encoding
_DECLARED = re.compile(rb"""\A\s*<\?xml[^>]*?\bencoding\s*=\s*["']([A-Za-z0-9._-]+)["']""")
_LINE_ENDS = re.compile(r"[\t\r\n]+ *")


def utf8_blocks(reader: io.BufferedReader, path: str, block_bytes: int) -> Iterator[bytes]:
    """Yield the content of a document in UTF-8, without its byte-order mark, in blocks of about this size."""
    block = reader.read(max(block_bytes, HEAD_BYTES))
    encoding = _encoding(block[:HEAD_BYTES], path)
    decoder = None if encoding == "utf-8" else codecs.getincrementaldecoder(encoding)()
    block = block.removeprefix(codecs.BOM_UTF8)
    while block:
        try:
            yield decoder.decode(block).encode() if decoder else block
            block = reader.read(block_bytes)
            if decoder and not block:
                decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            raise UserError(
                f"not valid {encoding.upper()}, though it says so",
                where=path,
                fix="convert the file to UTF-8",
            ) from None


def _encoding(head: bytes, path: str) -> str:
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if head.startswith((b"<\0", b"\0<")):
        return "utf-16-le" if head[0] else "utf-16-be"
    declared = _DECLARED.match(head.removeprefix(codecs.BOM_UTF8))
    name = declared[1].decode() if declared else "utf-8"
    try:
        encoding = codecs.lookup(name).name
    except LookupError:
        raise UserError(
            f"there is no encoding {name}", where=f"{path}, line 1", fix="convert the file to UTF-8"
        ) from None
    # Each character of what we just read was one byte, so it cannot be of the encodings with two.
    return "utf-8" if encoding.startswith("utf-16") else encoding


def parse_xml(
    data: bytes,
    path: str,
    first_line: int,
    *,
    start: Callable[[str, dict[str, str], int], None],
    end: Callable[[str], None],
    text: Callable[[str], None],
) -> None:
    """Parse a whole document in UTF-8, telling ``start`` also the line; errors name file and line."""
    decode_text(data, path, first_line)  # for an error that says more than the parser's
    parser = expat.ParserCreate("utf-8")
    parser.buffer_text = True

    def started(name: str, attributes: dict[str, str]) -> None:
        start(name, attributes, first_line + parser.CurrentLineNumber - 1)

    def refuse(*_: object) -> NoReturn:
        raise defines_entities(path)

    parser.StartElementHandler = started
    parser.EndElementHandler = end
    parser.CharacterDataHandler = text
    parser.EntityDeclHandler = refuse
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise UserError(
            f"not well-formed XML ({expat.ErrorString(error.code)})",
            where=f"{path}, line {first_line + error.lineno - 1}",
            fix="correct the line, or get the file again",
        ) from None


def defines_entities(path: str) -> UserError:
    return UserError(
        "the file defines entities of its own, which can be made to grow without limit",
        where=path,
        fix="remove the <!ENTITY …> lines, and write what they stand for",
    )


def one_line(text: str) -> str:
    """Return a segment as a line of text."""
    return _LINE_ENDS.sub(" ", text).strip()


def is_language(given: str, wanted: str) -> bool:
    """Whether a text in the language ``given`` (en-US) is one in ``wanted`` (en)."""
    given, wanted = (code.lower().replace("_", "-") for code in (given, wanted))
    return f"{given}-".startswith(f"{wanted}-")


def wrong_languages(path: str, wanted: tuple[str, str], found: set[str]) -> UserError:
    listed = ", ".join(sorted(found)) or "not named"
    return UserError(
        f"there is no text in this file that has both {wanted[0]} and {wanted[1]}",
        where=path,
        fix=f"correct src_lang and tgt_lang; the languages of the file are {listed}",
    )
