"""An assertion about the data fails: the offsets are not ascending."""

from __future__ import annotations

import numpy as np

import taskc as tc
from taskc import i32, spatial


def arguments(random):
    return np.array([0, 3, 5, 4, 9, 12, 12, 20, 21], np.int32)


@tc.kernel(workers=8, example=arguments)
def kernel(offsets: i32[9], y: tc.out[i32[8]]):
    for i in spatial(8):
        assert offsets[i] <= offsets[i + 1], "offsets ascend"  # expect: assertion
        # ^ fix: assert offsets[i] <= offsets[i + 1] + 1, "offsets ascend"
        y[i] = offsets[i + 1] - offsets[i]
