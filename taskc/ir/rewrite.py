"""Traversal and rewriting of programs.

`map_children` rebuilds one node from its children, and returns the very same node when no child
changed: a pass that finds nothing to do returns its input, and `is` tells.

An expression may be a part of others in many places (`t + t * 0.5`, with the value of `t` substituted), so
that as a tree it is exponentially larger than in memory. Traversals take time for the distinct
expressions: `walk` visits each once, and rewriting shares its results.

Everything here is derived from tables of the fields of nodes, by type. A table of expressions lists the fields that
hold one or several expressions, or none, or an Operand or a Role with expressions in it; those parts have rows of
their own. Extents that are ints are passed over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping as Dictionary, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import (
    Annotated,
    Any,
    TypeAlias,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from taskc.errors import Location
from taskc.ir import nodes as ir
from taskc.ir.nodes import Effect, Expression, Statement, Tensor, Variable

Fields: TypeAlias = "dict[type, tuple[str, ...]]"

EXPRESSION_TYPES: frozenset[type] = frozenset(get_args(ir.Expression))
STATEMENT_TYPES: frozenset[type] = frozenset(get_args(ir.Statement))
PART_TYPES: frozenset[type] = frozenset({ir.Operand, ir.Role})

# In the order of the unions, so that nothing depends on hashes.
_KINDS = (*get_args(ir.Expression), *get_args(ir.Statement), ir.Operand, ir.Role)
_HINTS = {kind: get_type_hints(kind, include_extras=True) for kind in _KINDS}


def _within(hint: Any) -> set[Any]:
    """The types that a type consists of, and the effects that mark it."""
    if get_origin(hint) is Annotated:
        kind, *effects = get_args(hint)
        return {*effects, *_within(kind)}
    if parts := get_args(hint):
        return set().union(*map(_within, parts))
    if hint in PART_TYPES:
        return {hint}.union(*map(_within, _HINTS[hint].values()))
    return {hint}


_WITHIN = {
    kind: {name: _within(hint) for name, hint in hints.items()} for kind, hints in _HINTS.items()
}


def _holding(wanted: Iterable[Any]) -> Fields:
    """The fields that contain all of these types, for nodes and parts that have any."""
    needed = frozenset(wanted)
    matching = {
        kind: tuple([name for name, within in fields.items() if needed <= within])
        for kind, fields in _WITHIN.items()
    }
    return {kind: names for kind, names in matching.items() if names}


EXPRESSION_FIELDS = _holding(EXPRESSION_TYPES)
STATEMENT_FIELDS = _holding(STATEMENT_TYPES)
TENSOR_FIELDS = _holding({ir.Tensor})
EFFECT_FIELDS: dict[Effect, Fields] = {effect: _holding({effect}) for effect in Effect}


def is_one_node(kind: type, name: str) -> bool:
    """Whether the field always contains one expression or statement."""
    return _HINTS[kind][name] in (ir.Expression, ir.Statement)


def is_tuple_of_nodes(kind: type, name: str) -> bool:
    """Whether the field is a tuple of expressions or of statements."""
    return _HINTS[kind][name] in (tuple[ir.Expression, ...], tuple[ir.Statement, ...])


Node = Expression | Statement
N = TypeVar("N", Expression, Statement)
S = TypeVar("S", bound=Statement)
T = TypeVar("T")


def _same(old: tuple[T, ...], new: tuple[T, ...]) -> bool:
    return all(a is b for a, b in zip(old, new, strict=True))


def _mapped(held: Any, function: Callable[[Any], Any], fields: Fields) -> Any:
    """The value of a field, with `function` applied to the nodes that the table lists."""
    if type(held) in EXPRESSION_TYPES:  # the most frequent case
        return function(held)
    if held is None or isinstance(held, int):
        return held
    if isinstance(held, tuple):
        items = tuple([_mapped(item, function, fields) for item in held])
        return held if _same(held, items) else items
    return _map_fields(held, function, fields) if type(held) in PART_TYPES else function(held)


def _map_fields(node: T, function: Callable[[Any], Any], fields: Fields) -> T:
    changes: dict[str, Any] = {}
    for name in fields.get(type(node), ()):
        old = getattr(node, name)
        new = _mapped(old, function, fields)
        if new is not old:
            changes[name] = new
    return replace(node, **changes) if changes else node  # type: ignore[type-var]


def held_by(node: Any, fields: Fields) -> Iterator[Any]:
    """The nodes in the fields of a node that the table lists."""
    for name in fields.get(type(node), ()):
        held = getattr(node, name)
        for item in held if isinstance(held, tuple) else (held,):
            if type(item) in PART_TYPES:
                yield from held_by(item, fields)
            elif item is not None and not isinstance(item, int):
                yield item


def map_expressions(node: N, function: Callable[[Expression], Expression]) -> N:
    """`node` with `function` applied to the expressions directly in it (not to statements)."""
    return _map_fields(node, function, EXPRESSION_FIELDS)


def map_statements(node: Statement, function: Callable[[Statement], Statement]) -> Statement:
    """`node` with `function` applied to the statements directly in it."""
    return _map_fields(node, function, STATEMENT_FIELDS)


def map_roles(node: ir.Roles, function: Callable[[ir.Role], Statement]) -> ir.Roles:
    """`node` with the bodies that `function` returns for its roles."""
    bodies = tuple([function(role) for role in node.roles])
    if _same(tuple([role.body for role in node.roles]), bodies):
        return node
    pairs = zip(node.roles, bodies, strict=True)
    return replace(node, roles=tuple([replace(role, body=body) for role, body in pairs]))


def map_children(node: N, function: Callable[[Any], Any]) -> N:
    """`node` with `function` applied to its direct children, expressions first."""
    node = _map_fields(node, function, EXPRESSION_FIELDS)
    return _map_fields(node, function, STATEMENT_FIELDS) if type(node) in STATEMENT_FIELDS else node


def expressions(node: Node) -> Iterator[Expression]:
    """The expressions directly in `node`."""
    below: Any = _EXPRESSIONS_BELOW.get(type(node))
    return reversed(below(node)) if below else iter(())


def statements(node: Statement) -> Iterator[Statement]:
    """The statements directly in `node`."""
    below: Any = _STATEMENTS_BELOW.get(type(node))
    return reversed(below(node)) if below else iter(())


def tensors_of(node: Node) -> Iterator[Tensor]:
    """The tensors that `node` itself names (not its children)."""
    return held_by(node, TENSOR_FIELDS) if type(node) in TENSOR_FIELDS else iter(())


def bound_by(node: Node) -> Iterator[Variable]:
    """The variables that `node` itself binds."""
    return (
        name for name in held_by(node, EFFECT_FIELDS[Effect.BINDS]) if isinstance(name, Variable)
    )


def walk(node: Node) -> Iterator[Node]:
    """`node` and everything below it, parents first, in program order. It doesn't recurse, so depth is no limit.

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
        if below := _BELOW.get(kind):  # anything else is refused by the verifier
            stack += below(current)


