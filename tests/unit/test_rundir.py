import pytest

from dragoman.errors import UserError
from dragoman.files import beside
from dragoman.rundir import RunDir, step_directories, step_name


def test_open_wants_a_run(tmp_path):
    with pytest.raises(UserError) as caught:
        RunDir.open(tmp_path)
    assert str(caught.value) == (
        f"error: this is not a run (it has no recipe.toml)\n  where: {tmp_path}\n"
        "  fix:   give the directory that `dragoman train` made, such as runs/NAME"
    )
    (tmp_path / "recipe.toml").touch()
    assert RunDir.open(tmp_path) == RunDir(tmp_path)


def test_names_are_inside_the_run_and_differ(tmp_path):
    run = RunDir(tmp_path)
    names = [name for name, value in vars(RunDir).items() if isinstance(value, property)]
    paths = [getattr(run, name) for name in names] + [run.events(0), run.checkpoint(1), run.model(1)]
    assert len(set(paths)) == len(paths)
    assert all(path.is_relative_to(tmp_path) for path in paths)
    assert list(tmp_path.iterdir()) == []


def test_names_sort_as_their_steps_do():
    names = [step_name(step) for step in (7, 1000, 99_999_999)]
    assert names == sorted(names)
    assert names[0] == "step-00000007"


def test_only_finished_steps_are_found(tmp_path):
    run = RunDir(tmp_path)
    assert step_directories(run.checkpoints) == {}
    for step in (200, 100, 1_000_000_000):
        run.checkpoint(step).mkdir(parents=True)
    beside(run.checkpoint(300)).mkdir()
    (run.checkpoints / "notes").mkdir()
    found = step_directories(run.checkpoints)
    assert list(found.items()) == [(step, run.checkpoint(step)) for step in (100, 200, 1_000_000_000)]
