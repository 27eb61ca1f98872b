"""The real parts of interleaved complex numbers: half of what is fetched isn't used."""

from __future__ import annotations

import taskc as tc
from taskc import f32


@tc.cuda.kernel(workers=32)
def kernel(x: f32[64], y: tc.out[f32[32]]):
    w = tc.worker()
    y[w] = x[2 * w]  # expect: uncoalesced  # fix: y[w] = x[w]
