"""Calls: the language's own functions, helpers that are inlined, and Python's on constants."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import lru_cache
from types import FunctionType

from taskc.errors import CompileError
from taskc.ir import nodes as ir
from taskc.ir.mapping import Mapping
from taskc.ir.rewrite import walk_statements
from taskc.ir.types import DType
from taskc.lang.context import Context, FunctionFrame, Scope
from taskc.lang.conversions import is_boolean, scalar, settled_choice
from taskc.lang.expressions import convert_to, refuse_sub_byte, unstarred
from taskc.lang.functions import FunctionDefinition
from taskc.lang.names import INTRINSICS, PEERS, Intrinsic, word_for
from taskc.lang.operators import compute
from taskc.lang.source import Source
from taskc.lang.values import (
    Choice,
    Method,
    Pending,
    SelfDescribed,
    Value,
    counted,
    describe,
    did_you_mean,
    is_constant,
    is_expression,
)

Handler = Callable[[Context, ast.Call], Value]

HANDLERS: dict[str, Handler] = {}
"""By an intrinsic's name: a handler takes the context and the call as written, and returns what the call is worth."""


def handles(
    name: str,
    *,
    in_cuda: bool = False,
    in_cluster: bool = False,
    as_statement: bool = False,
    as_phase: bool = False,
) -> Callable[[Callable[..., Value]], None]:
    """Declare a function as the handler of `tc.NAME`: it receives the arguments, unevaluated, as keywords.

    in_cuda, in_cluster      the call may stand only in a kernel of tc.cuda, or in a cluster
    as_statement, as_phase   the call needs a place for statements, or for an operation of the whole block
    """
    what = f"tc.{name}"

    def declare(function: Callable[..., Value]) -> None:
        def handler(context: Context, node: ast.Call) -> Value:
            arguments = bind(context, node, what)
            if in_cuda:
                context.require_cuda_kernel(what, node)
            if in_cluster:
                context.require_cluster(what, node)
            if as_statement:
                context.require_statement(what, node)
            if as_phase:
                context.require_phase(what, node)
            return function(context, node, **arguments)

        HANDLERS[name] = handler

    return declare


_OF_PROGRAMS = ("taskc.programs.body", "taskc.programs.definition")
# Definitions that a kernel can't call, by their kind.
_HINTS = {
    "kernel": "make what they share a @tc.function, or call both in a @tc.program",
    "program": "a @tc.program calls both, one after another",
}


def call_with(on_builtins: dict[int, Handler]) -> Handler:
    """The evaluator of calls; `on_builtins` are the handlers of Python's own functions, by id."""

    def call(context: Context, node: ast.Call) -> Value:
        if isinstance(node.func, ast.Name):
            context.require_known(node.func, node.func.id)
        called = context.evaluate(node.func)
        if any(isinstance(argument, ast.Starred) for argument in node.args):
            node = _with_arguments(context, node, list(unstarred(context, node.args)))
        for keyword in node.keywords:
            if keyword.arg is None:
                raise context.error("'**' in a call is not a part of the language", keyword.value)
        if isinstance(called, Method):
            return called.call(node)
        if isinstance(called, Intrinsic):
            return HANDLERS[called.__name__](context, node)
        handler = on_builtins.get(id(called))
        if handler is not None:
            return handler(context, node)
        if isinstance(called, DType):
            return _typed_constant(context, called, node)
        if isinstance(called, FunctionDefinition):
            return _inline(context, called, node)
        kind = getattr(called, "kind", None) if isinstance(called, SelfDescribed) else None
        if kind in _HINTS:
            raise context.error(f"a kernel can't call a {kind}", node, _HINTS[kind])
        return _python_call(context, called, node)

    return call


def _with_arguments(context: Context, node: ast.Call, arguments: list[ast.expr]) -> ast.Call:
    """The call with other positional arguments, at the same location."""
    call = ast.copy_location(ast.Call(node.func, arguments, node.keywords), node)
    if context.root is node:
        context.root = call
    return call


