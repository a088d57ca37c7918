"""Tags stay, text changes, and no text becomes a tag."""

import re
import time
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.decode.alignment import Aligned, Attention
from dragoman.serve.inline import put_in
from dragoman.serve.markup import DEEPEST, MOST_TOKENS, Markup

HTML = [
    "<b>",
    "</b>",
    "<a href='x>y'>",
    "</a>",
    "text ",
    "&amp;",
    "<br>",
    "<img src=x>",
    "&lt;u&gt;",
    "<p>",
    "</p>",
]


def translated(html, change):
    """Return the HTML with each text changed by itself."""
    markup = Markup(html)
    return markup.join([change(block.text) for block in markup.blocks])


def capitals(html):
    return translated(html, lambda text: Aligned([(text, "", text.upper(), None)]))


def reordered(html, target):
    """Return the HTML with its one text become ``target``: "C A" come from its third and first word."""
    markup = Markup(html)
    (block,) = markup.blocks
    source = re.split(r"(?<=\S)(?=\s)", block.text)
    words = target.split()
    weights = [[float(ord(word) - ord("A") == number) for number in range(len(source))] for word in words]
    pieces = [words[0], *(f" {word}" for word in words[1:])]
    return markup.join([Aligned([(block.text, "", target, Attention(source, pieces, np.array(weights)))])])


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("plain", "PLAIN"),
        ("a\n  b <i>c\n</i>\n d\n", "A B <i>C</i>  D\n"),
        ("<ul>\n  <li>a</li>\n</ul>", "<ul>\n  <li>A</li>\n</ul>"),
        ("<b> </b><!-- x --> ", "<b> </b><!-- x --> "),
        ("<b>a <i>b</b> c</i>", "<b>A <i>B</b> C</i>"),
        ("<a href=x><div>a <b>b</b></div></a>", "<a href=x><div>A <b>B</b></div></a>"),
        ("a<sup>2</sup> <A name='q'/>b", "A<sup>2</sup> <A name='q'/>B"),
        ("<b><i></i>a<u></u></b>", "<b><i></i>A<u></u></b>"),
        ("see <code>a &lt; b</code>.", "SEE <code>a &lt; b</code>."),
        ("<pre>a\n b</pre>c<textarea><b>d</textarea>", "<pre>a\n b</pre>C<textarea><b>d</textarea>"),
        (
            "a <script>1 < 2</script><svg><text>x</text></svg>",
            "A <script>1 < 2</script><svg><text>x</text></svg>",
        ),
        ("<title>a &amp; b</title>", "<title>A &amp; B</title>"),
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
        self.found, self.text, self._open, self.is_nested = [], "", [], True
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, attrs))
        if tag != "img":
            self._open.append(tag)

    def handle_endtag(self, tag):
        self.found.append(tag)
        self.is_nested &= bool(self._open) and self._open.pop() == tag

    def handle_data(self, data):
        self.text += data


def _element(inner):
    return st.builds(
        lambda tag, parts: f"<{tag}>{''.join(parts)}</{tag}>", st.sampled_from("biu"), st.lists(inner)
    )


@pytest.mark.parametrize(
    ("html", "target", "expected"),
    [
        ("a <b>b</b> c", "A C B", "A C <b>B</b>"),
        ("<i>a</i> <b>b</b> c", "C B A", "C <b>B</b> <i>A</i>"),  # elements follow their words
        ("a <b>b <i>c</i></b> d", "A C B D", "A <b><i>C</i> B</b> D"),
        ("<b>a b</b> c", "A C B", "<b>A</b> C B"),  # went to two places: the first of them
        ("a <b>b</b> c", "A C", "A <b>C</b>"),  # got lost: where it would have stood
        ("<b><i>a b</i></b>", "B A", "<b><i>B A</i></b>"),
        ("a <img src=x> b", "B A", "<img src=x>B A"),
        ("a<img src=x> b c", "A B C", "A<img src=x> B C"),
        ("a <code>b</code>, c d", "A D", "A <code>b</code> D"),
        ("a <code>b</code> c", "C B A", "C <code>b</code> A"),
        ("a <span translate='no'>b</span> c", "C A", "<span translate='no'>b</span> C A"),
    ],
)
def test_inline_tags_go_with_their_words(html, target, expected):
    assert reordered(html, target) == expected


@pytest.mark.parametrize("html", ["<b>" * (DEEPEST + 1) + "a", "<i>a</i> " * MOST_TOKENS])
def test_too_many_tags_are_left_where_they_are(html):
    assert capitals(html) == html.replace("a", "A")
    assert not any(block.elements for block in Markup(html).blocks)


@pytest.mark.parametrize(
    "part",
    [
        "<a ",
        "<a x='",
        "<a x=\"'",
        "<!--",
        "<![",
        "<?",
        "</",
        "</a ",
        "<",
        "&",
        "&#1",
        "<b>a ",
        "<code>",
        "<script>",
    ],
)
def test_what_is_no_html_takes_no_time(part):
    began = time.process_time()
    translated(part * (100_000 // len(part)), lambda text: text)
    assert time.process_time() - began < 5  # quadratic would be minutes


@pytest.mark.parametrize(
    "html", ["<![", "<![x", "&#" + "1" * 5000 + ";", "<!", "<a", "</a", "<a b='", "a\0b\ufffe"]
)
def test_what_is_no_html_goes_through(html):
    assert capitals(html)


def test_an_element_may_reach_over_sentences():
    (block,) = Markup("<b>a. b.</b> c.").blocks
    aligned = Aligned([("a.", " ", "X!", None), ("b.", " ", "Y!", None), ("c.", "", "Z!", None)])
    assert put_in(block.elements, block.text, aligned) == "<b>X! Y!</b> Z!"


@given(st.lists(st.sampled_from(HTML)))
def test_a_translation_never_adds_a_tag_and_none_is_lost(parts):
    html = "".join(parts)
    answer = translated(html, lambda text: Aligned([(text, "", "<script>alert(1)</script>&", None)]))
    assert sorted(map(str, Tags(answer).found)) == sorted(map(str, Tags(html).found))


@given(
    st.recursive(st.sampled_from(["a ", "b, c", " d", "<img>", "<!-- -->"]), _element, max_leaves=12),
    st.randoms(),
)
def test_what_was_well_nested_stays_so_whatever_attention_says(html, random):
    markup = Markup(html)
    words = ["1", "2,", "3", "4."][: random.randrange(5)]
    for block in markup.blocks:
        attention = Attention(
            list(block.text), words, np.array([[random.random() for _ in block.text] for _ in words])
        )
        answer = put_in(block.elements, block.text, Aligned([(block.text, "", " ".join(words), attention)]))
        found = Tags(answer)
        assert found.is_nested
        assert found.text == " ".join(words)
        assert sorted(map(str, found.found)) == sorted(map(str, Tags(html).found))


@given(st.text(alphabet="<>!-/?[]&;ab='\" "))
def test_any_text_goes_through(text):
    capitals(text)
