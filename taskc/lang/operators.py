"""Operators: arithmetic, comparisons, `and`, `or`, `not`, and conditional expressions.

What is known while parsing is computed with Python's own operators. `x + a * b` and `a * b + x` on
floats are one fma; of `a * b + c * d` the right product is the fused one. Nothing else is.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from math import prod
from typing import Any

from taskc.errors import CompileError
from taskc.ir import nodes as ir
from taskc.ir.arithmetic import BINARY_OPERATORS, UNARY_OPERATORS
from taskc.ir.types import DType, bf16, boolean, f16, f32, f64
from taskc.lang.context import Context, Located
from taskc.lang.conversions import condition, literal, scalar, typed, unify
from taskc.lang.sizes import FloatOfSizes, float_of, is_float_power
from taskc.lang.values import (
    Choice,
    Value,
    is_constant,
    is_expression,
    is_number,
    is_scalar,
    plain,
)

_ARITHMETIC_FLOATS = (f16, bf16, f32, f64)
_MOST_ALTERNATIVES = 64  # of what is computed of choices
_MOST_CHAINED = 8  # terms of `and` or `or` that are joined from left to right

# By the kind of the node, or the name of Python's function.
_BINARY: dict[type | str, tuple[str, Callable[[Any, Any], Any]]] = {
    "min": ("min", min),
    "max": ("max", max),
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.Div: ("/", operator.truediv),
    ast.FloorDiv: ("//", operator.floordiv),
    ast.Mod: ("%", operator.mod),
    ast.Pow: ("**", operator.pow),
    ast.LShift: ("<<", operator.lshift),
    ast.RShift: (">>", operator.rshift),
    ast.BitAnd: ("&", operator.and_),
    ast.BitOr: ("|", operator.or_),
    ast.BitXor: ("^", operator.xor),
    ast.MatMult: ("@", operator.matmul),
}
_COMPARISONS: dict[type, tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
    ast.Is: ("is", operator.is_),
    ast.IsNot: ("is not", operator.is_not),
    ast.In: ("in", lambda item, items: item in items),
    ast.NotIn: ("not in", lambda item, items: item not in items),
}
_UNARY: dict[type, tuple[str, Callable[[Any], Any]]] = {
    ast.USub: ("-", operator.neg),
    ast.UAdd: ("+", operator.pos),
    ast.Invert: ("~", operator.invert),
    ast.Not: ("not", operator.not_),
}


def compute(
    context: Context,
    node: Located,
    function: Callable[..., Any],
    /,
    *arguments: Any,
    **keywords: Any,
) -> Value:
    """Python's own result on constants, and Python's own complaint."""
    try:
        return plain(function(*arguments, **keywords))
    except CompileError:
        raise
    except ZeroDivisionError:
        raise context.error("division by zero", node) from None
    except Exception as error:
        text = str(error)
        if not isinstance(error, (TypeError, ValueError)):
            text = f"{type(error).__name__}: {text}" if text else type(error).__name__
        raise context.error(text or type(error).__name__, node) from None


def binary_operation(context: Context, node: ast.BinOp) -> Value:
    left = context.evaluate(node.left)
    right = context.evaluate(node.right)
    return binary(context, type(node.op), (left, right), (node.left, node.right), node)


def binary(
    context: Context,
    kind: type | str,
    sides: tuple[Value, Value],
    nodes: tuple[ast.expr, ast.expr],
    at: Located,
) -> Value:
    """`left op right`, or the smaller or larger of both; `nodes` are the operands as written, which decide what is
    fused.
    """
    symbol, function = _BINARY[kind]
    left, right = sides
    if is_constant(left) and is_constant(right):
        return compute(context, at, function, left, right)
    chosen = on_choices(context, sides, lambda a, b: binary(context, kind, (a, b), nodes, at))
    if chosen is not None:
        return chosen
    if kind is ast.MatMult:
        raise context.error("'@' is not a part of the language", at, "use tc.mma(acc, a, b)")
    float_of_sizes = in_f64(context, symbol, sides)
    if float_of_sizes is not None:
        return FloatOfSizes(float_of_sizes, {})
    if kind is ast.Pow:
        return _power(context, sides, nodes, at)
    a, b = unify(context, symbol, sides, nodes, at)
    loc = context.locate(at)
    if kind is ast.Add and a.dtype.is_float:
        for product, addend, written in ((b, a, nodes[1]), (a, b, nodes[0])):
            if (
                isinstance(product, ir.Binary)
                and product.operator == "*"
                and isinstance(written, ast.BinOp)
                and isinstance(written.op, ast.Mult)
            ):
                return ir.Fused(product.left, product.right, addend, loc=loc)
    check_operator(context, symbol, a.dtype, at)
    return ir.Binary(symbol, a, b, loc=loc)


def on_choices(
    context: Context, sides: tuple[Value, ...], function: Callable[..., Value]
) -> Choice | None:
    """A function applied to each alternative of choices, so that its result has no type either.

    None where a side has a type, or where the results are many.
    """
    choices = [side for side in sides if isinstance(side, Choice)]
    if not choices or prod(map(_alternatives, choices)) > _MOST_ALTERNATIVES:
        return None
    if not all(isinstance(side, Choice) or is_untyped(context, side) for side in sides):
        return None
    condition = choices[0].condition

    def where(holds: bool) -> Value:
        return function(*[_decided(side, condition, holds) for side in sides])

    return Choice(condition, where(True), where(False), choices[0].loc)


def _decided(value: Value, condition: ir.Expression, holds: bool) -> Value:
    if isinstance(value, Choice) and value.condition is condition:
        return value.then if holds else value.otherwise
    return value


def _alternatives(value: Value) -> int:
    if isinstance(value, Choice):
        return _alternatives(value.then) + _alternatives(value.otherwise)
    return 1


def is_untyped(context: Context, value: Value) -> bool:
    """Whether it is a number without a type, which is computed as Python computes it."""
    return is_number(value) or isinstance(value, FloatOfSizes) or context.is_size(value)


def in_f64(context: Context, symbol: str, sides: tuple[Value, Value]) -> ir.Expression | None:
    """An operation in f64 on sizes and floats without a type: one whose result or operand is a float."""
    if not all(is_untyped(context, side) for side in sides):
        return None
    is_float = any(isinstance(side, (float, FloatOfSizes)) for side in sides)
    if not is_float and symbol != "/" and not is_float_power(symbol, sides[1]):
        return None
    left, right = (side.expression if isinstance(side, FloatOfSizes) else side for side in sides)
    return float_of(symbol, left, right)


def check_operator(
    context: Context, symbol: str, dtype: DType, at: Located, *, unary: bool = False
) -> None:
    """Raise an error where an operator isn't defined on a type."""
    rule = (UNARY_OPERATORS if unary else BINARY_OPERATORS)[symbol]
    if dtype.kind in rule.kinds and (not dtype.is_float or dtype in _ARITHMETIC_FLOATS):
        return
    hint = None
    if dtype.is_float and "int" in rule.kinds and "float" not in rule.kinds and dtype.bits > 8:
        hint = f"of its bits: .bitcast(u{dtype.bits})"
    elif symbol == "~" and dtype is boolean:
        hint = "write 'not'"
    elif dtype.is_float and "float" in rule.kinds:
        hint = "convert it first: .to(f32)"
    elif symbol == "/" and dtype.is_integer:
        hint = "use '//', or convert to a float: .to(f32)"
    elif dtype.is_integer and "float" in rule.kinds:
        hint = "convert it first: .to(f32)"
    elif symbol in ("and", "or", "not"):
        hint = "compare it: x != 0"
    raise context.error(f"'{symbol}' is not defined on {dtype}", at, hint)


