"""A stencil replaces its own input: the neighbour's value may be the old one or the new one."""

from __future__ import annotations

import taskc as tc
from taskc import f32, spatial


@tc.kernel(workers=64)
def kernel(x: f32[64], y: tc.out[f32[64]]):
    old = tc.shared(f32[64])
    new = tc.shared(f32[64])
    for i in spatial(64):
        old[i] = x[i]
        new[i] = x[i]
    for i in spatial(64):
        old[i] = old[i] + old[(i + 1) % 64]  # expect: race  # proof: reads in the same phase
        # ^ fix: new[i] = old[i] + old[(i + 1) % 64]
    for i in spatial(64):
        y[i] = new[i] + old[i]
