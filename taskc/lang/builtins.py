"""The functions of numbers, Python's own functions, and a few others: the handlers of their calls (calls.py).

A unary function of lang/elementwise.py that is an operator of the IR needs nothing here.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterable
from functools import reduce as fold
from math import inf
from types import CodeType
from typing import Any

from taskc.ir import nodes as ir
from taskc.ir.arithmetic import UNARY_OPERATORS
from taskc.ir.types import DType, f64
from taskc.lang.calls import HANDLERS, Handler, bind, handles, named
from taskc.lang.context import Context, refuse
from taskc.lang.conversions import condition as as_condition, literal, scalar, unify
from taskc.lang.expressions import Evaluated
from taskc.lang.loops import plain_range
from taskc.lang.names import INTRINSICS, UNARY_FUNCTIONS
from taskc.lang.operators import (
    binary,
    boolean_operation,
    check_operator,
    compute,
    is_untyped,
    on_choices,
    select,
)
from taskc.lang.sizes import FloatOfSizes, as_float
from taskc.lang.values import (
    NOTHING,
    Nothing,
    Transposed,
    Value,
    counted,
    describe,
    is_constant,
    is_number,
)


def _of_numbers(name: str) -> Callable[[Callable[..., ir.Expression]], None]:
    """Declare the handler of a function of one number, or of two, which get one type.

    Python computes it of constants; the declared function takes the context, the call, and the operands.
    """
    parameters = INTRINSICS[name].parameters.split()

    def declare(function: Callable[..., ir.Expression]) -> None:
        @handles(name)
        def handler(context: Context, node: ast.Call, **arguments: ast.expr) -> Value:
            written = [arguments[parameter] for parameter in parameters]
            values = [context.evaluate(part) for part in written]
            if all(map(is_constant, values)):
                return compute(context, node, INTRINSICS[name], *values)
            if len(values) == 1:
                return function(context, node, scalar(context, values[0], written[0]))
            sides, nodes = (values[0], values[1]), (written[0], written[1])
            left, right = unify(context, f"tc.{name}", sides, nodes, node)
            return function(context, node, left, right)

    return declare


def _require_integer(
    context: Context, name: str, dtype: DType, node: ast.Call, hint: str | None = None
) -> None:
    if not dtype.is_integer:
        raise context.error(f"'tc.{name}' is not defined on {dtype}", node, hint)


@_of_numbers("cdiv")
def _cdiv(context: Context, node: ast.Call, a: ir.Expression, b: ir.Expression) -> ir.Expression:
    """ceil(a / b), as -(-a // b)."""
    _require_integer(context, "cdiv", a.dtype, node)
    loc = context.locate(node)
    above = binary(context, ast.Sub, (b, 1), (node, node), node)
    return ir.Binary("//", ir.Binary("+", a, above, loc=loc), b, loc=loc)


@_of_numbers("truncdiv")
def _truncdiv(
    context: Context, node: ast.Call, a: ir.Expression, b: ir.Expression
) -> ir.Expression:
    """a // b, and 1 more where that was rounded down below 0."""
    _require_integer(context, "truncdiv", a.dtype, node, "use tc.trunc(a / b)")
    dtype, loc = a.dtype, context.locate(node)
    if not dtype.is_signed:
        return ir.Binary("//", a, b, loc=loc)
    a, b = (named(context, name, it, node) for name, it in (("a", a), ("b", b)))
    more = ir.Cast(_is_rounded_down(context, a, b, node), dtype, loc=loc)
    return ir.Binary("+", ir.Binary("//", a, b, loc=loc), more, loc=loc)


@_of_numbers("fmod")
def _fmod(context: Context, node: ast.Call, a: ir.Expression, b: ir.Expression) -> ir.Expression:
    """a % b, and b less where that hasn't a's sign."""
    dtype, loc = a.dtype, context.locate(node)
    operator = "fmod" if dtype.is_float else "%"
    check_operator(context, operator, dtype, node)
    if dtype.is_float or not dtype.is_signed:
        return ir.Binary(operator, a, b, loc=loc)
    a, b = (named(context, name, it, node) for name, it in (("a", a), ("b", b)))
    rest = ir.Binary("%", a, b, loc=loc)
    less = ir.Binary("-", rest, b, loc=loc)
    return ir.Select(_is_rounded_down(context, a, b, node), less, rest, loc=loc)


def _is_rounded_down(
    context: Context, left: ir.Expression, right: ir.Expression, node: ast.Call
) -> ir.Expression:
    """Whether a quotient of integers is negative, and no integer."""
    loc, zero = context.locate(node), literal(context, 0, left.dtype, node)
    is_negative = ir.Binary("<", ir.Binary("^", left, right, loc=loc), zero, loc=loc)
    has_rest = ir.Binary("!=", ir.Binary("%", left, right, loc=loc), zero, loc=loc)
    return ir.Binary("and", has_rest, is_negative, loc=loc)


@_of_numbers("sign")
def _sign(context: Context, node: ast.Call, x: ir.Expression) -> ir.Expression:
    """1, -1, or of floats also a zero and NaN as they are."""
    loc = context.locate(node)
    check_operator(context, "-", x.dtype, node, unary=True)
    one = literal(context, 1, x.dtype, node)
    if not x.dtype.is_signed:
        return ir.Binary("min", x, one, loc=loc)
    x = named(context, "x", x, node)
    zero, minus_one = (literal(context, number, x.dtype, node) for number in (0, -1))
    below = ir.Select(ir.Binary("<", x, zero, loc=loc), minus_one, x, loc=loc)
    return ir.Select(ir.Binary(">", x, zero, loc=loc), one, below, loc=loc)


@_of_numbers("isinf")
def _isinf(context: Context, node: ast.Call, x: ir.Expression) -> ir.Expression:
    loc = context.locate(node)
    check_operator(context, "isnan", x.dtype, node, unary=True)
    size = ir.Unary("abs", x, loc=loc)
    return ir.Binary("==", size, literal(context, inf, x.dtype, node), loc=loc)


@_of_numbers("atan2")
def _atan2(context: Context, node: ast.Call, y: ir.Expression, x: ir.Expression) -> ir.Expression:
    check_operator(context, "atan2", y.dtype, node)
    return ir.Binary("atan2", y, x, loc=context.locate(node))


@_of_numbers("dot_bytes")
def _dot_bytes(
    context: Context, node: ast.Call, a: ir.Expression, b: ir.Expression
) -> ir.Expression:
    check_operator(context, "dot_bytes", a.dtype, node)
    return ir.Binary("dot_bytes", a, b, loc=context.locate(node))


def _unary_function(name: str, symbol: str, on_constant: Callable[..., Any]) -> Handler:
    signature = None if name.startswith("tc.") else "x"

    def of(context: Context, value: Value, argument: ast.expr, node: ast.Call) -> Value:
        if is_constant(value):
            return compute(context, node, on_constant, value)
        chosen = on_choices(context, (value,), lambda x: of(context, x, argument, node))
        if chosen is not None:
            return chosen
        is_of_floats = UNARY_OPERATORS[symbol].kinds == {"float"} and is_untyped(context, value)
        if is_of_floats or isinstance(value, FloatOfSizes):
            whole = value.expression if isinstance(value, FloatOfSizes) else value
            result = ir.Unary(symbol, as_float(whole), loc=context.locate(node))
            return FloatOfSizes(result, {}) if result.dtype is f64 else result
        operand = scalar(context, value, argument)
        check_operator(context, symbol, operand.dtype, node, unary=True)
        return ir.Unary(symbol, operand, loc=context.locate(node))

    def handler(context: Context, node: ast.Call) -> Value:
        argument = bind(context, node, name, signature)["x"]
        return of(context, context.evaluate(argument), argument, node)

    return handler


def _extremum(name: str, on_constants: Callable[..., Any]) -> Handler:
    """`min` and `max` of two or more."""

    def handler(context: Context, node: ast.Call) -> Value:
        values = [context.evaluate(argument) for argument in node.args]
        if not node.keywords and len(values) == 1 and isinstance(values[0], (tuple, list)):
            values = list(values[0])
            written = [node.args[0]] * len(values)
        else:
            written = node.args
        keywords = {item.arg: context.evaluate(item.value) for item in node.keywords if item.arg}
        if all(map(is_constant, (*values, *keywords.values()))):
            arguments = values if len(values) != 1 else [values]
            return compute(context, node, lambda: on_constants(*arguments, **keywords))
        if node.keywords or len(values) < 2:
            raise context.error(f"{name}(...) takes two numbers or more", node)

        def pair(
            left: tuple[Value, ast.expr], right: tuple[Value, ast.expr]
        ) -> tuple[Value, ast.expr]:
            sides, nodes = (left[0], right[0]), (left[1], right[1])
            return binary(context, name, sides, nodes, node), left[1]

        return fold(pair, zip(values, written, strict=True))[0]

    return handler


def _quantifier(name: str, operator: ast.boolop, on_constants: Callable[..., bool]) -> Handler:
    """`all` and `any` of a tuple's parts, as `and` and `or` between them."""

    def handler(context: Context, node: ast.Call) -> Value:
        argument = bind(context, node, name, "x")["x"]
        parts = context.evaluate(argument)
        if is_constant(parts):
            return compute(context, node, on_constants, parts)
        context.expect((tuple, list), parts, argument, f"{name}(...) takes a tuple or a list")
        written: list[ast.expr] = [Evaluated(part, argument) for part in parts]
        return boolean_operation(
            context, ast.copy_location(ast.BoolOp(operator, written), argument)
        )

    return handler


def _arranged(name: str, on_items: Callable[..., Iterable[Value]]) -> Handler:
    """`enumerate`, `reversed`, `tuple` and `zip`, which inspect no item; the results have a length."""

    def handler(context: Context, node: ast.Call) -> Value:
        values = [context.evaluate(argument) for argument in node.args]
        for value, argument in zip(values, node.args, strict=True):
            if not isinstance(value, (tuple, list)) and not is_constant(value):
                hint = None
                if isinstance(value, ir.Tensor):
                    hint = f"go through its indices: for i in range({value.name}.shape[0]): ..."
                raise context.error(
                    f"{name}(...) takes tuples and lists, and this is {describe(value)}",
                    argument,
                    hint,
                )
        keywords = {item.arg: context.evaluate(item.value) for item in node.keywords if item.arg}
        return compute(context, node, lambda: tuple(on_items(*values, **keywords)))

    return handler


def _length(context: Context, node: ast.Call) -> Value:
    argument = bind(context, node, "len", "x")["x"]
    value = context.evaluate(argument)
    if isinstance(value, (ir.Tensor, Transposed)) and value.shape:
        return value.shape[0]
    if isinstance(value, (tuple, list)) or is_constant(value):
        return compute(context, node, len, value)
    raise context.error(f"there is no length of {describe(value)}", argument)


@handles("where")
def _where(
    context: Context, node: ast.Call, condition: ast.expr, then: ast.expr, otherwise: ast.expr
) -> Value:
    decided = as_condition(context, context.evaluate(condition), condition)
    parts = then, otherwise
    if isinstance(decided, bool):
        return context.evaluate(parts[not decided])
    values = [context.evaluate_lazily(part, "a branch of tc.where") for part in parts]
    return select(context, decided, (values[0], values[1]), parts, node)


@handles("fma")
def _fma(context: Context, node: ast.Call, a: ast.expr, b: ast.expr, c: ast.expr) -> Value:
    written = a, b, c
    values = [context.evaluate(part) for part in written]
    if all(map(is_constant, values)):
        return compute(context, node, INTRINSICS["fma"], *values)
    pairs = sorted(range(3), key=lambda i: is_number(values[i]))  # a typed one first
    operands: dict[int, ir.Expression] = {}
    first = pairs[0]
    for other in pairs[1:]:
        sides, nodes = (values[first], values[other]), (written[first], written[other])
        operands[first], operands[other] = unify(context, "tc.fma", sides, nodes, node)
        values[first] = operands[first]
    dtype = operands[first].dtype
    if not dtype.is_float:
        raise context.error(f"'tc.fma' is not defined on {dtype}", node, "write a * b + c")
    check_operator(context, "*", dtype, node)
    return ir.Fused(operands[0], operands[1], operands[2], loc=context.locate(node))


_PYTHON_ONLY = (
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda, ast.JoinedStr),
    *(ast.Dict, ast.Set, ast.Starred),
)


