import inspect
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from dragoman.observe.tensorboard import Curves, NoCurves


def points(directory: Path, tag: str) -> list[tuple[int, float]]:
    """Read a curve back as TensorBoard does."""
    accumulator = EventAccumulator(str(directory), size_guidance={"scalars": 0})
    accumulator.Reload()
    return [(point.step, point.value) for point in accumulator.Scalars(tag)]


def test_points_can_be_read_while_they_are_written(tmp_path):
    curves = Curves(tmp_path / "tensorboard", resume_step=0)
    curves.add("train_loss", 4.5, 1)
    curves.add("train_loss", 4.0, 2)
    curves.add("learning_rate", 0.25, 2)
    assert points(tmp_path / "tensorboard", "train_loss") == [(1, 4.5), (2, 4.0)]
    assert points(tmp_path / "tensorboard", "learning_rate") == [(2, 0.25)]
    curves.close()


@pytest.mark.parametrize("resume_step", [0, 20])
def test_a_resumed_run_drops_what_it_will_draw_again(tmp_path, resume_step):
    killed = Curves(tmp_path, resume_step=0)
    for step in (10, 20, 30):
        killed.add("train_loss", 1.0, step)
    killed.close()
    resumed = Curves(tmp_path, resume_step=resume_step)
    resumed.add("train_loss", 2.0, 30)
    resumed.close()
    assert len(list(tmp_path.iterdir())) == 2
    kept = [(step, 1.0) for step in (10, 20) if step <= resume_step]
    assert points(tmp_path, "train_loss") == [*kept, (30, 2.0)]


def test_a_run_that_goes_back_drops_what_it_will_draw_again(tmp_path):
    curves = Curves(tmp_path, resume_step=0)
    for step in (10, 20, 30):
        curves.add("train_loss", 1.0, step)
    curves.go_back(10)
    curves.add("train_loss", 2.0, 20)
    curves.close()
    assert points(tmp_path, "train_loss") == [(10, 1.0), (20, 2.0)]


def test_no_curves_has_the_face_of_curves_and_does_nothing(tmp_path):
    for name, method in inspect.getmembers(Curves, inspect.isfunction):
        if not name.startswith("_"):
            assert inspect.signature(method) == inspect.signature(getattr(NoCurves, name))
    none = NoCurves()
    none.add("train_loss", 1.0, 1)
    none.go_back(0)
    none.close()
    assert list(tmp_path.iterdir()) == []
