"""Every access of a statement to a tensor, with the facts that hold there.

    if i < n:                    known.assume(i < n), and there
        y[i] = x[i]              x[i] is read, then y[i] is written

The caller defines the facts, and how they change on the way: `prove` keeps the path to a place, or the facts
that hold there, and `synchronize` and `layout` the workers that reach it.

`reads` does that for an expression:

    select(i < n, x[i], 0.0)      x[i], under i < n

CUDA's emitter uses it for the loads of a vector loop.

`exit_condition` recognizes a loop that ends before its range does, the form of a lowered `break`:

    for q in range(n):
        if goes_on:             if this doesn't hold, nothing happens, now and later:
            ...                 the rest of the range may be skipped
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar

from taskc.errors import NOWHERE, Location
from taskc.ir import nodes as ir
from taskc.ir.nodes import Expression, Statement, Variable
from taskc.ir.rewrite import STATEMENT_FIELDS, expressions, walk
from taskc.ir.text_rules import single_statement

Fact = TypeVar("Fact")
Assume = Callable[[Fact, Expression, bool], Fact]


def reads(
    node: Expression, known: Fact, assume: Assume[Fact]
) -> Iterator[tuple[ir.Read | ir.Address, Fact]]:
    """The reads, those in indices before their users; `assume` adds a condition that holds, or doesn't."""
    match node:
        case ir.Select():
            yield from reads(node.condition, known, assume)
            yield from reads(node.then, assume(known, node.condition, True), assume)
            yield from reads(node.otherwise, assume(known, node.condition, False), assume)
        case ir.Binary(operator="and" | "or"):
            yield from reads(node.left, known, assume)
            decided = assume(known, node.left, node.operator == "and")
            yield from reads(node.right, decided, assume)
        case _:
            for part in expressions(node):
                if type(part) is not Variable and type(part) is not ir.Constant:
                    yield from reads(part, known, assume)
            if isinstance(node, ir.Read | ir.Address):
                yield node, known


def seen_through(
    nodes: Iterable[Expression], names: Mapping[Variable, Expression]
) -> Iterator[Expression]:
    """Everything in these expressions, including the definitions of names in them: each once, parents first."""
    seen: set[int] = set()
    stack = [*nodes][::-1]
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        if isinstance(node, Variable):
            if node in names:
                stack.append(names[node])
        else:
            stack += [*expressions(node)][::-1]


def reads_memory(expression: Expression) -> bool:
    """Whether its value may change later, though no name in it does."""
    return any(isinstance(node, ir.Read) for node in walk(expression))


K = TypeVar("K", bound="Known")
Touching: TypeAlias = ir.Read | ir.Address | ir.Store | ir.Atomic | ir.Move | ir.Operand
Loop: TypeAlias = ir.Grid | ir.For | ir.Pipeline | ir.While | ir.Each | ir.Move


class Known(Protocol):
    """The caller's facts at a place of a program."""

    def assume(self: K, condition: Expression, holds: bool, /) -> K:
        """The facts where a condition holds, or doesn't."""

    def repeated(self: K, loop: Loop, /) -> K:
        """The facts before any iteration, where a While evaluates its condition."""

    def under(self: K, loop: Loop, /) -> K:
        """The facts in the body of a loop, given those before an iteration."""

    def within(self: K, role: ir.Role, /) -> K: ...

    def behind(self: K, statement: Statement, /) -> K:
        """The facts after a statement, of which nested statements may not have run."""


@dataclass(frozen=True, slots=True, eq=False)
class Touch(Generic[K]):
    """An access by a node with a tensor: a statement, a part of it, or of an expression in it."""

    node: Touching
    statement: Statement
    known: K

    @property
    def loc(self) -> Location:
        if isinstance(self.node, ir.Operand) or self.node.loc == NOWHERE:
            return self.statement.loc
        return self.node.loc


Walk: TypeAlias = Generator[Touch[K], None, K]


def touches(node: Statement, known: K) -> Walk[K]:
    """The accesses in program order; returns the facts after the statement."""
    match node:
        case ir.Sequence():
            inside = known
            for statement in node.statements:
                inside = yield from touches(statement, inside)
        case ir.If():
            yield from touches_of(node.condition, known, node)
            yield from touches(node.then, known.assume(node.condition, True))
            if node.otherwise is not None:
                yield from touches(node.otherwise, known.assume(node.condition, False))
        case ir.While():
            again = known.repeated(node)
            yield from touches_of(node.condition, again, node)
            yield from touches(node.body, again.under(node))
        case ir.For() | ir.Grid() | ir.Pipeline() | ir.Each():
            for expression in expressions(node):
                yield from touches_of(expression, known, node)
            yield from touches(node.body, known.repeated(node).under(node))
        case ir.Move():
            inside = known.under(node)
            if node.guard is not None:
                yield from touches_of(node.guard, inside, node)
                inside = inside.assume(node.guard, True)
            for expression in (*node.indices, node.value):
                yield from touches_of(expression, inside, node)
            yield Touch(node, node, inside)
        case ir.Roles():
            for role in node.roles:
                yield from touches(role.body, known.within(role))
        case _:
            assert type(node) not in STATEMENT_FIELDS, f"{type(node).__name__} has a body"
            for expression in expressions(node):
                yield from touches_of(expression, known, node)
            if isinstance(node, (ir.Store, ir.Atomic)):
                yield Touch(node, node, known)
            if isinstance(node, ir.Mma):
                yield Touch(node.left, node, known)
                yield Touch(node.right, node, known)
    return known.behind(node)


def touches_of(node: Expression, known: K, statement: Statement) -> Iterator[Touch[K]]:
    """The accesses of an expression in a statement."""
    for read, where in reads(
        node, known, lambda now, condition, holds: now.assume(condition, holds)
    ):
        yield Touch(read, statement, where)


def exit_condition(loop: ir.For) -> ir.Expression | None:
    """The condition without which no further iteration of the loop has an effect, or None.

    It is that of all of the body, and depends on nothing but cells of the worker's own, which only the body could
    change.
    """
    body = single_statement(loop.body)
    if (
        isinstance(body, ir.If)
        and decides_by_cells(body)
        and loop.variable not in walk(body.condition)
    ):
        return body.condition
    return None


def decides_by_cells(branch: ir.If) -> bool:
    """Whether a branch depends only on the worker's own scalar cells."""
    reads = [part.tensor for part in walk(branch.condition) if isinstance(part, ir.Read)]
    are_cells = all(tensor.scope == ir.LOCAL and not tensor.shape for tensor in reads)
    return bool(reads) and are_cells and branch.otherwise is None
