"""What a run derives from its arguments: extents, addresses, sizes."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from taskc.backend.sim.expressions import scalar
from taskc.backend.sim.memory import Array
from taskc.errors import CompileError, InternalError
from taskc.ir import arithmetic, nodes as ir


def typed(numbers: Array, variable: ir.Variable) -> Array:
    return numbers.astype(variable.dtype.numpy)


def shared_end(tensor: ir.Tensor, shape: tuple[int, ...]) -> int:
    slots = prod(shape) if tensor.layout is None else max(tensor.layout.slots, prod(shape))
    return (tensor.offset or 0) + slots * tensor.dtype.nbytes


def addresses_of(tensor: ir.Tensor, shape: tuple[int, ...]) -> Array:
    """Where each element lies, row-major."""
    assert tensor.layout is not None
    tasks = np.indices(shape).reshape(len(shape), -1).T
    return tensor.layout.find(0, tasks)


def constant_value(expression: ir.Expression, bound: dict[ir.Variable, Any]) -> Any:
    """An expression of the symbolic dimensions."""
    match expression:
        case ir.Constant(value=value):
            return value
        case ir.Variable():
            if expression not in bound:
                raise CompileError(f"the dimension {expression.name} is not known")
            return bound[expression]
        case ir.Binary(operator=operator, left=left, right=right, dtype=dtype):
            operands = (constant_value(left, bound), constant_value(right, bound))
            plain = [x.item() if isinstance(x, np.generic) else x for x in operands]
            return scalar(arithmetic.binary(operator, plain[0], plain[1], dtype)).item()
    raise InternalError(f"an extent can't be {type(expression).__name__}")
