"""Numbers on the wire."""

import pytest
import torch

from dragoman.cluster.estimate import BLOCK, all_gather_bytes, all_reduce_bytes, wire_bytes
from dragoman.cluster.wire import (
    CHUNK,
    LEVELS,
    decode,
    encode,
)

WIRES = ["float32", "bf16", "int8", "int4"]


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("numbers", [1, BLOCK, BLOCK + 1, 10 * BLOCK - 3, CHUNK + 5])
def test_what_arrives_is_what_the_sender_knows(wire, numbers):
    values = torch.randn(numbers, generator=torch.Generator().manual_seed(0))
    left = values.clone()
    data = encode(left, wire)
    assert data.dtype == torch.uint8
    assert len(data) == wire_bytes(numbers, wire)
    assert left.equal(values - decode(data, numbers, wire))


@pytest.mark.parametrize("wire", WIRES)
def test_what_is_added_on_the_way_and_pieces_of_it(wire):
    numbers = CHUNK + 3 * BLOCK + 5
    values, more = torch.randn(2, numbers, generator=torch.Generator().manual_seed(0))
    data = encode(values.clone(), wire, more, 0.5)
    assert data.equal(encode(values.add(more, alpha=0.5), wire))
    whole = decode(data, numbers, wire)
    assert decode(data, numbers, wire, BLOCK, 3 * BLOCK).equal(whole[BLOCK : 3 * BLOCK])
    assert decode(data, numbers, wire, CHUNK, numbers).equal(whole[CHUNK:])


def through(values, wire):
    """Return what arrives of the numbers."""
    return decode(encode(values.clone(), wire), len(values), wire)


@pytest.mark.parametrize("wire", LEVELS)
def test_whole_numbers_are_within_half_a_scale(wire):
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    largest = values.abs().max().item()
    torch.testing.assert_close(through(values, wire), values, rtol=0, atol=0.51 * largest / LEVELS[wire])


def test_zeros_stay_zeros_and_a_large_number_coarsens_only_its_block():
    values = torch.zeros(2 * BLOCK)
    values[0], values[BLOCK] = 1000.0, 0.01
    torch.testing.assert_close(through(values, "int4"), values, rtol=0.01, atol=0)
    assert through(torch.zeros(5), "int8").tolist() == [0.0] * 5


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_no_number_stays_none(wire, bad):
    values = torch.ones(BLOCK + 1)
    values[3] = bad
    back = through(values, wire)
    assert not back[:BLOCK].isfinite().all()
    assert back[BLOCK] == pytest.approx(1.0, rel=0.01)


def test_bytes_of_two_and_of_many():
    assert all_reduce_bytes(4000, 2) == 4000
    assert all_reduce_bytes(2000, 4) == 3000  # three quarters, twice
    assert all_gather_bytes(100, 3) == 200  # everybody's to everybody
    assert wire_bytes(2 * BLOCK, "int4") == BLOCK + 4
