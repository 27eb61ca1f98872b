"""Small kernels as candidates, and what they are called with."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import taskc as tc
from taskc import f32, repeat, spatial
from taskc.tune.operands import write_operands
from taskc.tune.worker import Parcel, parcel_of

SIZE = 64


def doubled(name: str = "doubled", factor: float = 2.0) -> Parcel:
    """y = 2 * x, or not quite."""

    @tc.kernel(workers=SIZE)
    def kernel(x: f32[SIZE], y: tc.out[f32[SIZE]]):
        for (i,) in spatial(SIZE):
            y[i] = x[i] * factor

    made = parcel_of(kernel)
    return Parcel(made.ir.replace("kernel kernel(", f"kernel {name}("))


def endless() -> Parcel:
    """A loop in compiled code that never ends."""

    @tc.kernel(workers=1)
    def endless(x: f32[SIZE], y: tc.out[f32[SIZE]]):
        for (i,) in repeat(SIZE) * spatial(1):
            steps = f32(0)
            while x[i] * x[i] >= steps * 0:
                steps += 1
            y[i] = steps

    return parcel_of(endless)


def operands(folder: Path) -> Path:
    x = np.random.default_rng(0).standard_normal(SIZE).astype(np.float32)
    write_operands(folder, [x], [2 * x.astype(np.float64)])
    return folder
