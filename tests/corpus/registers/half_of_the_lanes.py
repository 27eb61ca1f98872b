"""Half of each warp gives registers up, which whole warpgroups do."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=128)
def kernel(x: f32[128], y: tc.out[f32[128]]):
    w = tc.worker()
    if w % 32 < 16:  # fix: if w < 128:
        tc.cuda.setmaxnreg(104)  # expect: inactive-lane
    y[w] = x[w]
