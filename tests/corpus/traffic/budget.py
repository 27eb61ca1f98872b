"""Four stages of two operands are more than a block may have of shared memory."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=32)
def kernel(x: f32[32], y: tc.out[f32[32]]):  # expect: shared-memory
    a = tc.shared(f32[4, 128, 64])
    b = tc.shared(f32[4, 64, 128])  # fix: b = tc.shared(f32[3, 64, 128])
    w = tc.worker()
    a[3, 0, w] = x[w]
    b[2, 0, w] = x[w]
    y[w] = a[3, 0, w] + b[2, 0, w]
