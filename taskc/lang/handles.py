"""Handles: what stands for a program's tensors and scalars while it is traced. They have no values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn, cast

from taskc.errors import CompileError
from taskc.ir import nodes as ir
from taskc.ir.signature import named_type
from taskc.ir.types import DType
from taskc.lang.sizes import tracing
from taskc.lang.source import call_site

if TYPE_CHECKING:
    from taskc.lang.tracing import Trace


class Handle:
    """It can be passed to kernels and programs; all else it is asked is an error."""

    __slots__ = ("described", "name", "trace")

    def __init__(self, name: str, described: str, trace: Trace) -> None:
        self.name = name
        self.described = described
        self.trace = trace

    def __repr__(self) -> str:
        return f"<'{self.name}' of program '{self.trace.name}'>"

    __hash__ = object.__hash__


def _needs_value(self: Handle, *rest: object) -> NoReturn:
    raise CompileError(
        f"the value of '{self.name}' is known only when the program is called",
        call_site(),
        "what a program does is decided while it is traced; a choice by data belongs in a kernel",
    )


def _computes(self: Handle, *rest: object) -> NoReturn:
    raise CompileError(
        f"'{self.name}' can't be computed with: in a program only kernels compute",
        call_site(),
        "call a kernel that does it",
    )


def _takes_part(self: Handle, *rest: object) -> NoReturn:
    raise CompileError(
        f"'{self.name}' is passed as a whole: in a program it has no elements and no slices",
        call_site(),
        "take the part in a kernel",
    )


_REFUSALS = {
    _needs_value: "bool int float complex index len iter array",
    _computes: (
        "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow matmul"
        " rmatmul and rand or ror xor rxor lshift rlshift rshift rrshift neg pos abs invert round"
        " eq ne lt le gt ge array_ufunc array_function"
    ),
    _takes_part: "getitem setitem contains",
}
for _refuse, _names in _REFUSALS.items():
    for _name in _names.split():
        setattr(Handle, f"__{_name}__", _refuse)


class TensorHandle(Handle):
    """A parameter or a temporary; `shape` has an int or a symbolic size for each dimension."""

    __slots__ = ("shape", "tensor")

    def __init__(self, tensor: ir.Tensor, trace: Trace, shape: tuple[Any, ...]) -> None:
        kind = named_type(tensor.dtype, tensor.shape)
        super().__init__(tensor.name, f"the tensor '{tensor.name}': {kind}", trace)
        self.tensor = tensor
        self.shape = shape

    @property
    def dtype(self) -> DType:
        return self.tensor.dtype

    def reshape(self, *shape: Any) -> Handle:
        """The same memory, row by row, with other extents: `x.reshape(m * n, k)`."""
        return self.trace.reshaped(self, shape)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"a tensor of a program has .shape, .dtype and .reshape, and no .{name}"
        )


class ScalarHandle(Handle):
    """A scalar parameter, to be passed on."""

    __slots__ = ("variable",)

    def __init__(self, variable: ir.Variable, trace: Trace) -> None:
        described = f"the scalar '{variable.name}': {variable.dtype}"
        super().__init__(variable.name, described, trace)
        self.variable = variable

    @property
    def dtype(self) -> DType:
        return self.variable.dtype


def current_trace() -> Trace | None:
    """The program whose body is running, in this thread."""
    return cast("Trace | None", tracing.get())


def refuse_handles(values: Iterable[Any]) -> None:
    """Outside of a trace there are only arrays."""
    for value in values:
        if isinstance(value, (tuple, list)):
            refuse_handles(value)
        elif isinstance(value, Handle):
            raise CompileError(
                f"'{value.name}' belongs to program '{value.trace.name}', and is used outside of it",
                call_site(),
                "a program's tensors have no values once it is traced; call it with arrays",
            )
