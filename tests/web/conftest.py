"""A real browser: Debian's Chromium, driven by playwright. Whatever it complains about fails the test."""

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

CHROMIUM = shutil.which("chromium")
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync",
]  # fmt: skip


@dataclass
class Tab:
    """A page, and every error that it told of."""

    page: object
    complaints: list[str] = field(default_factory=list)

    def open(self, address: str) -> None:
        self.page.goto(address)
        self.page.wait_for_selector("body[data-drawn=yes]")

    def wait(self, condition: str) -> None:
        """Return once a JavaScript expression is true. (playwright's own way needs a page that allows eval.)"""
        deadline = time.monotonic() + 30
        while not self.page.evaluate(condition):
            assert time.monotonic() < deadline, f"never true: {condition}"
            self.page.wait_for_timeout(50)

    def curve(self, chart: str, name: str) -> dict[float, float]:
        """Return what a chart holds under a name of its legend, as plotly has it, by x."""
        pairs = self.page.evaluate(
            """([chart, name]) => { const found = document.querySelector(`#chart-${chart} .plot`).data
                 .find((trace) => trace.name === name); return found.x.map((x, i) => [x, found.y[i]]); }""",
            [chart, name],
        )
        return dict(pairs)


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium (Debian: apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture
def tab(browser) -> Iterator[Tab]:
    """A tab of its own. What the page complains about, or runs without being asked to, is found at the end."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    tab = Tab(context.new_page())
    tab.page.on(
        "console",
        lambda said: tab.complaints.append(said.text) if said.type in ("error", "warning") else None,
    )
    tab.page.on("pageerror", lambda error: tab.complaints.append(str(error)))
    tab.page.on(
        "dialog", lambda dialog: (tab.complaints.append(f"dialog {dialog.message}"), dialog.dismiss())
    )
    yield tab
    context.close()
    assert tab.complaints == []
