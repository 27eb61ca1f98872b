"""A product with weights of 4 bits, written as one with weights of 8: what a load gives is the wider number.

`repeat(1, n // lanes) * repeat(k // 2, lanes) * repeat(2, 1)` says: two weights that follow each other along k lie
together, of 4 bits in one byte, and those of neighbouring columns beside them, so that one shift serves all lanes.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import taskc as tc
from taskc import DType, f32, i4, i8, repeat, spatial

TYPES = {i4: ml_dtypes.int4, i8: np.int8}


def make_product(
    m: int, n: int, k: int, dtype: DType, *, group: int = 16, rows: int = 4, lanes: int = 16
) -> tc.KernelDefinition:
    own = repeat(rows, 1) * spatial(1, lanes)
    panels = dtype[k, n].laid(repeat(1, n // lanes) * repeat(k // 2, lanes) * repeat(2, 1))

    def example(random: np.random.Generator) -> tuple[Any, ...]:
        a = random.integers(-3, 4, (m, k)).astype(np.float32)
        b = random.integers(-8, 8, (k, n)).astype(TYPES[dtype])
        return a, b, 2.0 ** random.integers(-2, 2, (k // group, n)).astype(np.float32)

    @tc.kernel(workers=lanes, example=example)
    def product(
        a: f32[m, k],
        b: panels,  # type: ignore[valid-type]
        scales: f32[k // group, n],
        c: tc.out[f32[m, n]],
    ) -> None:
        for row, col in tc.tiles((m, n), by=own.shape):
            acc = tc.tile(f32, own, 0)
            for p in range(k // group):
                for q in range(group):
                    for i, j in own:
                        if row + i < m:
                            w = b[p * group + q, col + j].to(f32) * scales[p, col + j]
                            acc[i, j] += a[row + i, p * group + q] * w
            tc.store(c[row : row + rows, col : col + lanes], acc)

    return product


four_bits, eight_bits = make_product(6, 32, 48, i4), make_product(6, 32, 48, i8)


def main() -> None:
    errors = []
    for kernel in (four_bits, eight_bits):
        a, b, scales = kernel.example()
        exact = a @ (b.astype(np.float32) * np.repeat(scales, 16, axis=0))
        errors.append(np.abs(kernel(a, kernel.pack(b), scales) - exact).max())
    print(f"four_bits: largest error {max(errors)}")


if __name__ == "__main__":
    main()
