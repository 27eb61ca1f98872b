"""Kernels and programs for operators of other libraries, with backwards, whose parameters are matched by name.

A backward takes any inputs and outputs of its kernel, and grad_c for the gradient of an output c; it returns grad_a for
the gradient of an input a.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from taskc.errors import CompileError
from taskc.ir.nodes import Tensor
from taskc.ir.signature import Parameter, inputs_of, named_type, outputs_of
from taskc.lang.definition import Definition

GRADIENT = "grad_"


def imported(library: str) -> Any:
    """A library that the caller has imported."""
    module = sys.modules.get(library)
    if module is None:
        hint = f"import {library} before tc.{library}.operator()"
        raise CompileError(f"{library} isn't imported", hint=hint)
    return module


def definition_of(given: object, what: str) -> Definition:
    """The kernel or program that somebody passed; an error calls it `what`."""
    if isinstance(given, Definition):
        return given
    hint = "it returns one, perhaps: call it first" if callable(given) else None
    kind = type(given).__name__
    raise CompileError(f"{what} is made from a kernel or a program, and not a {kind}", hint=hint)


class Backward:
    """A kernel's gradients, computed by another kernel or program.

    takes  the names of the backward's inputs: inputs and outputs of the kernel, and gradients of outputs
    """

    def __init__(self, kernel: Definition, backward: Definition) -> None:
        parameters = kernel.ir.parameters
        self.inputs = names_of(inputs_of(parameters))
        self.outputs = names_of(outputs_of(parameters))
        self.takes = names_of(inputs_of(backward.ir.parameters))
        self._returns = names_of(outputs_of(backward.ir.parameters))

    def kept(self, arguments: Sequence[Any], returned: Any) -> dict[str, Any]:
        """The inputs and outputs of a call that the backward takes."""
        pairs = zip((*self.inputs, *self.outputs), (*arguments, *several(returned)), strict=True)
        return {name: value for name, value in pairs if name in self.takes}

    def gradients(
        self, run: Callable[..., Any], kept: dict[str, Any], given: Sequence[Any]
    ) -> tuple[Any, ...]:
        """The gradient of each input, or None, from those of the outputs.

        run  calls the backward
        """
        pairs = zip(self.outputs, given, strict=True)
        values = kept | {f"{GRADIENT}{name}": gradient for name, gradient in pairs}
        returned = several(run(*[values[name] for name in self.takes]))
        by_name = dict(zip(self._returns, returned, strict=True))
        return tuple([by_name.get(f"{GRADIENT}{name}") for name in self.inputs])


def check_backward(kernel: Definition, backward: Definition, name: str, library: str) -> None:
    """Check that a backward's parameters are named after the kernel's, and have their types.

    name     the operator's name in errors
    library  the library that it is for
    """
    inputs, outputs = inputs_of(kernel.ir.parameters), outputs_of(kernel.ir.parameters)
    for item in inputs:
        if isinstance(item, Tensor) and item.role == "inout":
            raise CompileError(
                f"'{kernel.name}' writes '{item.name}' in place, and {library} takes no gradient of such operators",
                item.loc,
            )
    taken = {item.name: item for item in (*inputs, *outputs)}
    taken |= gradients_of(outputs)
    gradients = gradients_of(inputs)
    for item in inputs_of(backward.ir.parameters):
        _check_match(item, taken, f"the backward of '{name}' takes", backward)
    returned = outputs_of(backward.ir.parameters)
    for item in returned:
        _check_match(item, gradients, f"the backward of '{name}' returns", backward)
    if not returned:
        listed = ", ".join(gradients) or "nothing"
        raise CompileError(
            f"the backward of '{name}' returns no gradient; there is {listed}", backward.ir.loc
        )


def gradients_of(items: Sequence[Parameter]) -> dict[str, Parameter]:
    """The parameters that can have a gradient, by the gradient's name."""
    return {
        f"{GRADIENT}{item.name}": item
        for item in items
        if isinstance(item, Tensor) and item.dtype.is_float
    }


def _check_match(
    item: Parameter, known: dict[str, Parameter], what: str, backward: Definition
) -> None:
    """Check that a parameter has a known name, and the type of the parameter that it is named after."""
    of = known.get(item.name)
    if of is None:
        raise CompileError(
            f"{what} no '{item.name}'", item.loc, f"there is {', '.join(known) or 'nothing'}"
        )
    if isinstance(item, Tensor) and item.role == "inout":
        raise CompileError(f"{what} '{item.name}', which it may not write in place", item.loc)
    if item.dtype is not of.dtype or not _may_equal(item, of):
        raise CompileError(
            f"'{item.name}' of the backward '{backward.name}' is {_type_text(item)}, and '{of.name}' of the kernel"
            f" is {_type_text(of)}",
            item.loc,
        )


def _type_text(item: Parameter) -> str:
    if isinstance(item, Tensor):
        return named_type(item.dtype, item.argument_shape)
    return str(item.dtype)


def _may_equal(one: Parameter, other: Parameter) -> bool:
    """Whether both are numbers, or tensors of equal rank whose known extents are equal."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return not isinstance(one, Tensor) and not isinstance(other, Tensor)
    if len(one.argument_shape) != len(other.argument_shape):
        return False
    pairs = zip(one.argument_shape, other.argument_shape, strict=True)
    return all(a == b for a, b in pairs if isinstance(a, int) and isinstance(b, int))


def names_of(items: Sequence[Parameter]) -> list[str]:
    return [item.name for item in items]


def several(returned: Any) -> tuple[Any, ...]:
    """The results of an operator as a tuple."""
    return returned if isinstance(returned, tuple) else (returned,)
