"""Text goes through in constant memory, and comes out in the form that was asked for."""

import gzip
import io
import json
import os
import pty
import subprocess
import sys

import pytest

from dragoman.decode.export import export_model
from dragoman.decode.stream import _flushing, translate_stream
from dragoman.decode.translator import Translator
from dragoman.errors import UserError
from tests.unit.decode.conftest import make_run

LINES = ["The cat sees a small house.", "", "  Nobody here.  The red book. ", "three letters"]


@pytest.fixture(scope="module")
def model(tmp_path_factory, toy_task):
    toy = make_run(tmp_path_factory.mktemp("run"), *toy_task)
    return export_model([toy.save(3)], toy.recipe, toy.dataset.tokenizer_path, toy.directory.model(3))


@pytest.fixture(scope="module")
def translator(model):
    return Translator(model, threads=1)


@pytest.fixture
def text(tmp_path):
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in LINES))
    return tmp_path / "text"


def translated(translator, text, *, nbest=1, **form) -> list[str]:
    output = io.StringIO()
    translate_stream(translator, text, output, {"nbest": nbest}, **form)
    return output.getvalue().split("\n")[:-1]


def test_a_line_gives_a_line(translator, text):
    expected = [translation.text for translation in translator.translate(LINES)]
    assert translated(translator, text) == expected
    assert expected[1] == ""
    assert expected[2].startswith("  ")


def test_scores_alternatives_and_json(translator, text):
    expected = list(translator.translate(LINES, nbest=2))
    assert (
        translated(translator, text, scores=True)[0].split("\t")[1] == next(translator.translate(LINES)).text
    )
    rows = [line.split("\t") for line in translated(translator, text, nbest=2)]
    assert [row[:2] for row in rows] == [[str(n), str(rank)] for n in (1, 2, 3, 4) for rank in (1, 2)]
    assert rows[1] == ["1", "2", f"{expected[0].hypotheses[1][1]:.4f}", expected[0].hypotheses[1].text]
    first, empty, *_ = (json.loads(line) for line in translated(translator, text, nbest=2, as_json=True))
    assert (first["text"], first["alternatives"][0]["text"]) == tuple(h.text for h in expected[0].hypotheses)
    assert empty == {
        "text": "",
        "log_probability": 0.0,
        "num_tokens": 0,
        "alternatives": [{"text": "", "log_probability": 0.0, "num_tokens": 0}],
    }
    assert "alternatives" not in json.loads(translated(translator, text, as_json=True)[0])


def test_a_bar_changes_nothing_but_the_terminal(translator, tmp_path, monkeypatch, capsys):
    (tmp_path / "text.gz").write_bytes(gzip.compress("\ufeffThe cat sees.\n\nthree letters".encode()))
    plain = translated(translator, tmp_path / "text.gz")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert translated(translator, tmp_path / "text.gz") == plain
    assert "lines" in capsys.readouterr().err
    assert translated(translator, tmp_path / "text.gz", quiet=True) == plain
    assert capsys.readouterr().err == ""
    with pytest.raises(UserError, match="there is no such file"):
        translated(translator, tmp_path / "nothing")


def test_what_cannot_be_read_is_named(translator, tmp_path):
    with pytest.raises(UserError, match="there is no such file"):
        translated(translator, tmp_path / "nothing")


def test_what_is_done_is_handed_on_before_more_is_read():
    class Output(io.StringIO):
        flushed = 0

        def flush(self):
            self.flushed = len(self.getvalue())

    output = Output()

    def source():
        for _ in range(3):
            assert output.flushed == len(output.getvalue())
            yield "line"

    for line in _flushing(source(), output):
        output.write(line)


# An engine that answers at once, so that what is measured is what surrounds it.
MEMORY = """
import resource, sys
from pathlib import Path
from types import SimpleNamespace
from dragoman.decode.stream import translate_stream
from dragoman.decode.translator import Translator

class Engine:
    def translate_batch(self, sources, **options):
        result = SimpleNamespace(hypotheses=[["t"]], scores=[-1.0])
        return [SimpleNamespace(result=lambda: result) for _ in sources]

translator = Translator(Path(sys.argv[1]), threads=1)
translator._engine = Engine()
for megabytes in (1, 6):
    path = Path(sys.argv[2])
    with open(path, "w") as file:
        for number in range(megabytes * 4000):
            file.write("The cat sees the red book, number %6d; " % number * 6 + "\\n")
    with open("/dev/null", "w") as output:
        translate_stream(translator, path, output, {}, quiet=True)
    print(path.stat().st_size, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def test_a_large_text_takes_no_more_memory_than_a_small_one(model, tmp_path):
    command = [sys.executable, "-c", MEMORY, str(model), str(tmp_path / "large")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200).stdout
    (small, peak), (large, later) = (
        [int(number) for number in line.split()] for line in printed.splitlines()
    )
    assert large - small > 4.5e6
    assert later - peak < 3e6  # the text alone would be more, if it were kept


def test_on_a_terminal_one_can_talk_to_it(model):
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "dragoman", "translate", str(model)],
        stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "dumb"},
    )  # fmt: skip
    os.close(theirs)
    heard = ""

    def wait_for(words: str) -> None:
        nonlocal heard
        while words not in heard:
            heard += os.read(ours, 4096).decode()
        heard = heard.partition(words)[2]

    wait_for("en → de")
    wait_for("> ")
    os.write(ours, b":n 2\n")
    wait_for("translations of each line: 2")
    wait_for("> ")
    os.write(ours, b"The cat sees.\n")
    wait_for("\n1. ")
    wait_for("\n2. ")
    wait_for("> ")
    os.write(ours, b"\x04")  # Ctrl-D
    assert process.wait(timeout=60) == 0
    os.close(ours)
