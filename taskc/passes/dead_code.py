"""Dead code elimination: unused Lets, and stores to memory that is not read.

The traversal is backwards: all uses of a name are seen before its Let, so that
one traversal removes chains of dead Lets, too. Evaluating an expression has no effect but errors.
"""

from __future__ import annotations

from dataclasses import replace

from taskc.ir import nodes as ir
from taskc.ir.nodes import Expression, Statement, Tensor, Variable
from taskc.ir.rewrite import expressions, tensors_of, walk

NOTHING = ir.Sequence(())

# Private memory: a store that the worker doesn't read again has no effect.
_OWN = (ir.LOCAL, ir.REGISTER, ir.TILE)


def without_dead_code(body: Statement) -> Statement:
    """Remove dead code; returns the same object if there is none."""
    read, mentioned = _tensors_of(body)
    return _Sweeper(read, mentioned).statement(body)


def _tensors_of(body: Statement) -> tuple[set[Tensor], set[Tensor]]:
    """The tensors that are read, and those used other than by plain stores."""
    read: set[Tensor] = set()
    mentioned: set[Tensor] = set()
    for node in walk(body):
        kind = type(node)
        if kind is ir.Read or kind is ir.Address:
            read.add(node.tensor)  # type: ignore[union-attr]
        elif kind is ir.Store or kind is ir.Move:
            mentioned.add(node.tensor)  # type: ignore[union-attr]
        elif kind is ir.Peer:
            read.add(node.of)  # type: ignore[union-attr]
        elif kind is ir.RingStep:
            mentioned.update(node.ring.tensors)  # type: ignore[union-attr]
        elif kind is ir.Mma or kind is ir.Reduce or kind is ir.Scan or kind is ir.Atomic:
            read.update(tensors_of(node))
    return read, mentioned | read


class _Sweeper:
    def __init__(self, read: set[Tensor], mentioned: set[Tensor]) -> None:
        self.read = read
        self.mentioned = mentioned
        self.used: set[Variable] = set()
        self._seen: set[int] = set()

    def statement(self, node: Statement) -> Statement:
        match node:
            case ir.Sequence():
                return self._sequence(node)
            case ir.If():
                otherwise = None if node.otherwise is None else self.statement(node.otherwise)
                then = self.statement(node.then)
                self._use(node.condition)
                if _is_nothing(then) and (otherwise is None or _is_nothing(otherwise)):
                    return NOTHING
                if then is node.then and otherwise is node.otherwise:
                    return node
                return replace(node, then=then, otherwise=otherwise)
            case ir.For() | ir.While() | ir.Grid() | ir.Pipeline() | ir.Each():
                body = self.statement(node.body)
                for expression in expressions(node):
                    self._use(expression)
                if _is_nothing(body) and not isinstance(node, (ir.While, ir.Grid)):
                    return NOTHING
                return node if body is node.body else replace(node, body=body)
            case ir.Roles():
                bodies = [self.statement(role.body) for role in reversed(node.roles)][::-1]
                if all(new is old.body for new, old in zip(bodies, node.roles, strict=True)):
                    return node
                pairs = zip(node.roles, bodies, strict=True)
                return replace(node, roles=tuple(replace(role, body=body) for role, body in pairs))
            case ir.Let() if node.variable not in self.used:
                return NOTHING
            case ir.Allocate() if node.tensor not in self.mentioned or self._is_dead(node.tensor):
                return NOTHING
            case ir.Store() | ir.Move() if self._is_dead(node.tensor):
                return NOTHING
        for expression in expressions(node):
            self._use(expression)
        return node

    def _is_dead(self, tensor: Tensor) -> bool:
        return tensor.scope in _OWN and tensor not in self.read

    def _sequence(self, node: ir.Sequence) -> Statement:
        live: list[Statement] = []
        changed = False
        for statement in reversed(node.statements):
            new = self.statement(statement)
            changed = changed or new is not statement
            if not _is_nothing(new):
                live.append(new)
            else:
                changed = True
        if not changed:
            return node
        live.reverse()
        return live[0] if len(live) == 1 else ir.Sequence(tuple(live), loc=node.loc)

    def _use(self, expression: Expression) -> None:
        """Mark the names in an expression. Shared parts are visited once."""
        stack = [expression]
        while stack:
            node = stack.pop()
            kind = type(node)
            if kind is Variable:
                self.used.add(node)  # type: ignore[arg-type]
            elif kind is not ir.Constant and id(node) not in self._seen:
                self._seen.add(id(node))
                stack.extend(expressions(node))


def _is_nothing(node: Statement) -> bool:
    return isinstance(node, ir.Sequence) and not node.statements
