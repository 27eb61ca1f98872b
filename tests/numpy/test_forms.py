"""Forms: programs are found again, and sizes that vary become dimensions and scalars."""

from __future__ import annotations

import numpy as np
import pytest

import taskc as tc
import taskc.numpy as tnp
from taskc.numpy import forms, segment

pytestmark = pytest.mark.usefixtures("noted")


@pytest.fixture(autouse=True)
def _counted() -> None:
    forms._forms.clear()
    forms.counts.clear()


def test_the_same_form_is_compiled_once() -> None:
    for _ in range(5):
        x = tc.array(np.ones(7))
        assert float((x * 2.5 + x).sum()) == 24.5
    for scale in (1.0, 2.0, 3.0):  # numbers are inputs
        assert float((tc.array(np.ones(7)) * scale + 1).sum()) == 7 * (scale + 1)
    assert forms.counts["compiled"] == 2


def test_many_lengths_are_few_compilations() -> None:
    for n in range(10, 40):
        x = tc.array(np.arange(float(n)))
        assert float((x[1:] * 2 + x[:-1]).sum()) == sum(2 * k + 2 + k for k in range(n - 1))
    assert forms.counts["compiled"] <= 3


def test_an_extent_of_one_is_another_form() -> None:
    for n, m in ((3, 3), (4, 4), (1, 4), (5, 5), (1, 6)):
        x, y = np.arange(float(n)), np.arange(float(m)) + 1
        assert np.array_equal(np.asarray(tc.array(x) * tc.array(y)), x * y)


def test_extents_that_dimensions_do_not_relate_are_constants() -> None:
    for n in (3, 5, 7):
        x = np.arange(4.0 * n)
        y = tc.array(x).reshape(4, n) + tc.array(np.ones((4, n)))
        assert np.array_equal(np.asarray(y), x.reshape(4, n) + 1)


def test_rows_of_a_loop_are_scalars() -> None:
    x, expected = tc.array(np.arange(120.0).reshape(40, 3)), np.arange(120.0).reshape(40, 3)
    for i in range(1, 40):
        x[i] = x[i - 1] * 0.5 + x[i]
        expected[i] = expected[i - 1] * 0.5 + expected[i]
    assert np.array_equal(np.asarray(x), expected)
    assert forms.counts["compiled"] <= 5


def test_triangular_parts() -> None:
    x, expected = tnp.ones((8, 8)), np.ones((8, 8))
    for module in (x, expected):
        for i in range(8):
            module[i, :i] += module[:i, i] * 2
    assert np.array_equal(np.asarray(x), expected)


def test_a_loop_ends_segments_at_its_body() -> None:
    segment.recent.clear()
    x = tc.array(np.ones(5))
    for _ in range(100):
        x = x * 0.5
        x = x + 1
    assert float(x[0]) == pytest.approx(2)
    counts = [count for reason, count, _, _ in segment.recent if reason == "loop"]
    assert len(set(counts)) == 1
    assert forms.counts["compiled"] <= 3


def test_memory_that_nobody_has_is_written_in_place() -> None:
    x = tc.array(np.ones(1000))
    x += 1
    memory = np.asarray(x).__array_interface__["data"][0]
    x[1:] = x[:-1] * 2
    assert np.asarray(x).__array_interface__["data"][0] == memory
    shared = np.asarray(x)
    x[1:] = 0
    assert np.asarray(x).__array_interface__["data"][0] != memory
    assert shared[5] == 4


def test_memory_is_given_back() -> None:
    import gc
    import weakref

    gone = []
    for n in range(50):
        x = tc.array(np.full(100, float(n)))
        y = x * 2
        y.tolist()
        gone.append(weakref.ref(y._value))
        del x, y
    gc.collect()
    assert sum(ref() is not None for ref in gone) <= 1
