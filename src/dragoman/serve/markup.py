"""HTML: the text between tags is translated, the tags stay as they were.

What a model says is text, and is escaped: no translation can add or change a tag.
"""

from collections.abc import Sequence
from html import escape
from html.parser import HTMLParser

UNTOUCHED = ("script", "style", "code", "pre", "textarea", "svg", "math", "noscript", "template")
VOID = ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr")


class Markup(HTMLParser):
    """A text cut into tags and ``texts``, which are to be translated."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.texts: list[str] = []
        self._pieces: list[str | int] = []  # as it stands, or an index of texts
        self._untouched: list[str] = []
        self.feed(html)
        self.close()

    def join(self, translations: Sequence[str]) -> str:
        """Return the HTML with translations in the place of its texts."""
        return "".join(
            piece if isinstance(piece, str) else escape(translations[piece], quote=False)
            for piece in self._pieces
        )

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._pieces.append(self.get_starttag_text() or "")
        if tag not in VOID and (self._untouched or tag in UNTOUCHED or ("translate", "no") in attrs):
            self._untouched.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._pieces.append(self.get_starttag_text() or "")

    def handle_endtag(self, tag: str) -> None:
        self._pieces.append(f"</{tag}>")
        if tag in self._untouched:
            while self._untouched.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if self._untouched:
            raw = self._untouched[-1] in ("script", "style")
            self._pieces.append(data if raw else escape(data, quote=False))
        else:
            self._pieces.append(len(self.texts))
            self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        self._pieces.append(f"<!--{data}-->")

    def handle_decl(self, decl: str) -> None:
        self._pieces.append(f"<!{decl}>")

    def handle_pi(self, data: str) -> None:
        self._pieces.append(f"<?{data}>")

    def unknown_decl(self, data: str) -> None:
        self._pieces.append(f"<![{data}]>")
