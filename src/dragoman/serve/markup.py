"""HTML: the text is translated, the tags stay as they were.

Tags such as ``<p>`` and ``<br>`` part texts from each other. Inline tags such as ``<b>`` do not: a sentence is
translated as a whole and they are put back (``inline.py``). Where they are not well nested, each piece of text is
translated by itself. What a model says is text, and is escaped: no translation can add or change a tag.
"""

import re
from collections.abc import Sequence
from html import escape, unescape
from typing import NamedTuple

from dragoman.decode.alignment import Aligned
from dragoman.serve.inline import Element, put_in

# Every alternative ends at the latest where the text does, so none is tried twice: linear, whatever it is. Python's own
# parser takes quadratic time of what is no HTML, and some of it makes it fail.
_TAG = re.compile(
    r"""<!--(?:.*?-->|.*)"""
    r"""|<[!?][^>]*+>?"""
    r"""|</(?P<end>[a-z][^\s/>]*+)[^>]*+>?"""
    r"""|<(?P<start>[a-z][^\s/>]*+)(?:[^>=]|=\s*+(?:"[^"]*+"?|'[^']*+'?)?+)*+(?P<close>>?)""",
    re.IGNORECASE | re.DOTALL,
)
UNTOUCHED = ("script", "style", "code", "pre", "textarea", "svg", "math", "noscript", "template")
VOID = ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr")
INLINE = {
    "a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "code", "data", "del", "dfn", "em", "font",
    "i", "ins", "kbd", "label", "mark", "math", "q", "s", "samp", "script", "small", "span", "strike",
    "strong", "style", "sub", "sup", "svg", "template", "time", "tt", "u", "var", "img", "wbr",
}  # fmt: skip
RAW = ("script", "style", "textarea", "title")  # no tags in them but their own end
UNSEEN = ("script", "style", "svg", "math", "template")  # no words of the sentence
MOST_TOKENS, DEEPEST = 600, 50  # of a text with inline tags
MOST_VERBATIM = 100  # characters of what stays untouched within a sentence
_SPACE = re.compile(r"[ \t\r\n\f]+")
_NO = re.compile(r"""\stranslate\s*=\s*["']?no\b""", re.IGNORECASE)


class Token(NamedTuple):
    """A piece of a text with inline tags: ``kind`` is text, start, end or whole."""

    kind: str
    html: str
    text: str = ""  # without tags
    tag: str = ""


class Block(NamedTuple):
    """A text to translate, and what stands in it."""

    text: str
    elements: list[Element]


