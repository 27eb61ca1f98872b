import copy
import pickle
from dataclasses import FrozenInstanceError, dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import taskc as tc
from taskc.ir import types
from taskc.ir.types import (
    DTYPES,
    TensorType,
    bf16,
    boolean,
    common_type,
    f4e2m1,
    f6e2m3,
    f6e3m2,
    f8e4m3,
    f8e5m2,
    f16,
    f32,
    f64,
    from_numpy,
    i4,
    i8,
    i16,
    i32,
    i64,
    tf32,
    u4,
    u8,
    u16,
    u32,
    u64,
)


@dataclass(frozen=True)
class Slots:
    """As much of a mapping as a tensor type looks at."""

    shape: tuple[int, ...]
    workers: int = 1

    def __str__(self):
        return f"repeat{self.shape}"


def test_a_type_is_one_object_known_by_its_name():
    assert len(DTYPES) == 21
    for name, dtype in DTYPES.items():
        assert repr(dtype) == str(dtype) == name
        assert getattr(types, "boolean" if name == "bool" else name) is dtype
        assert pickle.loads(pickle.dumps(dtype)) is dtype
        assert copy.deepcopy(dtype) is dtype
    with pytest.raises(FrozenInstanceError):
        f32.bits = 16


def test_storage():
    for dtype in DTYPES.values():
        size = 1 if dtype.is_sub_byte else dtype.nbytes
        assert dtype.numpy.itemsize == size == -(-dtype.bits // 8)
        assert from_numpy(dtype.numpy) is (f32 if dtype is tf32 else dtype)
    assert from_numpy(np.dtype(np.longlong)) is i64


@pytest.mark.parametrize("name", ["complex64", "object", "U3", "S2", ">f4", "longdouble", "M8[s]"])
def test_unsupported_numpy_types_are_named(name):
    dtype = np.dtype(name)
    with pytest.raises(ValueError, match="is not supported") as error:
        from_numpy(dtype)
    assert repr(dtype) in str(error.value)


def test_limits_are_those_of_the_storage():
    for dtype in DTYPES.values():
        if dtype is tf32 or dtype is boolean:
            continue
        information = ml_dtypes.finfo if dtype.is_float else ml_dtypes.iinfo
        limits = information(dtype.numpy)
        assert dtype.maximum == limits.max
        assert dtype.minimum == limits.min
        if dtype.is_float:
            assert dtype.smallest_normal == limits.smallest_normal
            assert dtype.mantissa_bits == limits.nmant
            assert dtype.exponent_bits + dtype.mantissa_bits + 1 == dtype.bits
    assert (boolean.minimum, boolean.maximum) == (0, 1)
    assert tf32.maximum == float(np.uint32(0x7F7FE000).view(np.float32))


def test_kinds():
    whole = [dtype for dtype in DTYPES.values() if not dtype.is_sub_byte]
    integers = {dtype for dtype in whole if dtype.is_integer}
    floats = {dtype for dtype in whole if dtype.is_float}
    unsigned = {dtype for dtype in whole if not dtype.is_signed}
    assert integers == {i8, i16, i32, i64, u8, u16, u32, u64}
    assert floats == {f16, bf16, f32, f64, f8e4m3, f8e5m2, tf32}
    assert unsigned == {boolean, u8, u16, u32, u64}


def test_what_is_loaded_of_a_sub_byte_type_holds_its_values():
    loaded = {dtype: dtype.loaded for dtype in DTYPES.values() if dtype.is_sub_byte}
    assert loaded == {i4: i8, u4: u8, f4e2m1: f16, f6e2m3: f16, f6e3m2: f16}
    for dtype, wider in loaded.items():
        assert dtype.kind == wider.kind
        assert wider.minimum <= dtype.minimum < dtype.maximum <= wider.maximum


def test_an_element_of_a_sub_byte_type_has_no_bytes():
    with pytest.raises(TypeError, match="an element of i4 has no whole bytes"):
        _ = i4.nbytes
    assert [i4.bytes_of(n) for n in (0, 1, 2, 3)] == [0, 1, 1, 2]
    assert [f6e2m3.bytes_of(n) for n in (0, 1, 2, 3, 4, 5)] == [0, 1, 2, 3, 3, 4]
    assert f32.bytes_of(3) == 12


def test_tensor_types():
    assert f32[64, 128] == TensorType(f32, (64, 128))
    assert f32[64, 128] != f16[64, 128]
    assert repr(f32[64, 128]) == "f32[64, 128]"
    assert repr(f32[7]) == "f32[7]"
    assert f32[()].rank == 0
    assert repr(f32[()]) == "f32[()]"
    assert type(f32[np.int32(3)].shape[0]) is int
    assert f32[0, 2].shape == (0, 2)
    symbol = object()
    assert f32[symbol, 2].shape == (symbol, 2)


def test_layouts():
    laid = f32[3, 4].laid(Slots((3, 8)))
    assert laid.layout == Slots((3, 8))
    assert laid != f32[3, 4]
    assert repr(laid) == "f32[3, 4].laid(repeat(3, 8))"
    with pytest.raises(ValueError, match="1 worker; this one has 2"):
        f32[3, 4].laid(Slots((3, 4), workers=2))
    with pytest.raises(ValueError, match="rank 1 can't lay out a tensor of rank 2"):
        f32[3, 4].laid(Slots((12,)))


@pytest.mark.parametrize("extent", [True, 2.0, np.float32(2), np.bool_(True)])
def test_extents_that_are_no_integers_are_named(extent):
    with pytest.raises(TypeError, match="is an integer, not") as error:
        f32[4, extent]
    assert repr(extent) in str(error.value)


def test_negative_extents_are_named():
    with pytest.raises(ValueError, match="can't be negative: -3"):
        f32[-3]


def test_only_integers_of_one_signedness_promote():
    expected = {(i8, i32): i32, (u8, u64): u64, (u32, u8): u32, (f32, f32): f32}
    expected[boolean, boolean] = boolean
    for (a, b), common in expected.items():
        assert common_type(a, b) is common
        assert common_type(b, a) is common
    for a, b in [(i32, u32), (i8, u64), (f16, f32), (f16, bf16), (f32, tf32), (i32, f64)]:
        assert common_type(a, b) is None
        assert common_type(b, a) is None
    for a, b in [(boolean, i8), (boolean, u8), (f8e4m3, f8e5m2), (f64, f32)]:
        assert common_type(a, b) is None


@pytest.mark.parametrize("subscripted", [f32, boolean, tc.out, tc.inout], ids=str)
def test_what_takes_a_subscript_is_no_sequence(subscripted: Any) -> None:
    for use in (
        list,
        max,
        np.zeros,
        lambda it: 3 in it,
        lambda it: [*zip(it, (1, 2), strict=True)],
    ):
        with pytest.raises(TypeError):
            use(subscripted)
