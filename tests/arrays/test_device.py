"""Whether arrays overlap: those of NumPy exactly, those on a device by the memory that they reach over."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from taskc.arrays.device import is_placed, is_read_only, overlap, start_of

MEMORY = np.zeros((6, 8), np.float32)
VIEWS = [
    MEMORY,
    MEMORY[:2],
    MEMORY[2:],
    MEMORY[::2],
    MEMORY[1::2],
    MEMORY[:, ::2],
    MEMORY[:, 1::2],
    MEMORY[3, 4:],
    MEMORY[3:4, :4],
    MEMORY[::-1],
    MEMORY[1, 6:1:-2],
    MEMORY[4:4],
    MEMORY.T[2:4],
    np.zeros(4, np.float32),
]


@dataclass
class OnDevice:
    """The same view, as if its memory were a device's."""

    array: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.array, name)

    @property
    def pointer(self) -> int:
        return int(self.array.ctypes.data)


def addresses(array: Any) -> set[int]:
    return {
        _address(array, place) + byte
        for place in np.ndindex(array.shape)
        for byte in range(array.itemsize)
    }


def _address(array: Any, place: tuple[int, ...]) -> int:
    steps = zip(place, array.strides, strict=True)
    return int(array.ctypes.data) + sum(i * step for i, step in steps)


def test_overlap() -> None:
    for a, b in product(VIEWS, VIEWS):
        mine, theirs = addresses(a), addresses(b)
        assert overlap(a, b) == bool(mine & theirs)
        on_device = overlap(OnDevice(a), OnDevice(b))  # type: ignore[arg-type]
        if not mine or not theirs:
            assert not on_device
        else:
            assert on_device == (min(mine) <= max(theirs) and min(theirs) <= max(mine))


def test_a_test_that_would_take_too_long_says_yes() -> None:
    memory = np.zeros(10_000, np.uint8)
    shape, one, other = (3,) * 5, (2, 6, 18, 54, 162), (3, 7, 19, 55, 163)
    a, b = (
        np.lib.stride_tricks.as_strided(memory[at:], shape, steps)
        for at, steps in ((0, one), (1, other))
    )
    assert overlap(a, b)


def test_how_an_array_lies() -> None:
    assert is_placed(MEMORY)
    assert not is_placed(MEMORY[:, ::2])
    assert start_of(MEMORY[1:]) == start_of(MEMORY) + 32
    frozen = MEMORY.copy()
    frozen.flags.writeable = False
    assert is_read_only(frozen)
    assert not is_read_only(MEMORY)
