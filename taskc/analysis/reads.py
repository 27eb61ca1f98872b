"""The memory reads of an expression, each with the facts that hold there.

    select(i < n, x[i], 0.0)      x[i], under i < n

taskc.analysis.touches traverses statements; CUDA's emitter uses this for the loads of a vector loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from taskc.ir import nodes as ir
from taskc.ir.nodes import Expression, Variable
from taskc.ir.rewrite import expressions, walk

Known = TypeVar("Known")
Assume = Callable[[Known, Expression, bool], Known]


def reads(
    node: Expression, known: Known, assume: Assume[Known]
) -> Iterator[tuple[ir.Read | ir.Address, Known]]:
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
