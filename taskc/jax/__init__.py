"""Kernels and programs as functions of JAX, for users: `taskc.jax`.

    double = tc.jax.operator(kernel)
    y = jax.jit(lambda x: double(x) + 1)(x)                      one call of the compiled program, by XLA's FFI

JAX is not imported here: a caller who makes an operator has imported it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from taskc.arrays.arguments import ArgumentError, one_or_all
from taskc.backward import Backward, check_backward, definition_of, imported, names_of, several
from taskc.errors import CompileError
from taskc.ir.nodes import Tensor
from taskc.ir.signature import MatchError, Parameter, inputs_of, match, misfit, outputs_of
from taskc.jax.xla import capsule_of
from taskc.lang.definition import Definition
from taskc.runtime.driver import signature

__all__ = ["operator"]

_numbers = itertools.count()


def operator(kernel: Definition, *, backward: Definition | None = None) -> Callable[..., Any]:
    """A function of JAX that runs a kernel or a program on processors.

    backward  a kernel or a program that computes gradients. Its parameters are named after those of `kernel`: it
              takes any inputs and outputs of `kernel`, and grad_c for the gradient of an output c; it returns grad_a
              for the gradient of an input a. Other inputs get zeros.

    The function takes all parameters but `tc.out`, in order or by name, and returns the outputs, one or a tuple, in the
    order of the parameters. The new value of a `tc.inout` is an output, too. A number may be an array without axes.
    `jax.jit` sees one call; `jax.vmap` loops over it.
    """
    library = imported("jax")
    forward = _registered(library, definition_of(kernel, "an operator"))
    call = forward
    if backward is not None:
        check_backward(kernel, definition_of(backward, "a backward"), kernel.name, "JAX")
        call = _differentiated(library, forward, kernel, backward)
    parameters = kernel.ir.parameters

    def operator(*args: Any, **keywords: Any) -> Any:
        try:
            given = match(f"{kernel.name}()", parameters, args, keywords, kernel.tuples)
        except MatchError as error:
            raise ArgumentError(str(error)) from None
        for output in outputs_of(parameters):
            if output.name in given:
                raise ArgumentError(
                    f"{kernel.name}(): JAX's arrays aren't written, so '{output.name}' can't be given"
                )
        return call(*[_traced(library, kernel, item, given) for item in inputs_of(parameters)])

    operator.__name__ = operator.__qualname__ = kernel.name
    return operator


def _traced(library: Any, kernel: Definition, item: Parameter, given: dict[str, Any]) -> Any:
    """An argument as a JAX array; a number becomes one without axes, of the parameter's type."""
    value = given[item.name]
    if isinstance(item, Tensor):
        return library.numpy.asarray(value)
    if isinstance(value, bool | int | float):
        problem = misfit(value, item.dtype)
        if problem is not None:
            raise ArgumentError(f"{kernel.name}(): argument '{item.name}' {problem}")
        return library.numpy.asarray(value, item.dtype.numpy)
    array = library.numpy.asarray(value)
    if array.shape or array.dtype != item.dtype.numpy:
        raise ArgumentError(
            f"{kernel.name}(): argument '{item.name}' must be a number of type {item.dtype},"
            f" not an array of {array.dtype.name} and shape {array.shape}"
        )
    return array


def _registered(library: Any, definition: Definition) -> Callable[..., Any]:
    """A function of JAX arrays of the right types, one for each input."""
    parameters, bound = definition.ir.parameters, signature(definition)
    inputs = inputs_of(parameters)
    written = [item for item in parameters if isinstance(item, Tensor) and item.role != "in"]
    for item in parameters:
        if isinstance(item, Tensor):
            _check_type(library, definition, item)
    outputs = names_of(outputs_of(parameters))
    aliases = {inputs.index(item): written.index(item) for item in written if item in inputs}
    names = ["out"] if len(outputs) == 1 and "out" not in names_of(inputs) else outputs

    def run(arguments: list[Any], results: list[Any]) -> None:
        memory = dict(zip(names_of(written), results, strict=True))
        values = [
            memory.get(item.name, value) if isinstance(item, Tensor) else value.item()
            for item, value in zip(inputs, arguments, strict=True)
        ]
        definition(*values, **dict(zip(names, [memory[name] for name in outputs], strict=True)))

    def refuse(arguments: list[Any], results: list[Any]) -> None:
        raise CompileError(
            f"'{definition.name}' is an operator for processors, and JAX runs it on a GPU",
            definition.ir.loc,
            "jax.default_device(jax.devices('cpu')[0]) has JAX run it there",
        )

    target = f"taskc.{definition.name}.{next(_numbers)}"
    types = [np.dtype(item.dtype.numpy) for item in (*inputs, *written)]
    for platform, handler in (("cpu", run), ("CUDA", refuse)):
        library.ffi.register_ffi_target(target, capsule_of(handler, types), platform=platform)

    def call(*arrays: Any) -> Any:
        shapes = dict(zip(outputs, bound.shapes_of_outputs(arrays, np.dtype), strict=True))
        shapes |= {
            item.name: array.shape
            for item, array in zip(inputs, arrays, strict=True)
            if item in written
        }
        types = [library.ShapeDtypeStruct(shapes[item.name], item.dtype.numpy) for item in written]
        run = library.ffi.ffi_call(
            target, types, vmap_method="sequential", input_output_aliases=aliases
        )
        return one_or_all(run(*arrays))

    # A call by itself is as fast as a jitted function's, and a call in a transformed function is inlined.
    jitted: Callable[..., Any] = library.jit(call, inline=True)
    return jitted


def _check_type(library: Any, definition: Definition, item: Tensor) -> None:
    """Check that JAX has arrays of a parameter's type."""
    if item.dtype.is_sub_byte:
        raise CompileError(
            f"'{item.name}' is {item.dtype}, whose elements share bytes, and JAX's don't", item.loc
        )
    dtype = np.dtype(item.dtype.numpy)
    if library.dtypes.canonicalize_dtype(dtype) != dtype:
        raise CompileError(
            f"'{item.name}' is {item.dtype}, of which JAX makes a shorter type",
            item.loc,
            'jax.config.update("jax_enable_x64", True) lets it have 64 bits',
        )
    if item.layout is not None and item.role != "in":
        raise CompileError(
            f"'{item.name}' has a layout, and JAX's arrays are row-major",
            item.loc,
            f"let '{definition.name}' write a row-major one",
        )


def _differentiated(
    library: Any, forward: Callable[..., Any], kernel: Definition, definition: Definition
) -> Any:
    """`forward` with a gradient, computed by a backward."""
    backward, run = Backward(kernel, definition), _registered(library, definition)

    def keep(*arrays: Any) -> tuple[Any, dict[str, Any]]:
        returned = forward(*arrays)
        return returned, backward.kept(arrays, returned)

    def gradients(kept: dict[str, Any], given: Any) -> tuple[Any, ...]:
        return backward.gradients(run, kept, several(given))

    differentiated = library.custom_vjp(forward)
    differentiated.defvjp(keep, gradients)
    return differentiated