@handles("static")
def _static(context: Context, node: ast.Call, value: ast.expr) -> Value:
    """A constant; here any expression of Python will do, as long as its names are constants."""
    python = _python(value)
    if python is not None:
        return _evaluate_python(context, value, *python)
    known = context.evaluate(value)
    if not is_constant(known):
        raise context.error(f"tc.static needs a constant, and this is {describe(known)}", value)
    return known


_Python = tuple[CodeType, list[ast.Name]]


def _python(argument: ast.expr) -> _Python | None:
    """The code of what only Python evaluates, and the names from around it. A node keeps them: loops are unrolled."""
    kept: dict[str, _Python | None] = vars(argument)
    if "python" not in kept:
        kept["python"] = _compiled(argument)
    return kept["python"]


def _compiled(argument: ast.expr) -> _Python | None:
    parts = list(ast.walk(argument))
    if not any(isinstance(part, _PYTHON_ONLY) for part in parts):
        return None
    names = [part for part in parts if isinstance(part, ast.Name)]
    inside = {part.id for part in names if isinstance(part.ctx, ast.Store)}
    inside |= {part.arg for part in parts if isinstance(part, ast.arg)}
    code = compile(ast.Expression(argument), "<tc.static>", "eval")
    return code, [part for part in names if part.id not in inside]


