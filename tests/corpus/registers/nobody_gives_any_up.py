"""Two warpgroups take registers, and the third one keeps its own."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=384)
def kernel(x: f32[384], y: tc.out[f32[384]]):
    w = tc.worker()
    with tc.cuda.roles():
        with tc.cuda.role("consumer", warps=8):
            tc.cuda.setmaxnreg(240)  # expect: deadlock
            y[w] = x[w]
        with tc.cuda.role("producer", warps=4):
            tc.cuda.setmaxnreg(168)  # fix: tc.cuda.setmaxnreg(24)
            y[w] = x[w]
