"""Build one node's outputs while a program is traced.

few known integers    by Python
constants             folded now, by NumPy or by a program of their own, unless the results are much larger
anything else         by calls of the program
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from math import prod

import numpy as np

import taskc as tc
from taskc import CompileError
from taskc.errors import NOWHERE, blaming_taskc
from taskc.lang.source import called_from
from taskc.operators.call import (
    Builder,
    Call,
    CountError,
    DataError,
    NeedsKernelError,
    SizeError,
    builder_of,
    is_few,
)
from taskc.operators.tensors import (
    Counted,
    Held,
    Loose,
    dtype_of,
    handle_of,
    now,
    results_now,
    rows_of,
)
from taskc.programs.sizes import StepNumber
from taskc.programs.tracing import TensorHandle
from taskc.runtime.served import CountedOutput, Output, arrays_of

_MAX_GROWTH = 1 << 22  # elements by which folded constants may exceed their inputs


def built(call: Call) -> tuple[Held | None, ...]:
    """The outputs of a call's node."""
    node = call.node
    builder = builder_of(node.operator, node.version, node.domain)
    if builder is None:
        raise node.error("taskc doesn't have this operator")
    if any(isinstance(held, Loose) for held in call.inputs):
        from taskc.operators.control import settled  # most models have no such operators

        inputs, loose = settled(node, builder, call.inputs)
        call = replace(call, inputs=inputs)
        if loose is not None:
            outputs = _outputs_of(builder, call)
            return tuple([None if held is None else loose.like(rows_of(held)) for held in outputs])
    inputs = call.inputs
    if inputs and all(map(is_few, inputs)):
        try:
            return _outputs_of(builder, replace(call, by_python=True))
        except NeedsKernelError:
            pass
        except CompileError:  # Python can't tell, as it differs from step to step
            if not any(isinstance(dimension, StepNumber) for dimension in call.dimensions):
                raise
    if _is_constant(call):
        return _folded(builder, call)
    return _outputs_of(builder, call)


def returned(held: Held, name: str, count: str, made: dict[str, TensorHandle]) -> Output:
    """An output of a graph; the handles that the program must return for it are added to `made`."""
    if isinstance(held, Counted):
        made |= {name: held.handle, count: held.count}
        return CountedOutput(name, held.axis)
    tensor = rows_of(held)
    if not isinstance(tensor, TensorHandle) and tensor.dtype != object:
        return tensor
    made[name] = handle_of(tensor)
    return name


def _shapes(call: Call) -> str:
    kinds = [
        "none" if x is None else f"{dtype_of(x)}[{', '.join(map(str, x.shape))}]"
        for x in call.inputs
    ]
    return " and ".join(kinds) or "of which it has none"


def _outputs_of(builder: Builder, call: Call) -> tuple[Held | None, ...]:
    node = call.node
    try:
        with called_from(node.place), _blaming(builder, call):
            outputs = builder(call)
    except (CountError, DataError):
        raise
    except CompileError as error:
        if isinstance(error, SizeError):
            raise
        is_titled = error.message.startswith(node.title)
        shown = error if is_titled else node.error(error.message, error.hint)
        # An error of the node's own place says nothing that isn't in the one shown.
        is_repeated = error.location in (node.place, NOWHERE)
        raise _of_sizes(call, shown).with_traceback(error.__traceback__) from (
            error.__cause__ if is_repeated else error
        )
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _blaming(builder: Builder, call: Call) -> AbstractContextManager[None]:
    """Report exceptions of taskc's own builders as internal errors; a user's builder may raise anything."""
    if not builder.__module__.startswith("taskc."):
        return nullcontext()
    return blaming_taskc(f"{call.node.title}, of {_shapes(call)}")


def _of_sizes(call: Call, error: CompileError) -> CompileError:
    """Wrap an error that might not occur with fixed extents, so that the caller can retry with numbers."""
    if not call.dimensions:
        return error
    retryable = SizeError(error.message, error.location, error.hint, error.notes)
    retryable.dimensions = call.dimensions
    return retryable


def _is_constant(call: Call) -> bool:
    """Whether all inputs are known and the node has no graphs, so that its outputs are constants."""
    if any(call.node.graphs):
        return False
    return all(
        tensor is None or (isinstance(tensor, np.ndarray) and tensor.dtype != object)
        for tensor in call.inputs
    )


def _folded(builder: Builder, call: Call) -> tuple[Held | None, ...]:
    """The outputs of a node with constant inputs, computed now by a program."""
    outputs: list[Output | None] = []
    made: dict[str, TensorHandle] = {}

    def body() -> dict[str, TensorHandle]:
        for number, held in enumerate(_outputs_of(builder, call)):
            names = f"out{number}", f"count{number}"
            outputs.append(None if held is None else returned(held, *names, made))
        return made

    program = now(lambda: tc.trace(call.name, {}, body))
    size = sum(prod(tensor.shape) for tensor in made.values())
    read = sum(prod(tensor.shape) for tensor in call.inputs if tensor is not None)
    if size > read + _MAX_GROWTH:
        return _outputs_of(builder, call)
    arrays = results_now(program) if program.ir.parameters else ()
    computed = iter(arrays_of([output for output in outputs if output is not None], arrays))
    return tuple([None if output is None else next(computed) for output in outputs])
