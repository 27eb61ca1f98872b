"""Tracing: a program's body runs once, with handles for tensors, and each call of a kernel is noted.

Handles have no values. All that can be wrong with a call is found at its line, in `taskc.lang.traced_call`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from taskc.errors import CompileError, Location
from taskc.ir import nodes as ir
from taskc.ir.build import index, product
from taskc.ir.program import Call
from taskc.ir.signature import Parameter, named_type, outputs_of
from taskc.ir.types import DType, TensorType
from taskc.lang.names import ParameterType
from taskc.lang.sizes import Size, Sizes, tracing
from taskc.lang.source import assigned_names, call_site
from taskc.lang.values import Described, describe, layout_of, layout_problem


def tensor_type(kind: object, site: Location) -> TensorType:
    """What `tc.empty` is given, if it is a tensor's type."""
    if isinstance(kind, ParameterType):
        raise CompileError(
            f"what tc.empty makes is neither input nor output: tc.empty({kind.type})", site
        )
    if not isinstance(kind, TensorType):
        raise CompileError(
            f"tc.empty takes a tensor type, and this is {describe(kind)}",
            site,
            "for example tc.empty(f32[64, 64])",
        )
    return kind


class Handle(Described):
    """What stands for a tensor or a scalar: it can be passed on, and all else it is asked is an error."""

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


class Trace(Sizes):
    """A program whose body is running: its calls so far, and what they have written, where."""

    def __init__(
        self,
        name: str,
        parameters: Sequence[Parameter],
        dimensions: dict[Any, ir.Variable],
    ) -> None:
        super().__init__(name, dimensions)
        self.parameters = tuple(parameters)
        self.temporaries: list[ir.Tensor] = []
        self.views: dict[ir.Tensor, ir.Tensor] = {}  # of what each is another shape
        self.calls: list[Call] = []
        self.kernels: dict[int, Any] = {}  # their definitions, by the identity of their IR
        self.written: dict[ir.Tensor, Location] = {}

    def handle(self, named: Parameter) -> Handle:
        if isinstance(named, ir.Variable):
            return ScalarHandle(named, self)
        return TensorHandle(named, self, tuple([self.number(index(n)) for n in named.shape]))

    def empty(self, kind: object) -> Handle:
        """`tc.empty(type)`"""
        site = call_site()
        kind = tensor_type(kind, site)
        shape = self._extents(kind.shape, site)
        if problem := layout_problem(replace(kind, shape=shape)):
            raise CompileError(problem, site)
        (name,) = assigned_names(site, ("temporary",))
        layout = layout_of(kind)
        return self.temporary(ir.Tensor(name, kind.dtype, shape, ir.GLOBAL, layout, loc=site))

    def reshaped(self, handle: TensorHandle, shape: Sequence[Any]) -> Handle:
        """`x.reshape(m * n, k)`"""
        site, tensor = call_site(), handle.tensor
        return self.view(replace(tensor, shape=self._extents(shape, site), loc=site), tensor)

    def view(self, view: ir.Tensor, tensor: ir.Tensor) -> Handle:
        """A tensor that is the memory of another, in another shape."""
        if tensor.layout is not None or view.layout is not None:
            raise CompileError(
                f"'{tensor.name}' has a layout of its own, and no other shape", view.loc
            )
        if not self.are_equal(product(view.shape), product(tensor.shape)):
            raise CompileError(
                f"{tensor.name}: {named_type(tensor.dtype, tensor.shape)} has not as many elements"
                f" as {named_type(tensor.dtype, view.shape)} for all sizes",
                view.loc,
            )
        self.views[view] = self.memory_of(tensor)
        return self.handle(view)

    def memory_of(self, tensor: ir.Tensor) -> ir.Tensor:
        """The parameter or temporary that a tensor is, whatever its shape."""
        return self.views.get(tensor, tensor)

    def _extents(self, extents: Sequence[Any], site: Location) -> tuple[int | ir.Expression, ...]:
        for extent in extents:
            if not isinstance(extent, (int, Size)):
                raise CompileError(
                    "an extent is an integer, a tc.dim or computed from some, and this is"
                    f" {describe(extent)}",
                    site,
                )
        return tuple([self.extent(self.expression(extent)) for extent in extents])

    def temporary(self, tensor: ir.Tensor) -> Handle:
        self.temporaries.append(tensor)
        return self.handle(tensor)

    def finish(self) -> None:
        for output in outputs_of(self.parameters):
            if output not in self.written:
                raise CompileError(
                    f"no call writes the output '{output.name}' of program '{self.name}'",
                    output.loc,
                    f"pass it as the output of a call: kernel(..., out={output.name})",
                )


def current_trace() -> Trace | None:
    """The program whose body is running, in this thread."""
    trace = tracing.get()
    return trace if isinstance(trace, Trace) else None


def refuse_handles(values: Iterable[Any]) -> None:
    """Raises an error for a handle: outside of a trace there are only arrays."""
    for value in values:
        if isinstance(value, (tuple, list)):
            refuse_handles(value)
        elif isinstance(value, Handle):
            raise CompileError(
                f"'{value.name}' belongs to program '{value.trace.name}', and is used outside of it",
                call_site(),
                "a program's tensors have no values once it is traced; call it with arrays",
            )
