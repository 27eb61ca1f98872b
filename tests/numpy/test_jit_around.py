"""Functions under `tc.jit` see the values around them as they are at each call."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc.numpy import array

SIZES = (3, 10_000)
factor = array(np.full(3, 2.0, np.float32))


def ones(n: int) -> Any:
    return array(np.ones(n, np.float32))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("of_numpy", [False, True])
def test_an_array_that_is_updated_in_place(n: int, of_numpy: bool) -> None:
    a: Any = np.ones(n, np.float32) if of_numpy else ones(n)

    @tc.jit
    def shifted(x: Any) -> Any:
        return x + a

    x = ones(n)
    assert float(shifted(x)[0]) == 2
    a[0] = 5
    assert [float(value) for value in shifted(x)[:2]] == [6, 2]
    a += 1
    assert [float(value) for value in shifted(x)[:2]] == [7, 3]


@pytest.mark.parametrize("n", SIZES)
def test_an_array_that_the_function_updates(n: int) -> None:
    total = ones(n)
    runs = []

    @tc.jit
    def add(x: Any) -> Any:
        nonlocal total
        total += x
        return total * 2

    for count in range(1, 4):
        runs.append(float(add(ones(n))[0]))
        assert float(total[0]) == 1 + count
    assert runs == [4, 6, 8]


def test_a_global_array_and_a_function_beside() -> None:
    scaled = tc.jit(_scaled)
    x = ones(3)
    assert float(scaled(x)[0]) == 2
    factor[0] = 7
    assert float(scaled(x)[0]) == 7
    factor[0] = 2


def _scaled(x: Any) -> Any:
    return _by_factor(x)


def _by_factor(x: Any) -> Any:
    return x * factor


def test_a_global_in_a_generator() -> None:
    @tc.jit
    def scaled(x: Any) -> Any:
        return sum(part * factor for part in (x, x))

    x = ones(3)
    assert float(scaled(x)[0]) == 4
    factor[0] = 7
    assert float(scaled(x)[0]) == 14
    factor[0] = 2


def test_names_that_are_bound_anew() -> None:
    total, runs = ones(3), 0

    def count() -> None:
        nonlocal runs
        runs += 1

    @tc.jit
    def add(x: Any) -> Any:
        nonlocal total
        total = total + x
        return total * 2

    @tc.jit
    def counted(x: Any) -> Any:
        count()
        return x * 2

    for number in range(1, 4):
        assert float(add(ones(3))[0]) == 2 * float(total[0]) == 2 * (number + 1)
        assert float(counted(ones(3))[0]) == 2
        assert runs == number


def test_lists_and_objects() -> None:
    steps, settings = [1.0], SimpleNamespace(rate=1.0)

    @tc.jit
    def moved(x: Any) -> Any:
        return x + steps[0] + settings.rate

    @tc.jit
    def moved_by(x: Any, item: Any) -> Any:
        return x + item.rate

    class Item:
        rate = 1.0

    x, item = ones(3), Item()
    assert float(moved(x)[0]) == 3
    assert float(moved_by(x, item)[0]) == 2
    steps[0], settings.rate, item.rate = 2.0, 4.0, 8.0
    assert float(moved(x)[0]) == 7
    assert float(moved_by(x, item)[0]) == 9


def test_the_order_of_arguments() -> None:
    @tc.jit
    def less(a: Any, b: Any) -> Any:
        return a - b

    assert float(less(ones(3), 3)[0]) == -2
    assert float(less(3, ones(3))[0]) == 2


def test_an_array_that_is_an_argument_too() -> None:
    a = ones(3)

    @tc.jit
    def doubled(x: Any) -> Any:
        x += 1
        return x + a

    for expected in (4, 6):
        assert float(doubled(a)[0]) == expected
