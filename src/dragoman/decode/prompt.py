"""``dragoman translate`` on a terminal: a line in, its translation out, and a few commands that begin with a colon."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from dragoman.decode.translator import Translator

HELP = """\
:n 5      show the 5 best translations of each line (:n 1 for one)
:beam 8   search with a beam of 8 (:beam for the model's own)
:scores   show log-probabilities, or not
:help     this help
:quit     the end, as Ctrl-D"""


def converse(
    translator: Translator,
    options: dict[str, Any],
    *,
    scores: bool = False,
    read: Callable[[str], str] = input,
    say: Callable[[str], None] = print,
) -> None:
    """Translate what is typed until the end of input or ``:quit``.

    ``options`` are those of ``Translator.translate``; ``read`` is given the prompt.
    """
    card = translator.card
    say(f"{card['src_lang']} → {card['tgt_lang']}. Type a sentence; :help for commands, Ctrl-D to end.")
    while True:
        try:
            line = read("> ")
        except EOFError:
            say("")
            return
        except KeyboardInterrupt:  # gives up the line, not the program
            say("")
            continue
        command, _, argument = line.strip().partition(" ")
        if command in (":quit", ":q"):
            return
        if command == ":scores":
            scores = not scores
            say(f"log-probabilities are {'shown' if scores else 'not shown'}")
        elif command.startswith(":"):
            options, answer = _command(options, command, argument.strip())
            say(answer)
        elif command:
            for text in _translations(translator, line, options, scores=scores):
                say(text)


def _translations(translator: Translator, line: str, options: dict[str, Any], *, scores: bool) -> list[str]:
    (translation,) = translator.translate([line], **options)
    several = len(translation.hypotheses) > 1
    return [
        (f"{rank}. " if several else "")
        + hypothesis.text
        + (f"  ({hypothesis.log_probability:.2f})" if scores else "")
        for rank, hypothesis in enumerate(translation.hypotheses, 1)
    ]


def _command(options: dict[str, Any], command: str, argument: str) -> tuple[dict[str, Any], str]:
    """Return the options after a command, and what to answer."""
    if command in (":help", ":h", ":?"):
        return options, HELP
    if command not in (":n", ":beam"):
        return options, f"there is no command {command}\n{HELP}"
    if command == ":beam" and not argument:
        return options | {"beam": None}, "beam: the model's own"
    if not argument.isdecimal() or not 1 <= int(argument) <= 100:
        return options, f"{command} takes a number from 1 to 100, such as {command} 5"
    number = int(argument)
    if command == ":n":
        return options | {"nbest": number}, f"translations of each line: {number}"
    return options | {"beam": number}, f"beam: {number}"


def with_history() -> None:
    """Let arrow keys go through what was typed before, where the system can."""
    with suppress(ImportError):
        import readline  # its import is what changes input()

        readline.set_auto_history(True)
