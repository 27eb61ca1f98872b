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

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, Protocol, TypeAlias, TypeVar

from taskc.dataclass import dataclass
from taskc.errors import NOWHERE, Location
from taskc.ir import nodes as ir
from taskc.ir.nodes import Expression, Statement, Variable
from taskc.ir.rewrite import STATEMENT_FIELDS, expressions, walk
from taskc.ir.text_rules import single_statement

Fact = TypeVar("Fact")
Assume = Callable[[Fact, Expression, bool], Fact]


def reads(
    node: Expression, known: Fact, assume: Assume[Fact]
) -> list[tuple[ir.Read | ir.Address, Fact]]:
    """The reads, those in indices before their users; `assume` adds a condition that holds, or doesn't."""
    found: list[tuple[ir.Read | ir.Address, Fact]] = []
    _add_reads(node, known, assume, found)
    return found


def _add_reads(
    node: Expression,
    known: Fact,
    assume: Assume[Fact],
    found: list[tuple[ir.Read | ir.Address, Fact]],
) -> None:
    match node:
        case Variable() | ir.Constant():
            pass
        case ir.Select():
            _add_reads(node.condition, known, assume, found)
            _add_reads(node.then, assume(known, node.condition, True), assume, found)
            _add_reads(node.otherwise, assume(known, node.condition, False), assume, found)
        case ir.Binary(operator="and" | "or"):
            _add_reads(node.left, known, assume, found)
            decided = assume(known, node.left, node.operator == "and")
            _add_reads(node.right, decided, assume, found)
        case _:
            for part in expressions(node):
                _add_reads(part, known, assume, found)
            if isinstance(node, ir.Read | ir.Address):
                found.append((node, known))


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


def visit_touches(node: Statement, known: K, visit: Callable[[Touch[K]], None]) -> K:
    """Visit the accesses in program order; returns the facts after the statement."""

    def visit_reads(expression: Expression, here: K) -> None:
        for read, where in reads(expression, here, _assume):
            visit(Touch(read, node, where))

    match node:
        case ir.Sequence():
            inside = known
            for statement in node.statements:
                inside = visit_touches(statement, inside, visit)
        case ir.If():
            visit_reads(node.condition, known)
            visit_touches(node.then, known.assume(node.condition, True), visit)
            if node.otherwise is not None:
                visit_touches(node.otherwise, known.assume(node.condition, False), visit)
        case ir.While():
            again = known.repeated(node)
            visit_reads(node.condition, again)
            visit_touches(node.body, again.under(node), visit)
        case ir.For() | ir.Grid() | ir.Pipeline() | ir.Each():
            for expression in expressions(node):
                visit_reads(expression, known)
            visit_touches(node.body, known.repeated(node).under(node), visit)
        case ir.Move():
            inside = known.under(node)
            if node.guard is not None:
                visit_reads(node.guard, inside)
                inside = inside.assume(node.guard, True)
            for expression in (*node.indices, node.value):
                visit_reads(expression, inside)
            visit(Touch(node, node, inside))
        case ir.Roles():
            for role in node.roles:
                visit_touches(role.body, known.within(role), visit)
        case _:
            assert type(node) not in STATEMENT_FIELDS, f"{type(node).__name__} has a body"
            for expression in expressions(node):
                visit_reads(expression, known)
            if isinstance(node, (ir.Store, ir.Atomic)):
                visit(Touch(node, node, known))
            if isinstance(node, ir.Mma):
                visit(Touch(node.left, node, known))
                visit(Touch(node.right, node, known))
    return known.behind(node)


def _assume(known: K, condition: Expression, holds: bool) -> K:
    return known.assume(condition, holds)


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
