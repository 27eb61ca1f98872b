"""Operations on small known values are NumPy's at once; large ones, and those that read waiting values, are noted."""

from __future__ import annotations

import numpy as np
import pytest

import taskc as tc
from taskc.numpy import segment
from taskc.numpy.array import SMALL
from tests.numpy.programs import run

MOSTLY_SMALL = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, as without taskc


@MOSTLY_SMALL
def test_random_programs_are_numpys() -> None:
    for seed in range(100, 400):
        run(seed, 60)


@MOSTLY_SMALL
@pytest.mark.sweep
@pytest.mark.parametrize("hundred", range(10, 110))
def test_more_random_programs_are_numpys(hundred: int) -> None:
    for seed in range(100 * hundred, 100 * hundred + 100):
        run(seed, 60)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(1000, 1400))
def test_a_random_program_that_is_noted_is_numpys(seed: int, noted: None) -> None:
    run(seed, 60)


def test_small_operations_run_at_once() -> None:
    segment.recent.clear()
    x = tc.array(np.arange(12.0).reshape(3, 4))
    x[1, 2] = x[0, 1] + x[1, 1]
    x[0] += x[2, :3] @ x
    assert isinstance(x[1, 2], np.float64)
    assert isinstance(x.sum(), np.float64)
    assert x.tolist() == [[116, 144, 172, 200], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert not segment.recent
    assert not segment.here.segment.operations


def test_large_operations_are_noted() -> None:
    segment.recent.clear()
    x = tc.array(np.ones(SMALL + 1))
    total = (x * 2).sum() + 1  # reads a value that waits
    assert not segment.recent
    assert float(total) == 2 * SMALL + 3
    outer = np.add.outer(tc.array(np.arange(100.0)), tc.array(np.arange(100.0)))
    assert outer._value is None  # small operands, and a large result
    assert np.array_equal(np.asarray(outer), np.add.outer(np.arange(100.0), np.arange(100.0)))


def test_a_loop_over_small_values_that_waited_is_noted_once() -> None:
    segment.recent.clear()
    x = tc.array(np.ones(SMALL + 1))
    small = (x[:3] + x.sum()) * 0
    for _ in range(200):
        small = small + 1
        small[0] = 0
    assert small.tolist() == [0, 200, 200]
    assert len(segment.recent) <= 2


def test_memory_that_others_see_is_not_written() -> None:
    x = tc.array(np.zeros((3, 3)))
    shared, copied, row = np.asarray(x), x.copy(), x[0]
    x += 1
    row[1:] = 7
    assert shared.sum() == 0
    assert copied.tolist() == [[0, 0, 0]] * 3
    assert x.tolist() == [[1, 7, 7], [1, 1, 1], [1, 1, 1]]
    large = tc.array(np.zeros(SMALL + 1))
    waiting = large + 1
    large[0] = 5
    assert float(waiting[0]) == 1
    assert float(large[0]) == 5


def test_values_column_by_column_are_rearranged() -> None:
    x = tc.array(np.arange(6.0).reshape(2, 3))
    y = x.T + 1
    flat = y.reshape(-1)
    flat[1] = 50
    assert y[0, 1] == 50


def test_at_adds_again_and_again() -> None:
    x = tc.array(np.zeros(4))
    np.add.at(x, [1, 1], 2)
    assert x.tolist() == [0, 4, 0, 0]