def _power(
    context: Context, sides: tuple[Value, Value], nodes: tuple[ast.expr, ast.expr], at: Located
) -> Value:
    loc = context.locate(at)
    if sides[1] == 2 and is_number(sides[1]):
        base = scalar(context, sides[0], nodes[0])
        check_operator(context, "*", base.dtype, at)
        return ir.Binary("*", base, base, loc=loc)
    left, right = unify(context, "**", sides, nodes, at)
    check_operator(context, "pow", left.dtype, at)
    return ir.Binary("pow", left, right, loc=loc)


def unary_operation(context: Context, node: ast.UnaryOp) -> Value:
    return _unary(context, context.evaluate(node.operand), node)


def _unary(context: Context, value: Value, node: ast.UnaryOp) -> Value:
    symbol, function = _UNARY[type(node.op)]
    if symbol == "~" and isinstance(value, bool):  # of which Python makes -1 or -2
        check_operator(context, symbol, boolean, node, unary=True)
    if is_constant(value) or (symbol == "not" and isinstance(value, (tuple, list))):
        return compute(context, node, function, value)
    chosen = on_choices(context, (value,), lambda x: _unary(context, x, node))
    if chosen is not None:
        return typed(context, chosen, boolean, node) if symbol == "not" else chosen
    if isinstance(value, FloatOfSizes) and symbol in "+-":
        return value if symbol == "+" else FloatOfSizes(ir.Unary("-", value.expression), {})
    operand = scalar(context, value, node.operand)
    if symbol == "+":
        check_operator(context, "-", operand.dtype, node, unary=True)
        return operand
    check_operator(context, symbol, operand.dtype, node, unary=True)
    return ir.Unary(symbol, operand, loc=context.locate(node))


def comparison(context: Context, node: ast.Compare) -> Value:
    written = [node.left, *node.comparators]
    why = "the end of a chain of comparisons"
    values = [context.evaluate(part) for part in written[:2]]
    values += [context.evaluate_lazily(part, why) for part in written[2:]]
    result: Value = True
    for position, kind in enumerate(node.ops):
        pair = values[position], values[position + 1]
        part = _compare(context, type(kind), pair, (written[position], written[position + 1]), node)
        result = _conjoin(context, result, part, node)
        if result is False:
            return False
    return result


