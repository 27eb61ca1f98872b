"""One linear offset for each access, in 32 bits if that is proved to suffice. The result is at
stage lean.

x: f32[64, 32], y: f32[m, n]                 for i: i32 in range(64):
for i in range(64):                   ->         y[cast(i, i64) * n] = x[i * 32 + worker]
    y[i, 0] = x[i, worker]

Offsets are row-major, or follow the tensor's layout; its swizzle is applied by the user of an
address. Shapes stay: parameters are still checked against them. A mutable scalar, of shape (), has
no index, and the coordinates of a GLOBAL box that a TMA operation moves stay coordinates.

An i64 expression becomes i32 if its range, and those of its parts, are known to fit: loop
variables, Lets, `worker` and `block` are rebound as i32, and sizes stay i64. Conditions are not
used for that, so the ranges hold wherever an expression is moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from taskc.analysis.facts import Facts
from taskc.ir import build, nodes as ir
from taskc.ir.linear import range_of
from taskc.ir.nodes import (
    Address,
    Binary,
    Cast,
    Constant,
    Expression,
    Kernel,
    Lookup,
    Read,
    Select,
    Statement,
    Table,
    Tensor,
    Unary,
    Variable,
)
from taskc.ir.operations import OPERATIONS
from taskc.ir.rewrite import map_expressions, map_statements
from taskc.ir.target import TARGETS
from taskc.ir.types import DType, i32, i64

# Operators whose result is the same in i32 if operands and result fit it.
_NARROWING = frozenset(
    {"+", "-", "*", "//", "%", "min", "max", "&", "|", "^", "<<", ">>", "abs", "~"}
)
_COMPARING = frozenset({"<", "<=", ">", ">=", "==", "!="})


def flatten(kernel: Kernel) -> Kernel:
    """Give every access one linear offset, as the head of this file shows."""
    facts = Facts.empty(kernel)
    flattener = _Flattener(facts, TARGETS[kernel.target].narrow)
    worker = flattener.rebound(kernel.worker)
    block = flattener.rebound(kernel.block)
    body = flattener.statement(kernel.body)
    return replace(kernel, body=body, worker=worker, block=block, stage="lean")


def linear_offset(tensor: Tensor, indices: Sequence[Expression]) -> Expression:
    """The offset of an element, in elements, before any swizzle."""
    if tensor.layout is None:
        return _row_major(tensor.shape, indices)
    layout = tensor.layout
    # Dimensions before those of a layout, such as a ring's slots, are outside of it.
    outer = len(indices) - layout.rank
    inner, place = list(indices[outer:]), list(indices[:outer])
    sizes: list[int | Expression] = list(tensor.shape[:outer])
    for dimension, extent in enumerate(layout.shape):
        extent_of_tensor = tensor.shape[outer + dimension]
        if isinstance(extent_of_tensor, int) and extent_of_tensor <= extent:
            continue
        # Only the outermost extent may be unknown: whole layouts follow one another along it.
        place.append(build.floor_divide(inner[dimension], extent))
        sizes.append(extent_of_tensor)
        inner[dimension] = build.modulo(inner[dimension], extent)
    offset = _within_layout(tensor, inner)
    if not place:
        return offset
    return build.add(build.multiply(_row_major(sizes, place), layout.slots), offset)


def _row_major(shape: Sequence[int | Expression], indices: Sequence[Expression]) -> Expression:
    offset: Expression = indices[0]
    for extent, index in zip(shape[1:], indices[1:], strict=True):
        offset = build.add(build.multiply(offset, extent), index)
    return offset


def _within_layout(tensor: Tensor, indices: Sequence[Expression]) -> Expression:
    layout = tensor.layout
    assert layout is not None
    modes = layout.slot_modes
    if modes is None:
        slots = np.ascontiguousarray(layout.owner_table()[1].reshape(-1))
        return Lookup(Table(f"{tensor.name}_layout", slots), _row_major(layout.shape, indices))
    offset: Expression = build.ZERO
    for mode in modes:
        assert mode.dimension is not None
        digit = build.floor_divide(indices[mode.dimension], mode.stride)
        if mode.stride * mode.size < layout.shape[mode.dimension]:
            digit = build.modulo(digit, mode.size)
        offset = build.add(build.multiply(offset, mode.size), digit)
    return offset


class _Flattener:
    """`facts` are about the original names; `names` maps these to their replacements.

    What entering a statement tells of its names stays in the facts' scope, and only that is used.
    """

    def __init__(self, facts: Facts, narrows: bool) -> None:
        self.facts = facts
        self.narrows = narrows
        self.scope = facts.scope
        self.names: dict[Variable, Variable] = {}
        self._memo: dict[int, tuple[Expression, Expression]] = {}

    def rebound(self, variable: Variable) -> Variable:
        """The variable as i32 if its range fits."""
        if variable.dtype is not i64 or not self._fits(variable):
            return variable
        new = replace(variable, dtype=i32)
        self.names[variable] = new
        return new

    def _fits(self, expression: Expression, more: int = 0) -> bool:
        """Whether its value, also with up to `more` added or subtracted, fits i32; always false if the target has
        64-bit offsets only.
        """
        if not self.narrows:
            return False
        low, high = self.scope.interval_of(self.scope.form(expression))
        smallest, largest = range_of(i32)
        assert smallest is not None
        assert largest is not None
        return (
            low is not None
            and high is not None
            and smallest <= low - more
            and high + more <= largest
        )

    # Expressions.

    def narrow(self, node: Expression) -> Expression:
        """An integer expression, flattened: in i32 if it fits, else in its own type."""
        if node.dtype is not i64:
            return self.expression(node)
        known = self._memo.get(id(node))
        if known is not None:
            return known[1]
        new = self._narrow(node)
        self._memo[id(node)] = node, new
        return new

    def _narrow(self, node: Expression) -> Expression:
        match node:
            case Constant():
                return Constant(node.value, i32, loc=node.loc) if self._fits(node) else node
            case Variable():
                return self.names.get(node, node)
            case Binary() if node.operator in _NARROWING:
                parts = self._together(node, node.left, node.right)
                return Binary(node.operator, parts[0], parts[1], loc=node.loc)
            case Unary() if node.operator in _NARROWING:
                parts = self._together(node, node.operand)
                return Unary(node.operator, parts[0], loc=node.loc)
            case Select():
                condition = self.expression(node.condition)
                parts = self._together(node, node.then, node.otherwise)
                return Select(condition, parts[0], parts[1], loc=node.loc)
            case Cast():
                operand = self.narrow(node.operand)
                if operand.dtype is i32:
                    return operand
                narrows = node.operand.dtype.is_integer and self._fits(node)
                return Cast(operand, i32 if narrows else i64, loc=node.loc)
        return self._rebuilt(node)

    def _together(self, node: Expression, *operands: Expression) -> list[Expression]:
        """Operands of one type: i32 if they and the result fit, else i64."""
        parts = [self.narrow(operand) for operand in operands]
        if self._fits(node) and all(map(self._fits, operands)):
            return [_cast(part, i32) for part in parts]
        return [_cast(part, i64) for part in parts]

    def expression(self, node: Expression) -> Expression:
        """An expression, flattened, in its own type."""
        if node.dtype is i64:
            return _cast(self.narrow(node), i64)
        if type(node) is Constant:
            return node
        if type(node) is Variable:
            return self.names.get(node, node)
        known = self._memo.get(id(node))
        if known is not None:
            return known[1]
        new = self._expression(node)
        self._memo[id(node)] = node, new
        return new

    def _expression(self, node: Expression) -> Expression:
        match node:
            case Binary() if node.operator in _COMPARING and node.left.dtype is i64:
                parts = [self.narrow(node.left), self.narrow(node.right)]
                fit = self._fits(node.left) and self._fits(node.right)
                left, right = (_cast(part, i32 if fit else i64) for part in parts)
                if left is node.left and right is node.right:
                    return node
                return Binary(node.operator, left, right, loc=node.loc)
            case Cast() if node.operand.dtype is i64:
                operand = self.narrow(node.operand)
                if operand.dtype is node.dtype:
                    return operand
                return node if operand is node.operand else replace(node, operand=operand)
        return self._rebuilt(node)

    def _rebuilt(self, node: Expression) -> Expression:
        match node:
            case Read() | Address():
                indices = self.offset(node.tensor, node.indices)
                return type(node)(node.tensor, indices, loc=node.loc)
            case Lookup():
                return replace(node, index=self.narrow(node.index))
        return map_expressions(node, self.expression)

    def offset(self, tensor: Tensor, indices: tuple[Expression, ...]) -> tuple[Expression, ...]:
        return (self.narrow(linear_offset(tensor, indices)),) if indices else ()

    # Statements.

    def statement(self, node: Statement) -> Statement:
        match node:
            case ir.Let():
                return self._let(node)
            case ir.For():
                return self._for(node)
            case ir.Store() | ir.Atomic():
                indices = self.offset(node.tensor, node.indices)
                return replace(node, indices=indices, value=self.expression(node.value))
            case ir.Do():
                keeps = OPERATIONS[node.operation].proxy == "asynchronous"
                operands = tuple([self._operand(operand, keeps) for operand in node.operands])
                return replace(node, operands=operands)
            case ir.Mma():
                return map_expressions(node, self.narrow)
        self.facts.enter(node)
        node = map_expressions(node, self.expression)
        return map_statements(node, self.statement)

    def _operand(self, node: Expression, keeps_coordinates: bool) -> Expression:
        if type(node) is Address and node.tensor.scope == ir.GLOBAL and keeps_coordinates:
            return replace(node, indices=tuple([self.narrow(index) for index in node.indices]))
        return self.expression(node)

    def _let(self, node: ir.Let) -> Statement:
        self.facts.enter(node)
        variable = node.variable
        if variable.dtype is i64:
            value = self.narrow(node.value)
            if value.dtype is i32:
                new = replace(variable, dtype=i32)
                self.names[variable] = new
                return ir.Let(new, value, loc=node.loc)
        else:
            value = self.expression(node.value)
        return node if value is node.value else replace(node, value=value)

    def _for(self, node: ir.For) -> Statement:
        self.facts.enter(node)
        bounds = node.start, node.stop
        variable = node.variable
        # The last step goes past the end, and has to fit, too.
        fits = variable.dtype is i64 and all(self._fits(part, abs(node.step)) for part in bounds)
        if fits:
            start, stop = (_cast(self.narrow(part), i32) for part in bounds)
            self.names[variable] = variable = replace(variable, dtype=i32)
        else:
            start, stop = (self.expression(part) for part in bounds)
        body = self.statement(node.body)
        return replace(node, variable=variable, start=start, stop=stop, body=body)


def _cast(node: Expression, dtype: DType) -> Expression:
    """The integer expression in another integer type that represents its value."""
    if node.dtype is dtype:
        return node
    if type(node) is Constant:
        return Constant(node.value, dtype, loc=node.loc)
    if type(node) is Cast and node.operand.dtype is dtype and dtype is i32:
        return node.operand  # i64 holds every i32
    return Cast(node, dtype)
