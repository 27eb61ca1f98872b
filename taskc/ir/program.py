"""Programs: calls of kernels, one after another, on parameters and temporaries.

    program    ::= Program(name, parameters, dimensions, temporaries, calls, views)
    call       ::= Call(kernel, arguments)
    argument   ::= Tensor                          for a tensor: a parameter, a temporary or a view
                 | expression                      for a scalar: of the program's scalars and dimensions

A program is straight: what chose its calls was constant. Calls take effect one after another, each as a
call of its kernel would. A temporary is uninitialized memory that lives from the program's start to its
end; its extents are expressions of the program's dimensions. A view is the memory of a parameter or a
temporary, row-major, in another shape of as many elements. A program inside a program has been inlined.

What holds of every program that can be called, since tracing has checked it:

- an argument has its parameter's type, shape and layout, for all sizes of the dimensions;
- what a call reads was written by a call before, or by the caller;
- what a call writes is no other argument of it; an input is never written, and an output is the
  `out` of exactly one call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from taskc.errors import NOWHERE, Location
from taskc.ir.nodes import Expression, Kernel, Tensor, Variable
from taskc.ir.text_rules import PROGRAM_WORDS, identifier


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a kernel; `arguments` are one for each of its parameters, outputs too."""

    kernel: Kernel
    arguments: tuple[Tensor | Expression, ...]
    loc: Location = field(default=NOWHERE, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Program:
    """Calls of kernels, as the head of this file says. Parameters and dimensions are those of a kernel."""

    name: str
    parameters: tuple[Tensor | Variable, ...]
    dimensions: tuple[Variable, ...]
    temporaries: tuple[Tensor, ...]
    calls: tuple[Call, ...]
    views: tuple[tuple[Tensor, Tensor], ...] = ()  # and what each is a view of
    loc: Location = field(default=NOWHERE, compare=False, repr=False, kw_only=True)


def kernels_of(program: Program) -> dict[str, Kernel]:
    """The kernels that a program calls, each once, in the order of their first calls.

    The names are their own; the second kernel that is called `copy` is `copy_1`. No name is a word of the text.
    """
    named: dict[str, Kernel] = {}
    for call in program.calls:
        if not any(call.kernel is kernel for kernel in named.values()):
            base = name = identifier(call.kernel.name)
            number = 0
            while name in named or name in PROGRAM_WORDS:
                number += 1
                name = f"{base}_{number}"
            named[name] = call.kernel
    return named


def map_kernels(program: Program, change: Callable[[Kernel], Kernel]) -> Program:
    """The program with its kernels exchanged: one that is called twice is still one."""
    made = {id(kernel): change(kernel) for kernel in kernels_of(program).values()}
    calls = [replace(call, kernel=made[id(call.kernel)]) for call in program.calls]
    return replace(program, calls=tuple(calls))


def bind_dimensions(
    parameters: Sequence[Tensor | Variable], shapes: Sequence[Sequence[int]]
) -> dict[Variable, int]:
    """What the symbolic dimensions are, given the shapes of a call's arguments."""
    return {
        extent: size
        for parameter, shape in zip(parameters, shapes, strict=True)
        if isinstance(parameter, Tensor)
        for extent, size in zip(parameter.argument_shape, shape, strict=True)
        if isinstance(extent, Variable)
    }
