"""Templates of the library on extreme shapes, against NumPy, with outputs between canaries."""

from __future__ import annotations

from unittest import mock

import numpy as np

import taskc as tc
from tests.abuse.calls import CANARIES, between
from tests.kernels import random_problems

_EXTREME = (0, 0, 1, 1, 1, 2, 3, 5, 17, 31, 33, 127, 255, 257, 509)
TIMES = 10


def run_problem(number: int) -> int:
    """A random problem, called several times with its output at several places."""
    few = tuple(n for n in _EXTREME if n <= 33)
    with mock.patch.multiple(random_problems, EXTENTS=_EXTREME, FEW=few):
        made = random_problems.problem(number, tc.machine())
    result = made.definition(*made.arguments)
    for time in range(TIMES):
        first = time % 3 * result.dtype.itemsize
        out, room = between(np.zeros(result.size, result.dtype), first)
        made.definition(*made.arguments, out=out.reshape(result.shape))
        start = CANARIES + first
        around = np.concatenate([room[:start], room[start + out.nbytes :]])
        assert (around == 0xA5).all(), f"bytes around the output are written: {made.text}"
        assert out.tobytes() == result.tobytes(), f"not the same bits again: {made.text}"
    error = np.abs(result.astype(np.float64) - made.expected)
    assert result.shape == made.expected.shape, made.text
    assert (error <= made.bound).all() or np.isnan(made.expected).any(), (
        f"{made.text}: {error.max()}"
    )
    return TIMES
