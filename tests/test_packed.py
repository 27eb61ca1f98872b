"""Where the elements of a packed array lie."""

from __future__ import annotations

import numpy as np
import pytest

import taskc as tc
from taskc import bf16, f32, i8, repeat, spatial


@pytest.mark.parametrize("dtype", [i8, bf16, f32])
@pytest.mark.parametrize("rows", [1, 3, 700])
def test_packed_arrays_begin_where_a_cache_line_does(dtype: tc.DType, rows: int) -> None:
    described = dtype[rows, 6].laid(repeat(1, 2) * repeat(rows, 3))
    values = (np.arange(rows * 6) % 100).reshape(rows, 6).astype(dtype.numpy)
    made = tc.pack(values, described)
    assert made.ctypes.data % 64 == 0
    assert made.dtype == dtype.numpy
    np.testing.assert_array_equal(made.unpack(), values)


def test_a_kernel_packs_what_its_parameter_takes() -> None:
    own = spatial(4)

    @tc.kernel(workers=4, packs={"b": (3, 5)})
    def product(a: f32[3], b: f32[3, 8].laid(repeat(1, 2) * repeat(3, 4)), c: tc.out[f32[5]]):
        for (col,) in tc.tiles((5,), by=(4,)):
            for j in own:
                if col + j < 5:
                    c[col + j] = a[0] * b[0, col + j] + a[1] * b[1, col + j] + a[2] * b[2, col + j]

    a, b = np.arange(3, dtype=np.float32), np.arange(15, dtype=np.float32).reshape(3, 5)
    np.testing.assert_array_equal(product(a, product.pack(b)), a @ b)
    np.testing.assert_array_equal(product.pack(b, "b").unpack()[:, 5:], 0)
    with pytest.raises(TypeError, match=r"b is packed from \[3, 5\], not \[3, 8\]"):
        product.pack(np.zeros((3, 8), np.float32))
    with pytest.raises(TypeError, match="those are: b"):
        product.pack(b, "a")
