"""Sentences are found, not made; together with their white space they are the text."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.decode.document import LONGEST, put_back, sentences, sentences_of_text, split_line

# Each a line, with | where it is cut.
SPLIT = """
The lamp is on.| It is warm.
Is it on?| Yes!| Good.
Er kam um 8 Uhr an.| Dann ging er.
It was 1990.| The wall had fallen.
He said "No."| Then he left.
„Das ist gut.“| Er lachte.
«C'est bon.»| Il part.
¿Dónde está?| ¡Aquí está!| Bien.
I bought apples, pears etc.| They were good.
It rained (as always).| We stayed.
Wait…| The door opened.
He came at last.| 20 people saw him.
猫看见房子。|狗看见猫！|好吗？|好。
これは本です。| それは猫です。
यह एक घर है।| वह बड़ा है।
هل هذا بيت؟| نعم هو بيت.
Это дом.| Он большой.
""".strip().splitlines()
WHOLE = """
Dr. Smith and Mrs. Jones met Prof. Miller in St. Petersburg.
Das gilt z. B. Montags, d. h. Dienstags nicht, u. a. Mittwochs.
Das gilt z.B. Montags.
J. K. Rowling wrote it, not J.R.R. Tolkien.
Am 3. Oktober 1990 begann der 2. Weltkrieg nicht.
Ludwig XIV. Bourbon was the king of France.
It costs 3.5 million, i.e. Almost nothing, see Fig. 3 and no. 5.
The U.S. Army and the E.U. Commission agree.
Well ... I think so.
In Punkt R ist von der „ … Entwicklung der Union“ die Rede.
Of the citizens, i.e. 21 million, Maj. Fein of Ft. Meade knew 11 percent.
Yahoo! is a company, and so is Yum! brands.
"Really?" John asked.
The rules (see above. They are long) are simple.
Vgl. Abb. 3 und Nr. 7 in Bd. 2 bzw. Kap. 4.
... And then nothing.
Visit example.com or mail to a.b@example.org.
1. First of all
3. 1415
「行く。帰る。」と言った。
Hello world
...
""".strip().splitlines()


@pytest.mark.parametrize("marked", SPLIT)
def test_lines_of_several_sentences_are_cut_between_them(marked):
    assert [sentence for sentence, _ in sentences(marked.replace("|", ""))] == [
        part.strip() for part in marked.split("|")
    ]


@pytest.mark.parametrize("text", WHOLE)
def test_what_only_looks_like_an_end_is_none(text):
    assert sentences(text) == [(text, "")]


@given(text=st.text(st.sampled_from('aB1 .!?…。」"()\n\t\u3000Dr'), max_size=60) | st.text(max_size=60))
def test_nothing_is_lost_of_a_text_of_many_lines(text):
    found = sentences_of_text(text)
    assert "".join(sentence + space for sentence, space in found) == text
    assert all(sentence == sentence.strip() and not space.strip() for sentence, space in found)
    assert all(sentence for sentence, _ in found[1:])
    assert not any("\n" in sentence or "\r" in sentence for sentence, _ in found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("  One. Two!\n\n Three", [("", "  "), ("One.", " "), ("Two!", "\n\n "), ("Three", "")]),
        ("A title\r\nIts text", [("A title", "\r\n"), ("Its text", "")]),
    ],
)
def test_a_line_end_ends_a_sentence(text, expected):
    assert sentences_of_text(text) == expected


def test_a_sentence_that_is_too_long_is_cut_between_words_and_a_word_anywhere():
    for text in ("word " * 1000, "x" * 5000):
        parts = sentences_of_text(text)
        assert "".join(sentence + space for sentence, space in parts) == text
        assert max(len(sentence) for sentence, _ in parts) <= LONGEST
    assert {sentence for sentence, _ in sentences_of_text("word " * 1000)} <= {
        "word " * n + "word" for n in range(300)
    }


@given(text=st.text(st.sampled_from('aB1 .!?…。」"()\n\t\u3000Dr'), max_size=60) | st.text(max_size=60))
def test_nothing_is_lost(text):
    found = sentences(text)
    assert "".join(sentence + space for sentence, space in found) == text
    assert all(sentence == sentence.strip() and not space.strip() for sentence, space in found)
    assert all(sentence for sentence, _ in found[1:])
    for into_sentences in (True, False):
        parts = split_line(text, into_sentences=into_sentences)
        whole = [parts.spaces[0]]
        for sentence, space in zip(parts.sentences, parts.spaces[1:], strict=True):
            whole += [sentence, space]
        assert "".join(whole) == text
        assert all(parts.sentences)
    assert len(parts.sentences) == bool(text.strip())


@pytest.mark.parametrize(
    ("source", "spaced", "expected"),
    [
        ("  Hello.\tYou  there.   Go. ", True, "  1\t2   3 "),
        ("A word.\u2028A line.\r", True, "1 2"),
        ("猫。狗。", True, "1 2"),
        ("猫。狗。", False, "12"),
        ("Cat here.  Dog here. Both.", False, "1  23"),
        (" \t ", True, " \t "),
        ("", True, ""),
        ("\n", True, ""),
    ],
)
def test_translations_stand_where_their_sentences_stood(source, spaced, expected):
    parts = split_line(source)
    assert (
        put_back([str(n + 1) for n in range(len(parts.sentences))], parts.spaces, spaced=spaced) == expected
    )


@pytest.mark.parametrize(
    "text", ["." * 100_000, "a. " * 50_000, "A.)\"' " * 20_000, "。" * 100_000, "( A. " * 20_000]
)
def test_long_texts_take_no_time(text):
    began = time.process_time()
    sentences(text)
    sentences_of_text(text)
    assert time.process_time() - began < 5  # quadratic would be minutes
