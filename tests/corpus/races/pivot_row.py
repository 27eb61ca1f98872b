"""Elimination changes the pivot too, while the others divide by it."""

from __future__ import annotations

import taskc as tc
from taskc import f32, spatial


@tc.kernel(workers=8)
def kernel(x: f32[8], y: tc.out[f32[8]]):
    s = tc.shared(f32[8])
    for i in spatial(8):
        s[i] = x[i]
    for p in range(8):
        for i in spatial(8):
            if i >= p:  # fix: if i > p:
                s[i] = s[i] - s[p]  # expect: race  # proof: reads in the same phase
    for i in spatial(8):
        y[i] = s[i]