def _below(kind: type, *tables: Fields) -> Callable[[Any], Iterable[Node]]:
    """The function that lists such a node's children in the fields of some tables, last ones first. Compilation spends
    much of its time in `walk`.
    """
    names = tuple([name for fields in tables for name in fields.get(kind, ())])
    several = tuple([name for name in names if is_tuple_of_nodes(kind, name)])
    single = tuple([name for name in names if is_one_node(kind, name)])
    if names == single:
        return _below_single(single)
    if len(several) == 1 and names == several + single:
        first, single_getter = attrgetter(*several), _below_single(single)
        if not single:
            return lambda node: first(node)[::-1]
        return lambda node: (*single_getter(node), *first(node)[::-1])
    return lambda node: [part for fields in tables for part in held_by(node, fields)][::-1]


def _below_single(names: tuple[str, ...]) -> Callable[[Any], tuple[Node, ...]]:
    if len(names) > 1:
        several: Callable[[Any], tuple[Node, ...]] = attrgetter(*names[::-1])
        return several
    if not names:
        return lambda node: ()
    (name,) = names
    only: Callable[[Any], Node] = attrgetter(name)
    return lambda node: (only(node),)


_BELOW = {
    kind: _below(kind, EXPRESSION_FIELDS, STATEMENT_FIELDS)
    for kind in (*EXPRESSION_TYPES, *STATEMENT_TYPES)
}
_EXPRESSIONS_BELOW = {kind: _below(kind, EXPRESSION_FIELDS) for kind in EXPRESSION_FIELDS}
_STATEMENTS_BELOW = {kind: _below(kind, STATEMENT_FIELDS) for kind in STATEMENT_FIELDS}


def operands_first(
    expression: Expression, parts: Callable[[Expression], Iterable[Expression]] | None = None
) -> list[Expression]:
    """The distinct parts of an expression, each after its own parts; the expression itself is the last.

    parts  lists an expression's parts, where these aren't all of its operands
    """
    order: list[Expression] = []
    seen: set[int] = set()
    stack: list[Expression | None] = [
        expression
    ]  # None: all parts of the last one waiting are done
    waiting: list[Expression] = []
    while stack:
        node = stack.pop()
        if node is None:
            order.append(waiting.pop())
        elif id(node) not in seen:
            seen.add(id(node))
            below: Any = _BELOW[type(node)](node) if parts is None else [*parts(node)][::-1]
            if below:
                waiting.append(node)
                stack.append(None)
                stack += below
            else:
                order.append(node)
    return order


def walk_statements(node: Statement) -> Iterator[Statement]:
    """`node` and the statements below it, in the order of `walk`, without expressions."""
    stack: list[Any] = [node]
    while stack:
        current = stack.pop()
        yield current
        if below := _STATEMENTS_BELOW.get(type(current)):
            stack += below(current)


class _Surveys(threading.local):
    """The latest bodies that this thread surveyed, each with its statements by type."""

    latest: tuple[tuple[Statement, dict[type, list[Any]]], ...] = ()


_surveys = _Surveys()
_MOST_SURVEYS = 4  # a pass asks for its kernel's body, and for the one it was made from