def _evaluate_python(
    context: Context, argument: ast.expr, code: CodeType, names: list[ast.Name]
) -> Value:
    scope: dict[str, Value] = {}
    for part in names:
        scope[part.id] = context.lookup(part.id, part)
        if not is_constant(scope[part.id]):
            raise context.error(f"tc.static needs a constant, and '{part.id}' isn't one", part)
    return compute(context, argument, lambda: eval(code, scope))


@handles("worker")
def _worker(context: Context, node: ast.Call) -> ir.Variable:
    if not context.may_name_worker:
        raise context.error(
            "in a kernel of phases tc.worker() is only for naming the worker of a loop",
            node,
            "a worker is known by its task: for i in spatial(64): ...; that of another worker is"
            " for i in mapping.on(tc.worker() ^ 1): ...",
        )
    return context.worker


def _print(context: Context, node: ast.Call) -> Nothing:
    """`tc.print("i is {} and x {}", i, x)`"""
    if not node.args or node.keywords:
        raise context.error('tc.print takes a text and values: tc.print("x is {}", x)', node)
    context.require_statement("tc.print", node)
    text = context.expect(str, context.evaluate(node.args[0]), node.args[0], "the text is a string")
    values = tuple([_printed(context, part) for part in node.args[1:]])
    if text.count("{}") != len(values):
        raise context.error(
            f"the text has {text.count('{}')} of '{{}}', and the number of values is {len(values)}",
            node,
        )
    context.emit(ir.Print(text, values, loc=context.locate(node)))
    return NOTHING


