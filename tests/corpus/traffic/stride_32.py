"""A worker for each row: each of its neighbours reads from another line of memory."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=32)
def kernel(x: f32[32, 32], y: tc.out[f32[32]]):
    w = tc.worker()
    total = f32(0)
    for t in range(32):
        total += x[w, t]  # expect: uncoalesced  # fix: total += x[t, w]
    y[w] = total
