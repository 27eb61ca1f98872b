"""Functions of numbers that become several nodes."""

from __future__ import annotations

import ast
from math import inf

from taskc.ir import nodes as ir
from taskc.lang.calls import Handler, bind, named
from taskc.lang.context import Context
from taskc.lang.conversions import literal, scalar, unify
from taskc.lang.intrinsics import INTRINSICS
from taskc.lang.operators import binary, check_operator, compute
from taskc.lang.values import Value, is_constant


def _cdiv(context: Context, node: ast.Call) -> Value:
    """ceil(a / b), as -(-a // b)."""
    bound = bind(context, node, "tc.cdiv")
    a, b = (context.evaluate(bound[part]) for part in "ab")
    if is_constant(a) and is_constant(b):
        return compute(context, node, INTRINSICS["cdiv"], a, b)
    nodes = bound["a"], bound["b"]
    left, right = unify(context, "tc.cdiv", (a, b), nodes, node)
    if not left.dtype.is_integer:
        raise context.error(f"'tc.cdiv' is not defined on {left.dtype}", node)
    loc = context.locate(node)
    above = binary(context, ast.Sub, (right, 1), nodes, node)
    return ir.Binary("//", ir.Binary("+", left, above, loc=loc), right, loc=loc)


def _truncdiv(context: Context, node: ast.Call) -> Value:
    """a // b, and 1 more where that was rounded down below 0."""
    bound = bind(context, node, "tc.truncdiv")
    a, b = (context.evaluate(bound[part]) for part in "ab")
    if is_constant(a) and is_constant(b):
        return compute(context, node, INTRINSICS["truncdiv"], a, b)
    left, right = unify(context, "tc.truncdiv", (a, b), (bound["a"], bound["b"]), node)
    dtype, loc = left.dtype, context.locate(node)
    if not dtype.is_integer:
        raise context.error(f"'tc.truncdiv' is not defined on {dtype}", node, "use tc.trunc(a / b)")
    if not dtype.is_signed:
        return ir.Binary("//", left, right, loc=loc)
    left = named(context, "a", left, bound["a"])
    right = named(context, "b", right, bound["b"])
    more = ir.Cast(_is_rounded_down(context, left, right, node), dtype, loc=loc)
    return ir.Binary("+", ir.Binary("//", left, right, loc=loc), more, loc=loc)


def _fmod(context: Context, node: ast.Call) -> Value:
    """a % b, and b less where that hasn't a's sign."""
    bound = bind(context, node, "tc.fmod")
    a, b = (context.evaluate(bound[part]) for part in "ab")
    if is_constant(a) and is_constant(b):
        return compute(context, node, INTRINSICS["fmod"], a, b)
    left, right = unify(context, "tc.fmod", (a, b), (bound["a"], bound["b"]), node)
    dtype, loc = left.dtype, context.locate(node)
    if dtype.is_float:
        check_operator(context, "fmod", dtype, node)
        return ir.Binary("fmod", left, right, loc=loc)
    check_operator(context, "%", dtype, node)
    if not dtype.is_signed:
        return ir.Binary("%", left, right, loc=loc)
    left = named(context, "a", left, bound["a"])
    right = named(context, "b", right, bound["b"])
    rest = ir.Binary("%", left, right, loc=loc)
    less = ir.Binary("-", rest, right, loc=loc)
    return ir.Select(_is_rounded_down(context, left, right, node), less, rest, loc=loc)


def _is_rounded_down(
    context: Context, left: ir.Expression, right: ir.Expression, node: ast.Call
) -> ir.Expression:
    """Whether a quotient of integers is negative, and no integer."""
    loc, zero = context.locate(node), literal(context, 0, left.dtype, node)
    is_negative = ir.Binary("<", ir.Binary("^", left, right, loc=loc), zero, loc=loc)
    has_rest = ir.Binary("!=", ir.Binary("%", left, right, loc=loc), zero, loc=loc)
    return ir.Binary("and", has_rest, is_negative, loc=loc)


def _sign(context: Context, node: ast.Call) -> Value:
    """1, -1, or of floats also a zero and NaN as they are."""
    argument = bind(context, node, "tc.sign")["x"]
    value = context.evaluate(argument)
    if is_constant(value):
        return compute(context, node, INTRINSICS["sign"], value)
    x, loc = scalar(context, value, argument), context.locate(node)
    check_operator(context, "-", x.dtype, node, unary=True)
    one = literal(context, 1, x.dtype, node)
    if not x.dtype.is_signed:
        return ir.Binary("min", x, one, loc=loc)
    x = named(context, "x", x, argument)
    zero, minus_one = (literal(context, number, x.dtype, node) for number in (0, -1))
    below = ir.Select(ir.Binary("<", x, zero, loc=loc), minus_one, x, loc=loc)
    return ir.Select(ir.Binary(">", x, zero, loc=loc), one, below, loc=loc)


def _isinf(context: Context, node: ast.Call) -> Value:
    argument = bind(context, node, "tc.isinf")["x"]
    value = context.evaluate(argument)
    if is_constant(value):
        return compute(context, node, INTRINSICS["isinf"], value)
    x, loc = scalar(context, value, argument), context.locate(node)
    check_operator(context, "isnan", x.dtype, node, unary=True)
    size = ir.Unary("abs", x, loc=loc)
    return ir.Binary("==", size, literal(context, inf, x.dtype, node), loc=loc)


def _atan2(context: Context, node: ast.Call) -> Value:
    bound = bind(context, node, "tc.atan2")
    y, x = (context.evaluate(bound[part]) for part in "yx")
    if is_constant(y) and is_constant(x):
        return compute(context, node, INTRINSICS["atan2"], y, x)
    left, right = unify(context, "tc.atan2", (y, x), (bound["y"], bound["x"]), node)
    check_operator(context, "atan2", left.dtype, node)
    return ir.Binary("atan2", left, right, loc=context.locate(node))


HANDLERS: dict[str, Handler] = {
    "cdiv": _cdiv,
    "truncdiv": _truncdiv,
    "fmod": _fmod,
    "atan2": _atan2,
    "sign": _sign,
    "isinf": _isinf,
}
