"""Where the elements of a packed array lie."""

from __future__ import annotations

import numpy as np
import pytest

import taskc as tc
from taskc import bf16, f32, i8, repeat


@pytest.mark.parametrize("dtype", [i8, bf16, f32])
@pytest.mark.parametrize("rows", [1, 3, 700])
def test_packed_arrays_begin_where_a_cache_line_does(dtype: tc.DType, rows: int) -> None:
    described = dtype[rows, 6].laid(repeat(1, 2) * repeat(rows, 3))
    values = (np.arange(rows * 6) % 100).reshape(rows, 6).astype(dtype.numpy)
    made = tc.pack(values, described)
    assert made.ctypes.data % 64 == 0
    assert made.dtype == dtype.numpy
    np.testing.assert_array_equal(made.unpack(), values)
