"""The same names as type checkers see them. `f32[m, k]` is no type for them, since `m` is a value; yet

pyright  takes any expression in the brackets of a class with `__class_getitem__`. So an element type is a class here,
         and what a kernel computes on are its instances: elements and tensors alike.
mypy     takes any annotation that begins with a name of which nothing is known.
"""

from collections.abc import Iterator
from typing import Any, TypeVar

from typing_extensions import Self

from taskc.ir.mapping import Mapping
from taskc.ir.types import DType, TensorType
from taskc.lang.element import Element

MYPY: bool

_Kind = TypeVar("_Kind")

Value = Element  # what a kernel computes on

if MYPY:
    def __getattr__(name: str) -> Any: ...

else:
    _Type = TypeVar("_Type")

    class ElementType(DType, TensorType, type):
        """An element type, `f32`, and a tensor's, `f32[m, k]`."""

        def __getitem__(cls: _Type, shape: object) -> _Type:
            """The type of a tensor of this shape."""
        def __call__(cls: type[_Kind], value: Any) -> _Kind: ...
        def laid(cls: _Type, layout: Mapping) -> _Type:
            """This type with its elements where `layout` puts them."""

    class _Element(Value, metaclass=ElementType):
        def __init__(self, value: Any) -> None: ...
        def __class_getitem__(cls, shape: Any) -> type[Self]: ...

    class boolean(_Element):
        """True or False."""

    class i4(_Element):
        """Signed integers of 4 bits, of memory: what is read is an i8."""

    class i8(_Element):
        """Signed integers of 8 bits."""

    class i16(_Element):
        """Signed integers of 16 bits."""

    class i32(_Element):
        """Signed integers of 32 bits."""

    class i64(_Element):
        """Signed integers of 64 bits: what indices are."""

    class u4(_Element):
        """Unsigned integers of 4 bits, of memory: what is read is a u8."""

    class u8(_Element):
        """Unsigned integers of 8 bits."""

    class u16(_Element):
        """Unsigned integers of 16 bits."""

    class u32(_Element):
        """Unsigned integers of 32 bits."""

    class u64(_Element):
        """Unsigned integers of 64 bits."""

    class f16(_Element):
        """Floats of 16 bits: 5 of the exponent, 10 of the mantissa."""

    class bf16(_Element):
        """Floats of 16 bits: 8 of the exponent, as f32, and 7 of the mantissa."""

    class f32(_Element):
        """Floats of 32 bits."""

    class f64(_Element):
        """Floats of 64 bits."""

    class f4e2m1(_Element):
        """Floats of 4 bits, of memory: 2 of the exponent, 1 of the mantissa. What is read is an f16."""

    class f6e2m3(_Element):
        """Floats of 6 bits, of memory: 2 of the exponent, 3 of the mantissa. What is read is an f16."""

    class f6e3m2(_Element):
        """Floats of 6 bits, of memory: 3 of the exponent, 2 of the mantissa. What is read is an f16."""

    class f8e4m3(_Element):
        """Floats of 8 bits for storage and matrix products: 4 of the exponent, 3 of the mantissa, no infinities."""

    class f8e5m2(_Element):
        """Floats of 8 bits for storage and matrix products: 5 of the exponent, 2 of the mantissa."""

    class tf32(_Element):
        """An f32 of which 10 bits of the mantissa count, for matrix products."""

    class _Parameter(Value):
        def __class_getitem__(cls, type: Any) -> type[Self]: ...
        def __getitem__(self, index: Any) -> Any: ...
        def __iter__(self) -> Iterator[Any]: ...

    class typed(_Parameter):
        """`tc.typed[type]` is `type`: a type checker takes any expression in the brackets."""

    class out(_Parameter):
        """`tc.out[f32[m, n]]`: an output, never read; every element is stored exactly once, and that is proved."""

    class inout(_Parameter):
        """`tc.inout[f32[n]]`: updated in place: read, stored to, and by atomics."""
