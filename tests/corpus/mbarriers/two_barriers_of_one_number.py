"""Two pairs of warps use the barrier of one number, and meet each other instead."""

from __future__ import annotations

import taskc as tc
from taskc import f32, spatial


@tc.cuda.kernel(workers=128)
def kernel(x: f32[2, 32], y: tc.out[f32[2, 32]]):
    s = tc.shared(f32[2, 32])
    with tc.cuda.roles():
        with tc.cuda.role("first writer", warps=1):
            for i in spatial(32):
                s[0, i] = x[0, i]
            tc.cuda.barrier_named(1, 64)
        with tc.cuda.role("second writer", warps=1):
            for i in spatial(32):
                s[1, i] = x[1, i]
            tc.cuda.barrier_named(1, 64)
            # ^ fix: tc.cuda.barrier_named(2, 64)
        with tc.cuda.role("first reader", warps=1):
            tc.cuda.barrier_named(1, 64)  # expect: race
            for i in spatial(32):
                y[0, i] = s[0, 31 - i]  # expect: race
        with tc.cuda.role("second reader", warps=1):
            tc.cuda.barrier_named(1, 64)  # expect: race
            # ^ fix: tc.cuda.barrier_named(2, 64)
            for i in spatial(32):
                y[1, i] = s[1, 31 - i]  # expect: race
