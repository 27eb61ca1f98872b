"""Four workers have each task, and each of them would count it."""

from __future__ import annotations

import taskc as tc
from taskc import i32, replicate, spatial


@tc.kernel(workers=32)
def kernel(x: i32[8], total: tc.inout[i32[1]]):
    for i in spatial(8) * replicate(4):  # fix: for i, _ in spatial(8, 4):
        if True:  # fix: if _ == 0:
            tc.atomic_add(total[0], x[i])  # proof: each owner of a task would do it
