"""evaluate: the results of a program without inputs, computed by NumPy.

    table: out[i] = min(i * 3 // 2, 9).to(i32)      ->      array([0, 1, 3, 4, ...], dtype=int32)

What is computed once, such as the constants of a model, takes less time to compute than to compile. The results have
the bits that compiled code gives: floats are exact to the bit on every target, but for math functions. Those are the
caller's, which may compile one kernel for each.

Programs that call kernels have no result here, and have to be compiled. So have those that read out of bounds: compiled
code reports that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np

from taskc.ir import arithmetic, nodes as ir
from taskc.ir.nodes import Expression, Tensor, Variable
from taskc.ir.signature import outputs_of
from taskc.programs.ir import Call, Computation, Program

Array: TypeAlias = "np.ndarray[Any, Any]"
Math: TypeAlias = (
    "Callable[[str, tuple[Array, ...]], Array]"  # a math function of arrays, by its name
)

_MOST_GATHERED = 1 << 24  # elements: more of them are gathered faster by compiled code


class _HasToBeCompiledError(Exception):
    pass


def evaluate(program: Program, math: Math) -> tuple[Array, ...] | None:
    """The program's outputs, or None if it has to be compiled."""
    memory: dict[Tensor, Array] = dict(program.constants)
    views = {view.tensor: view for view in program.views}

    def array_of(tensor: Tensor) -> Array:
        shape = _extents(tensor)
        if tensor in memory:
            return memory[tensor]
        view = views[tensor]
        if not isinstance(view.offset, int):
            raise _HasToBeCompiledError
        return array_of(view.of).reshape(-1)[view.offset :][: prod(shape)].reshape(shape)

    try:
        for call in program.calls:
            if not isinstance(call, Call) or not isinstance(call.callee, Computation):
                return None
            output = call.arguments[-1]
            if not isinstance(output, Tensor) or output in views:
                return None
            given = zip(call.callee.parameters[:-1], call.arguments, strict=False)
            tensors = {
                parameter: array_of(argument)
                for parameter, argument in given
                if isinstance(parameter, Tensor) and isinstance(argument, Tensor)
            }
            memory[output] = _elements(call.callee, tensors, math)
        return tuple([memory[output] for output in outputs_of(program.parameters)])
    except _HasToBeCompiledError:
        return None


def _extents(tensor: Tensor) -> tuple[int, ...]:
    extents = [extent for extent in tensor.shape if isinstance(extent, int)]
    is_packed = tensor.layout is not None or tensor.dtype.is_sub_byte
    if len(extents) < len(tensor.shape) or is_packed:
        raise _HasToBeCompiledError
    return tuple(extents)


def _elements(computation: Computation, tensors: dict[Tensor, Array], math: Math) -> Array:
    """The elements of a computation's output."""
    shape = _extents(computation.output)
    evaluation = _Evaluation(computation.variables, shape, tensors, math)
    value = evaluation.value(computation.value, False)
    return np.array(np.broadcast_to(value, shape), order="C")


class _Evaluation:
    """The values of expressions for all elements of a computation; each broadcasts to its output's shape.

    known  values by the identity of their expression, and by whether some elements don't need them
    """

    def __init__(
        self,
        variables: Sequence[Variable],
        shape: Sequence[int],
        tensors: dict[Tensor, Array],
        math: Math,
    ) -> None:
        self.axes = {variable: axis for axis, variable in enumerate(variables)}
        self.shape = shape
        self.tensors = tensors
        self.math = math
        self.known: dict[tuple[int, bool], Array] = {}

    def value(self, node: Expression, is_partial: bool) -> Array:
        key = id(node), is_partial
        if key not in self.known:
            self.known[key] = self._value(node, is_partial)
        return self.known[key]

    def _value(self, node: Expression, is_partial: bool) -> Array:
        match node:
            case ir.Constant():
                return arithmetic.as_storage(node.value, node.dtype)
            case Variable() if node in self.axes:
                return self._along(np.arange(self.shape[self.axes[node]]), self.axes[node])
            case ir.Unary():
                operand = self.value(node.operand, is_partial)
                if node.operator in arithmetic.MATH_FUNCTIONS:
                    return self.math(node.operator, (operand,))
                return arithmetic.unary(node.operator, operand, node.operand.dtype)
            case ir.Binary():
                left = self.value(node.left, is_partial)
                right = self.value(node.right, is_partial or node.operator in ("and", "or"))
                dtype = node.left.dtype
                if node.operator in arithmetic.MATH_FUNCTIONS:
                    return self.math(node.operator, (left, right))
                if arithmetic.divides_by_zero(node.operator, right, dtype).any():
                    raise _HasToBeCompiledError
                return arithmetic.binary(node.operator, left, right, dtype)
            case ir.Fused():
                left, right = self.value(node.left, is_partial), self.value(node.right, is_partial)
                addend = self.value(node.addend, is_partial)
                return arithmetic.fma(left, right, addend, node.dtype)
            case ir.Select():
                condition = self.value(node.condition, is_partial)
                return np.where(
                    condition, self.value(node.then, True), self.value(node.otherwise, True)
                )
            case ir.Cast():
                operand = self.value(node.operand, is_partial)
                return arithmetic.convert(operand, node.operand.dtype, node.dtype)
            case ir.Read() if isinstance(node.tensor, Tensor):
                return self._read(self.tensors[node.tensor], node.indices, is_partial)
        raise _HasToBeCompiledError

    def _along(self, values: Array, axis: int) -> Array:
        """Values along one axis of the output."""
        return values.reshape(-1, *[1] * (len(self.shape) - axis - 1))

    def _read(self, array: Array, indices: Sequence[Expression], is_partial: bool) -> Array:
        axes = [
            self.axes.get(index, -1) if isinstance(index, Variable) else -1 for index in indices
        ]
        if -1 not in axes and len({*axes}) == len(axes):
            part = array[tuple([slice(self.shape[axis]) for axis in axes])]
            order = sorted(range(len(axes)), key=axes.__getitem__)
            extents = [self.shape[axis] if axis in axes else 1 for axis in range(len(self.shape))]
            if part.shape == tuple([self.shape[axis] for axis in axes]):
                return np.asarray(part.transpose(order).reshape(extents))
        places = []
        for index, extent in zip(indices, array.shape, strict=True):
            place = self.value(index, is_partial)
            if not is_partial and ((place < 0) | (place >= extent)).any():
                raise _HasToBeCompiledError
            places.append(np.clip(place, 0, extent - 1) if is_partial else place)
        is_large = prod(np.broadcast_shapes(*[place.shape for place in places])) > _MOST_GATHERED
        if is_large or (is_partial and not array.size):
            raise _HasToBeCompiledError
        return np.asarray(array[tuple(places)])
