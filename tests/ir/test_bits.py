"""Streams of bits, against Python's integers."""

from __future__ import annotations

import numpy as np
import pytest

from taskc.ir import nodes as ir
from taskc.ir.bits import bytes_of, from_bytes, into_bytes, shape_in_bytes, shape_of_elements
from taskc.ir.extents import extent_value
from taskc.ir.mapping import repeat
from taskc.ir.nodes import Tensor, Variable
from taskc.ir.types import DTYPES, DType, f6e2m3, i4

SUB_BYTE = [dtype for dtype in DTYPES.values() if dtype.is_sub_byte]


def elements(dtype: DType, codes: np.ndarray) -> np.ndarray:
    """Those of these bits: integers by their values, floats as ml_dtypes holds them."""
    if dtype.is_float:
        return codes.astype(np.uint8).view(dtype.numpy)
    values = [int(code) - (16 if dtype is i4 and code > 7 else 0) for code in codes.reshape(-1)]
    return np.array(values, np.int8).astype(dtype.numpy).reshape(codes.shape)


def stream_of(codes: np.ndarray, bits: int) -> list[int]:
    number = sum(int(code) << bits * place for place, code in enumerate(codes.reshape(-1)))
    return [*number.to_bytes(-(-bits * codes.size // 8), "little")]


@pytest.mark.parametrize("dtype", SUB_BYTE, ids=str)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 64, 101])
def test_elements_follow_one_another(dtype: DType, count: int) -> None:
    codes = np.random.default_rng(count).integers(0, 1 << dtype.bits, count)
    given = elements(dtype, codes)
    stream = into_bytes(given, dtype)
    assert stream.tolist() == stream_of(codes, dtype.bits)
    back = from_bytes(stream, dtype, count)
    assert back.dtype == dtype.numpy
    np.testing.assert_array_equal(back.view(np.uint8), given.view(np.uint8))


def test_the_bytes_of_a_parameter() -> None:
    m, n = Variable("m"), Variable("n")
    plain = Tensor("b", i4, (m, n), ir.GLOBAL)
    held = bytes_of(plain)
    assert held.argument is plain
    assert held.argument_shape == (m, n)
    sizes = {m: 3, n: 5}
    assert [extent_value(extent, sizes) for extent in held.shape] == [8]
    laid = Tensor("b", f6e2m3, (m, 6), ir.GLOBAL, repeat(2, 8))  # whole layouts of 16
    assert [extent_value(extent, sizes) for extent in bytes_of(laid).shape] == [24]
    assert bytes_of(Tensor("b", i4, (), ir.GLOBAL)).shape == (1,)


def test_rows_of_bytes() -> None:
    assert shape_in_bytes((3, 8), i4) == (3, 4)
    assert shape_in_bytes((3, 8), f6e2m3) == (3, 6)
    assert shape_of_elements((3, 4), i4) == (3, 8)
    assert shape_of_elements((3, 6), f6e2m3) == (3, 8)
    assert shape_of_elements((3, 4), f6e2m3) is None
    assert shape_of_elements((), i4) is None
