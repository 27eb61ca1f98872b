"""Elements of other warps are read behind a barrier of the own warp."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=96)
def kernel(x: f32[96], y: tc.out[f32[96]]):
    s = tc.shared(f32[96])
    w = tc.worker()
    s[w] = x[w]
    tc.cuda.syncwarp()  # fix: tc.sync()
    y[w] = s[(w + 32) % 96]  # expect: race
