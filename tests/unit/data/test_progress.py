"""Stages show themselves as fits where they are shown."""

import pytest

from dragoman.data.progress import Stages


def work(stages):
    stages.say("[b] is no mark-up")
    with stages.stage("clean", total=2) as advance:
        advance(1)
    with stages.stage("encode"):
        pass
    return list(stages.seconds)


def test_lines_where_there_is_no_terminal(capfd):
    assert work(Stages(shown=True)) == ["clean", "encode"]
    output, errors = capfd.readouterr()
    assert output == ""
    assert errors == "[b] is no mark-up\nclean: 0.0 s\nencode: 0.0 s\n"


def test_bars_on_a_terminal(capfd, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert work(Stages(shown=True)) == ["clean", "encode"]
    errors = capfd.readouterr().err
    assert "clean" in errors
    assert "━━━━" in errors
    assert "clean: " not in errors


@pytest.mark.parametrize("terminal", ["", "1"])
def test_nothing_if_not_wanted(capfd, monkeypatch, terminal):
    monkeypatch.setenv("FORCE_COLOR", terminal)
    assert work(Stages(shown=False)) == ["clean", "encode"]
    assert capfd.readouterr() == ("", "")


def test_a_stage_that_fails_is_not_said_to_be_done(capfd):
    stages = Stages(shown=True)
    with pytest.raises(ZeroDivisionError), stages.stage("clean"):
        raise ZeroDivisionError
    assert stages.seconds == {}
    assert capfd.readouterr().err == ""
