"""The passport's page as data: charts hold the manifest's numbers, and what is not known is said."""

import pytest

from dragoman.data.passport import passport
from dragoman.data.shards import Dataset
from dragoman.observe.report.passport import view, write_passport
from tests import passports


def facts_of(manifest):
    return passport(Dataset("datasets/x", manifest))


def test_charts_hold_the_numbers_of_the_manifest():
    manifest = passports.manifest()
    charts = view(facts_of(manifest)).charts
    together = manifest["splits"]["train"]
    assert [trace["y"] for trace in charts["lengths"].traces] == [
        counts[:7] for counts in together["lengths"]
    ]
    kept, dropped = charts["kept"].traces
    assert (kept["x"], dropped["x"]) == ([523, 175], [4914, 1638])
    (rules,) = charts["rules"].traces
    assert dict(zip(rules["y"], rules["x"], strict=True)) == {
        rule: told["pairs"] for rule, told in manifest["dropped"].items() if told["pairs"]
    }
    assert charts["overlap"].traces[0]["x"] == [pytest.approx(100 * 2 / 175), 0]


def test_the_page_says_whether_scores_can_be_trusted():
    assert "clear of dev and test" in view(facts_of(passports.manifest())).head
    assert "overlaps with dev or test" in view(facts_of(passports.manifest(gate=False))).head
    facts = passports.manifest()
    del facts["overlap"]
    assert "not recorded" in view(facts_of(facts)).head


def test_what_is_not_known_has_no_chart():
    charts = view(facts_of(passports.oldest())).charts
    assert charts["lengths"].absent == charts["overlap"].absent == "Not recorded."
    facts = passports.manifest()
    facts["overlap"]["sets"].pop("dev")
    facts["dropped"] = {}
    charts = view(facts_of(facts)).charts
    assert charts["overlap"].absent == "Train had no line of dev or test."
    assert charts["rules"].absent == "No rule dropped anything."


def test_the_file_is_written_whole(tmp_path):
    write_passport(facts_of(passports.manifest()), tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text("utf-8").endswith("</html>\n")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
