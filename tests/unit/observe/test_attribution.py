import numpy as np
import pytest

from dragoman.observe.attribution import PARTS, attribute, steady
from dragoman.observe.history import Launch
from tests.unit.observe.histories import step_history


def test_parts_sum_to_the_step_and_tell_transfer_from_waiting():
    history = step_history(50, transfer=0.5, slow={1: 2.0}, spread=0.01)
    shares = attribute(history)
    assert list(shares) == [0, 1]
    for rank, share in shares.items():
        assert tuple(share.parts) == PARTS
        np.testing.assert_allclose(sum(share.parts.values()), share.seconds)
        np.testing.assert_allclose(share.seconds, history.tracks[rank]["seconds"])
        assert share.parts["transfer"].mean() == pytest.approx(0.5, rel=0.02)
    assert (shares[0].slowest == 1).all()
    assert shares[0].parts["straggler"].mean() == pytest.approx(1.0, rel=0.05)
    assert shares[1].parts["straggler"].max() == 0


def test_only_steps_that_every_rank_told_of_count():
    history = step_history(50, hosts=["a", "b", "c"])
    for name, column in list(history.tracks[2].columns.items()):
        history.tracks[2].columns[name] = column[:20]
    shares = attribute(history)
    assert shares[0].step.tolist() == list(range(1, 21))
    del history.tracks[2]
    assert attribute(history) == {}


def test_runs_without_phases_are_split_by_what_they_waited():
    history = step_history(20, transfer=0.5)
    for track in history.tracks.values():
        for name in ("data", "compute", "exchange", "agree", "optimizer", "logging"):
            track.columns[name] = np.full(20, np.nan)
    share = attribute(history)[0]
    assert share.parts["transfer"].mean() == pytest.approx(0.5, rel=0.1)
    np.testing.assert_allclose(share.seconds, history.tracks[0]["seconds"])


def test_the_first_steps_after_every_start_are_not_steady():
    history = step_history(20)
    history.launches.append(Launch(0.0, 10, True, 2, []))
    step = np.arange(1.0, 21)
    assert step[~steady(history, step)].tolist() == [1, 2, 3, 11, 12, 13]
