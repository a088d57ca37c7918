"""What cannot be served is said before anything is loaded."""

import socket

import pytest

from dragoman.errors import UserError
from dragoman.serve.limits import Limits
from dragoman.serve.models import Models
from dragoman.serve.server import bind, is_loopback, open_log, serve
from tests.serving import make_models


def test_two_models_of_one_pair(tmp_path):
    models = make_models(tmp_path)
    with pytest.raises(UserError) as caught:
        Models([models["en-de"], models["newer"]], Limits(), threads=1)
    assert caught.value.what == "two models translate from en to de"
    assert caught.value.fix == "serve one of them"


def test_an_address_that_others_reach_needs_keys_or_a_word(tmp_path):
    with pytest.raises(UserError) as caught:
        serve([tmp_path], host="0.0.0.0", port=0, ready=lambda *_: None, limits=Limits())
    assert caught.value.what == "anybody who reaches this address could translate"
    assert "--keys FILE" in caught.value.fix
    assert "--open" in caught.value.fix


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.53", "::1", "localhost"])
def test_loopback(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])
def test_not_loopback(host):
    assert not is_loopback(host)


def test_a_port_that_is_taken_and_a_host_that_is_none():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError) as caught:
            bind("127.0.0.1", port)
    assert caught.value.what == f"127.0.0.1 port {port} cannot be used (Address already in use)"
    with pytest.raises(UserError, match="cannot be used"):
        bind("no host.invalid", 0)


def test_a_log_that_cannot_be_written(tmp_path):
    with pytest.raises(UserError) as caught:
        open_log(tmp_path / "none" / "log")
    assert caught.value.what == "the access log cannot be written (No such file or directory)"
