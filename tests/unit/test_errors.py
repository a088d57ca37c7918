import pickle

from dragoman.errors import ExitCode, UserError, UserErrors


def test_user_error_says_what_where_and_fix():
    error = UserError(
        "warmup is longer than the run", where="demo.toml, [schedule]", fix="lower warmup_steps"
    )
    assert str(error) == (
        "error: warmup is longer than the run\n  where: demo.toml, [schedule]\n  fix:   lower warmup_steps"
    )


def test_several_errors_are_told_together():
    both = UserErrors([UserError("a", where="b", fix="c"), UserError("d", where="e", fix="f")])
    assert str(both) == "error: a\n  where: b\n  fix:   c\nerror: d\n  where: e\n  fix:   f"
    assert isinstance(both, UserError)


def test_errors_survive_the_way_out_of_a_worker_process():
    one = UserError("a", where="b", fix="c")
    assert str(pickle.loads(pickle.dumps(one))) == str(one)
    several = UserErrors([one, UserError("d", where="e", fix="f")])
    assert str(pickle.loads(pickle.dumps(several))) == str(several)


def test_exit_codes_are_a_promise():
    assert {code.name: code.value for code in ExitCode} == {
        "DONE": 0,
        "BUG": 1,
        "USER": 2,
        "INTERRUPTED": 130,
        "TERMINATED": 143,
    }
