"""Kernels and programs as operators of PyTorch, for users: `taskc.torch`.

    double = tc.torch.operator(kernel, "mine::double")
    y = double(x)                              one node of a compiled function; also torch.ops.mine.double
    model = tc.torch.compile(exported)         a program of torch.export as a model

PyTorch is not imported here: a caller who makes an operator has imported it. `dynamo.py` is the backend of
`torch.compile`, which PyTorch itself calls.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from taskc.arrays.arguments import one_or_all
from taskc.arrays.dlpack import DTYPES
from taskc.arrays.torch import dtype_of
from taskc.backward import Backward, check_backward, definition_of, imported, names_of
from taskc.errors import CompileError
from taskc.ir.nodes import Tensor
from taskc.ir.signature import Parameter, inputs_of, outputs_of
from taskc.ir.types import boolean
from taskc.lang.definition import Definition
from taskc.runtime.driver import signature

__all__ = ["compile", "operator"]

_NAME = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*", re.ASCII)


def __getattr__(name: str) -> Any:
    """`compile` stands above models, which are written with taskc's public names: it loads at its first use."""
    if name != "compile":
        raise AttributeError(f"module 'taskc.torch' has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.exported").compile


def operator(kernel: Definition, name: str, *, backward: Definition | None = None) -> Any:
    """Register a kernel or a program with torch.library; returns the operator.

    name      "namespace::name", its name in torch.ops
    backward  a kernel or a program that computes gradients. Its parameters are named after those of `kernel`: it
              takes any inputs and outputs of `kernel`, and grad_c for the gradient of an output c; it returns grad_a
              for the gradient of an input a. Other inputs get no gradient.

    The operator takes all parameters but `tc.out`, returns the outputs, and writes `tc.inout` in place. torch.compile
    sees one node, with the types and shapes of its results. Tensors that aren't contiguous are copied, as by PyTorch's
    own operators.
    """
    library = imported("torch")
    _check(kernel, "an operator")
    if not _NAME.fullmatch(str(name)):
        raise CompileError(f"an operator's name is 'namespace::name', and not {name!r}")
    if backward is not None:
        _check(backward, "a backward")
        check_backward(kernel, backward, name, "torch")
    registered = _registered(library, kernel, name)
    if backward is not None:
        inner = _registered(library, backward, f"{name}_backward")
        _differentiate(registered, inner, kernel, backward)
    return registered


def _check(given: object, what: str) -> None:
    definition = definition_of(given, what)
    for item in definition.ir.parameters:
        if not item.name.isascii():
            raise CompileError(
                f"'{item.name}' is no name for torch, which has ASCII ones", item.loc
            )
    if not any(isinstance(item, Tensor) for item in inputs_of(definition.ir.parameters)):
        raise CompileError(
            f"'{definition.name}' takes no tensor, which would tell torch where it runs",
            definition.ir.loc,
        )


def _registered(library: Any, definition: Definition, name: str) -> Any:
    parameters = definition.ir.parameters
    inputs, outputs = inputs_of(parameters), outputs_of(parameters)
    bound = signature(definition)
    dtypes = {dtype_of(dtype): dtype for dtype in DTYPES if hasattr(library, dtype.name)}

    def run(*args: Any) -> Any:
        with library.no_grad():  # autograd works a layer above
            passed = [
                value.contiguous() if isinstance(item, Tensor) and item.role == "in" else value
                for item, value in zip(inputs, args, strict=True)
            ]
            return definition(*passed)

    def fake(*args: Any) -> Any:
        like = next(
            value for item, value in zip(inputs, args, strict=True) if isinstance(item, Tensor)
        )
        shapes = bound.shapes_of_outputs(args, dtypes.__getitem__)
        results = [
            like.new_empty(shape, dtype=dtype_of(np.dtype(output.dtype.numpy)))
            for output, shape in zip(outputs, shapes, strict=True)
        ]
        return one_or_all(results)

    written = [item.name for item in inputs if isinstance(item, Tensor) and item.role == "inout"]
    custom = library.library.custom_op(
        name, run, mutates_args=written, schema=_schema(inputs, outputs)
    )
    custom.register_fake(fake)
    return custom


def _schema(inputs: Sequence[Parameter], outputs: Sequence[Tensor]) -> str:
    """f(x: f32[n], by: f32, y: out f32[n])  ->  (Tensor x, float by) -> Tensor"""
    taken = []
    for number, item in enumerate(inputs):
        if isinstance(item, Tensor):
            kind = f"Tensor(a{number}!)" if item.role == "inout" else "Tensor"
        else:
            kind = "float" if item.dtype.is_float else "bool" if item.dtype is boolean else "SymInt"
        taken.append(f"{kind} {item.name}")
    results = ", ".join(["Tensor"] * len(outputs))
    return f"({', '.join(taken)}) -> {results if len(outputs) == 1 else f'({results})'}"


# --- gradients -------------------------------------------------------------------------------


def _differentiate(operator: Any, run: Any, kernel: Definition, definition: Definition) -> None:
    """Make autograd call `run`, a backward's operator, for the gradients of an operator."""
    backward = Backward(kernel, definition)
    tensors = names_of([item for item in kernel.ir.parameters if isinstance(item, Tensor)])
    saved = [name for name in backward.takes if name in tensors]

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        kept = backward.kept(inputs, output)
        ctx.save_for_backward(*[kept.pop(name) for name in saved])
        ctx.numbers = kept

    def gradients(ctx: Any, *given: Any) -> tuple[Any, ...]:
        kept = dict(zip(saved, ctx.saved_tensors, strict=True)) | ctx.numbers
        return backward.gradients(run, kept, given)

    operator.register_autograd(gradients, setup_context=keep)
