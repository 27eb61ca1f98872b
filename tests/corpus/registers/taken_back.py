"""A warpgroup wants back some of what it has given up, by the instruction that gives up."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=512)
def kernel(x: f32[512], y: tc.out[f32[512]]):
    w = tc.worker()
    if w < 128:
        tc.cuda.setmaxnreg(24)
        tc.cuda.setmaxnreg(104)  # expect: registers  # fix: tc.cuda.setmaxnreg(24)
    y[w] = x[w]
