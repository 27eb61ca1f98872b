"""The type rules: the conversion of a value to the element type that its use demands.

Operands have one type. A Python number takes the type of what it meets; integers of one signedness
widen; a float or a narrower integer is written `x.to(dtype)`. An index is any integer but u64.
"""

from __future__ import annotations

import ast
import math
from dataclasses import replace
from functools import lru_cache

import numpy as np

from taskc.ir import nodes as ir
from taskc.ir.arithmetic import COMPARISONS, convert
from taskc.ir.types import DType, boolean, common_type, f64, i64, u64
from taskc.lang.context import Context, Located, in_f32
from taskc.lang.sizes import FloatOfSizes
from taskc.lang.values import (
    Choice,
    Number,
    Pending,
    Untyped,
    Value,
    View,
    describe,
    has_float,
    is_constant,
    is_expression,
    is_number,
    is_scalar,
)


def typed(
    context: Context,
    value: Value,
    dtype: DType,
    node: Located,
    what: str = "",
    hint: str | None = None,
) -> ir.Expression:
    """The value as `dtype`, or an error; `what` begins it, as in "'acc' is f32"."""
    if is_number(value):
        return literal(context, value, dtype, node)
    if isinstance(value, Choice):
        return _choice(context, value, dtype, node)
    if isinstance(value, Pending):
        return read_pending(context, value, dtype, node)
    if isinstance(value, FloatOfSizes):
        return _float_of_sizes(context, value, dtype, node)
    expression = require_expression(context, value, node)
    if expression.dtype is dtype:
        return expression
    if common_type(expression.dtype, dtype) is dtype:
        return widened(expression, dtype)
    if dtype is not boolean and context.is_size(expression):
        return context.of_size(expression, dtype)
    expected = what or f"{dtype} is needed here"
    hint = hint or f"convert it: .to({dtype})"
    raise context.error(f"{expected}, and the value is {expression.dtype}", node, hint)


def literal(context: Context, value: Number, dtype: DType, node: Located) -> ir.Constant:
    """A Python number as a constant of a type."""
    if isinstance(value, bool) or dtype is boolean:
        if isinstance(value, bool) and dtype is boolean:
            return ir.Constant(value, boolean, loc=context.locate(node))
        raise context.error(f"{value!r} is not a value of type {dtype}", node)
    if dtype.is_integer:
        if isinstance(value, float):
            raise context.error(
                f"{value!r} is a float, and {dtype} is needed here", node, _float_hint(value, dtype)
            )
        if not dtype.minimum <= value <= dtype.maximum:
            raise context.error(f"{value} is out of range for {dtype}", node, _range_text(dtype))
        return ir.Constant(value, dtype, loc=context.locate(node))
    number = float(value) if abs(value) < 2**1023 else value
    if not math.isinf(number) and abs(number) > dtype.maximum:
        raise context.error(f"{value!r} is out of range for {dtype}", node, _range_text(dtype))
    if number != 0:  # the cache does not tell -0.0 from 0.0
        number = _rounded(float(number), dtype)
    return ir.Constant(float(number), dtype, loc=context.locate(node))


@lru_cache(maxsize=1024)
def _rounded(value: float, dtype: DType) -> float:
    return float(convert(np.float64(value), f64, dtype))


def _range_text(dtype: DType) -> str:
    return f"{dtype} goes from {dtype.minimum} to {dtype.maximum}"


def _float_hint(value: float, dtype: DType) -> str:
    if math.isfinite(value) and value == int(value):
        return f"write {int(value)}"
    return f"convert the {dtype}: .to(f32)"


def _choice(context: Context, value: Choice, dtype: DType, node: Located) -> ir.Select:
    return ir.Select(
        value.condition,
        typed(context, value.then, dtype, node),
        typed(context, value.otherwise, dtype, node),
        loc=value.loc,
    )


