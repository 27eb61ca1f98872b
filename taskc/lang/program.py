"""`@tc.program`: a Python function over tensors, traced once into calls of kernels and computations."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any, overload

import numpy as np

from taskc.arrays.dlpack import host_array
from taskc.arrays.packed import empty as allocated
from taskc.errors import CompileError, Location
from taskc.ir.nodes import Expression, Variable
from taskc.ir.program import Program, calls_of, kernels_of
from taskc.ir.types import TensorType, from_numpy, i64
from taskc.lang.assumptions import Assumptions
from taskc.lang.branches import steps_while
from taskc.lang.definition import Definition, Example, KernelDefinition, Packs
from taskc.lang.intrinsics import on_numbers
from taskc.lang.sizes import Dimension, dim
from taskc.lang.source import assigned_names, call_site
from taskc.lang.tracing import (
    ComputedScalar,
    Handle,
    ScalarHandle,
    Trace,
    current_trace,
    tensor_type,
)
from taskc.lang.values import describe


class ProgramDefinition(Definition):
    """A traced program; it is called as a kernel is."""

    kind = "program"
    ir: Program

    def __init__(
        self,
        made: Program,
        dimensions: dict[Dimension, Variable],
        kernels: tuple[KernelDefinition, ...],
        *,
        function: FunctionType | None = None,
        example: Example | None = None,
        packs: Packs | None = None,
        tuples: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        super().__init__(
            made, dimensions, function=function, example=example, packs=packs, tuples=tuples
        )
        self._kernels = kernels

    @classmethod
    def of(cls, program: Program, packs: Packs | None = None) -> ProgramDefinition:
        """A program without a function, such as one that was read as text.

        It is held to all that a program's tracing checks; an error has the place of the call.
        """
        from taskc.lang.retracing import retrace  # with all that knows calls

        dimensions = {
            dim(variable.name, multiple=variable.multiple): variable
            for variable in program.dimensions
        }
        retrace(program, dimensions)
        kernels = tuple([KernelDefinition.of(kernel) for kernel in kernels_of(program).values()])
        return cls(program, dimensions, kernels, packs=packs)

    @property
    def kernels(self) -> tuple[KernelDefinition, ...]:
        return self._kernels

    def __repr__(self) -> str:
        count = len([*calls_of(self.ir.calls)])
        return f"<tc.program {self.signature}, {count} call{'' if count == 1 else 's'}>"


@overload
def program(function: Callable[..., Any], /) -> ProgramDefinition: ...
@overload
def program(
    *, example: Example | None = None, packs: Packs | None = None, fuse: bool = True
) -> Callable[[Callable[..., Any]], ProgramDefinition]: ...
def program(
    function: Callable[..., Any] | None = None,
    /,
    *,
    example: Example | None = None,
    packs: Packs | None = None,
    fuse: bool = True,
) -> ProgramDefinition | Callable[[Callable[..., Any]], ProgramDefinition]:
    """Make a program of a function, whose body runs once, now, with handles for tensors, and calls kernels.

    example  a function of a NumPy generator that returns arguments to check the program with
    packs    how parameters with a layout are packed, as for a kernel
    fuse     whether calls may be fused; if not, they stay apart, also in the programs that call this one
    """
    if function is not None:
        return _made(function, example, packs, fuse, sys._getframe(1).f_locals)
    return lambda function: _made(function, example, packs, fuse, sys._getframe(1).f_locals)


@on_numbers
def empty(kind: type[Any] | TensorType) -> Any:
    """In a program a temporary, `tc.empty(f32[m, n])`; elsewhere memory that kernels write in place."""
    return _empty(kind)


def _empty(kind: object) -> Handle | np.ndarray[Any, Any]:
    trace = current_trace()
    if trace is not None:
        return trace.empty(kind)
    site = call_site()
    described = tensor_type(kind, site)
    for extent in described.shape:
        if not isinstance(extent, int):
            raise CompileError(
                f"tc.empty makes memory of a size that is known, and {extent} isn't known here",
                site,
                "in the body of a @tc.program it makes a temporary, of sizes that a call tells",
            )
    return allocated(described)


def compute(
    shape: Any, function: Callable[..., Any], *, name: str | None = None, out: Any = None
) -> Any:
    """In a program, a tensor whose elements are given by a function of their indices.

        y = tc.compute((m, n), lambda i, j: tc.gelu(x[i, j] + bias[j]))

    function  a lambda or a @tc.function of one expression, or of one with named parts. It is parsed, never run; the
              program's tensors and sizes, and Python's constants, may be named in it. Its type is the result's
    out       an output or a temporary to write instead of a new one
    """
    from taskc.lang.computations import traced_computation  # with all that knows the language

    site, trace = call_site(), current_trace()
    if trace is None:
        raise CompileError("tc.compute is for the body of a @tc.program", site)
    extents = shape if isinstance(shape, (tuple, list)) else (shape,)
    named = name or str(getattr(function, "__name__", "compute"))
    called = "compute" if named == "<lambda>" else named
    try:
        return traced_computation(trace, trace.extents(extents, site), function, called, site, out)
    except CompileError as error:
        raise error.with_traceback(None) from error.__cause__


def steps(count: Any) -> Iterator[Any]:
    """In a program, a loop: `for t in tc.steps(n):` runs its body, traced once, for each number t from 0 to n - 1.

    The number is a size: it may select a part of a tensor, `x[t]`, be a scalar's value, and appear in computations.
    The body may read what was written before the loop, earlier in the body, or by previous steps.

    count  a size; or a scalar of the program, and then the number is a tensor without dimensions, `t[()]`
    """
    site, trace = call_site(), current_trace()
    if trace is None:
        raise CompileError("tc.steps is for the body of a @tc.program", site)
    if isinstance(count, ScalarHandle) and not count.dtype.is_integer:
        raise CompileError(f"steps are counted by an integer, and this is {count.described}", site)
    if isinstance(count, (ScalarHandle, ComputedScalar)):
        return _counted(count)
    (times,) = trace.extents((count,), site)
    named = re.search(r"for\s+([^\W\d]\w*)\s+in\s*$", site.text[: max(site.column - 1, 0)])
    return _loop(trace, Variable(named[1] if named else "step", i64), times, site)


def _counted(count: Any) -> Iterator[Any]:
    """A loop of as many steps as a scalar says when the program is called."""
    number: Any = compute((), lambda: 0)
    goes_on = compute((), lambda: number[()] < count.to(i64))
    for _ in steps_while(goes_on):
        yield number
        compute((), lambda: number[()] + 1, out=number)
        compute((), lambda: number[()] < count.to(i64), out=goes_on)


def _loop(
    trace: Trace, variable: Variable, count: int | Expression, site: Location
) -> Iterator[Any]:
    yield trace.begin_loop(variable, count, site)
    trace.end_loop()


def constant(array: Any) -> Any:
    """In a program, an array that is known now. It isn't copied: nobody may change it later."""
    site, trace = call_site(), current_trace()
    if trace is None:
        raise CompileError("tc.constant is for the body of a @tc.program", site)
    array = host_array(array, site)
    try:
        dtype = from_numpy(array.dtype)
    except ValueError:
        raise CompileError(
            f"there is no element type for an array of {array.dtype}", site
        ) from None
    # A scalar stays one: NumPy makes an array of one axis of what has none.
    whole = array if array.ndim == 0 else np.ascontiguousarray(array)
    (name,) = assigned_names(site, ("constant",))
    return trace.constant(whole, TensorType(dtype, array.shape), name, site)


