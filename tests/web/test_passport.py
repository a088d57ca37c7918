"""The passport in a real browser: drawn offline, safe, and readable on a phone."""

import pytest

from dragoman.data.passport import passport
from dragoman.observe.report.passport import write_passport
from tests import passports
from tests.web.test_report import HOSTILE


@pytest.fixture
def page(tmp_path):
    def written(**more):
        write_passport(passport(passports.dataset(**more)), tmp_path / "passport.html")
        return (tmp_path / "passport.html").as_uri()

    return written


def test_all_charts_are_drawn_offline(tab, page):
    asked = []
    tab.page.on("request", lambda request: asked.append(request.url))
    tab.page.context.set_offline(True)
    address = page()
    tab.open(address)
    assert asked == [address]
    assert tab.page.locator("#charts figure .plot .main-svg").count() >= 4
    assert tab.page.locator("#charts .absent:visible").count() == 0
    assert tab.curve("lengths", "src")["9–16"] == 320
    assert tab.page.locator("#dropped tbody tr").count() == len(passports.RULES)
    wider = "[...document.querySelectorAll('.plot')].filter((each) => each.scrollWidth > each.clientWidth + 1).length"
    assert tab.page.evaluate(wider) == 0


def test_a_phone_needs_no_scrolling_sideways(tab, page):
    tab.page.set_viewport_size({"width": 390, "height": 844})
    tab.open(page(text="a long line of words that has to be broken somewhere " * 5))
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390


def test_words_of_a_corpus_are_only_shown(tab, page):
    tab.open(page(text=HOSTILE))
    assert HOSTILE.strip() in tab.page.locator("#dropped").inner_text()
    assert HOSTILE.strip() in tab.page.locator("#overlap").inner_text()
    assert HOSTILE.strip()[:30] in tab.page.locator("#chart-kept").text_content()
    assert tab.page.evaluate("document.querySelectorAll('img').length") == 0
