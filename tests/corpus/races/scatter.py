"""Rows are scattered to wherever a table says, and it may name a row twice."""

from __future__ import annotations

import numpy as np

import taskc as tc
from taskc import f32, i64, spatial


def arguments(random):
    return random.standard_normal(16, np.float32), np.arange(16) // 2, np.zeros(16, np.float32)


@tc.kernel(workers=16, example=arguments)
def kernel(x: f32[16], to: i64[16], y: tc.inout[f32[16]]):
    for i in spatial(16):
        assert 0 <= to[i] < 16, "a row"
        y[to[i]] = x[i]  # expect: race  # proof: can't prove  # fix: tc.atomic_add(y[to[i]], x[i])