def _conjoin(context: Context, left: Value, right: Value, node: ast.expr) -> Value:
    if is_number(left):
        return right if left else False
    if is_number(right):
        return left if right else False
    return ir.Binary("and", left, right, loc=context.locate(node))


def _compare(
    context: Context,
    kind: type,
    sides: tuple[Value, Value],
    nodes: tuple[ast.expr, ast.expr],
    at: ast.expr,
) -> Value:
    symbol, function = _COMPARISONS[kind]
    if is_constant(sides[0]) and is_constant(sides[1]):
        return compute(context, at, function, *sides)
    if kind in (ast.Is, ast.IsNot):
        if None in (sides[0], sides[1]) or not all(map(is_scalar, sides)):
            return function(*sides)
        raise context.error(f"'{symbol}' is only for constants", at, "use '=='")
    if kind in (ast.In, ast.NotIn):
        raise context.error(
            f"'{symbol}' is only for constants", at, "compare with each, and join with 'or'"
        )
    chosen = on_choices(context, sides, lambda a, b: _compare(context, kind, (a, b), nodes, at))
    if chosen is not None:
        return typed(context, chosen, boolean, at)
    of_floats = in_f64(context, symbol, sides)
    if of_floats is not None:
        return of_floats
    a, b = unify(context, symbol, sides, nodes, at)
    if a.dtype.is_float and a.dtype not in _ARITHMETIC_FLOATS:
        check_operator(context, symbol, a.dtype, at)
    return ir.Binary(symbol, a, b, loc=context.locate(at))


def boolean_operation(context: Context, node: ast.BoolOp) -> Value:
    """`and` and `or`; a constant operand decides, and unreachable operands aren't evaluated."""
    symbol = "and" if isinstance(node.op, ast.And) else "or"
    terms: list[tuple[ast.expr, ir.Expression]] = []
    last: Value = symbol == "and"
    for part in node.values:
        why = f"the right side of '{symbol}'"
        value = context.evaluate_lazily(part, why) if terms else context.evaluate(part)
        decided = _require_bool(context, symbol, value, part)
        if not isinstance(decided, bool):
            terms.append((part, decided))
            continue
        last = value
        if decided is (symbol == "or"):
            if not terms:
                return value
            # What stands before the constant may still read memory, so it stays.
            left = _joined(context, symbol, terms)
            right = literal(context, decided, left.dtype, node)
            return ir.Binary(symbol, left, right, loc=context.locate(node))
    return _joined(context, symbol, terms) if terms else last


def _joined(
    context: Context, symbol: str, terms: list[tuple[ast.expr, ir.Expression]]
) -> ir.Expression:
    """Terms joined from left to right; many in halves, which computes the same in the same order, and isn't as deep."""
    if len(terms) == 1:
        return terms[0][1]
    middle = len(terms) - 1 if len(terms) <= _MOST_CHAINED else len(terms) // 2
    left, right = (_joined(context, symbol, part) for part in (terms[:middle], terms[middle:]))
    return ir.Binary(symbol, left, right, loc=context.span(terms[0][0], terms[-1][0]))


def _require_bool(
    context: Context, symbol: str, value: Value, node: ast.expr
) -> bool | ir.Expression:
    if is_expression(value) and value.dtype.kind != "bool":
        raise context.error(
            f"'{symbol}' needs bools, and this is {value.dtype}", node, "compare it: x != 0"
        )
    return condition(context, value, node)


def choice(context: Context, node: ast.IfExp) -> Value:
    decided = condition(context, context.evaluate(node.test), node.test)
    if isinstance(decided, bool):
        taken = node.body if decided else node.orelse
        if context.root is node:
            context.root = taken
        return context.evaluate(taken)
    why = "a conditional expression"
    sides = context.evaluate_lazily(node.body, why), context.evaluate_lazily(node.orelse, why)
    return select(context, decided, sides, (node.body, node.orelse), node)


def select(
    context: Context,
    decided: ir.Expression,
    sides: tuple[Value, Value],
    nodes: tuple[ast.expr, ast.expr],
    at: ast.expr,
) -> Value:
    loc = context.locate(at)
    then, otherwise = sides
    if all(isinstance(side, Choice) or is_untyped(context, side) for side in sides):
        return Choice(decided, then, otherwise, loc)
    a, b = unify(context, "if", sides, nodes, at)
    return ir.Select(decided, a, b, loc=loc)


OPERATORS: dict[type, Callable[[Context, Any], Value]] = {
    ast.BinOp: binary_operation,
    ast.UnaryOp: unary_operation,
    ast.Compare: comparison,
    ast.BoolOp: boolean_operation,
    ast.IfExp: choice,
}
