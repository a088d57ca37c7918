"""What training and export agree on about weights."""

import pytest

from dragoman.errors import UserError
from dragoman.model.weights import require_same_names


def test_weights_that_do_not_fit_are_all_named():
    with pytest.raises(UserError) as caught:
        require_same_names({"a", "b"}, {"b", "c", "d"}, "somewhere")
    assert "'a'" in caught.value.what
    assert "'c', 'd'" in caught.value.what
