"""Tags stay, text changes, and no text becomes a tag."""

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.serve.markup import Markup


def capitals(html):
    markup = Markup(html)
    return markup.join([text.upper() for text in markup.texts])


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("plain", "PLAIN"),
        ('<p class="a">Hello <b>world</b>!</p>', '<p class="a">HELLO <b>WORLD</b>!</p>'),
        ("a &amp; b &lt;i&gt;", "A &amp; B &lt;I&gt;"),
        ("x<br/>y<img src=z alt='no'>", "X<br/>Y<img src=z alt='no'>"),
        ("<!DOCTYPE html><!-- note -->a", "<!DOCTYPE html><!-- note -->A"),
        ("<script>if (a<b) c()</script>d", "<script>if (a<b) c()</script>D"),
        ("<code>a &lt; b</code> c", "<code>a &lt; b</code> C"),
        ('<i translate="no">Ann <b>Lee</b></i> came', '<i translate="no">Ann <b>Lee</b></i> CAME'),
        ('<br translate="no">came', '<br translate="no">CAME'),
        ("1 < 2", "1 &lt; 2"),
        ("</p>left over", "</p>LEFT OVER"),
    ],
)
def test_what_becomes_of_html(html, expected):
    assert capitals(html) == expected


class Tags(HTMLParser):
    def __init__(self, html):
        super().__init__()
        self.found = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, attrs))

    def handle_endtag(self, tag):
        self.found.append(tag)


@given(st.lists(st.sampled_from(["<b>", "</b>", "<a href='x>y'>", "text ", "&amp;", "<br>", "&lt;u&gt;"])))
def test_a_translation_never_adds_a_tag(parts):
    markup = Markup("".join(parts))
    answer = markup.join(["<script>alert(1)</script>&"] * len(markup.texts))
    assert Tags(answer).found == Tags("".join(parts)).found


@given(st.text(alphabet="<>!-/?[]&;ab='\" "))
def test_any_text_goes_through(text):
    markup = Markup(text)
    markup.join(markup.texts)
