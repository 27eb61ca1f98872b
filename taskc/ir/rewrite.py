"""Walking and rebuilding programs.

`map_children` rebuilds one node from its children, and returns the very same node when no child
changed: a pass that finds nothing to do returns its input, and `is` tells.

An expression may be a part of others in many places (`t + t * 0.5`, with what `t` stands for put in), so
that as a tree it is exponentially larger than in memory. Whatever goes over expressions takes time for
the distinct ones: `walk` comes to each once, and rewriting shares what it has made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping as Dictionary
from dataclasses import replace
from typing import Any, TypeVar, overload

from taskc.ir import nodes as ir
from taskc.ir.nodes import Expression, Statement, Tensor, Variable

Node = Expression | Statement
T = TypeVar("T")


def _same(old: tuple[T, ...], new: tuple[T, ...]) -> bool:
    return all(a is b for a, b in zip(old, new, strict=True))


def _map_tuple(items: tuple[T, ...], function: Callable[[T], T]) -> tuple[T, ...]:
    new = tuple([function(item) for item in items])
    return items if _same(items, new) else new


@overload
def map_expressions(
    node: Expression, function: Callable[[Expression], Expression]
) -> Expression: ...
@overload
def map_expressions(node: Statement, function: Callable[[Expression], Expression]) -> Statement: ...
def map_expressions(node: Node, function: Callable[[Expression], Expression]) -> Node:
    """`node` with `function` applied to the expressions directly in it (not to statements)."""
    changes: dict[str, Any] = {}
    for name in EXPRESSION_FIELDS.get(type(node), ()):
        old = getattr(node, name)
        if old is None or isinstance(old, int):
            continue
        if isinstance(old, tuple):
            items = tuple([x if isinstance(x, int) else function(x) for x in old])
            if not _same(old, items):
                changes[name] = items
        elif isinstance(old, ir.Operand):
            origin = _map_tuple(old.origin, function)
            if origin is not old.origin:
                changes[name] = replace(old, origin=origin)
        else:
            new = function(old)
            if new is not old:
                changes[name] = new
    return replace(node, **changes) if changes else node


def map_statements(node: Statement, function: Callable[[Statement], Statement]) -> Statement:
    """`node` with `function` applied to the statements directly in it."""
    match node:
        case ir.Sequence():
            statements = _map_tuple(node.statements, function)
            return node if statements is node.statements else replace(node, statements=statements)
        case ir.If():
            then = function(node.then)
            otherwise = None if node.otherwise is None else function(node.otherwise)
            if then is node.then and otherwise is node.otherwise:
                return node
            return replace(node, then=then, otherwise=otherwise)
        case ir.While() | ir.For() | ir.Grid() | ir.Pipeline() | ir.Each():
            body = function(node.body)
            return node if body is node.body else replace(node, body=body)
        case ir.Roles():
            roles = _map_tuple(
                node.roles,
                lambda role: (
                    role if (body := function(role.body)) is role.body else replace(role, body=body)
                ),
            )
            return node if roles is node.roles else replace(node, roles=roles)
    return node


@overload
def map_children(node: Expression, function: Callable[[Any], Any]) -> Expression: ...
@overload
def map_children(node: Statement, function: Callable[[Any], Any]) -> Statement: ...
def map_children(node: Node, function: Callable[[Node], Node]) -> Node:
    """`node` with `function` applied to its direct children, expressions first."""
    node = map_expressions(node, function)  # type: ignore[arg-type]
    if type(node) in STATEMENT_TYPES:
        node = map_statements(node, function)  # type: ignore[arg-type]
    return node


def expressions(node: Node) -> Iterator[Expression]:
    """The expressions directly in `node`."""
    for name in EXPRESSION_FIELDS.get(type(node), ()):
        old = getattr(node, name)
        if isinstance(old, tuple):
            yield from (x for x in old if not isinstance(x, int))
        elif isinstance(old, ir.Operand):
            yield from old.origin
        elif old is not None and not isinstance(old, int):
            yield old


def statements(node: Statement) -> Iterator[Statement]:
    """The statements directly in `node`."""
    match node:
        case ir.Sequence():
            yield from node.statements
        case ir.If():
            yield node.then
            if node.otherwise is not None:
                yield node.otherwise
        case ir.While() | ir.For() | ir.Grid() | ir.Pipeline() | ir.Each():
            yield node.body
        case ir.Roles():
            yield from (role.body for role in node.roles)


def walk(node: Node) -> Iterator[Node]:
    """`node` and all below it, parents first, in program order. No recursion: depth is no limit.

    An expression that is in one statement several times comes once, but for variables and constants
    directly in different ones.
    """
    stack: list[Any] = [node]
    seen: set[int] = set()
    while stack:
        current = stack.pop()
        kind = type(current)
        if kind in STATEMENT_TYPES:
            seen.clear()
        elif kind is not Variable and kind is not ir.Constant:
            if id(current) in seen:
                continue
            seen.add(id(current))
        yield current
        below = _BELOW.get(kind)
        stack += _children(current)[::-1] if below is None else below(current)


def _children(node: Node) -> list[Node]:
    found: list[Node] = list(expressions(node))
    if type(node) in NESTING_TYPES:
        found += statements(node)  # type: ignore[arg-type]
    return found


# The children of the commonest nodes, last ones first: compilers spend much of their time in `walk`.
_BELOW: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    ir.Variable: lambda node: (),
    ir.Constant: lambda node: (),
    ir.Unary: lambda node: (node.operand,),
    ir.Cast: lambda node: (node.operand,),
    ir.Binary: lambda node: (node.right, node.left),
    ir.Fused: lambda node: (node.addend, node.right, node.left),
    ir.Select: lambda node: (node.otherwise, node.then, node.condition),
    ir.Read: lambda node: node.indices[::-1],
    ir.Let: lambda node: (node.value,),
    ir.Store: lambda node: (node.value, *node.indices[::-1]),
    ir.Sequence: lambda node: node.statements[::-1],
}


def operands_first(expression: Expression) -> list[Expression]:
    """The distinct parts of an expression, itself the last: each behind those that it is made of."""
    order: list[Expression] = []
    seen: set[int] = set()
    stack: list[tuple[Expression, bool]] = [(expression, False)]
    while stack:
        node, is_done = stack.pop()
        if is_done:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack += [(part, False) for part in [*expressions(node)][::-1]]
    return order


def walk_statements(node: Statement) -> Iterator[Statement]:
    """`node` and the statements below it, as `walk` comes to them: without their expressions."""
    stack: list[Statement] = [node]
    while stack:
        current = stack.pop()
        yield current
        if type(current) in NESTING_TYPES:
            stack += [*statements(current)][::-1]


@overload
def substitute(node: Expression, values: Dictionary[Variable, Expression]) -> Expression: ...
@overload
def substitute(node: Statement, values: Dictionary[Variable, Expression]) -> Statement: ...
def substitute(node: Node, values: Dictionary[Variable, Expression]) -> Node:
    """`node` with variables replaced by expressions, wherever they are used."""
    if not values:
        return node
    made: dict[int, tuple[Node, Node]] = {}

    def visit(current: Node) -> Node:
        if type(current) is Variable:
            return values.get(current, current)
        if type(current) is ir.Constant:
            return current
        found = made.get(id(current))
        if found is None:
            found = made[id(current)] = current, map_children(current, visit)
        return found[1]

    return visit(node)


@overload
def replace_tensors(node: Expression, tensors: Dictionary[Tensor, Tensor]) -> Expression: ...
@overload
def replace_tensors(node: Statement, tensors: Dictionary[Tensor, Tensor]) -> Statement: ...
def replace_tensors(node: Node, tensors: Dictionary[Tensor, Tensor]) -> Node:
    """`node` with tensors exchanged for others, wherever they are read, written or allocated."""
    if not tensors:
        return node

    def swap(tensor: Tensor) -> Tensor:
        return tensors.get(tensor, tensor)

    def visit(current: Node) -> Node:
        current = map_children(current, visit)
        changes: dict[str, Any] = {}
        for name in TENSOR_FIELDS.get(type(current), ()):
            old = getattr(current, name)
            if isinstance(old, ir.Operand):
                if old.tensor in tensors:
                    changes[name] = replace(old, tensor=swap(old.tensor))
            elif old in tensors:
                changes[name] = swap(old)
        return replace(current, **changes) if changes else current

    return visit(node)


def sequence(*parts: Statement | None) -> Statement:
    """The statements one after another in one scope, nested Sequences spliced; one alone stays alone.

    Only splice where the names bound inside may live on: scopes become wider, never narrower.
    """
    flat: list[Statement] = []
    for part in parts:
        if isinstance(part, ir.Sequence):
            flat.extend(part.statements)
        elif part is not None:
            flat.append(part)
    return flat[0] if len(flat) == 1 else ir.Sequence(tuple(flat))


def tensors_of(node: Node) -> Iterator[Tensor]:
    """The tensors that `node` itself names (not its children)."""
    for name in TENSOR_FIELDS.get(type(node), ()):
        old = getattr(node, name)
        yield old.tensor if isinstance(old, ir.Operand) else old


@overload
def copy(
    node: Expression, values: Dictionary[Variable, Expression] | None = None
) -> Expression: ...
@overload
def copy(node: Statement, values: Dictionary[Variable, Expression] | None = None) -> Statement: ...
def copy(node: Node, values: Dictionary[Variable, Expression] | None = None) -> Node:
    """A second copy of `node` for another place: what it binds and allocates gets identities of its own.

    `values` replaces free variables on the way.
    """
    variables: dict[Variable, Expression] = dict(values or {})
    tensors: dict[Tensor, Tensor] = {}

    def fresh(variable: Variable) -> Variable:
        new = replace(variable)
        variables[variable] = new
        return new

    def visit(current: Node) -> Node:
        if type(current) is Variable:
            return variables.get(current, current)
        changes: dict[str, Any] = {}
        for name in BINDING_FIELDS.get(type(current), ()):
            bound = getattr(current, name)
            if isinstance(bound, tuple):
                changes[name] = tuple(fresh(variable) for variable in bound)
            elif bound is not None:
                changes[name] = fresh(bound)
        if isinstance(current, (ir.Allocate, ir.Peer)):
            tensors[current.tensor] = replace(current.tensor)
        if changes:
            current = replace(current, **changes)
        return map_children(current, visit)

    return replace_tensors(visit(node), tensors)


@overload
def index_leading(
    node: Expression, rings: Dictionary[Tensor, Tensor], slot: Expression
) -> Expression: ...
@overload
def index_leading(
    node: Statement, rings: Dictionary[Tensor, Tensor], slot: Expression
) -> Statement: ...
def index_leading(node: Node, rings: Dictionary[Tensor, Tensor], slot: Expression) -> Node:
    """Accesses to the keys of `rings` become accesses to one slot of their rings."""

    def visit(current: Node) -> Node:
        current = map_children(current, visit)
        match current:
            case ir.Read(tensor=tensor) | ir.Address(tensor=tensor) if tensor in rings:
                return replace(current, tensor=rings[tensor], indices=(slot, *current.indices))
            case ir.Store() | ir.Move() if current.tensor in rings:
                return replace(
                    current, tensor=rings[current.tensor], indices=(slot, *current.indices)
                )
            case ir.Mma():
                changes = {
                    side: replace(
                        operand, tensor=rings[operand.tensor], origin=(slot, *operand.origin)
                    )
                    for side in ("left", "right")
                    if (operand := getattr(current, side)).tensor in rings
                }
                return replace(current, **changes) if changes else current
        return current

    return visit(node)


BINDING_FIELDS: dict[type, tuple[str, ...]] = {
    ir.Let: ("variable",),
    ir.Atomic: ("result",),
    ir.For: ("variable",),
    ir.Grid: ("variables",),
    ir.Pipeline: ("variable",),
    ir.Each: ("variables",),
    ir.Move: ("variables",),
    ir.Do: ("result",),
}

EXPRESSION_FIELDS: dict[type, tuple[str, ...]] = {
    ir.Unary: ("operand",),
    ir.Binary: ("left", "right"),
    ir.Fused: ("left", "right", "addend"),
    ir.Select: ("condition", "then", "otherwise"),
    ir.Cast: ("operand",),
    ir.Read: ("indices",),
    ir.Lookup: ("index",),
    ir.Inline: ("operands",),
    ir.Address: ("indices",),
    ir.Let: ("value",),
    ir.Peer: ("rank",),
    ir.Store: ("indices", "value"),
    ir.Atomic: ("indices", "value"),
    ir.If: ("condition",),
    ir.While: ("condition",),
    ir.For: ("start", "stop"),
    ir.Grid: ("shape",),
    ir.Pipeline: ("extent",),
    ir.Each: ("worker",),
    ir.Move: ("indices", "value", "guard"),
    ir.Mma: ("left", "right", "accumulate"),
    ir.Print: ("values",),
    ir.Assert: ("condition",),
    ir.RingStep: ("step",),
    ir.Do: ("operands",),
}

TENSOR_FIELDS: dict[type, tuple[str, ...]] = {
    ir.Read: ("tensor",),
    ir.Address: ("tensor",),
    ir.Allocate: ("tensor",),
    ir.Peer: ("tensor", "of"),
    ir.Store: ("tensor",),
    ir.Atomic: ("tensor",),
    ir.Move: ("tensor",),
    ir.Mma: ("accumulator", "left", "right"),
    ir.Reduce: ("target", "source"),
    ir.Scan: ("target", "source"),
}

STATEMENT_TYPES: frozenset[type] = frozenset(
    {
        ir.Sequence, ir.Let, ir.Allocate, ir.Peer, ir.Store, ir.Atomic, ir.If, ir.While, ir.For, ir.Grid,
        ir.Pipeline, ir.Each, ir.Move, ir.Mma, ir.Reduce, ir.Scan, ir.Print, ir.Assert,
        ir.Breakpoint, ir.RingStep, ir.Barrier, ir.Roles, ir.Do,
    }
)  # fmt: skip

NESTING_TYPES: frozenset[type] = frozenset(
    {ir.Sequence, ir.If, ir.While, ir.For, ir.Grid, ir.Pipeline, ir.Each, ir.Roles}
)
