"""Keys, rates and addresses."""

import pytest

from dragoman.errors import UserError
from dragoman.serve import limits
from dragoman.serve.limits import Buckets, Keys, Limits, Refusal, network


def write(path, text):
    path.write_text(text)
    return path


def test_keys_have_names_and_only_whole_ones_count(tmp_path):
    keys = Keys(
        write(tmp_path / "keys", "# ours\n0123456789abcdef  anna b\n\nfedcba9876543210  # the other\n")
    )
    assert keys.name("0123456789abcdef") == "anna b"
    assert keys.name("fedcba9876543210") not in (None, "fedcba9876543210", "")
    for wrong in ("", "0123456789abcde", "0123456789abcdeF", "anna b", "\ud800"):
        assert keys.name(wrong) is None


def test_keys_that_cannot_be_read_again_stay(tmp_path):
    keys = Keys(write(tmp_path / "keys", "0123456789abcdef\n"))
    write(tmp_path / "keys", "")
    with pytest.raises(UserError, match="there is no key in this file"):
        keys.reload()
    assert keys.name("0123456789abcdef")
    write(tmp_path / "keys", "another-key-now\n")
    keys.reload()
    assert keys.name("0123456789abcdef") is None


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("short\n", "the key in line 1 is shorter than 8 characters"),
        ("# none\n", "there is no key in this file"),
    ],
)
def test_a_file_of_keys_that_is_wrong(tmp_path, text, what):
    with pytest.raises(UserError) as caught:
        Keys(write(tmp_path / "keys", text))
    assert caught.value.what == what


def test_a_file_of_keys_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match=r"the file of keys cannot be read \(No such file"):
        Keys(tmp_path / "none")


def test_a_bucket_empties_and_fills_up_again():
    buckets = Buckets(6)
    for _ in range(6):
        buckets.take("anna", now=100.0)
    with pytest.raises(Refusal) as caught:
        buckets.take("anna", now=100.0)
    assert caught.value.status == 429
    assert 10 <= int(caught.value.headers["Retry-After"]) <= 11
    buckets.take("bert", now=100.0)
    buckets.take("anna", now=110.1)
    with pytest.raises(Refusal):
        buckets.take("anna", now=110.1)


def test_buckets_do_not_grow_without_end(monkeypatch):
    monkeypatch.setattr(limits, "MOST_BUCKETS", 10)
    buckets = Buckets(6)
    for number in range(100):
        buckets.take(str(number), now=1.0)
    assert len(buckets._buckets) == 10


def test_an_ipv6_customer_is_one_caller():
    assert network("2001:db8::1") == network("2001:db8::ffff:2")
    assert network("2001:db8::1") != network("2001:db8:0:1::1")
    assert network("192.0.2.1") == "192.0.2.1"
    assert network("testclient") == "testclient"


def test_any_text_within_the_limit_fits_the_body():
    import json

    text = json.dumps({"q": "😀" * Limits().characters, "source": "en", "target": "de"})
    assert len(text) < Limits().body_bytes
