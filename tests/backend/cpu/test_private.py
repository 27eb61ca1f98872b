"""Private memory of any size: little of it on the stack, the rest where it harms nobody."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import taskc as tc
from taskc.backend.cpu.pool import pool, thread_count

n = tc.dim("n")
SIZE = 40_000  # 160 KB a worker, 2.5 MB a vector of 16


@tc.kernel(workers=32)
def backwards(x: tc.f32[n, 32], y: tc.out[tc.f32[n, 32]], z: tc.out[tc.f32[n, 32]]):
    """Two arrays and shared memory, each of which would show in another's values."""
    for row, _ in tc.tiles((n, 32), by=(1, 32)):
        s = tc.shared(tc.f32[32])
        for i in tc.spatial(32):
            s[i] = x[row, i]
        for i in tc.spatial(32):
            a = tc.local(tc.f32[SIZE])
            b = tc.local(tc.f32[SIZE])
            few = tc.local(tc.f32[4])
            for k in range(4):
                few[k] = x[row, i]
            for k in range(SIZE):
                a[k] = s[31 - i] + k.to(tc.f32)
                b[k] = x[row, i] - k.to(tc.f32)
            y[row, i] = a[SIZE - 1] - a[0] + few[3]
            z[row, i] = b[0] - b[SIZE - 1] + s[i]


def test_large_arrays_lie_in_memory_of_the_block() -> None:
    x = np.random.default_rng(0).integers(0, 9, (40, 32)).astype(np.float32)
    results = []

    def call() -> None:
        results.append(backwards(x))

    before = threading.stack_size(512 << 10)
    try:
        pool().limit(3)
        callers = [threading.Thread(target=call) for _ in range(3)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    finally:
        threading.stack_size(before)
        pool().limit(thread_count())
    assert len(results) == 3
    for made in results:
        for output in made:
            np.testing.assert_array_equal(output, x + (SIZE - 1))


def test_too_large() -> None:
    @tc.kernel(workers=16)
    def large(x: tc.f32[16], y: tc.out[tc.f32[16]]):
        for i in tc.spatial(16):
            t = tc.local(tc.f32[70_000_000])
            t[0] = x[i]
            y[i] = t[0]

    with pytest.raises(tc.CompileError, match="takes 280,000,000 bytes") as raised:
        large(np.zeros(16, np.float32))
    assert str(raised.value).splitlines()[1].strip() == "t = tc.local(tc.f32[70_000_000])"