def bind(
    context: Context, node: ast.Call, name: str, signature: str | None = None
) -> dict[str, ast.expr]:
    """The arguments by parameter name; a function of the language is declared already and passes no signature.

    In a signature `x?` is optional, and the parameters after `*` are keyword-only.
    """
    declared = INTRINSICS.get(name.removeprefix("tc."))
    if declared is not None:
        assert signature is None, f"{name} is declared already, and its parameters are"
        signature = declared.parameters
    assert signature is not None
    names, positional, known = _words(signature)
    if len(node.args) > len(positional):
        most = "at most " + counted(len(positional), "argument")
        extra = node.args[len(positional)]
        raise context.error(f"{name} takes {most} by position", extra, _form(name, names))
    bound = dict(zip(known, node.args, strict=False))
    for keyword in node.keywords:
        assert keyword.arg is not None
        if keyword.arg not in known:
            hint = did_you_mean(keyword.arg, known) or _form(name, names)
            raise context.error(f"{name} has no argument '{keyword.arg}'", keyword, hint)
        if keyword.arg in bound:
            raise context.error(f"{name} is given '{keyword.arg}' twice", keyword)
        bound[keyword.arg] = keyword.value
    for parameter in names:
        if parameter != "*" and not parameter.endswith("?") and parameter not in bound:
            raise context.error(f"{name} needs '{parameter}'", node, _form(name, names))
    return bound


@lru_cache(maxsize=1024)
def _words(signature: str) -> tuple[list[str], list[str], list[str]]:
    """The words of a signature, those of them by position, and the names of all parameters."""
    words = signature.split()
    positional = words[: words.index("*")] if "*" in words else words
    return words, positional, [word.rstrip("?") for word in words if word != "*"]


def _form(name: str, names: list[str]) -> str | None:
    """A hint with the form of a call, optional and keyword arguments marked."""
    by_position = names[: names.index("*")] if "*" in names else names
    parts = [it if it in by_position else f"{it}=..." for it in names if it[-1] not in "*?"]
    more = [it[:-1] for it in names if it.endswith("?")]
    if not parts and not more:
        return None
    behind = f"; it also takes {', '.join(more)}" if more else ""
    return f"write {name.removesuffix('()')}({', '.join(parts)}){behind}"


def _typed_constant(context: Context, dtype: DType, node: ast.Call) -> Value:
    """`f32(x)`"""
    if len(node.args) != 1 or node.keywords:
        raise context.error(f"{dtype}(...) takes one value", node)
    refuse_sub_byte(context, dtype, node)
    return convert_to(context, dtype, context.evaluate(node.args[0]), node.args[0], node)


# --- Python's functions ----------------------------------------------------------------------


def _python_call(context: Context, called: Value, node: ast.Call) -> Value:
    if not is_constant(called) or not callable(called):
        raise context.error(f"only a function can be called, and this is {describe(called)}", node)
    values = [context.evaluate(argument) for argument in node.args]
    keywords = {item.arg: context.evaluate(item.value) for item in node.keywords if item.arg}
    if all(map(is_constant, (*values, *keywords.values()))):
        return context.symbolic(compute(context, node, called, *values, **keywords))
    name = getattr(called, "__name__", repr(called))
    raise context.error(
        f"'{name}' is Python's: it only takes constants", node, _advice(called, name)
    )


def _advice(called: Value, name: str) -> str | None:
    if getattr(called, "__module__", None) in _OF_PROGRAMS:
        return f"tc.{name} is for the body of a @tc.program"
    if called in (int, float):
        return "convert with .to(i64) or .to(f32)"
    modules = getattr(called, "__module__", None), type(called).__module__
    if any(str(module).partition(".")[0] in PEERS for module in modules):
        return word_for(name)
    if called is print:
        return 'use tc.print("{}", x)'
    if called is sum:
        return word_for(name)
    if getattr(called, "__module__", "") == Mapping.__module__:
        return "a mapping is the same at all calls: go through n in tiles, as in `for start in tc.tiles(n, by=32)`"
    if isinstance(called, FunctionType):
        return f"decorate '{name}' with @tc.function, and it is inlined"
    return None


