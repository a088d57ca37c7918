"""The page to translate on, in a real browser."""

import re

import pytest

from tests.serving import SENTENCES, make_models, running

FIRST, SECOND = SENTENCES[0], SENTENCES[1]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    models = make_models(tmp_path_factory.mktemp("models"))
    with running(str(models["en-de"]), str(models["de-en"]), "--max-characters", "2000") as server:
        yield server.address


@pytest.fixture
def page(tab, address):
    """The page, which may ask nobody but its server."""
    tab.page.on(
        "request",
        lambda request: (
            None
            if request.url.startswith((address, "data:", "blob:"))
            else tab.complaints.append(request.url)
        ),
    )
    tab.open(address)
    return tab.page


def settled(tab, text):
    """Type a text and wait for its translation."""
    tab.page.fill("#input", text)
    tab.wait("!document.querySelector('#output').matches('.stale')")
    tab.wait("/sentence/.test(document.querySelector('#status').textContent)")


def test_it_translates_as_one_types_and_shows_confidence(tab, page):
    settled(tab, f"{FIRST} {SECOND}\n\n---\n")
    spans = page.locator("#output [role=button]")
    assert spans.count() == 3
    for index in (0, 1):
        assert re.fullmatch(r"confidence \d+\s%", spans.nth(index).get_attribute("aria-description"))
    assert spans.nth(2).inner_text() == "---"
    assert spans.nth(2).get_attribute("aria-description") is None
    assert re.match(r"2 sentences, lowest confidence \d+\s%", page.locator("#status").inner_text())
    assert page.locator("#count").inner_text() == f"{len(FIRST) + len(SECOND) + 7} characters"
    page.click("#clear")
    tab.wait("document.querySelector('#output').matches('.empty')")
    assert page.evaluate("document.activeElement.id") == "input"


def test_only_the_newest_text_is_asked_for(tab, page):
    asked = []
    page.on("request", lambda request: asked.append(request) if request.url.endswith("/translate") else None)
    page.locator("#input").press_sequentially(FIRST, delay=5)
    tab.wait("/sentence/.test(document.querySelector('#status').textContent)")
    assert len(asked) <= 5  # not one for every letter
    held = []
    page.route("**/translate", lambda route: held.append(route) if len(held) < 1 else route.continue_())
    page.fill("#input", SECOND)
    page.keyboard.press("Control+Enter")  # at once
    page.wait_for_timeout(50)
    with page.expect_event("requestfailed") as failed:
        page.fill("#input", FIRST)
        page.keyboard.press("Control+Enter")
    assert failed.value.post_data_json["q"] == SECOND
    tab.wait("!document.querySelector('#output').matches('.stale')")
    assert len(held) == 1


def test_alternatives_by_mouse_and_by_keyboard(tab, page):
    settled(tab, f"{FIRST} {SECOND}")
    first = page.locator("#output [role=button]").first
    before = first.inner_text()
    first.click()
    page.wait_for_selector("#choices button")
    assert "Confidence" in page.locator("#choices").inner_text()
    chosen = page.locator("#choices button").first.inner_text()
    page.locator("#choices button").first.click()
    assert first.inner_text() == chosen != before
    assert page.locator("#choices").is_hidden()
    second = page.locator("#output [role=button]").nth(1)
    second.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#choices button:focus")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Escape")
    assert page.locator("#choices").is_hidden()
    assert second.evaluate("node => node === document.activeElement")
    assert second.get_attribute("aria-expanded") == "false"


def test_languages_are_swapped_and_detected(tab, page):
    settled(tab, FIRST)
    there = page.locator("#output").inner_text()
    page.get_by_role("button", name="Swap languages").click()
    assert (page.input_value("#source"), page.input_value("#target")) == ("de", "en")
    assert page.input_value("#input") == there
    page.select_option("#source", "auto")
    page.select_option("#target", "de")
    settled(tab, "Where have you put the red book?")
    assert page.locator("#source option:checked").inner_text() == "Detected: English"
    assert page.get_by_role("button", name="Swap languages").is_disabled()


def test_files_come_in_and_go_out(tab, page, tmp_path):
    text = "".join(f"{sentence}\n" for sentence in SENTENCES * 3)  # more than a request may have
    (tmp_path / "book.txt").write_text(text)
    page.set_input_files("#file", tmp_path / "book.txt")
    tab.wait("/108 sentences/.test(document.querySelector('#status').textContent)")
    with page.expect_download() as download:
        page.click("#save")
    assert download.value.suggested_filename == "book.de.txt"
    saved = download.value.path().read_text()
    assert saved.count("\n") == text.count("\n")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click("#copy")
    tab.wait("document.querySelector('#status').textContent === 'Copied'")
    assert page.evaluate("navigator.clipboard.readText()") == saved
    (tmp_path / "picture.txt").write_bytes(b"\x00\x01")
    page.set_input_files("#file", tmp_path / "picture.txt")
    tab.wait("/not a text file/.test(document.querySelector('#status').textContent)")


def test_text_is_never_markup(tab, page):
    settled(tab, "<img src=x onerror=alert(1)> <script>alert(2)</script>")
    assert page.locator("#output img, #output script").count() == 0


def test_dark_and_light_are_remembered(tab, page, address):
    def paper():
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    light = paper()
    page.get_by_role("button", name="Dark or light").click()
    dark = paper()
    assert dark != light
    tab.open(address)
    assert paper() == dark


def test_everything_has_a_name_and_fits_a_phone(tab, page):
    page.set_viewport_size({"width": 360, "height": 740})
    settled(tab, " ".join([FIRST, "x" * 300]))
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    nameless = """[...document.querySelectorAll("button, select, textarea, input")].filter((node) =>
        !(node.getAttribute("aria-label") || node.labels?.[0]?.textContent || node.textContent).trim())
        .map((node) => node.outerHTML)"""
    assert page.evaluate(nameless) == []
    order = []
    page.locator("#theme").focus()
    for _ in range(7):
        page.keyboard.press("Tab")
        order.append(page.evaluate("document.activeElement.id || document.activeElement.className.trim()"))
    assert order[:5] == ["source", "swap", "target", "input", "clear"]


def test_a_long_text_leaves_the_buttons_in_sight(tab, page):
    page.set_viewport_size({"width": 360, "height": 740})
    settled(tab, "\n".join([FIRST] * 30))
    page.evaluate("scrollTo(0, 0)")
    assert page.locator("#clear").bounding_box()["y"] < 740
    assert page.locator("#output").bounding_box()["y"] < 740  # and the translation begins there
    page.set_viewport_size({"width": 1280, "height": 700})
    page.evaluate("scrollTo(0, 0)")
    for button in ("#clear", "#copy", "#save"):
        assert page.locator(button).bounding_box()["y"] < 700


def test_a_key_is_asked_for_where_one_is_needed(tab, tmp_path_factory):
    path = tmp_path_factory.mktemp("keys")
    (path / "keys").write_text("0123456789abcdef anna\n")
    with running(str(make_models(path)["en-de"]), "--keys", str(path / "keys")) as server:
        tab.open(server.address)
        tab.page.fill("#input", FIRST)
        tab.wait("/An API key is required/.test(document.querySelector('#status').textContent)")
        assert tab.page.is_visible("#keyform")
        tab.page.fill("#key", "0123456789abcdef")
        tab.page.keyboard.press("Enter")
        tab.wait("/sentence/.test(document.querySelector('#status').textContent)")
        tab.complaints.clear()  # the browser tells of the refused request


def test_nothing_but_the_page_itself_may_run(page, address):
    answer = page.request.get(address)
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", answer.text())