class Markup:
    """HTML cut into what stays and ``blocks``, which are to be translated."""

    def __init__(self, html: str) -> None:
        self.blocks: list[Block] = []
        self._pieces: list[str | int] = []  # as it stands, or an index of blocks
        self._tokens: list[Token] = []  # since the last tag that parts texts
        self._untouched: list[str] = []
        self._kept: list[tuple[str, str]] = []  # of what is untouched: HTML and text
        at = 0
        while match := _TAG.search(html, at):
            self._text(html[at : match.start()])
            at = match.end()
            if tag := match["end"]:
                self._end(tag.lower(), match[0])
            elif not match["start"]:
                self._whole("wbr", match[0])
            elif not match["close"]:
                self._text(match[0])
            elif match[0].endswith("/>"):
                self._whole(match["start"].lower(), match[0])
            else:
                tag = match["start"].lower()
                self._start(tag, match[0])
                if tag in RAW:
                    end = re.compile(rf"</{tag}(?=[\s/>])|\Z", re.IGNORECASE).search(html, at)
                    begin, at = at, end.start() if end else len(html)
                    self._text(html[begin:at])
        self._text(html[at:])
        self._end_untouched("")
        self._cut()

    def join(self, translations: Sequence[str | Aligned]) -> str:
        """Return the HTML with translations in the place of its blocks; of those with elements, aligned."""
        html = []
        for piece in self._pieces:
            if isinstance(piece, str):
                html.append(piece)
                continue
            block, translation = self.blocks[piece], translations[piece]
            if isinstance(translation, str):
                html.append(escape(translation, quote=False))
            else:
                html.append(put_in(block.elements, block.text, translation))
        return "".join(html)

    def _start(self, tag: str, html: str) -> None:
        if self._untouched or (tag not in VOID and (tag in UNTOUCHED or _NO.search(html))):
            self._kept.append((html, ""))
            if tag not in VOID:
                self._untouched.append(tag)
        elif tag in VOID:
            self._add(tag, Token("whole", html))
        else:
            self._add(tag, Token("start", html, tag=tag))

    def _end(self, tag: str, html: str) -> None:
        if not self._untouched:
            self._add(tag, Token("end", html, tag=tag))
            return
        self._kept.append((html, ""))
        if tag in self._untouched:
            while self._untouched.pop() != tag:
                pass
            if not self._untouched:
                self._end_untouched(tag)

    def _text(self, html: str) -> None:
        if self._untouched:
            self._kept.append((html, "" if self._untouched[-1] in UNSEEN else _plain(html)))
        elif html:
            self._tokens.append(Token("text", html, _plain(html)))

    def _whole(self, tag: str, html: str) -> None:
        if self._untouched:
            self._kept.append((html, ""))
        else:
            self._add(tag, Token("whole", html))

    def _end_untouched(self, tag: str) -> None:
        """Take what was untouched as one: a word of the sentence, if it is inline and short."""
        if self._kept:
            text = "".join(text for _, text in self._kept)
            if len(text) > MOST_VERBATIM or "<br" in "".join(html for html, _ in self._kept):
                tag = ""
            self._add(tag, Token("whole", "".join(html for html, _ in self._kept), text))
            self._kept = []

    def _add(self, tag: str, token: Token) -> None:
        if tag in INLINE:
            self._tokens.append(token)
        else:
            self._cut()
            self._pieces.append(token.html)

    def _cut(self) -> None:
        """End a text: as one block if its inline tags are well nested, else each piece of text by itself.

        White space around it stays; within it is one space, as a browser shows it: a line end ends no sentence.
        """
        tokens, self._tokens = self._tokens, []
        if not any(token.text.strip() for token in tokens if token.kind == "text"):
            self._pieces += [token.html for token in tokens]
            return
        head = tail = ""
        if tokens[0].kind == "text":
            begin = len(tokens[0].text) - len(tokens[0].text.lstrip())
            head = tokens[0].text[:begin]
            tokens[0] = tokens[0]._replace(text=tokens[0].text[begin:])
        if tokens[-1].kind == "text":
            end = len(tokens[-1].text.rstrip())
            tail = tokens[-1].text[end:]
            tokens[-1] = tokens[-1]._replace(text=tokens[-1].text[:end])
        tokens = [token._replace(text=_SPACE.sub(" ", token.text)) for token in tokens]
        whole = _nest(tokens)
        self._pieces.append(head)
        if whole:
            self._add_block(whole)
        else:
            for token in tokens:
                if token.kind == "text":
                    self._add_block(Block(token.text, []))
                else:
                    self._pieces.append(token.html)
        self._pieces.append(tail)

    def _add_block(self, block: Block) -> None:
        self._pieces.append(len(self.blocks))
        self.blocks.append(block)


def _nest(tokens: Sequence[Token]) -> Block | None:
    """Return tokens as a text with elements in it; None if a tag stands alone, or if they are too many."""
    text = ""
    top = Element("", 0, 0)
    stack, tags = [top], [""]
    if len(tokens) > MOST_TOKENS:
        return None
    for token in tokens:
        if token.kind == "text":
            text += token.text
        elif token.kind == "end":
            if tags.pop() != token.tag or len(stack) == 1:
                return None
            element = stack.pop()
            element.closing, element.end = token.html, len(text)
        else:
            element = Element(token.html, len(text), len(text) + len(token.text))
            stack[-1].children.append(element)
            text += token.text
            element.is_whole = token.kind == "whole"
            if not element.is_whole:
                stack.append(element)
                tags.append(token.tag)
        if len(stack) > DEEPEST:
            return None
    return Block(text, top.children) if len(stack) == 1 else None


def _plain(html: str) -> str:
    try:
        return unescape(html)
    except ValueError:  # a number of thousands of digits
        return html