def _printed(context: Context, node: ast.expr) -> ir.Expression:
    value = context.evaluate(node)
    if isinstance(value, float):
        return ir.Constant(value, f64, loc=context.locate(node))
    return scalar(context, value, node)


def _breakpoint(context: Context, node: ast.Call) -> Nothing:
    """`breakpoint()`, `breakpoint(block=3)`, `breakpoint(block=(1, 0), worker=5)`"""
    bound = bind(context, node, "breakpoint", "* block? worker?")
    context.require_statement("breakpoint", node)
    block = _named(context, "block", bound.get("block"))
    worker = _named(context, "worker", bound.get("worker"))
    loc = context.locate(node)
    if isinstance(worker, tuple) or (worker is not None and worker >= context.group):
        hint = f"they are numbered from 0 to {context.group - 1}"
        raise context.error(f"there is no worker {worker}", bound["worker"], hint)
    if not isinstance(block, tuple):
        context.emit(ir.Breakpoint(block, worker, loc=loc))
        return NOTHING
    stop: ir.Statement = ir.Breakpoint(None, worker, loc=loc)
    for origin, by, number in _tile(context, block, bound["block"]):
        is_there = ir.Binary("==", origin, ir.Constant(number * by, origin.dtype), loc=loc)
        stop = ir.If(is_there, stop, loc=loc)
    context.emit(stop)
    return NOTHING


