"""`@tc.program`: a Python function over tensors, traced once into calls of kernels."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, overload

import numpy as np

from taskc.errors import CompileError
from taskc.ir.nodes import Variable
from taskc.ir.program import Program, kernels_of
from taskc.lang.definition import Definition, Example, KernelDefinition, Packs
from taskc.lang.names import Intrinsic
from taskc.lang.sizes import Dimension, dim
from taskc.lang.source import call_site
from taskc.lang.tracing import Handle, current_trace, tensor_type
from taskc.lang.values import describe
from taskc.packed import empty as allocated


class ProgramDefinition(Definition):
    """A program as it was traced; it is called as a kernel is."""

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
        """A program that no function has made, such as one that was read as text.

        It is held to all that a program's tracing checks; an error has the place of the call.
        """
        from taskc.lang.retracing import retrace  # with all that knows calls

        dimensions = {dim(own.name, multiple=own.multiple): own for own in program.dimensions}
        retrace(program, dimensions)
        kernels = tuple([KernelDefinition.of(kernel) for kernel in kernels_of(program).values()])
        return cls(program, dimensions, kernels, packs=packs)

    @property
    def kernels(self) -> tuple[KernelDefinition, ...]:
        return self._kernels

    def __repr__(self) -> str:
        count = len(self.ir.calls)
        return f"<tc.program {self.signature}, {count} call{'' if count == 1 else 's'}>"


@overload
def program(function: Callable[..., Any], /) -> ProgramDefinition: ...
@overload
def program(
    *, example: Example | None = None, packs: Packs | None = None
) -> Callable[[Callable[..., Any]], ProgramDefinition]: ...
def program(
    function: Callable[..., Any] | None = None,
    /,
    *,
    example: Example | None = None,
    packs: Packs | None = None,
) -> ProgramDefinition | Callable[[Callable[..., Any]], ProgramDefinition]:
    """A program: its body runs once, now, with handles for tensors, and calls kernels.

    example  a function of a NumPy generator that gives the arguments to check it with
    packs    what `program.pack` makes of a parameter, as of a kernel
    """
    if function is not None:
        return _made(function, example, packs, sys._getframe(1).f_locals)
    return lambda function: _made(function, example, packs, sys._getframe(1).f_locals)


def _empty(kind: object) -> Handle | np.ndarray[Any, Any]:
    """In a program a temporary; elsewhere memory that kernels write in place."""
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


empty = Intrinsic("empty", _empty)


def _made(
    function: Callable[..., Any],
    example: Example | None,
    packs: Packs | None,
    around: dict[str, Any],
) -> ProgramDefinition:
    if not isinstance(function, FunctionType):
        raise CompileError(f"a program is made from a function, and this is {describe(function)}")
    from taskc.lang.traced_program import traced  # with all that knows the language

    try:
        made, dimensions, kernels, tuples = traced(function, around)
    except CompileError as error:  # its location says where; our own frames would bury it
        raise error.with_traceback(None) from error.__cause__
    return ProgramDefinition(
        made, dimensions, kernels, function=function, example=example, packs=packs, tuples=tuples
    )
