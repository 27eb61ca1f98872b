"""Simplification with interval bounds, at any stage.

for i in range(0, 1):                        y[8 * q] = 1.0
    t = i * 4                         ->
    if q < 8:                                (q is known to lie in [0, 8))
        y[q * 8 + t] = 1.0
    for j in range(n, n): ...

Constants are folded, the algebra of `simplify_rules` is applied, index arithmetic is normalized,
and conditions are decided by facts. Ifs and Selects with one branch left become it,
loops of one iteration become their body, and loops of none vanish, as do unused Lets, tensors
that are not read, and empty loops. It takes one traversal, and a backward one for dead code. A kernel
in which nothing changes is returned as the same object.

Dead code is unused Lets, and stores to memory that is not read. Going backwards, all uses of a name are seen
before its Let, so that one traversal removes chains of dead Lets, too. Evaluating an expression has no effect
but errors.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from taskc.analysis.facts import Facts
from taskc.ir import nodes as ir
from taskc.ir.nodes import Constant, Expression, Kernel, Statement, Tensor, Unary, Variable
from taskc.ir.rewrite import expressions, map_expressions, tensors_of, walk
from taskc.passes.simplify_expressions import ExpressionSimplifier

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


S = TypeVar("S", bound=Statement)


# The lifetime of such a tensor's memory ends with its scope.
_SCOPED = (ir.SHARED, ir.TILE, ir.BARRIER)


def simplify(kernel: Kernel) -> Kernel:
    """Simplify a kernel, as the head of this file shows."""
    facts = Facts.empty(kernel)
    walker = _Walker(kernel, ExpressionSimplifier())
    body = walker.statement(kernel.body, facts)
    body = without_dead_code(body)
    blocks = kernel.blocks
    if blocks is not None:
        blocks = walker.expression(blocks, Facts.empty(replace(kernel, blocks=None)))
    if body is kernel.body and blocks is kernel.blocks:
        return kernel
    return replace(kernel, body=body, blocks=blocks)


def simplified_expression(expression: Expression, facts: Facts) -> Expression:
    """A single expression simplified, for passes that create expressions."""
    return ExpressionSimplifier()(expression, facts)


class _Walker:
    """Visits statements in program order, each with the facts that hold before it."""

    def __init__(self, kernel: Kernel, expression: ExpressionSimplifier) -> None:
        self.kernel = kernel
        self.expression = expression

    def statement(self, node: Statement, facts: Facts) -> Statement:
        """The statement simplified; NOTHING if nothing is left of it."""
        match node:
            case ir.Sequence():
                return self._sequence(node, facts)
            case ir.If():
                return self._if(node, facts)
            case ir.For():
                return self._for(node, facts)
            case ir.While():
                condition = self.expression(node.condition, facts)
                if _is(condition, False):
                    return NOTHING
                body = self.statement(node.body, facts.enter(node))
                if condition is node.condition and body is node.body:
                    return node
                return replace(node, condition=condition, body=body)
            case ir.Grid() | ir.Pipeline() | ir.Each():
                outer = self._expressions(node, facts)
                body = self.statement(outer.body, facts.enter(outer))
                if _is_empty(body) and not isinstance(outer, ir.Grid):
                    return NOTHING
                return outer if body is outer.body else replace(outer, body=body)
            case ir.Move():
                return self._move(node, facts)
            case ir.Roles():
                bodies = [
                    self.statement(role.body, facts.enter_role(role, self.kernel.worker))
                    for role in node.roles
                ]
                if all(new is old.body for new, old in zip(bodies, node.roles, strict=True)):
                    return node
                pairs = zip(node.roles, bodies, strict=True)
                return replace(node, roles=tuple(replace(role, body=body) for role, body in pairs))
            case ir.Let():
                return self._let(node, facts)
            case ir.Assert():
                condition = self.expression(node.condition, facts)
                if _is(condition, True):
                    return NOTHING
                return node if condition is node.condition else replace(node, condition=condition)
        return self._expressions(node, facts)

    def _expressions(self, node: S, facts: Facts) -> S:
        simplify_one = self.expression
        return map_expressions(node, lambda part: simplify_one(part, facts))  # type: ignore[return-value]

    def _sequence(self, node: ir.Sequence, facts: Facts) -> Statement:
        simplified: list[Statement] = []
        for statement in node.statements:
            new = self.statement(statement, facts)
            if isinstance(new, ir.Sequence) and not _owns_memory(new):
                simplified += new.statements
            else:
                simplified.append(new)
            if isinstance(new, ir.Let):
                facts = facts.enter(new)
        if len(simplified) == len(node.statements) and all(
            map(_is_same, simplified, node.statements)
        ):
            return node
        return ir.Sequence(tuple(simplified), loc=node.loc)

    def _let(self, node: ir.Let, facts: Facts) -> Statement:
        value = self.expression(node.value, facts)
        if type(value) in (Constant, Variable):
            self.expression.values[node.variable] = value
            return NOTHING
        return node if value is node.value else replace(node, value=value)

    def _if(self, node: ir.If, facts: Facts) -> Statement:
        condition = self.expression(node.condition, facts)
        if type(condition) is Constant:
            if condition.value:
                return self.statement(node.then, facts)
            return NOTHING if node.otherwise is None else self.statement(node.otherwise, facts)
        then = self.statement(node.then, facts.assume(condition))
        otherwise = node.otherwise
        if otherwise is not None:
            otherwise = self.statement(otherwise, facts.assume(condition, holds=False))
            if _is_empty(otherwise):
                otherwise = None
        if _is_empty(then):
            if otherwise is None:
                return NOTHING
            negated = self.expression(Unary("not", condition), facts)
            return ir.If(negated, otherwise, loc=node.loc)
        if condition is node.condition and then is node.then and otherwise is node.otherwise:
            return node
        return ir.If(condition, then, otherwise, loc=node.loc)

    def _for(self, node: ir.For, facts: Facts) -> Statement:
        start, stop = self.expression(node.start, facts), self.expression(node.stop, facts)
        first, end = facts.affine(start), facts.affine(stop)
        distance = end - first if node.step > 0 else first - end
        if facts.nonpositive(distance):
            return NOTHING
        if facts.nonpositive(distance - abs(node.step)) and facts.nonpositive(-distance + 1):
            if type(start) in (Constant, Variable):
                self.expression.values[node.variable] = start
                return self.statement(node.body, facts)
            binding = ir.Let(node.variable, start, loc=node.loc)
            body = self.statement(node.body, facts.enter(binding))
            return ir.Sequence((binding, body), loc=node.loc)
        if start is not node.start or stop is not node.stop:
            node = replace(node, start=start, stop=stop)
        body = self.statement(node.body, facts.enter(node))
        if _is_empty(body):
            return NOTHING
        return node if body is node.body else replace(node, body=body)

    def _move(self, node: ir.Move, facts: Facts) -> Statement:
        facts = facts.enter(node)
        guard = node.guard
        if guard is not None:
            guard = self.expression(guard, facts)
            if _is(guard, False):
                return NOTHING
            facts = facts.assume(guard)
            if _is(guard, True):
                guard = None
        value = self.expression(node.value, facts)
        indices = tuple([self.expression(index, facts) for index in node.indices])
        if (
            value is node.value
            and guard is node.guard
            and all(map(_is_same, indices, node.indices))
        ):
            return node
        return replace(node, value=value, guard=guard, indices=indices)


def _is_same(new: object, old: object) -> bool:
    return new is old


def _is(condition: Expression, value: bool) -> bool:
    return type(condition) is Constant and condition.value is value


def _is_empty(node: Statement) -> bool:
    """Whether it has no effect; names bound inside can't be used after it."""
    match node:
        case ir.Sequence():
            return all(map(_is_empty, node.statements))
        case ir.Let() | ir.Allocate() | ir.Peer():
            return True
    return False


def _owns_memory(node: ir.Sequence) -> bool:
    return any(
        isinstance(statement, ir.Allocate) and statement.tensor.scope in _SCOPED
        for statement in node.statements
    )