def _named(context: Context, what: str, node: ast.expr | None) -> int | tuple[int, ...] | None:
    """The number of a block or a worker, or the indices of a tile; None where none is given."""
    value = None if node is None else context.evaluate(node)
    if node is None or value is None:
        return None
    numbers = value if isinstance(value, tuple) else (value,)
    if not all(type(number) is int and number >= 0 for number in numbers):
        hint = "whether it stops can depend on anything: if x > 1: breakpoint()"
        is_number = f"breakpoint's {what} is a constant number from 0 on"
        raise context.error(f"{is_number}, and this is {describe(value)}", node, hint)
    return value if isinstance(value, tuple) else numbers[0]


def _tile(
    context: Context, numbers: tuple[int, ...], node: ast.expr
) -> list[tuple[ir.Variable, int, int]]:
    """For each dimension of the loop over tiles its variable, its step, and the index of the tile."""
    if context.tiles is None:
        raise context.error(
            "no loop over tiles is around here", node, "a block has a number: block=3"
        )
    if len(numbers) != len(context.tiles.by):
        most = counted(len(context.tiles.by), "dimension")
        raise context.error(f"the loop over tiles has {most}, and this {len(numbers)}", node)
    return list(zip(context.origin, context.tiles.by, numbers, strict=True))


# --- the table -------------------------------------------------------------------------------


BUILTINS: dict[int, Handler] = {
    id(builtins.min): _extremum("min", min),
    id(builtins.max): _extremum("max", max),
    id(builtins.all): _quantifier("all", ast.And(), all),
    id(builtins.any): _quantifier("any", ast.Or(), any),
    id(builtins.enumerate): _arranged("enumerate", enumerate),
    id(builtins.reversed): _arranged("reversed", reversed),
    id(builtins.tuple): _arranged("tuple", tuple),
    id(builtins.zip): _arranged("zip", zip),
    id(builtins.abs): _unary_function("abs", "abs", abs),
    id(builtins.round): _unary_function("round", "round", round),
    id(builtins.len): _length,
    id(builtins.range): plain_range,
    id(builtins.print): refuse("print is Python's", 'use tc.print("x is {}", x)'),
    id(builtins.breakpoint): _breakpoint,
}


HANDLERS.update(
    {name: _unary_function(f"tc.{name}", name, INTRINSICS[name]) for name in UNARY_FUNCTIONS}
)
HANDLERS["print"] = _print
HANDLERS["empty"] = refuse(
    "tc.empty is for programs: a kernel allocates no global memory",
    "use tc.shared, tc.tile or tc.local; or pass it as a parameter",
)