def settled_choice(context: Context, choice: Choice, guard: ir.Expression | None = None) -> Choice:
    """A choice between the same numbers whose conditions are named now; `guard` is where they are asked."""
    condition: ir.Expression = choice.condition
    if guard is not None:
        condition = ir.Binary("and", guard, condition, loc=choice.loc)
    if not isinstance(condition, ir.Variable):
        condition = context.let("condition", condition)

    def side(value: Untyped, holds: bool) -> Untyped:
        if not isinstance(value, Choice):
            return value
        asked: ir.Expression = condition if holds else ir.Unary("not", condition, loc=choice.loc)
        if guard is not None:
            asked = ir.Binary("and", guard, asked, loc=choice.loc)
        return settled_choice(context, value, asked)

    return Choice(condition, side(choice.then, True), side(choice.otherwise, False), choice.loc)


def _float_of_sizes(
    context: Context, value: FloatOfSizes, dtype: DType, node: Located
) -> ir.Expression:
    if not dtype.is_float:
        hint = "use '//', which gives an integer" if dtype.is_integer else None
        raise context.error(f"{value} is a float, and {dtype} is needed here", node, hint)
    number = value.expression
    return number if dtype is f64 else ir.Cast(number, dtype, loc=context.locate(node))


def read_pending(context: Context, value: Pending, dtype: DType, node: Located) -> ir.Expression:
    """Decide a cell's type, and read it."""
    cell = value.cell
    tensor = cell.tensor
    if tensor is None:
        assert cell.initial_loc is not None
        initial = _initial(context, cell.initial, dtype, cell.name, node)
        if isinstance(initial, ir.Constant):  # a variable is known by its identity
            initial = replace(initial, loc=cell.initial_loc)
        tensor = context.decide(cell, initial)
    loc = context.locate(node)
    context.note_read(tensor, loc)
    return typed(context, ir.Read(tensor, (), loc=loc), dtype, node)


def _initial(
    context: Context, value: Untyped, dtype: DType, name: str, node: Located
) -> ir.Expression:
    if dtype.is_integer and isinstance(value, float):
        raise context.error(
            f"'{name}' starts as the float {value!r}, and is {dtype} here",
            node,
            f"start it as {int(value)}" if value == value // 1 else None,
        )
    return typed(context, value, dtype, node)


def widened(value: ir.Expression, dtype: DType) -> ir.Expression:
    return ir.Cast(value, dtype, loc=value.loc)


def require_expression(context: Context, value: Value, node: Located) -> ir.Expression:
    """An IR expression as it is; anything that isn't a scalar is an error."""
    if is_expression(value):
        return value
    hint = None
    if isinstance(value, ir.Tensor):
        hint = f"index it: {value.name}[{', '.join('ijklmn'[: len(value.shape)])}]"
    elif isinstance(value, View):
        hint = "a slice is taken whole, by tc.load, tc.store or tc.copy; an index is one number"
    raise context.error(f"a number is needed here, and this is {describe(value)}", node, hint)


def scalar(context: Context, value: Value, node: Located) -> ir.Expression:
    """Any scalar as an expression; an integer without a type is i64."""
    if is_expression(value):
        return value
    if isinstance(value, bool):
        return literal(context, value, boolean, node)
    if is_scalar(value):
        if has_float(value):
            raise context.error(
                "the type of this number isn't known", node, "say it: f32(...) or .to(f32)"
            )
        if isinstance(value, Choice) and is_boolean(value):
            return typed(context, value, boolean, node)
        return typed(context, value, i64, node)
    return require_expression(context, value, node)


def is_boolean(value: Value) -> bool:
    if isinstance(value, Choice):
        return is_boolean(value.then) and is_boolean(value.otherwise)
    return isinstance(value, bool)


def index(context: Context, value: Value, node: Located) -> ir.Expression:
    """An integer as an index, which is i64."""
    if isinstance(value, bool):
        raise context.error("an index is an integer, and this is a bool", node)
    if isinstance(value, (float, FloatOfSizes)):
        raise context.error(f"an index is an integer, and this is {value!r}", node)
    if isinstance(value, (int, Pending, Choice)):
        return typed(context, value, i64, node)
    expression = require_expression(context, value, node)
    dtype = expression.dtype
    if dtype is i64:
        return expression
    if dtype is u64 or not dtype.is_integer:
        hint = "convert it: .to(i64)" if dtype is not boolean else None
        raise context.error(
            f"an index is an integer that fits i64, and this is {dtype}", node, hint
        )
    return widened(expression, i64)


