"""The two warps of a role share a buffer without a barrier of the role."""

from __future__ import annotations

import taskc as tc
from taskc import f32, spatial


@tc.cuda.kernel(workers=96)
def kernel(x: f32[64], y: tc.out[f32[96]]):
    s = tc.shared(f32[64])
    with tc.cuda.roles():
        with tc.cuda.role("pair", warps=2):
            for i in spatial(64):
                s[i] = x[i]  # expect: race
            # fix: tc.cuda.syncrole()
            for i in spatial(64):
                y[i] = s[63 - i]  # expect: race  # expect: uninitialized
        with tc.cuda.role("single", warps=1):
            for i in spatial(32):
                y[64 + i] = x[i]
