"""Slices of tensors: their sizes, found by symbolic subtraction, and their guards."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from taskc.ir import nodes as ir
from taskc.ir.build import conjunction, less
from taskc.ir.types import i64
from taskc.lang.context import Context, Located
from taskc.lang.conversions import extent, index
from taskc.lang.values import Slice, TensorView, Transposed, Value

# Names for the indices of a block value, as in `for i, j in own`.
INDEX_NAMES = "ijklmnop"

Terms = dict[ir.Expression, int]  # coefficients; the constant term is that of _ONE
_ONE = ir.Constant(1, i64)


def subscript_dimension(
    context: Context, full: int | ir.Expression, node: ast.expr
) -> ir.Expression | Slice:
    """One part of `x[i, r : r + 8]`, where the dimension has the extent `full`."""
    if not isinstance(node, ast.Slice):
        return element_index(context, context.evaluate(node), node)
    if node.step is not None:
        raise context.error("a slice has no step", node.step, "use the general form of tc.load")
    lower: int | ir.Expression = 0
    upper = full
    if node.lower is not None:
        lower = extent(context, context.evaluate(node.lower), node.lower)
    if node.upper is not None:
        upper = extent(context, context.evaluate(node.upper), node.upper)
    loc = context.locate(node)
    size = constant_extent(context, upper, lower)
    if size is None:
        raise context.error(
            "the size of this slice isn't known at compile time",
            node,
            "write the end as the start plus a constant: r : r + 32",
        )
    if size < 0:
        raise context.error(f"this slice has {size} elements", node)
    start = ir.Constant(lower, i64, loc=loc) if isinstance(lower, int) else lower
    return Slice(start, size, loc)


def element_index(context: Context, value: Value, node: Located) -> ir.Expression:
    if isinstance(value, int) and not isinstance(value, bool) and value < 0:
        raise context.error(
            f"an index can't be negative: {value}", node, "count from the end with x.shape[...] - 1"
        )
    return index(context, value, node)


def view_of(context: Context, value: Value, node: ast.expr, what: str) -> TensorView:
    """A tensor or a slice of one, as a slice."""
    if isinstance(value, TensorView):
        return value
    if isinstance(value, Transposed):
        return view_of(context, value.tensor, node, what).T
    context.expect(ir.Tensor, value, node, f"{what} is a tensor or a slice of one")
    loc = context.locate(node)
    zero = ir.Constant(0, i64, loc=loc)
    ranges = []
    for full in value.shape:
        if not isinstance(full, int):
            raise context.error(
                f"the size of {value.name} isn't known at compile time", node, "take a slice of it"
            )
        ranges.append(Slice(zero, full, loc))
    return TensorView(value, tuple(ranges))


def constant_extent(
    context: Context, upper: int | ir.Expression, lower: int | ir.Expression
) -> int | None:
    """upper - lower where that is a constant."""
    if isinstance(upper, int) and isinstance(lower, int):
        return upper - lower
    terms: Terms = {}
    _accumulate(context, upper, 1, terms)
    _accumulate(context, lower, -1, terms)
    constant = terms.pop(_ONE, 0)
    return None if any(terms.values()) else constant


def _accumulate(context: Context, value: int | ir.Expression, factor: int, terms: Terms) -> None:
    """Add factor * value to the terms."""
    match value:
        case int():
            terms[_ONE] = terms.get(_ONE, 0) + factor * value
        case ir.Constant():
            terms[_ONE] = terms.get(_ONE, 0) + factor * int(value.value)
        case ir.Binary(operator="+" | "-"):
            _accumulate(context, value.left, factor, terms)
            _accumulate(context, value.right, factor if value.operator == "+" else -factor, terms)
        case ir.Binary(operator="*", left=ir.Constant(value=int(scale)), right=other):
            _accumulate(context, other, factor * scale, terms)
        case ir.Binary(operator="*", left=other, right=ir.Constant(value=int(scale))):
            _accumulate(context, other, factor * scale, terms)
        case ir.Unary(operator="-"):
            _accumulate(context, value.operand, -factor, terms)
        case ir.Cast(operand=operand) if operand.dtype.is_integer:
            # Where the narrower sum wraps, the end of a slice does; its size is what was written.
            _accumulate(context, operand, factor, terms)
        case ir.Variable() if value in context.definitions and value.dtype is i64:
            _accumulate(context, context.definitions[value], factor, terms)
        case _:
            terms[value] = terms.get(value, 0) + factor


def is_nonnegative(context: Context, value: ir.Expression) -> bool:
    """Whether an expression plainly can't be negative: a sum, product or quotient of such expressions."""
    match value:
        case ir.Constant():
            return value.value >= 0
        case ir.Variable():
            if value in context.nonnegative:
                return True
            known = context.definitions.get(value)
            return known is not None and is_nonnegative(context, known)
        case ir.Binary(operator="+" | "*" | "min" | "//" | "&"):
            return is_nonnegative(context, value.left) and is_nonnegative(context, value.right)
        case ir.Binary(operator="%"):
            return is_nonnegative(context, value.right)
        case ir.Binary(operator="max"):
            return is_nonnegative(context, value.left) or is_nonnegative(context, value.right)
        case ir.Select():
            return is_nonnegative(context, value.then) and is_nonnegative(context, value.otherwise)
        case ir.Cast() if value.operand.dtype.is_integer:
            return not value.operand.dtype.is_signed or is_nonnegative(context, value.operand)
    return False


