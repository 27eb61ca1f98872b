"""Intervals of integers, and their arithmetic.

A bound of None is infinite. It stands for index arithmetic on sizes that are known only at the
call: such numbers count elements or iterations, so they are taken never to reach 2**63.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from taskc.ir.types import DType


class Interval(NamedTuple):
    """The integers from `low` to `high`, both included."""

    low: int | None
    high: int | None

    def __str__(self) -> str:
        low = "-inf" if self.low is None else self.low
        high = "inf" if self.high is None else self.high
        return f"[{low}, {high}]"

    @property
    def is_wide(self) -> bool:
        """Whether adding another such number might overflow 64 bits; sizes never do."""
        low, high = self
        return (high is not None and high >= _WIDE) or (low is not None and low <= -_WIDE)

    def inside(self, other: Interval) -> bool:
        """Whether this interval is finite and within the other."""
        if self.low is None or self.high is None:
            return False
        return (other.low is None or other.low <= self.low) and (
            other.high is None or self.high <= other.high
        )

    def meet(self, other: Interval) -> Interval:
        """The intersection."""
        return Interval(_tighter(max, self.low, other.low), _tighter(min, self.high, other.high))

    def join(self, other: Interval) -> Interval:
        """The smallest interval that contains both."""
        low = None if self.low is None or other.low is None else min(self.low, other.low)
        high = None if self.high is None or other.high is None else max(self.high, other.high)
        return Interval(low, high)

    def minimum(self, other: Interval) -> Interval:
        """The interval of min(x, y) for x and y in the two."""
        low = None if self.low is None or other.low is None else min(self.low, other.low)
        return Interval(low, _tighter(min, self.high, other.high))

    def maximum(self, other: Interval) -> Interval:
        high = None if self.high is None or other.high is None else max(self.high, other.high)
        return Interval(_tighter(max, self.low, other.low), high)

    def scaled(self, factor: int) -> Interval:
        low = None if self.low is None else self.low * factor
        high = None if self.high is None else self.high * factor
        if factor == 0:
            return Interval(0, 0)
        return Interval(low, high) if factor > 0 else Interval(high, low)

    def times(self, other: Interval) -> Interval:
        a, b = self.low, self.high
        c, d = other.low, other.high
        if a is not None and b is not None and c is not None and d is not None:
            products = (a * c, a * d, b * c, b * d)
            return Interval(min(products), max(products))
        if a is not None and a >= 0 and c is not None and c >= 0:
            return Interval(a * c, None)
        return EVERYTHING

    def floor_divided(self, divisor: int) -> Interval:
        """The interval of x // divisor, for a positive divisor."""
        low = None if self.low is None else self.low // divisor
        high = None if self.high is None else self.high // divisor
        return Interval(low, high)

    def modulo(self, divisor: int) -> Interval:
        """The interval of x % divisor, for a positive divisor."""
        low, high = self
        if low is not None and high is not None and low // divisor == high // divisor:
            return Interval(low % divisor, high % divisor)
        return Interval(0, divisor - 1)

    def absolute(self) -> Interval:
        low, high = self
        if low is not None and low >= 0:
            return self
        if high is not None and high <= 0:
            return self.scaled(-1)
        return Interval(0, None if low is None or high is None else max(-low, high))


EVERYTHING = Interval(None, None)
NATURAL = Interval(0, None)


def range_of(dtype: DType) -> Interval:
    """The values of an integer type; a bool counts as 0 and 1."""
    interval = _RANGES.get(dtype)
    if interval is None:
        interval = _RANGES[dtype] = Interval(int(dtype.minimum), int(dtype.maximum))
    return interval


def _tighter(pick: Callable[[int, int], int], a: int | None, b: int | None) -> int | None:
    if a is None:
        return b
    return a if b is None else pick(a, b)


_WIDE = 1 << 62
_RANGES: dict[DType, Interval] = {}
