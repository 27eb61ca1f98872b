"""Every element type has a public name, and what converts it on either kind of machine."""

from __future__ import annotations

import numpy as np
import pytest

import taskc as tc
from taskc import DType, f32, spatial
from taskc.backend.cuda.prelude import library
from taskc.ir.types import DTYPES, boolean

NARROW = [
    dtype
    for dtype in DTYPES.values()
    if dtype.is_float and dtype.bits < 32 and not dtype.is_sub_byte
]


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_a_type_has_a_public_name(dtype: DType) -> None:
    name = "boolean" if dtype is boolean else dtype.name
    assert getattr(tc, name, None) is dtype, f"taskc/__init__.py has no {name}"


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_cuda_converts_it(dtype: DType) -> None:
    for entry in (dtype.name, f"to_f32.{dtype}", f"to_{dtype}"):
        assert entry in library(), (
            f"taskc/backend/cuda/numbers.cuh, or instructions.cuh, has no {entry}"
        )


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_processors_convert_it(dtype: DType) -> None:
    """taskc/backend/cpu/native.py: all numbers that it has, there and back."""

    @tc.kernel(workers=16)
    def there_and_back(x: dtype[256], wide: tc.out[f32[256]], y: tc.out[dtype[256]]):  # type: ignore
        for n in tc.tiles(256, by=16):
            for i in spatial(16):
                wide[n + i] = x[n + i].to(f32)
                y[n + i] = x[n + i].to(f32).to(dtype)

    bits = np.arange(256).astype(f"u{dtype.nbytes}") << (dtype.bits - 8)
    x = bits.view(dtype.numpy)
    wide, y = there_and_back(x)
    expected = x.astype(np.float32)
    np.testing.assert_array_equal(wide, expected)
    number = np.isfinite(expected)  # 8-bit floats saturate
    np.testing.assert_array_equal(y.view(bits.dtype)[number], bits[number])
