"""How a launch ends is noted by a worker and read by the launcher."""

from dragoman.cluster.launch import LAUNCH, note_outcome, read_outcome
from dragoman.errors import ExitCode, UserError
from dragoman.rundir import RunDir


def test_an_outcome_belongs_to_one_launch(tmp_path, monkeypatch):
    run = RunDir(tmp_path)
    assert read_outcome(run, "one") is None
    monkeypatch.setenv(LAUNCH, "one")
    note_outcome(run, ExitCode.TERMINATED, "stopped")
    assert read_outcome(run, "one")["exit_code"] == 143
    assert read_outcome(run, "two") is None


def test_a_user_error_keeps_its_parts(tmp_path, monkeypatch):
    monkeypatch.setenv(LAUNCH, "one")
    note_outcome(RunDir(tmp_path), ExitCode.USER, "what", UserError("what", where="here", fix="this"))
    assert read_outcome(RunDir(tmp_path), "one")["error"] == {"what": "what", "where": "here", "fix": "this"}
