"""`@tc.program`: a Python function over tensors, traced once into calls of kernels and computations."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping
from contextvars import copy_context
from types import FrameType, FunctionType
from typing import Any, overload

from taskc.errors import CompileError
from taskc.ir.nodes import Kernel, Variable
from taskc.ir.types import TensorType
from taskc.lang.definition import Definition, Example, KernelDefinition, Packs, set_tracer
from taskc.lang.names import ParameterType
from taskc.lang.sizes import Dimension, dim, tracing
from taskc.lang.source import call_site
from taskc.lang.values import describe
from taskc.programs.ir import Program, calls_of, kernels_of
from taskc.programs.sizes import Assumptions
from taskc.programs.tracing import current_trace, has_handles


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

        It is checked as a traced program is; an error is located at the call.
        """
        from taskc.programs.trace_program import retrace  # with all that knows calls

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


def trace(
    name: str,
    inputs: Mapping[str, TensorType | ParameterType],
    body: Callable[..., Any],
    *,
    assumptions: Assumptions | None = None,
) -> ProgramDefinition:
    """Trace a function, called with one handle per input, into a program; it returns the outputs.

    An input of the type `tc.inout[...]` may be written in place.

    The function returns one handle, the output `out`, or a dictionary of handles by name. An input, a constant, a part
    of a tensor, or a handle that is returned twice is copied.

    assumptions  sizes by which decisions are made during tracing. They record the decisions: the program may be called
                 only for sizes for which `assumptions.serve` is true, which the caller has to check
    """
    from taskc.programs.trace_program import traced_body  # with all that knows the language

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
    from taskc.programs.trace_program import traced  # with all that knows the language

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


# --- calls in the body of a program ---

_FINALIZE = weakref.finalize.__call__.__code__


def _record_call(definition: Definition, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """A call while a program is traced: recorded, unless it only interrupts the body."""
    trace = current_trace()
    assert trace is not None
    if not has_handles((args, keywords.values())) and _is_interruption():
        # Its context is its own: it may interrupt the setting of a variable of the other one.
        return copy_context().run(_call_outside, definition, args, keywords)
    from taskc.programs.record_call import traced_call  # only programs need it

    called = definition.ir
    assert isinstance(called, Kernel | Program)
    returned = traced_call(trace, called, definition.tuples, args, keywords, None, definition)
    trace.kernels |= {id(kernel.ir): kernel for kernel in definition.kernels}
    return returned


set_tracer(_record_call)


def _call_outside(definition: Definition, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """A call that is part of no traced program."""
    tracing.set(None)
    return definition.call(*args, **keywords)


def _is_interruption() -> bool:
    """Whether Python itself called the caller's caller after the trace began: a handler, finalizer or callback.

    A handler of a signal, a finalizer or a trace function runs in the thread and the context of what it interrupts, so
    that a call in it looks like one of the body's. Where it has no handles, the frames between it and the body tell.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and not frame.f_code.co_filename.endswith("trace_program.py"):
        if _is_pythons(frame):
            return True
        frame = frame.f_back
    return False


def _is_pythons(frame: FrameType) -> bool:
    """Whether Python called a frame: handlers and trace functions get its outer frame, callbacks a dead reference."""
    code = frame.f_code
    if code is _FINALIZE or code.co_name == "__del__":
        return True
    count = code.co_argcount + bool(code.co_flags & 4)  # with *args
    if not count:
        return False
    values = [
        frame.f_locals.get(name) for name in code.co_varnames[: count + code.co_kwonlyargcount]
    ]
    given = [one for value in values for one in (value if isinstance(value, tuple) else (value,))]
    return any(
        (one is frame.f_back and one is not None)
        or (isinstance(one, weakref.ref) and one() is None)
        for one in given
    )
