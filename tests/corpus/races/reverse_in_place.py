"""Each pair of elements is swapped twice, by two workers at once."""

from __future__ import annotations

import taskc as tc
from taskc import f32, spatial


@tc.kernel(workers=64)
def kernel(y: tc.inout[f32[64]]):
    for i in spatial(64):
        if i < 64:  # fix: if i < 32:
            left = y[i]
            right = y[63 - i]
            y[i] = right  # expect: race  # proof: in the same phase
            y[63 - i] = left  # expect: race