# --- helpers ---------------------------------------------------------------------------------


def _inline(context: Context, definition: FunctionDefinition, node: ast.Call) -> Value:
    parameters, variadic = definition.parameters
    extra: list[ast.expr] = []
    if variadic is not None:
        extra = node.args[len(parameters) :]
        node = _with_arguments(context, node, node.args[: len(parameters)])
    bound = bind(context, node, f"{definition.__name__}()", " ".join(parameters))
    values = {parameter: context.evaluate(bound[parameter]) for parameter in parameters}
    if variadic is not None:
        bound[variadic] = node
        values[variadic] = tuple([context.evaluate(part) for part in extra])
    return inline(context, definition, values, bound, node)


def inline(
    context: Context,
    definition: FunctionDefinition,
    values: dict[str, Value],
    written: dict[str, ast.expr],
    node: ast.expr,
) -> Value:
    """The result of a helper's body, with its statements in the current block.

    `values` are those of its parameters, `written` says where each stands, `node` is the call.
    """
    source = definition.source
    name = definition.__name__
    # Another of the same text closes over other things, and is another helper.
    if any(frame.outside is definition.outside for frame in context.frames):
        raise context.error(f"'{name}' calls itself: a helper is inlined, so it can't", node)
    call_loc = context.locate(node)
    body = source.body
    is_expression_only = len(body) == 1 and isinstance(body[0], ast.Return)
    if not is_expression_only:
        context.require_statement(f"'{name}' has statements, so it", node)
    root, target, length = context.root, context.target, len(context.block)
    names = {
        parameter: _argument(
            context, source, parameter, value, written[parameter], is_expression_only
        )
        for parameter, value in values.items()
    }
    inner_target = target if node is root else None
    frame = FunctionFrame(source, definition.outside, [], target=inner_target)
    context.frames.append(frame)
    try:
        context.run(body, Scope(names))
    except CompileError as error:
        note = f"in '{name}', called here", call_loc
        raise CompileError(
            error.message, error.location, error.hint, (*error.notes, note)
        ) from None
    finally:
        context.frames.pop()
        context.root, context.target = root, target
    if node is not root:
        for statement in context.block[length:]:
            if any(map(_changes_memory, walk_statements(statement))):
                raise context.error(
                    f"'{name}' writes to memory, so its call can't be a part of an expression",
                    node,
                    "assign its result to a name before",
                )
    return frame.result


def _argument(
    context: Context,
    source: Source,
    parameter: str,
    value: Value,
    node: ast.expr,
    is_expression_only: bool,
) -> Value:
    """The value that a helper's parameter is bound to."""
    if parameter in source.written:
        loc = context.locate(node)
        if isinstance(value, Choice):
            value = settled_choice(context, value)
        if isinstance(value, (int, float, Choice)) and not is_boolean(value):
            return context.pending_cell(parameter, value, loc, loc)
        if is_expression(value) or isinstance(value, (bool, Pending, Choice)):
            return context.new_cell(parameter, scalar(context, value, node), loc)
        return value
    if parameter == source.rest:
        return tuple([named(context, parameter, part, node) for part in value])
    if is_expression_only and source.uses.get(parameter, 0) <= 1:
        return scalar(context, value, node) if isinstance(value, Pending) else value
    return named(context, parameter, value, node)


def named(context: Context, name: str, value: Value, node: ast.expr) -> Value:
    """An argument that may be used more than once: a computed value gets a name."""
    if isinstance(value, Choice):
        return value if context.lazy else settled_choice(context, value)
    if isinstance(value, Pending):
        value = scalar(context, value, node)
    if not is_expression(value) or isinstance(value, (ir.Variable, ir.Constant)) or context.lazy:
        return value
    return context.let(name, value)


def _changes_memory(node: ir.Statement) -> bool:
    if isinstance(node, ir.Atomic):
        return True
    return isinstance(node, (ir.Store, ir.Move)) and node.tensor.scope != ir.LOCAL
