"""Statements, but for loops: assignments, branches, assertions, and what is refused.

A name that a body assigns once is a Let; one that is assigned again is a cell, a private tensor of
shape (). A name lives until the body ends in which it is first assigned.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from taskc.ir import nodes as ir
from taskc.lang.context import UNBOUND, Context, Scope
from taskc.lang.conversions import condition, literal, scalar, typed
from taskc.lang.expressions import name as evaluate_name, place, read
from taskc.lang.memory import store
from taskc.lang.operators import binary
from taskc.lang.room import roles_statement
from taskc.lang.values import (
    NOTHING,
    Cell,
    Choice,
    LaterStore,
    MappingLoop,
    PipelineLoop,
    RangeLoop,
    TilesLoop,
    Transposed,
    Value,
    View,
    describe,
    is_expression,
    is_number,
    is_scalar,
)

# --- assignments -----------------------------------------------------------------------------


def assignment(context: Context, node: ast.Assign) -> None:
    if len(node.targets) > 1:
        raise context.error("one assignment has one target", node.targets[1])
    target = node.targets[0]
    context.root = node.value
    context.target = target.id if isinstance(target, ast.Name) else None
    value = context.evaluate(node.value)
    assign(context, target, value, node.value, node)


def assign(
    context: Context, target: ast.expr, value: Value, value_node: ast.expr, node: ast.stmt
) -> None:
    match target:
        case ast.Name():
            assign_name(context, target, value, value_node)
        case ast.Tuple() | ast.List():
            _unpack(context, target, value, value_node, node)
        case ast.Subscript():
            tensor = _indexed(context, target)
            indices = place(context, tensor, target)
            if isinstance(indices, View):
                raise context.error(
                    "an assignment stores one element", target, "use tc.store or tc.copy for a slice"
                )
            store(context, tensor, indices, value, target, value_node, context.locate(node))
        case ast.Starred():
            raise context.error("'*' in an assignment is not a part of the language", target)
        case _:
            raise context.error("an attribute can't be assigned", target)


def _indexed(context: Context, target: ast.Subscript) -> ir.Tensor:
    tensor = context.evaluate(target.value)
    if not isinstance(tensor, ir.Tensor):
        raise context.error(
            f"only an element of a tensor can be assigned, and this is {describe(tensor)}",
            target.value,
        )
    return tensor


def _unpack(
    context: Context,
    target: ast.Tuple | ast.List,
    value: Value,
    value_node: ast.expr,
    node: ast.stmt,
) -> None:
    if not isinstance(value, (tuple, list)):
        raise context.error(f"only a tuple can be unpacked, and this is {describe(value)}", value_node)
    if len(value) != len(target.elts):
        raise context.error(
            f"{len(target.elts)} names can't take a tuple of {len(value)}", target
        )
    written = [value_node] * len(value)
    if isinstance(value_node, (ast.Tuple, ast.List)):
        written = value_node.elts
    # All values are taken before the first name changes, as in `a, b = b, a`.
    parts = [_settled(context, part, target.elts[i], written[i]) for i, part in enumerate(value)]
    for part_target, part, part_node in zip(target.elts, parts, written, strict=True):
        assign(context, part_target, part, part_node, node)


def _settled(context: Context, value: Value, target: ast.expr, node: ast.expr) -> Value:
    """A value that reads memory, named now."""
    if is_number(value) or not is_scalar(value):
        return value
    name = target.id if isinstance(target, ast.Name) else "value"
    expression = scalar(context, value, node)
    if isinstance(expression, (ir.Variable, ir.Constant)):
        return expression
    result = context.let(name, expression)
    context.results.add(result)
    return result


_UNNAMED = (View, Transposed, MappingLoop, TilesLoop, PipelineLoop, RangeLoop)


def assign_name(context: Context, target: ast.Name, value: Value, value_node: ast.expr) -> None:
    name = target.id
    if value is NOTHING:
        raise context.error("this gives no value", value_node)
    if isinstance(value, _UNNAMED) and not (
        isinstance(value, Transposed) and isinstance(value.matrix, ir.Tensor)
    ):
        raise context.error(f"a name can't stand for {describe(value)}", value_node, "write it where it is used")
    known, is_here = context.binding(name)
    if isinstance(known, Cell):
        _assign_cell(context, known, value, target, value_node)
        return
    if known is not UNBOUND:
        _check_rebinding(context, known, is_here, target)
    names, loc = context.scope.names, context.locate(target)
    if not is_scalar(value):
        if isinstance(value, tuple):
            value = tuple([_settled(context, part, target, value_node) for part in value])
        names[name] = value
    elif context.will_change(name):
        if is_number(value) and not isinstance(value, bool):
            names[name] = context.pending_cell(name, value, loc, context.locate(value_node))
        else:
            names[name] = context.new_cell(name, scalar(context, value, value_node), loc)
    elif is_number(value):
        names[name] = value
    else:
        expression = scalar(context, value, value_node)
        if isinstance(expression, ir.Variable) and expression in context.results:
            context.results.discard(expression)  # it was made for this name
            names[name] = expression
        else:
            names[name] = context.let(name, expression)


def _check_rebinding(context: Context, known: Value, is_here: bool, target: ast.Name) -> None:
    if isinstance(known, ir.Variable) and known in context.fixed:
        raise context.error(
            f"'{target.id}' is {context.fixed[known]}, and never changes", target, "use another name"
        )
    if isinstance(known, ir.Tensor) and known.scope == ir.GLOBAL:
        raise context.error(f"'{target.id}' is a parameter, and never changes", target, "use another name")
    if not is_here:
        what = "a name from around" if is_expression(known) else describe(known)
        raise context.error(
            f"'{target.id}' is {what}; a loop or branch can't make it something else",
            target,
            "use another name",
        )


def _assign_cell(
    context: Context, cell: Cell, value: Value, target: ast.Name, value_node: ast.expr
) -> None:
    loc = context.locate(target)
    if not is_scalar(value):
        raise context.error(
            f"'{cell.name}' is a number, and this is {describe(value)}", value_node, "use another name"
        )
    tensor = cell.tensor
    if tensor is None:
        if is_number(value) and not isinstance(value, bool):
            frame = context.frame

            def make(dtype: Any) -> ir.Constant:
                context.frames.append(frame)  # errors are found from its source
                made = literal(context, value, dtype, value_node)
                context.frames.pop()
                return made

            later = LaterStore(context.block, len(context.block), make, loc, bool(context.each))
            cell.stores.append(later)
            context.emit(ir.Sequence(()))
            return
        made = scalar(context, value, value_node)
        if cell.tensor is None:
            initial = literal(context, cell.initial, made.dtype, cell.initial_loc or value_node)
            context.decide(cell, initial)
        tensor = cell.tensor
        assert tensor is not None
    made = typed(context, value, tensor.dtype, value_node, f"'{cell.name}' is {tensor.dtype}")
    context.note_write(tensor, loc)
    context.emit(ir.Store(tensor, (), made, loc=loc))


def augmented_assignment(context: Context, node: ast.AugAssign) -> None:
    """`x += value`: read, compute, store. `c[i, j] += a * b` is one fma."""
    target = node.target
    if isinstance(target, ast.Name):
        current = evaluate_name(context, target)
    elif isinstance(target, ast.Subscript):
        tensor = _indexed(context, target)
        indices = place(context, tensor, target)
        if isinstance(indices, View):
            raise context.error("an assignment stores one element", target)
        current = read(context, tensor, indices, target)
    else:
        raise context.error("an attribute can't be assigned", target)
    value = context.evaluate(node.value)
    result = binary(context, type(node.op), (current, value), (target, node.value), node)
    if isinstance(target, ast.Name):
        assign_name(context, target, result, node.value)
    else:
        store(context, tensor, indices, result, target, node.value, context.locate(node))


# --- the rest --------------------------------------------------------------------------------


def branch(context: Context, node: ast.If) -> None:
    decided = condition(context, context.evaluate(node.test), node.test)
    if isinstance(decided, bool):
        taken = node.body if decided else node.orelse
        context.run(taken, Scope(context.scope.names, transparent=True))
        return
    loc = context.locate(node)
    then = context.body(node.body)
    otherwise = context.body(node.orelse) if node.orelse else None
    context.emit(ir.If(decided, then, otherwise, loc=loc))


def while_loop(context: Context, node: ast.While) -> None:
    if node.orelse:
        raise context.error("'else' after a loop is not a part of the language", node.orelse[0])
    why = "the condition of a loop"
    decided = condition(context, context.evaluate_lazily(node.test, why), node.test)
    if decided is False:
        return
    if decided is True:
        raise context.error("this loop never ends", node)
    loc = context.locate(node)
    context.emit(ir.While(decided, context.body(node.body), loc=loc))


def assertion(context: Context, node: ast.Assert) -> None:
    text: Value = context.evaluate(node.msg) if node.msg is not None else None
    if text is None:
        text = context.frame.source.text(node.test)
    if not isinstance(text, str):
        raise context.error(f"the text of an assert is a string, and this is {describe(text)}", node)
    decided = condition(context, context.evaluate(node.test), node.test)
    if decided is False:
        raise context.error(f"assertion failed: {text}", node.test)
    if not isinstance(decided, bool):
        context.emit(ir.Assert(decided, text, loc=context.locate(node)))


def expression_statement(context: Context, node: ast.Expr) -> None:
    if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return
    context.root = node.value
    length = len(context.block)
    value = context.evaluate(node.value)
    if value is not NOTHING and len(context.block) == length:
        raise context.error("the value of this expression isn't used", node)


def return_statement(context: Context, node: ast.Return) -> None:
    if len(context.frames) == 1:
        raise context.error(
            "a kernel returns nothing", node, "store to a parameter declared tc.out[...]"
        )
    if any(not scope.transparent for scope in context.frame.scopes[1:]):
        raise context.error("'return' stands at the end of a function, not in a loop or branch", node)
    if node.value is not None:
        context.root = node.value
        context.frame.result = context.evaluate(node.value)
    context.frame.returned = True


def nothing(context: Context, node: ast.Pass) -> None:
    """`pass`"""


def _refuse(message: str, hint: str | None = None) -> Callable[[Context, Any], Any]:
    def refuse(context: Context, node: Any) -> None:
        raise context.error(message, node, hint)

    return refuse


def _refusals(table: dict[str, tuple[str, str | None]]) -> dict[type, Callable[[Context, Any], Any]]:
    # Not every version of Python has every kind of node.
    return {getattr(ast, name): _refuse(*rest) for name, rest in table.items() if hasattr(ast, name)}


_TRY = ("exceptions are not a part of the language", "test before: if ...")
_IMPORT = ("a kernel imports nothing", "import at the top of the file")
_DEFINE = ("a function can't be defined in a kernel", "define it outside, with @tc.function")
_COMPREHENSION = ("a comprehension is only for tc.static", "write a loop, or tc.static([... for ...])")
_SUSPEND = ("a kernel can't be suspended", None)

REFUSED_STATEMENTS = _refusals(
    {
        "Break": ("'break' is not a part of the language", "use while, with the condition in it"),
        "Continue": ("'continue' is not a part of the language", "put the rest into an if"),
        "Try": _TRY,
        "TryStar": _TRY,
        "Raise": ("exceptions are not a part of the language", 'use assert condition, "text"'),
        "FunctionDef": _DEFINE,
        "AsyncFunctionDef": _DEFINE,
        "ClassDef": ("a class can't be defined in a kernel", None),
        "Global": ("'global' is not a part of the language", "what is outside is constant"),
        "Nonlocal": ("'nonlocal' is not a part of the language", "what is outside is constant"),
        "Delete": ("'del' is not a part of the language", "a name ends with its body"),
        "Import": _IMPORT,
        "ImportFrom": _IMPORT,
        "Match": ("'match' is not a part of the language", "use if and elif"),
        "AnnAssign": ("a name takes no annotation", "give the value its type: x = f32(0)"),
        "AsyncFor": _SUSPEND,
        "AsyncWith": _SUSPEND,
        "TypeAlias": ("a type can't be named in a kernel", "name it outside"),
    }
)

REFUSED_EXPRESSIONS = _refusals(
    {
        "Lambda": ("a lambda is only for tc.load and tc.store", "use @tc.function for a helper"),
        "ListComp": _COMPREHENSION,
        "SetComp": _COMPREHENSION,
        "DictComp": _COMPREHENSION,
        "GeneratorExp": _COMPREHENSION,
        "JoinedStr": ("an f-string is not a part of the language", 'use tc.print("{}", x)'),
        "TemplateStr": ("a t-string is not a part of the language", 'use tc.print("{}", x)'),
        "Dict": ("a dict can't be made in a kernel", "make it outside: it is constant"),
        "Set": ("a set can't be made in a kernel", "make it outside: it is constant"),
        "NamedExpr": ("':=' is not a part of the language", "assign in a statement before"),
        "Await": _SUSPEND,
        "Yield": _SUSPEND,
        "YieldFrom": _SUSPEND,
        "Starred": ("'*' is not a part of the language here", None),
        "Slice": ("a slice stands only in the brackets of a tensor", None),
    }
)

STATEMENTS: dict[type, Callable[[Context, Any], None]] = {
    ast.Assign: assignment,
    ast.AugAssign: augmented_assignment,
    ast.If: branch,
    ast.While: while_loop,
    ast.Assert: assertion,
    ast.Expr: expression_statement,
    ast.Return: return_statement,
    ast.With: roles_statement,
    ast.Pass: nothing,
    **REFUSED_STATEMENTS,
}

