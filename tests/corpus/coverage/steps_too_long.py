"""A loop of steps of five stores four elements a step."""

from __future__ import annotations

import taskc as tc
from taskc import f32, spatial


@tc.kernel(workers=4)
def kernel(x: f32[40], y: tc.out[f32[40]]):  # expect: not-written
    for p in range(0, 40, 5):  # fix: for p in range(0, 40, 4):
        for i in spatial(4):
            y[p + i] = x[p + i]  # proof: never stored
