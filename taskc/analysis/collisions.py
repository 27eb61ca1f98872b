"""Collisions of different agents at one element, from each agent's indices at each of its places.

`prove` uses it for a phase's workers and for blocks, and needs an example; `synchronize` uses it for workers
between two barriers, and needs the distance of those that meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.int64]

_MOST_NUMBERS = 1 << 23  # most numbers that are used without compressing them to those that occur


def element_numbers(own: Sequence[Any], other: Sequence[Any]) -> tuple[Array, Array, int]:
    """A number for each element of two accesses, and the count of numbers; one array for each dimension."""
    first, second = np.zeros((), np.int64), np.zeros((), np.int64)
    for a, b in zip(own, other, strict=True):
        low = min(int(np.min(a)), int(np.min(b)))
        size = max(int(np.max(a)), int(np.max(b))) - low + 1
        first, second = first * size + (a - low), second * size + (b - low)
    count = max(int(first.max()), int(second.max())) + 1
    if count > _MOST_NUMBERS:
        both = np.concatenate((first.ravel(), second.ravel()))
        values, both = np.unique(both, return_inverse=True)
        first = both[: first.size].reshape(first.shape)
        second, count = both[first.size :].reshape(second.shape), values.size
    return first, second, count


def extremes(keys: Array, agents: Array, count: int) -> tuple[Array, Array]:
    """For every element's number the lowest and the highest agent; -1 if there is none."""
    keys, numbers = (array.ravel() for array in np.broadcast_arrays(keys, agents))
    if (numbers[1:] < numbers[:-1]).any():
        order = np.argsort(numbers, kind="stable")
        keys, numbers = keys[order], numbers[order]
    lowest, highest = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    highest[keys] = numbers  # they ascend, and the last assignment stays
    lowest[keys[::-1]] = numbers[::-1]
    return lowest, highest


def example(
    keys: Array, agents: Array, keys_too: Array, agents_too: Array, count: int
) -> tuple[int, int] | None:
    """Places in the first and the second access where different agents touch one element, or None."""
    # If neither the lowest nor the highest agent differs, none does.
    for other in extremes(keys, agents, count):
        met = other[keys_too]
        different = (met >= 0) & (met != agents_too)
        if different.any():
            there = int(np.argmax(different))
            here = (keys == keys_too[there]) & (agents != agents_too[there])
            return int(np.argmax(here)), there
    return None
