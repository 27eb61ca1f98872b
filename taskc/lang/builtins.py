"""The functions of the language: the table from names to handlers, and the scalar functions.

A handler takes the context and the call as written, and returns what the call evaluates to.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterable
from functools import reduce as fold
from typing import Any

from taskc.ir import nodes as ir
from taskc.ir.arithmetic import UNARY_OPERATORS
from taskc.ir.types import f64
from taskc.lang import (
    barriers,
    blocks,
    loops,
    memory,
    numbers,
    operations,
)
from taskc.lang.calls import Handler, bind
from taskc.lang.context import REFUSED_CALLS, Context
from taskc.lang.conversions import condition, scalar, unify
from taskc.lang.expressions import Evaluated
from taskc.lang.intrinsics import INTRINSICS, UNARY_FUNCTIONS
from taskc.lang.operators import (
    boolean_operation,
    check_operator,
    compute,
    in_f64,
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
            sides, nodes = zip(left, right, strict=True)
            if all(map(is_number, sides)):
                return on_constants(*sides), left[1]
            chosen = on_choices(
                context, sides, lambda *parts: pair(*zip(parts, nodes, strict=True))[0]
            )
            if chosen is not None:
                return chosen, left[1]
            of_floats = in_f64(context, name, sides)
            if of_floats is not None:
                return FloatOfSizes(of_floats, {}), left[1]
            a, b = unify(context, name, sides, nodes, node)
            check_operator(context, name, a.dtype, node)
            return ir.Binary(name, a, b, loc=context.locate(node)), left[1]

        return fold(pair, zip(values, written, strict=True))[0]

    return handler


def _quantifier(name: str, operator: ast.boolop, on_constants: Callable[..., bool]) -> Handler:
    """`all` and `any` of a tuple's parts, as `and` and `or` between them."""

    def handler(context: Context, node: ast.Call) -> Value:
        argument = bind(context, node, name, "x")["x"]
        parts = context.evaluate(argument)
        if is_constant(parts):
            return compute(context, node, on_constants, parts)
        if not isinstance(parts, (tuple, list)):
            raise context.error(
                f"{name}(...) takes a tuple or a list, and this is {describe(parts)}", argument
            )
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


def _where(context: Context, node: ast.Call) -> Value:
    bound = bind(context, node, "tc.where")
    decided = condition(context, context.evaluate(bound["condition"]), bound["condition"])
    parts = bound["then"], bound["otherwise"]
    if isinstance(decided, bool):
        return context.evaluate(parts[not decided])
    values = [context.evaluate_lazily(part, "a branch of tc.where") for part in parts]
    return select(context, decided, (values[0], values[1]), parts, node)


def _fma(context: Context, node: ast.Call) -> Value:
    bound = bind(context, node, "tc.fma")
    written = bound["a"], bound["b"], bound["c"]
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


def _static(context: Context, node: ast.Call) -> Value:
    """A constant; here any expression of Python will do, as long as its names are constants."""
    argument = bind(context, node, "tc.static")["value"]
    parts = list(ast.walk(argument))
    if any(isinstance(part, _PYTHON_ONLY) for part in parts):
        return _evaluate_python(context, argument, parts)
    value = context.evaluate(argument)
    if not is_constant(value):
        raise context.error(f"tc.static needs a constant, and this is {describe(value)}", argument)
    return value


def _evaluate_python(context: Context, argument: ast.expr, parts: list[ast.AST]) -> Value:
    names = [part for part in parts if isinstance(part, ast.Name)]
    inside = {part.id for part in names if isinstance(part.ctx, ast.Store)}
    inside |= {part.arg for part in parts if isinstance(part, ast.arg)}
    scope: dict[str, Value] = {}
    for part in names:
        if part.id not in inside:
            scope[part.id] = context.lookup(part.id, part)
            if not is_constant(scope[part.id]):
                raise context.error(f"tc.static needs a constant, and '{part.id}' isn't one", part)
    code = compile(ast.Expression(argument), "<tc.static>", "eval")
    return compute(context, argument, lambda: eval(code, scope))


def _worker(context: Context, node: ast.Call) -> ir.Variable:
    bind(context, node, "tc.worker")
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
    text = context.evaluate(node.args[0])
    if not isinstance(text, str):
        raise context.error(f"the text is a string, and this is {describe(text)}", node.args[0])
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


def _python_print(context: Context, node: ast.Call) -> Nothing:
    raise context.error("print is Python's", node, 'use tc.print("x is {}", x)')


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
    """Of each dimension of the loop over tiles: its variable, its step, and which tile is meant."""
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
    id(builtins.range): loops.plain_range,
    id(builtins.print): _python_print,
    id(builtins.breakpoint): _breakpoint,
}

HANDLERS: dict[str, Handler] = {
    **{name: _unary_function(f"tc.{name}", name, INTRINSICS[name]) for name in UNARY_FUNCTIONS},
    "where": _where,
    "fma": _fma,
    "static": _static,
    "range": loops.unrolled_range,
    "print": _print,
    "worker": _worker,
    **numbers.HANDLERS,
    **loops.HANDLERS,
    **memory.HANDLERS,
    **blocks.HANDLERS,
    **barriers.HANDLERS,
    **operations.HANDLERS,
    **REFUSED_CALLS,
}
