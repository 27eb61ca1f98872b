"""Intervals hold every value of what is computed on them, and no more where they are finite."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from taskc.ir.linear import EVERYTHING, Interval, range_of
from taskc.ir.types import boolean, i8, u16

_ENDS = (None, -4, -1, 0, 2, 5)
INTERVALS = [
    Interval(low, high)
    for low, high in product(_ENDS, _ENDS)
    if low is None or high is None or low <= high
]
_FAR = 12  # stands for what is beyond every end


def some(interval: Interval) -> range:
    low = -_FAR if interval.low is None else interval.low
    return range(low, (_FAR if interval.high is None else interval.high) + 1)


def holds(interval: Interval, value: int) -> bool:
    low, high = interval
    return (low is None or low <= value) and (high is None or value <= high)


def is_finite(interval: Interval) -> bool:
    return None not in interval


@pytest.mark.parametrize(
    ("of_intervals", "of_numbers"),
    [
        (Interval.minimum, min),
        (Interval.maximum, max),
        (Interval.times, lambda x, y: x * y),
    ],
)
def test_of_two(
    of_intervals: Callable[[Interval, Interval], Interval],
    of_numbers: Callable[[int, int], int],
) -> None:
    for one, other in product(INTERVALS, INTERVALS):
        found = of_intervals(one, other)
        values = [of_numbers(x, y) for x in some(one) for y in some(other)]
        assert all(holds(found, value) for value in values), (one, other)
        if is_finite(one) and is_finite(other):
            assert found == Interval(min(values), max(values))


@pytest.mark.parametrize("number", [-3, -1, 0, 1, 4])
def test_scaled(number: int) -> None:
    for one in INTERVALS:
        values = [number * x for x in some(one)]
        found = one.scaled(number)
        assert all(holds(found, value) for value in values)
        assert is_finite(found) == (is_finite(one) or not number)


@pytest.mark.parametrize("divisor", [1, 2, 3, 7])
def test_quotients_and_remainders(divisor: int) -> None:
    for one in INTERVALS:
        quotients, remainders = one.floor_divided(divisor), one.modulo(divisor)
        for value in some(one):
            assert holds(quotients, value // divisor)
            assert holds(remainders, value % divisor)
        if is_finite(one):
            found = {x // divisor for x in some(one)}
            assert quotients == Interval(min(found), max(found))
        assert Interval(0, divisor - 1).join(remainders) == Interval(0, divisor - 1)


def test_absolute() -> None:
    for one in INTERVALS:
        values = [abs(x) for x in some(one)]
        assert all(holds(one.absolute(), value) for value in values)
        if is_finite(one):
            assert one.absolute().high == max(values)


def test_meet_join_and_inside() -> None:
    for one, other in product(INTERVALS, INTERVALS):
        both = [x for x in range(-_FAR, _FAR + 1) if holds(one, x) and holds(other, x)]
        assert both == [x for x in range(-_FAR, _FAR + 1) if holds(one.meet(other), x)]
        around = one.join(other)
        assert one.meet(around) == one
        assert other.meet(around) == other
        if is_finite(one):
            assert one.inside(other) == (one.meet(other) == one)
        else:
            assert not one.inside(other)


def test_types_and_what_is_wide() -> None:
    assert (range_of(i8), range_of(u16)) == (Interval(-128, 127), Interval(0, 65535))
    assert range_of(boolean) == Interval(0, 1)
    assert not EVERYTHING.is_wide
    assert Interval(0, 1 << 62).is_wide
    assert Interval(-1 << 62, None).is_wide
    assert not Interval(1 - (1 << 62), (1 << 62) - 1).is_wide
    assert str(Interval(None, 3)) == "[-inf, 3]"
