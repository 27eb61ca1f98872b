"""The predicate asks for the first of four elements, and the last two aren't there."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=32)
def kernel(x: f32[126], y: tc.out[f32[32]]):
    s = tc.shared(f32[128])
    w = tc.worker()
    tc.cuda.cp_async(s[4 * w], x[4 * w], 4, 4 * w < 126)  # expect: out-of-bounds
    # ^ fix: tc.cuda.cp_async(s[4 * w], x[4 * w], 4, 4 * w + 3 < 126)
    tc.cuda.cp_async_commit()
    tc.cuda.cp_async_wait(0)
    y[w] = s[4 * w]
