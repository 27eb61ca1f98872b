"""Arrays: values as NumPy's, views that write through, protocols, and where a segment ends."""

from __future__ import annotations

import copy
import math
import pickle
import threading
from typing import Any

import numpy as np
import pytest

import taskc as tc
import taskc.numpy as tnp
from taskc.numpy import segment
from taskc.numpy.array import Array, View
from tests.numpy.programs import run

pytestmark = pytest.mark.usefixtures("either")


def matrix() -> Array:
    return tc.array(np.arange(12.0).reshape(3, 4))


def reasons() -> list[str]:
    return [reason for reason, *_ in segment.recent]


@pytest.mark.parametrize("seed", range(8))
def test_a_random_program_is_numpys(seed: int) -> None:
    run(seed, 12)


def test_nothing_runs_before_a_value_is_needed(noted: None) -> None:
    segment.recent.clear()
    x = matrix()
    y = (x + 1) * 2
    assert y.shape == (3, 4)
    assert y.dtype == np.float64
    assert reasons() == []
    assert float(y[0, 1]) == 4.0
    assert reasons() == ["float"]


def test_a_view_is_written_through() -> None:
    x = matrix()
    row, turned = x[1:], x.T
    row += 10
    turned[0] = 7
    x[0, 0] = 1
    assert np.array_equal(np.asarray(row), [[7, 15, 16, 17], [7, 19, 20, 21]])
    assert np.asarray(turned)[:, 0].tolist() == [1, 1, 2, 3]


def test_an_old_value_stays_after_an_update() -> None:
    x = matrix()
    before, shared = x.copy(), np.asarray(x)
    doubled = x * 2
    x[:] = 0
    x[1, 1] = 5
    assert float(before[2, 3]) == 11
    assert shared[2, 3] == 11
    assert float(doubled[2, 3]) == 22
    assert float(x.sum()) == 5


def test_memory_from_elsewhere_is_copied() -> None:
    given = np.ones(4)
    x = tc.array(given)
    y = x + given
    given[:] = 5
    assert np.asarray(y).tolist() == [2, 2, 2, 2]


def test_a_value_handed_out_is_read_only() -> None:
    x = matrix() + 1
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(x)[0, 0] = 1
    assert np.array(x).flags.writeable


def test_numbers_are_weak_as_in_numpy() -> None:
    x = tc.array(np.ones(3, np.float32))
    assert (x + 1.5).dtype == np.float32
    assert (x + np.float64(1.5)).dtype == np.float64
    with pytest.raises(OverflowError):
        tc.array(np.ones(3, np.uint8)) + 300


def test_numpys_functions_take_arrays() -> None:
    x = matrix()
    assert isinstance(np.sin(x), Array)
    assert isinstance(np.ones(4) + x, Array)
    assert isinstance(np.linalg.inv(tnp.eye(2)), Array)
    assert float(np.add.reduce(x, axis=None)) == 66
    out = np.zeros((3, 4))
    np.add(x, 1, out=out)
    assert out[0, 0] == 1


def test_out_of_our_functions_is_written() -> None:
    x, out = matrix(), tnp.zeros((3, 4))
    assert tnp.multiply(x, 2, out=out) is out
    assert float(out[2, 3]) == 22
    with pytest.raises(TypeError, match="same_kind"):
        tnp.add(x, 1.5, out=tnp.zeros((3, 4), np.int32))


@pytest.mark.parametrize("key", [3, (0, 4), (0, 0, 0), [0, 3], (slice(None), [4])])
def test_an_index_out_of_bounds(key: Any) -> None:
    with pytest.raises(IndexError):
        matrix()[key]


def test_a_computed_index_is_checked_when_it_runs(noted: None) -> None:
    places = tc.array(np.array([0, 2])) + 1
    chosen = matrix()[places]  # this line
    for _ in range(2):
        with pytest.raises(IndexError, match=r"test_array.py:\d+: chosen = matrix"):
            chosen.tolist()


@pytest.mark.parametrize("shape", [(2, 3), (5,)])
def test_shapes_that_do_not_broadcast(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="broadcast"):
        matrix() + tnp.ones(shape)
    with pytest.raises(ValueError, match="broadcast"):
        matrix()[:] = tnp.ones(shape)


def test_what_has_no_row_is_numpys(noted: None) -> None:
    x = tc.array(np.array([3.0, 1.0, 2.0]))
    segment.recent.clear()
    assert np.asarray(np.sort(x + 0)).tolist() == [1, 2, 3]
    assert reasons() == ["NumPy"]
    whole = tc.array(np.array([1 + 2j]))
    assert complex((whole * 2)[0]) == 2 + 4j
    x.sort()
    assert x.tolist() == [1, 2, 3]


def test_complex_numbers_are_numpys() -> None:
    results = []
    for module in (np, tnp):
        z: Any = module.array(np.arange(6.0).reshape(2, 3) * (1 + 1j))
        part, turned = z[:, 1:], z.T
        part *= 1j
        turned[0] = 5
        z[1, 2] += z[0, 1]
        z.reshape(-1)[3:5] = turned[1]
        total = (z.copy()[1] * np.conj(part[0, 0])).sum() + module.exp(z[0, 0] * 0)
        results.append([*np.asarray(z).ravel().tolist(), complex(total)])
    assert results[0] == results[1]


def test_masks() -> None:
    x = matrix() + 0
    assert np.asarray(x[x > 9]).tolist() == [10, 11]
    x[x > 5] = 0
    assert float(x.sum()) == 15
    x[x == 0] = np.arange(7.0)
    assert float(x.sum()) == 36


def test_copies_and_pickles() -> None:
    x = matrix() + 1
    for other in (copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        other[0, 0] = 100
        assert float(x[0, 0]) == 1


def test_dlpack_and_the_namespace() -> None:
    x = matrix() + 1
    assert np.from_dlpack(x)[0, 0] == 1
    assert x.__array_namespace__() is tnp
    assert x.__dlpack_device__() == (1, 0)


def test_another_thread_reads_what_this_one_noted() -> None:
    x, values = matrix() * 3, []
    thread = threading.Thread(target=lambda: values.append(float((x + 1)[2, 3])))
    thread.start()
    thread.join()
    assert values == [34.0]
    assert float(x[0, 1]) == 3


def test_a_view_of_a_view() -> None:
    x = matrix()
    part = x[1:].T[::-1].reshape(4, 2)[1]
    expected = np.arange(12.0).reshape(3, 4)
    other = expected[1:].T[::-1].reshape(4, 2)[1]
    part *= 2
    other *= 2
    assert isinstance(part, View)
    assert np.array_equal(np.asarray(x), expected)


def test_scalars_are_values() -> None:
    x = matrix()
    first = total = x.sum()
    total += 1
    assert float(first) == 66
    assert float(total) == 67
    assert f"{first:.1f} {int(first)} {first}" == "66.0 66 66.0"
    assert [10, 20, 30][tc.array(1)] == 20
    assert math.sqrt(tc.array(4.0)) == 2
