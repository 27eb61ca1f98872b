"""Element types and tensor types: `f32`, `f32[64, 128]`, `f32[64, 128].laid(layout)`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import ml_dtypes
import numpy as np

from taskc.dataclass import dataclass


class Layout(Protocol):
    """The requirements of a tensor type on a memory layout: a mapping with one worker."""

    @property
    def workers(self) -> int: ...

    @property
    def shape(self) -> tuple[Any, ...]: ...


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DType:
    """An element type. There is one object for each, so types compare with `is`.

    numpy   NumPy's type for an element; for a sub-byte type, of a single element
    loaded  for a sub-byte type, which only memory has, the type of a load, which holds all its values
    """

    name: str
    kind: Literal["bool", "int", "uint", "float"]
    bits: int
    numpy: np.dtype[Any]
    exponent_bits: int = 0
    mantissa_bits: int = 0
    loaded: DType | None = None

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> str:
        # Copies and unpickled types are the module's own objects: identity survives processes.
        return "boolean" if self.kind == "bool" else self.name

    # With an item for every index it would be an endless sequence.
    __iter__: ClassVar[None] = None

    def __getitem__(self, shape: object) -> TensorType:
        return TensorType(self, shape if isinstance(shape, tuple) else (shape,))

    if TYPE_CHECKING:  # in a kernel f32(x) converts

        def __call__(self, value: Any) -> Any: ...

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    @property
    def is_signed(self) -> bool:
        return self.kind in ("int", "float")

    @property
    def is_sub_byte(self) -> bool:
        """Whether elements are stored as a stream of bits, so that a single one has no bytes of its own."""
        return self.loaded is not None

    @property
    def nbytes(self) -> int:
        """Bytes of one stored element; a bool has `bits` 8, as in NumPy."""
        if self.is_sub_byte:
            raise TypeError(f"an element of {self} has no whole bytes: ask for those of several")
        return self.bits // 8

    def holds(self, numbers: np.dtype[Any]) -> bool:
        """Whether an array of NumPy's type can be converted to it: it is the same, or of integers that all fit."""
        return numbers == self.numpy or (numbers.kind in "iu" and np.can_cast(numbers, self.numpy))

    def bytes_of(self, count: int) -> int:
        """Bytes of so many stored elements, the last of which may have spare bits."""
        return -(-count * self.bits // 8)

    @property
    def maximum(self) -> int | float:
        """The largest value; of a float, the largest finite one."""
        if self.kind == "bool":
            return 1
        if self.is_integer:
            return (1 << (self.bits - self.is_signed)) - 1
        if self.name == "f8e4m3":
            return 448.0  # the "fn" format: no infinities, so the top exponent holds numbers
        if self.is_sub_byte:  # these have neither infinities nor NaN
            return float((2 - 2.0**-self.mantissa_bits) * 2.0**2 ** (self.exponent_bits - 1))
        return float((2 - 2.0**-self.mantissa_bits) * 2.0 ** (2 ** (self.exponent_bits - 1) - 1))

    @property
    def minimum(self) -> int | float:
        """The smallest value; of a float, the most negative finite one."""
        if self.is_float:
            return -self.maximum
        return -self.maximum - 1 if self.kind == "int" else 0

    @property
    def smallest_normal(self) -> float:
        """The smallest positive float of full precision."""
        return float(2.0 ** (2 - 2 ** (self.exponent_bits - 1)))


@dataclass(frozen=True, slots=True, repr=False)
class TensorType:
    """A tensor's element type, its shape, and its layout (row-major by default).

    An extent is an int >= 0 or a symbolic expression, which is not examined here.

    given  for a parameter, the shape of a call's argument if it differs
    """

    dtype: DType
    shape: tuple[Any, ...]
    layout: Layout | None = None
    given: tuple[Any, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", _extents(self.shape))
        if self.layout is None:
            return
        if self.given is not None:
            raise ValueError("a tensor that is reshaped has no layout of its own")
        if self.layout.workers != 1:
            raise ValueError(
                f"a memory layout is a mapping with 1 worker; this one has {self.layout.workers}"
            )
        if len(self.layout.shape) != self.rank:
            raise ValueError(
                f"a layout of rank {len(self.layout.shape)} can't lay out a tensor"
                f" of rank {self.rank}"
            )

    @property
    def rank(self) -> int:
        return len(self.shape)

    def laid(self, layout: Layout) -> TensorType:
        """This type with its elements in `layout`."""
        return TensorType(self.dtype, self.shape, layout, self.given)

    def reshape(self, *shape: Any) -> TensorType:
        """This type for callers; the kernel sees the elements in another shape, in the same order."""
        given = self.shape if self.given is None else self.given
        return TensorType(self.dtype, shape, self.layout, given)

    @property
    def as_given(self) -> TensorType:
        """This type as callers see it."""
        return self if self.given is None else TensorType(self.dtype, self.given)

    def __repr__(self) -> str:
        shape = ", ".join(map(str, self.shape)) or "()"
        if self.given is not None:
            given = ", ".join(map(str, self.given)) or "()"
            return f"{self.dtype}[{given}].reshape({shape if self.shape else ''})"
        laid = "" if self.layout is None else f".laid({self.layout})"
        return f"{self.dtype}[{shape}]{laid}"


def _extents(shape: tuple[Any, ...]) -> tuple[Any, ...]:
    found = tuple(int(n) if isinstance(n, np.integer) else n for n in shape)
    for extent in found:
        if isinstance(extent, (bool, float, np.bool_, np.floating)):
            raise TypeError(f"an extent of a tensor is an integer, not {extent!r}")
        if isinstance(extent, int) and extent < 0:
            raise ValueError(f"an extent of a tensor can't be negative: {extent}")
    return found


def _integer(name: str, kind: Literal["int", "uint"], bits: int) -> DType:
    return DType(name, kind, bits, np.dtype(f"{kind}{bits}"))


def _float(name: str, storage: Any, exponent_bits: int, mantissa_bits: int) -> DType:
    stored = np.dtype(storage)
    return DType(name, "float", 8 * stored.itemsize, stored, exponent_bits, mantissa_bits)


def _sub_byte(storage: Any, loaded: DType, exponent_bits: int = 0, mantissa_bits: int = 0) -> DType:
    bits = 1 + exponent_bits + mantissa_bits if loaded.is_float else 4
    name = (
        f"f{bits}e{exponent_bits}m{mantissa_bits}" if loaded.is_float else f"{loaded.kind[0]}{bits}"
    )
    return DType(name, loaded.kind, bits, np.dtype(storage), exponent_bits, mantissa_bits, loaded)


boolean = DType("bool", "bool", 8, np.dtype(np.bool_))
i8 = _integer("i8", "int", 8)
i16 = _integer("i16", "int", 16)
i32 = _integer("i32", "int", 32)
i64 = _integer("i64", "int", 64)
u8 = _integer("u8", "uint", 8)
u16 = _integer("u16", "uint", 16)
u32 = _integer("u32", "uint", 32)
u64 = _integer("u64", "uint", 64)
f16 = _float("f16", np.float16, 5, 10)
bf16 = _float("bf16", ml_dtypes.bfloat16, 8, 7)
f32 = _float("f32", np.float32, 8, 23)
f64 = _float("f64", np.float64, 11, 52)
f8e4m3 = _float("f8e4m3", ml_dtypes.float8_e4m3fn, 4, 3)
f8e5m2 = _float("f8e5m2", ml_dtypes.float8_e5m2, 5, 2)
# A compute type: an f32 whose low 13 bits are ignored. Conversions to it leave zeros there.
tf32 = _float("tf32", np.float32, 8, 10)
# Types that exist only in memory: loads give the wider number.
i4 = _sub_byte(ml_dtypes.int4, i8)
u4 = _sub_byte(ml_dtypes.uint4, u8)
f4e2m1 = _sub_byte(ml_dtypes.float4_e2m1fn, f16, 2, 1)
f6e2m3 = _sub_byte(ml_dtypes.float6_e2m3fn, f16, 2, 3)
f6e3m2 = _sub_byte(ml_dtypes.float6_e3m2fn, f16, 3, 2)

DTYPES: dict[str, DType] = {
    dtype.name: dtype for dtype in [*globals().values()] if isinstance(dtype, DType)
}

_FROM_NUMPY = {dtype.numpy: dtype for dtype in DTYPES.values() if dtype is not tf32}


def from_numpy(dtype: np.dtype[Any]) -> DType:
    """The element type that `dtype` stores; float32 is f32, never tf32."""
    if dtype not in _FROM_NUMPY:
        supported = ", ".join(map(str, _FROM_NUMPY))
        raise ValueError(f"NumPy type {dtype!r} is not supported; these are: {supported}")
    return _FROM_NUMPY[dtype]


def common_type(a: DType, b: DType) -> DType | None:
    """The type that `a` and `b` implicitly promote to, or None.

    Integers of one signedness widen. Nothing else does: a float changes its type only where the
    program says so.
    """
    if a is b:
        return a
    if a.is_integer and a.kind == b.kind:
        return a if a.bits > b.bits else b
    return None
