"""Which values live across a barrier.

A block of more workers than lanes runs as several vectors, one after the other. The code between two
barriers is a group: all vectors run through one group before any begins the next. A value that is
bound in one group and used in another is kept in memory, one copy for each vector, unless it can be
computed again.
"""

from __future__ import annotations

from collections.abc import Iterator

from taskc.ir import nodes as ir
from taskc.ir.nodes import Expression, Statement, Tensor, Variable
from taskc.ir.rewrite import bound_by, expressions, statements, tensors_of, walk


class BarrierGroups:
    def __init__(self, body: Statement) -> None:
        self._barriers: dict[int, bool] = {}
        self._groups: dict[Variable | Tensor, set[int]] = {}
        self._number = 0
        self._visit(body)

    def has_barrier(self, statement: Statement) -> bool:
        contains_barrier = self._barriers.get(id(statement))
        if contains_barrier is None:
            contains_barrier = isinstance(statement, ir.Barrier) or any(
                map(self.has_barrier, statements(statement))
            )
            self._barriers[id(statement)] = contains_barrier
        return contains_barrier

    def is_kept(self, item: Variable | Tensor) -> bool:
        """Whether a variable or tensor is used in more than one group."""
        return len(self._groups.get(item, ())) > 1

    def _visit(self, statement: Statement) -> None:
        if not self.has_barrier(statement):
            self._note(statement)
            return
        # A loop comes back: the code before its first barrier and the code after its last one are two groups.
        for expression in expressions(statement):
            self._note(expression)
        self._number += 1
        for below in statements(statement):
            self._visit(below)
            if self.has_barrier(below):
                self._number += 1
        self._number += 1

    def _note(self, node: Statement | Expression) -> None:
        for inner in walk(node):
            for item in _mentioned(inner):
                self._groups.setdefault(item, set()).add(self._number)


def _mentioned(node: Statement | Expression) -> Iterator[Variable | Tensor]:
    if isinstance(node, Variable):
        yield node
    yield from tensors_of(node)
    yield from bound_by(node)


def is_pure(expression: Expression) -> bool:
    """Whether the expression has the same value whenever it is computed."""
    return not any(isinstance(node, ir.Read) for node in walk(expression))
