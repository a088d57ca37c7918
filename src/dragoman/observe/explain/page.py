"""The answers for people, on a terminal of 80 columns or more."""

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from dragoman.observe.explain.answer import Answer
from dragoman.observe.history import History

STYLES = {"yes": "bold green", "no": "bold red", "unclear": "bold yellow"}
# A "yes" is not good news everywhere.
BAD_NEWS = ("q03_overfitting", "q05_network")
NEITHER = ("q11_correlation", "q12_next")


def print_page(history: History, answers: list[Answer], console: Console | None = None) -> None:
    """Print all answers."""
    (console or Console(highlight=False)).print(page(history, answers))


def page(history: History, answers: list[Answer]) -> RenderableType:
    whose = "" if history.kind == "dragoman" else f", read from a {history.kind} of another toolkit"
    title = Text(f"{history.path}: {history.ending}{whose}", style="bold")
    problems = [Text(f"warning: {problem}", style="yellow") for problem in history.problems]
    return Group(title, *problems, *map(_answer, answers))


def style(answer: Answer) -> str:
    """Return the colour of a verdict: green is good news, red bad, yellow none."""
    if answer.verdict == "unclear" or answer.key in NEITHER:
        return STYLES["unclear"] if answer.verdict == "unclear" else "bold cyan"
    good = (answer.verdict == "yes") != (answer.key in BAD_NEWS)
    return STYLES["yes" if good else "no"]


def _answer(answer: Answer) -> RenderableType:
    sure = f" ({answer.confidence:.0%} sure)" if answer.verdict != "unclear" else ""
    lines = [
        Text.assemble(f"{answer.claim}: ", (answer.verdict, style(answer)), sure),
        Text(answer.summary),
        *(Text(f"→ {advice}", style="cyan") for advice in answer.advice),
    ]
    head = Text(f"\n{int(answer.key[1:3]):>2} {answer.question}", style="bold")
    return Group(head, Padding(Group(*lines), (0, 0, 0, 3)))