def trace(
    name: str,
    inputs: Mapping[str, TensorType],
    body: Callable[..., Any],
    *,
    assumptions: Assumptions | None = None,
) -> ProgramDefinition:
    """Trace a function, called with one handle per input, into a program; it returns the outputs.

    The function returns one handle, the output `out`, or a dictionary of handles by name. An input, a constant, a part
    of a tensor, or a handle that is returned twice is copied.

    assumptions  sizes by which decisions are made during tracing. They record the decisions: the program may be called
                 only for sizes for which `assumptions.serve` is true, which the caller has to check
    """
    from taskc.lang.traced_program import traced_body  # with all that knows the language

    traced, dimensions, kernels = traced_body(name, inputs, body, call_site(), assumptions)
    return ProgramDefinition(traced, dimensions, kernels)


def _made(
    function: Callable[..., Any],
    example: Example | None,
    packs: Packs | None,
    fuse: bool,
    around: dict[str, Any],
) -> ProgramDefinition:
    if not isinstance(function, FunctionType):
        raise CompileError(f"a program is made from a function, and this is {describe(function)}")
    from taskc.lang.traced_program import traced  # with all that knows the language

    try:
        traced_ir, dimensions, kernels, tuples = traced(function, around, fuse)
    except CompileError as error:  # its location says where; our own frames would bury it
        raise error.with_traceback(None) from error.__cause__
    return ProgramDefinition(
        traced_ir,
        dimensions,
        kernels,
        function=function,
        example=example,
        packs=packs,
        tuples=tuples,
    )
