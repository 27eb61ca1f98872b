"""A vote on which half of the warp isn't asked."""

from __future__ import annotations

import taskc as tc
from taskc import f32, u32


@tc.cuda.kernel(workers=64)
def kernel(x: f32[64], y: tc.inout[u32[64]]):
    w = tc.worker()
    if w % 32 >= 8:  # fix: if w >= 0:
        votes = tc.cuda.vote_ballot(x[w] > 0.0)  # expect: inactive-lane
        y[w] = votes