def extent(context: Context, value: Value, node: Located) -> int | ir.Expression:
    """An extent: an int where it is known."""
    expression = index(context, value, node)
    return value if isinstance(value, int) else expression


def unify(
    context: Context,
    operator: str,
    sides: tuple[Value, Value],
    nodes: tuple[Located, Located],
    at: Located,
) -> tuple[ir.Expression, ir.Expression]:
    """Two operands as expressions of one type; at least one isn't a Python number."""
    (left, right), (left_node, right_node) = sides, nodes
    for side, node in zip(sides, nodes, strict=True):
        if not is_scalar(side):
            require_expression(context, side, node)
    if not is_expression(left) and not is_expression(right):
        if isinstance(left, Pending) or has_float(left) or has_float(right):
            left, right = _settle(context, left, right, left_node, right_node)
        else:
            left = scalar(context, left, left_node)
    if not is_expression(left):
        return typed(context, left, right.dtype, left_node), right
    if not is_expression(right):
        return left, typed(context, right, left.dtype, right_node)
    if left.dtype is right.dtype:
        return left, right
    if boolean not in (left.dtype, right.dtype):
        if context.is_size(right):
            return _with_size(context, operator, left, right)
        if context.is_size(left):
            return _with_size(context, operator, right, left)[::-1]
    common = common_type(left.dtype, right.dtype)
    if common is None:
        raise context.error(
            f"the operands of '{operator}' have different types: {left.dtype} and {right.dtype}",
            at,
            _conversion_hint(left.dtype, right.dtype),
        )
    if left.dtype is not common:
        return widened(left, common), right
    return left, widened(right, common)


def _with_size(
    context: Context, operator: str, typed: ir.Expression, size: ir.Expression
) -> tuple[ir.Expression, ir.Expression]:
    """A size converted to the type of the other operand; in a comparison a narrow integer may be widened instead."""
    if operator in COMPARISONS and typed.dtype.is_integer and typed.dtype is not u64:
        return widened(typed, i64), size
    return typed, context.of_size(size, typed.dtype)


def _settle(
    context: Context, left: Value, right: Value, left_node: Located, right_node: Located
) -> tuple[Value, Value]:
    """Settle two operands without a type: integers become i64, and a float is an error."""
    if has_float(left) or has_float(right):
        for side, node in ((left, left_node), (right, right_node)):
            if isinstance(side, Pending):
                raise context.error(
                    f"the type of '{side.cell.name}' isn't known here",
                    node,
                    f"say it where it gets its first value: {in_f32(side.cell.initial)}",
                )
        return scalar(context, left, left_node), scalar(context, right, right_node)
    return scalar(context, left, left_node), right


def _conversion_hint(left: DType, right: DType) -> str | None:
    if boolean in (left, right):
        return None
    if left.is_float != right.is_float:
        target = left if left.is_float else right
    else:
        target = max(left, right, key=lambda dtype: dtype.bits)
    return f"convert one: .to({target})"


def constant_integer(context: Context, value: Value, node: Located, what: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, ir.Constant) and value.dtype.is_integer:
        return int(value.value)
    found = "is known only at run time" if is_scalar(value) and not is_number(value) else None
    raise context.error(
        f"{what} is an integer known at compile time; this {found or f'is {describe(value)}'}", node
    )


def condition(context: Context, value: Value, node: Located) -> bool | ir.Expression:
    """The condition as a bool if it is known while parsing, else as an expression."""
    if is_expression(value):
        if value.dtype is not boolean:
            raise context.error(
                f"a condition is a bool, and this is {value.dtype}", node, "compare it: x != 0"
            )
        return value
    if isinstance(value, (Pending, Choice)):
        return condition(context, scalar(context, value, node), node)
    if isinstance(value, (tuple, list)):
        return bool(value)  # whether it has parts, whatever they are
    if not is_constant(value):
        raise context.error(f"a condition is a bool, and this is {describe(value)}", node)
    try:
        return bool(value)
    except Exception as error:
        raise context.error(str(error), node) from None


def flag(context: Context, node: ast.expr | None, name: str) -> bool:
    """A constant True or False; False where it isn't given."""
    if node is None:
        return False
    value = context.evaluate(node)
    if not isinstance(value, bool):
        raise context.error(f"'{name}' is True or False, and this is {describe(value)}", node)
    return value
