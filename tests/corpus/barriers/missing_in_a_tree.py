"""A sum in shared memory as a tree, whose levels aren't kept apart."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=128)
def kernel(x: f32[128], y: tc.out[f32[1]]):
    s = tc.shared(f32[128])
    w = tc.worker()
    s[w] = x[w]
    tc.sync()
    for level in range(7):
        distance = 64 >> level
        if w < distance:
            s[w] += s[w + distance]  # expect: race
        # fix: tc.sync()
    if w == 0:
        y[0] = s[0]
