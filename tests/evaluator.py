"""A small evaluator of stage scalar and lean, independent of the simulator, and random expressions.

Integers are Python's, wrapped to their type; every worker of every block runs alone. Memory is a
dictionary from (tensor, address) to a value, so that layouts and flattening can be compared.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from taskc.ir import arithmetic, nodes as ir
from taskc.ir.nodes import Binary, Cast, Constant, Expression, Select, Unary, Variable
from taskc.ir.types import DType, boolean, f32, i32, i64

Environment = dict[Variable, Any]
Memory = dict[tuple[ir.Tensor, int], Any]

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": lambda a, b: a // b if b else 0,
    "%": lambda a, b: a % b if b else 0,
    "min": min,
    "max": max,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": lambda a, b: a << b if 0 <= b < 64 else 0,
    ">>": lambda a, b: a >> b if 0 <= b < 64 else (0 if a >= 0 else -1),
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Machine:
    """Memory, and the trace of what was stored where in GLOBAL memory."""

    def __init__(self, flat: bool = False, sizes: Environment | None = None) -> None:
        self.flat = flat
        self.memory: Memory = {}
        self.sizes = sizes or {}
        self.touched: list[tuple[ir.Tensor, int]] = []
        self.vectors = 0

    def address(self, tensor: ir.Tensor, indices: Sequence[int]) -> int:
        extents = [
            extent if isinstance(extent, int) else self.value(extent, self.sizes)
            for extent in tensor.shape
        ]
        if self.flat and len(indices) == 1:
            return indices[0]
        assert len(indices) == len(extents)
        assert all(0 <= index < extent for index, extent in zip(indices, extents, strict=True)), (
            tensor,
            indices,
        )
        if tensor.layout is not None:
            return tensor.layout.owner(tuple(indices))[1]
        offset = 0
        for index, extent in zip(indices, extents, strict=True):
            offset = offset * extent + index
        return offset

    def value(self, node: Expression, names: Environment) -> Any:
        match node:
            case Constant():
                return node.value
            case Variable():
                return names[node]
            case Unary():
                x = self.value(node.operand, names)
                if node.operator == "not":
                    return not x
                if node.operand.dtype.is_float:
                    return arithmetic.unary(node.operator, x, node.operand.dtype).item()
                return wrapped(
                    {"-": operator.neg, "abs": abs, "~": operator.invert}[node.operator](x),
                    node.dtype,
                )
            case Binary(operator="and"):
                return self.value(node.left, names) and self.value(node.right, names)
            case Binary(operator="or"):
                return self.value(node.left, names) or self.value(node.right, names)
            case Binary():
                x, y = self.value(node.left, names), self.value(node.right, names)
                if node.left.dtype.is_float:
                    return arithmetic.binary(node.operator, x, y, node.left.dtype).item()
                return wrapped(OPERATORS[node.operator](x, y), node.dtype)
            case ir.Fused():
                parts = [self.value(part, names) for part in (node.left, node.right, node.addend)]
                if node.dtype.is_float:
                    return arithmetic.fma(*parts, node.dtype).item()
                return wrapped(parts[0] * parts[1] + parts[2], node.dtype)
            case Select():
                chosen = node.then if self.value(node.condition, names) else node.otherwise
                return self.value(chosen, names)
            case Cast():
                x = self.value(node.operand, names)
                if node.dtype.is_integer and not node.operand.dtype.is_float:
                    return wrapped(int(x), node.dtype)
                return arithmetic.convert(x, node.operand.dtype, node.dtype).item()
            case ir.Lookup():
                return int(node.table.values[self.value(node.index, names)])
            case ir.Read():
                place = self.address(
                    node.tensor, [self.value(index, names) for index in node.indices]
                )
                self.touched.append((node.tensor, place))
                return self.memory[node.tensor, place]
        raise AssertionError(node)

    def run(self, node: ir.Statement, names: Environment) -> None:
        match node:
            case ir.Sequence():
                for statement in node.statements:
                    self.run(statement, names)
            case ir.Let():
                value = self.value(node.value, names)
                assert node.variable.dtype is node.value.dtype
                names[node.variable] = value
            case ir.Allocate():
                for key in [key for key in self.memory if key[0] is node.tensor]:
                    del self.memory[key]
                if node.fill is not None:
                    for place in range(prod(node.tensor.shape)):  # type: ignore[arg-type]
                        self.memory[node.tensor, place] = node.fill.value
            case ir.Store():
                assert node.value.dtype is node.tensor.dtype
                place = self.address(node.tensor, [self.value(i, names) for i in node.indices])
                self.memory[node.tensor, place] = self.value(node.value, names)
            case ir.If():
                if self.value(node.condition, names):
                    self.run(node.then, names)
                elif node.otherwise is not None:
                    self.run(node.otherwise, names)
            case ir.While():
                while self.value(node.condition, names):
                    self.run(node.body, names)
            case ir.For(kind="vector"):
                self.run_vector(node, names)
            case ir.For():
                start, stop = self.value(node.start, names), self.value(node.stop, names)
                assert node.variable.dtype is node.start.dtype is node.stop.dtype
                for position in range(start, stop, node.step):
                    names[node.variable] = position
                    self.run(node.body, names)
            case ir.Assert():
                assert self.value(node.condition, names)
            case ir.Barrier():
                pass
            case _:
                raise AssertionError(node)

    def run_vector(self, node: ir.For, names: Environment) -> None:
        """Each statement for all lanes at once: all reads, then all stores."""
        assert self.flat
        self.vectors += 1
        start, stop = self.value(node.start, names), self.value(node.stop, names)
        lanes = [{**names, node.variable: position} for position in range(start, stop)]
        body = node.body.statements if isinstance(node.body, ir.Sequence) else (node.body,)
        for statement in body:
            traces, stores = [], []
            for lane in lanes:
                self.touched = []
                value = self.value(statement.value, lane)  # type: ignore[union-attr]
                if isinstance(statement, ir.Let):
                    lane[statement.variable] = value
                else:
                    assert isinstance(statement, ir.Store)
                    (index,) = (self.value(index, lane) for index in statement.indices)
                    self.touched.append((statement.tensor, index))
                    stores.append((statement.tensor, index, value))
                traces.append(self.touched)
            for accesses in zip(*traces, strict=True):
                tensor, first = accesses[0]
                assert all(other is tensor for other, _ in accesses)
                distinct = len({place for _, place in accesses})
                if distinct > 1:
                    share = len(lanes) // distinct
                    is_stored = any((tensor, first) == pair[:2] for pair in stores)
                    steps = {place - first - n // share for n, (_, place) in enumerate(accesses)}
                    assert steps == {0}, "not consecutive"
                    assert share == 1 or not is_stored, "several lanes store to one place"
                    assert first % distinct == 0, "not aligned"
                    assert distinct * tensor.dtype.nbytes <= 16 or tensor.scope == ir.REGISTER
            for tensor, index, value in stores:
                self.memory[tensor, index] = value


def wrapped(value: Any, dtype: DType) -> Any:
    if isinstance(value, bool) or not dtype.is_integer:
        return value
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if dtype.kind == "int" and value >> dtype.bits - 1 else value


def run_kernel(
    kernel: ir.Kernel, arguments: dict[ir.Tensor, Sequence[Any]], sizes: Environment | None = None
) -> dict[tuple[str, int], str]:
    """What parameters hold after all blocks and workers have run, one after another."""
    machine = Machine(kernel.stage == "lean", sizes)
    for tensor, values in arguments.items():
        machine.memory.update({(tensor, place): value for place, value in enumerate(values)})
    names: Environment = dict(sizes or {})
    blocks = 1 if kernel.blocks is None else machine.value(kernel.blocks, dict(names))
    for block in range(blocks):
        for worker in range(kernel.workers):
            names[kernel.block], names[kernel.worker] = block, worker
            machine.run(kernel.body, dict(names))
    # As text, -0.0 differs from 0.0, and nan is equal to itself.
    return {
        (tensor.name, place): repr(value)
        for (tensor, place), value in machine.memory.items()
        if tensor.scope == ir.GLOBAL
    }


# --- random expressions ----------------------------------------------------------------------


class Generator:
    """Random integer, boolean and float expressions over given variables."""

    def __init__(self, seed: int, variables: Sequence[Variable], dtype: DType = i64) -> None:
        self.random = random.Random(seed)
        self.variables = variables
        self.dtype = dtype

    def constant(self) -> Constant:
        value = self.random.choice([0, 0, 1, 1, -1, 2, 3, 4, 5, 7, 8, 16])
        return Constant(value, self.dtype)

    def integer(self, depth: int) -> Expression:
        pick = self.random
        if depth <= 0 or pick.random() < 0.1:
            return self.constant() if pick.random() < 0.35 else pick.choice(self.variables)
        kind = pick.random()
        left = self.integer(depth - 1)
        if kind < 0.3:
            divisor = Constant(pick.choice([1, 2, 3, 4, 8, 8, 16]), self.dtype)
            return Binary(pick.choice(["//", "%"]), left, divisor)
        if kind < 0.36:
            return Unary(pick.choice(["-", "-", "abs", "~"]), left)
        if kind < 0.42:
            return Select(self.boolean(depth - 1), left, self.integer(depth - 1))
        if kind < 0.46:
            return Binary(pick.choice(["//", "%"]), left, self.integer(depth - 1))
        if kind < 0.50:
            shift = Constant(pick.choice([0, 1, 2, 3]), self.dtype)
            return Binary(pick.choice(["<<", ">>"]), left, shift)
        if kind < 0.54:
            return Binary(pick.choice(["&", "|", "^"]), left, self.constant())
        if kind < 0.58 and self.dtype is i64:
            return Cast(Cast(left, i32), i64)
        if kind < 0.64:
            return Binary(pick.choice(["min", "max"]), left, self.integer(depth - 1))
        if kind < 0.72:
            # The same operand again, which only cancels where it is noticed.
            return Binary(pick.choice(["+", "-", "*", "//", "min"]), left, left)
        operator = pick.choice(["+", "+", "+", "-", "-", "*", "*"])
        return Binary(operator, left, self.integer(depth - 1))

    def boolean(self, depth: int) -> Expression:
        pick = self.random
        kind = pick.random()
        if kind < 0.05:
            return Constant(pick.random() < 0.5, boolean)
        if depth <= 0 or kind < 0.55:
            compare = pick.choice(["<", "<=", ">", ">=", "==", "!="])
            left = self.integer(depth - 1)
            if kind < 0.12:
                return Binary(compare, left, left)
            return Binary(compare, left, self.integer(depth - 1))
        if kind < 0.65:
            return Unary("not", self.boolean(depth - 1))
        if kind < 0.7:
            condition = self.boolean(depth - 1)
            return Select(condition, self.boolean(depth - 1), self.boolean(depth - 1))
        left = self.boolean(depth - 1)
        again = left if kind < 0.75 else self.boolean(depth - 1)
        return Binary(pick.choice(["and", "or"]), left, again)

    def float(self, depth: int) -> Expression:
        pick = self.random
        if depth <= 0 or pick.random() < 0.15:
            if pick.random() < 0.5:
                return Constant(pick.choice([0.0, -0.0, 1.0, -1.0, 2.0, 0.1]), f32)
            return Cast(pick.choice(self.variables), f32)
        left = self.float(depth - 1)
        kind = pick.random()
        if kind < 0.15:
            return Unary("-", left)
        if kind < 0.3:
            return Select(self.boolean(1), left, self.float(depth - 1))
        if kind < 0.45:
            return ir.Fused(left, self.float(depth - 1), self.float(depth - 1))
        if kind < 0.55:
            return Binary(pick.choice(["+", "-", "*", "/", "min", "max"]), left, left)
        operator = pick.choice(["+", "-", "*", "/", "min", "max"])
        return Binary(operator, left, self.float(depth - 1))
