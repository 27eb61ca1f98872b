"""tc.jit: one noting per path, replays without Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc.numpy.array import Array
from taskc.numpy.segment import recorders


def test_a_function_is_noted_once() -> None:
    def noted() -> None:
        noted.times += 1  # type: ignore[attr-defined]

    noted.times = 0  # type: ignore[attr-defined]

    @tc.jit
    def scaled(x: Any, y: Any, factor: float = 2.0) -> Any:
        noted()
        return {"z": (x + y) * factor, "parts": [x - y, None, 3]}

    for start in range(3):
        x = np.arange(4.0) + start
        result = scaled(tc.array(x), x)
        assert np.array_equal(result["z"], 4 * x)
        assert np.array_equal(result["parts"][0], 0 * x)
        assert result["parts"][1:] == [None, 3]
    assert noted.times == 1  # type: ignore[attr-defined]
    scaled(np.ones(5), np.ones(5))
    scaled(np.ones(4), np.ones(4), factor=3.0)
    scaled(np.ones(4, np.float32), np.ones(4, np.float32))
    assert noted.times == 4  # type: ignore[attr-defined]


def test_each_outcome_is_a_path() -> None:
    def noted() -> None:
        noted.times += 1  # type: ignore[attr-defined]

    noted.times = 0  # type: ignore[attr-defined]

    @tc.jit
    def folded(x: Any) -> Any:
        noted()
        if x.sum() > 0:
            x = x * 2
        count = int(x.max())
        for _ in range(count):
            x = x + 1
        return x

    for values in ([1.0, 1.0], [-1.0, -2.0], [2.0, -1.0], [1.0, 1.0], [-1.0, -2.0], [0.5, 1.0]):
        x = np.array(values)
        expected = x * 2 if x.sum() > 0 else x
        for _ in range(int(expected.max())):
            expected = expected + 1
        assert np.array_equal(folded(tc.array(x)), expected)
    assert noted.times == 3  # type: ignore[attr-defined]


def test_updates_of_arguments_reach_the_caller() -> None:
    @tc.jit
    def update(x: Any) -> Any:
        x[1:] += x[:-1]
        return x.sum()

    for given in (tc.array(np.ones(4)), np.ones(4)):
        for expected in ([1, 2, 2, 2], [1, 3, 4, 4]):
            total = update(given)
            assert np.asarray(given).tolist() == expected
            assert float(total) == sum(expected)


def test_an_array_that_is_passed_twice_is_another_key() -> None:
    @tc.jit
    def update(x: Any, y: Any) -> Any:
        x += 1
        return x + y

    a, b = np.ones(2), np.full(2, 10.0)
    for x, y, expected in ((a, a, 4), (a, b, 13), (b, b, 22), (b, a, 15), (a, b, 16)):
        assert np.asarray(update(x, y)).tolist() == [expected] * 2


def test_closed_over_values_are_part_of_the_key() -> None:
    factor = 2.0

    @tc.jit
    def scaled(x: Any) -> Any:
        return x * factor

    assert np.asarray(scaled(np.ones(2))).tolist() == [2, 2]
    factor = 3.0
    assert np.asarray(scaled(np.ones(2))).tolist() == [3, 3]


def test_an_array_made_inside_is_new_at_each_call() -> None:
    @tc.jit
    def filled(x: Any) -> Any:
        y = tc.array(np.zeros(3))
        y[1:] = x
        return y

    first = filled(np.ones(2))
    first[0] = 9
    second = filled(np.full(2, 5.0))
    assert np.asarray(first).tolist() == [9, 1, 1]
    assert np.asarray(second).tolist() == [0, 5, 5]


@pytest.mark.parametrize(
    "needs", [lambda x: str(x), lambda x: np.asarray(x).sum(), lambda x: np.sort(x)]
)
def test_what_needs_values_otherwise_runs_each_time(needs: Any) -> None:
    seen: list[Any] = []

    @tc.jit
    def shown(x: Any) -> Any:
        y = x + 1
        seen.append(str(needs(y)))
        return y * 2

    for start in range(3):
        assert np.asarray(shown(np.full(2, float(start)))).tolist() == [2 * start + 2] * 2
    assert len(set(seen)) == 3


def test_errors_and_arguments_without_hash() -> None:
    @tc.jit
    def of(x: Any, options: Any) -> Any:
        if options.get("wrong"):
            raise KeyError("wrong")
        return x + options["add"]

    assert np.asarray(of(np.ones(1), {"add": 1})).tolist() == [2]
    with pytest.raises(KeyError):
        of(np.ones(1), {"wrong": 1})

    @tc.jit
    def fails(x: Any) -> Any:
        raise KeyError("late")

    for _ in range(2):
        with pytest.raises(KeyError):
            fails(np.ones(1))
    assert isinstance(tc.array([1.0]) + 1, Array)
    assert not recorders