def all_below(body: Statement, kind: type[S]) -> Sequence[S]:
    """The statements of a kind in a body, the body itself included, in program order.

    Most passes are for few kernels, and ask first whether there is anything for them. One traversal answers all that
    ask of the same body.
    """
    for surveyed, by_kind in _surveys.latest:
        if surveyed is body:
            return by_kind.get(kind, ())
    by_kind = {}
    for node in walk_statements(body):
        by_kind.setdefault(type(node), []).append(node)
    _surveys.latest = ((body, by_kind), *_surveys.latest[: _MOST_SURVEYS - 1])
    return by_kind.get(kind, ())


def substitute(node: N, values: Dictionary[Variable, Expression]) -> N:
    """`node` with variables replaced by expressions, wherever they are used."""
    if not values:
        return node
    made: dict[int, tuple[Any, Any]] = {}

    def visit(current: Any) -> Any:
        if type(current) is Variable:
            return values.get(current, current)
        if type(current) is ir.Constant:
            return current
        found = made.get(id(current))
        if found is None:
            found = made[id(current)] = current, map_children(current, visit)
        return found[1]

    new: N = visit(node)
    return new


def replace_tensors(node: N, tensors: Dictionary[Tensor, Tensor]) -> N:
    """`node` with tensors replaced by others, wherever they are read, written or allocated."""
    if not tensors:
        return node

    def swap(tensor: Tensor) -> Tensor:
        return tensors.get(tensor, tensor)

    return rewritten(node, lambda current: _map_fields(current, swap, TENSOR_FIELDS))


def rewritten(node: T, change: Callable[[Any], Any]) -> T:
    """`node` with `change` applied to everything below it and then to itself, bottom-up, each distinct part once."""
    made: dict[
        int, tuple[Any, Any]
    ] = {}  # values include the key's node, so that its id isn't reused

    def visit(current: Any) -> Any:
        if type(current) is Variable or type(current) is ir.Constant:
            return change(current)
        found = made.get(id(current))
        if found is None:
            found = made[id(current)] = current, change(map_children(current, visit))
        return found[1]

    changed: T = visit(node)
    return changed


def located(node: N, loc: Location) -> N:
    """`node`, with this location for all nodes in it that have none. Variables stay the same objects."""

    def placed(part: Any) -> Any:
        return part if type(part) is Variable or part.loc.line else replace(part, loc=loc)

    return rewritten(node, placed)


def sequence(*parts: Statement | None) -> Statement:
    """The statements one after another in one scope, with nested Sequences spliced; a single one is returned as is.

    Only splice where the names bound inside may live on: scopes become wider, never narrower.
    """
    flat: list[Statement] = []
    for part in parts:
        if isinstance(part, ir.Sequence):
            flat.extend(part.statements)
        elif part is not None:
            flat.append(part)
    return flat[0] if len(flat) == 1 else ir.Sequence(tuple(flat))


def copy(node: N, values: Dictionary[Variable, Expression] | None = None) -> N:
    """A second copy of `node` for another place, with new identities for everything it binds and allocates.

    `values` replaces free variables on the way.
    """
    variables: dict[Variable, Expression] = dict(values or {})
    tensors: dict[Tensor, Tensor] = {}

    made: dict[
        int, tuple[Any, Any]
    ] = {}  # expressions, valid as long as variables keep their values

    def fresh(name: Variable | Tensor) -> Variable | Tensor:
        if isinstance(name, Tensor):
            return tensors.setdefault(name, replace(name))
        made.clear()
        new = variables[name] = replace(name)
        return new

    def visit(current: Any) -> Any:
        if type(current) is Variable:
            return variables.get(current, current)
        if type(current) in STATEMENT_TYPES:
            return map_children(_map_fields(current, fresh, EFFECT_FIELDS[Effect.BINDS]), visit)
        found = made.get(id(current))
        if found is None:
            found = made[id(current)] = current, map_children(current, visit)
        return found[1]

    new: N = visit(node)
    return replace_tensors(new, tensors)


def index_leading(node: N, rings: Dictionary[Tensor, Tensor], slot: Expression) -> N:
    """Redirect accesses to the keys of `rings` to one slot of their rings."""

    def changed(current: Any) -> Any:
        match current:
            case ir.Read(tensor=tensor) | ir.Address(tensor=tensor) if tensor in rings:
                return replace(current, tensor=rings[tensor], indices=(slot, *current.indices))
            case ir.Store() | ir.Move() if current.tensor in rings:
                return replace(
                    current, tensor=rings[current.tensor], indices=(slot, *current.indices)
                )
            case ir.Mma():
                left, right = in_slot(current.left), in_slot(current.right)
                if left is not current.left or right is not current.right:
                    return replace(current, left=left, right=right)
        return current

    def in_slot(operand: ir.Operand) -> ir.Operand:
        ring = rings.get(operand.tensor)
        return (
            operand
            if ring is None
            else replace(operand, tensor=ring, origin=(slot, *operand.origin))
        )

    return rewritten(node, changed)
