"""Text of any size through a model: a file or standard input in, lines out as windows of them are done."""

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from dragoman.data.formats import decode_lines, decompressed, open_lines, reading
from dragoman.decode.translator import Translation, Translator


def translate_stream(
    translator: Translator,
    path: Path | None,
    output: IO[str],
    options: dict[str, Any],
    *,
    scores: bool = False,
    as_json: bool = False,
    quiet: bool = False,
) -> None:
    """Translate a file, or standard input, line by line to ``output``.

    ``options`` are those of ``Translator.translate``. A line gives a line, or with an n-best list n of them, each with
    the number of its line and its rank. What was translated is handed on before more is read.
    """
    nbest = options.get("nbest", 1)
    # A bar beside the text itself would be a mess, and standard input has no size.
    shown = path is not None and not quiet and sys.stderr.isatty() and not output.isatty()
    with _read(path, shown) as lines:
        translations = translator.translate(_flushing(lines, output), **options)
        for number, translation in enumerate(translations, 1):
            if as_json:
                output.write(_as_json(translation, nbest))
            elif nbest > 1:
                for rank, hypothesis in enumerate(translation.hypotheses, 1):
                    output.write(f"{number}\t{rank}\t{hypothesis.log_probability:.4f}\t{hypothesis.text}\n")
            elif scores:
                output.write(f"{translation.log_probability:.4f}\t{translation.text}\n")
            else:
                output.write(f"{translation.text}\n")
    output.flush()


def _as_json(translation: Translation, nbest: int) -> str:
    hypotheses: list[dict[str, Any]] = [
        {"text": h.text, "log_probability": h.log_probability, "num_tokens": h.num_tokens}
        for h in translation.hypotheses
    ]
    line, *others = hypotheses
    if nbest > 1:
        line["alternatives"] = others
    return json.dumps(line, ensure_ascii=False) + "\n"


def _flushing(lines: Iterator[str], output: IO[str]) -> Iterator[str]:
    """Yield the lines, pushing out what was written before each: whoever waits for it may be who sends the next."""
    while True:
        output.flush()
        try:
            line = next(lines)
        except StopIteration:
            return
        yield line


@contextmanager
def _read(path: Path | None, shown: bool) -> Iterator[Iterator[str]]:
    if path is None or not shown:
        yield open_lines(path)
        return
    with ExitStack() as stack:
        with reading(str(path)):
            file = stack.enter_context(open(path, "rb", buffering=0))
            size = path.stat().st_size
        columns = (
            TextColumn("{task.fields[lines]:,} lines"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
        )
        bar = stack.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
        task = bar.add_task("", total=size, lines=0)

        def lines() -> Iterator[str]:
            with reading(str(path)):
                for number, line in enumerate(decompressed(file, str(path)), 1):
                    if number % 100 == 1:
                        bar.update(task, completed=file.tell(), lines=number - 1)
                    yield decode_lines(
                        line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line, str(path), number
                    )[0]

        yield lines()