def elements(
    view: TensorView, variables: Sequence[ir.Variable]
) -> tuple[tuple[ir.Expression, ...], list[tuple[ir.Expression, Slice | None]]]:
    """The indices of the view's element at `variables`, and with each the range it comes from."""
    names = iter(view.ordered(variables))
    pairs: list[tuple[ir.Expression, Slice | None]] = []
    for part in view.dimensions:
        if isinstance(part, Slice):
            variable = next(names)
            is_zero = isinstance(part.start, ir.Constant) and part.start.value == 0
            position = variable if is_zero else ir.Binary("+", part.start, variable, loc=part.loc)
            pairs.append((position, part))
        else:
            pairs.append((part, None))
    return tuple([position for position, _ in pairs]), pairs


def view_guard(
    context: Context, view: TensorView, pairs: Sequence[tuple[ir.Expression, Slice | None]]
) -> ir.Expression | None:
    """The condition that the element is in bounds in the sliced dimensions; None if it always is."""
    conditions: list[ir.Expression] = []
    for (position, part), full in zip(pairs, view.tensor.shape, strict=True):
        if part is None:
            continue
        start = part.start
        if not is_nonnegative(context, start):
            conditions.append(ir.Binary("<=", ir.Constant(0, i64), position, loc=part.loc))
        if isinstance(full, int) and isinstance(start, ir.Constant):
            if start.value + part.size <= full:
                continue
        elif constant_extent(context, full, start) == part.size:
            continue
        conditions.append(_below(position, full, part))
    return conjunction(conditions)


def _below(position: ir.Expression, full: int | ir.Expression, part: Slice) -> ir.Expression:
    end = ir.Constant(full, i64, loc=part.loc) if isinstance(full, int) else full
    return ir.Binary("<", position, end, loc=part.loc)


def read_guard(context: Context, reads: Iterator[ir.Read]) -> ir.Expression | None:
    """The condition that all of the reads are in bounds; None if they always are."""
    conditions: list[ir.Expression] = []
    for read in reads:
        for position, full in zip(read.indices, read.tensor.shape, strict=True):
            if not is_nonnegative(context, position):
                conditions.append(ir.Binary("<=", ir.Constant(0, i64), position, loc=read.loc))
            conditions.append(less(position, full))
    return conjunction(conditions)


def block_variables(context: Context, shape: Sequence[int]) -> tuple[ir.Variable, ...]:
    variables = tuple([ir.Variable(INDEX_NAMES[d % len(INDEX_NAMES)]) for d in range(len(shape))])
    context.nonnegative.update(variables)
    return variables
