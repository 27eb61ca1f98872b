"""Loop-invariant code motion, and common subexpression elimination for costly index arithmetic.

for i in range(n):                                 t0 = worker // 8 * 64
    for j in unroll(4):                            for i in range(n):
        y[j + i * 4 + worker // 8 * 64] =     ->       t1 = t0 + i * 4
            x[worker // 8 * 64 + i]                    t2 = x[t0 + i]
                                                       for j in unroll(4):
                                                           y[t1 + j] = t2

An expression is computed before the outermost loop that it doesn't depend on; the terms of a sum are
ordered for that (levels.py). Quotients and remainders that occur twice are computed once, at the
first one. Equal expressions share a name while it is in scope.

Moved code runs even if the loop or the branch doesn't, so it must have no effect: a
division by a value that may be 0 stays, and so do reads, except those of "in" parameters in loops that
surely run, outside of branches. A table is read like these, unless it has an entry for every worker:
the workers of a role that doesn't read it would read it, too. Indices of REGISTER tensors stay in place, since
they have to become constants when loops are unrolled.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace

from taskc.ir import nodes as ir
from taskc.ir.code_size import trip_count
from taskc.ir.nodes import (
    Address,
    Binary,
    Bitcast,
    Cast,
    Constant,
    Expression,
    Kernel,
    Read,
    Select,
    Statement,
    Unary,
    Variable,
)
from taskc.ir.rewrite import map_expressions, substitute, walk
from taskc.passes.dead_code import without_dead_code
from taskc.passes.levels import Levels, is_lazy
from taskc.passes.value_numbers import Numbers


def hoist(kernel: Kernel) -> Kernel:
    """Move invariants out of loops, as the head of this file shows."""
    hoister = _Hoister(kernel)
    body = hoister.block(kernel.body)
    if hoister.levels.sums:
        body = without_dead_code(body)
    return kernel if body is kernel.body else replace(kernel, body=body)


@dataclass(frozen=True, slots=True)
class _InsertionPoint:
    """The place for new Lets: the end of a block's output so far, and the names known there."""

    output: list[Statement]
    layer: int


class _Hoister:
    def __init__(self, kernel: Kernel) -> None:
        self.levels = Levels(kernel)
        self.numbers = Numbers()
        self.values: dict[Variable, Expression] = {}
        self.loops: list[_InsertionPoint] = []  # before each of the enclosing loops
        self.places: list[_InsertionPoint] = []  # in the enclosing blocks
        self.layers: list[dict[int, Variable]] = []  # named value numbers, by block
        self.count, self.repeated = self._survey(kernel.body)

    def _survey(self, body: Statement) -> tuple[int, set[int]]:
        """The first free name, and the quotients and remainders that occur more than once."""
        counter: Counter[int] = Counter()
        free = 0
        for node in walk(body):
            if type(node) is Binary:
                if node.operator in ("//", "%"):
                    counter[self.numbers.of(node)] += 1
            elif type(node) is ir.Let:
                numbered = re.fullmatch(r"t(\d+)", node.variable.name)
                free = max(free, int(numbered[1]) + 1) if numbered else free
        return free, {number for number, times in counter.items() if times > 1}

    @property
    def depth(self) -> int:
        return len(self.loops)

    # Statements.

    def block(self, node: Statement) -> Statement:
        """A body: its statements, each after the Lets that it needs here."""
        place = _InsertionPoint([], len(self.layers))
        self.layers.append({})
        self.places.append(place)
        old = node.statements if isinstance(node, ir.Sequence) else (node,)
        for statement in old:
            new = self.statement(statement)
            if new is not None:
                place.output.append(new)
        self.places.pop()
        self.layers.pop()
        output = place.output
        if len(output) == len(old) and all(a is b for a, b in zip(output, old, strict=True)):
            return node
        return output[0] if len(output) == 1 else ir.Sequence(tuple(output), loc=node.loc)

    def statement(self, node: Statement) -> Statement | None:
        match node:
            case ir.Let():
                return self._let(node)
            case ir.Sequence() | ir.Roles() | ir.If():
                return self._branches(node)
            case ir.For():
                start, stop = self.visit(node.start), self.visit(node.stop)
                self.levels.of_names[node.variable] = self.depth + 1
                runs = bool(trip_count(node))
                body = self._loop_body(node.body, runs)
                if start is node.start and stop is node.stop and body is node.body:
                    return node
                return replace(node, start=start, stop=stop, body=body)
            case ir.While():
                self.loops.append(self.places[-1])
                certain, self.levels.certain = self.levels.certain, self.depth
                condition = self.visit(node.condition)
                self.levels.certain = certain
                self.loops.pop()
                body = self._loop_body(node.body, False)
                if condition is node.condition and body is node.body:
                    return node
                return replace(node, condition=condition, body=body)
            case ir.Store() | ir.Atomic() | ir.Do() | ir.Print() | ir.Assert() | ir.Peer():
                result = getattr(node, "result", None)
                if result is not None:
                    self.levels.of_names[result] = self.depth
                if isinstance(node, ir.Store) and node.tensor.scope == ir.REGISTER:
                    value = self.visit(node.value)
                    indices = self._in_place(node.indices)
                    if value is node.value and indices is node.indices:
                        return node
                    return replace(node, value=value, indices=indices)
                return map_expressions(node, self.visit)
        return node

    def _branches(self, node: ir.Sequence | ir.Roles | ir.If) -> Statement:
        certain = self.levels.certain
        match node:
            case ir.Sequence():
                return self.block(node)
            case ir.Roles():
                self.levels.certain = self.depth
                bodies = [self.block(role.body) for role in node.roles]
                self.levels.certain = certain
                if all(a is b.body for a, b in zip(bodies, node.roles, strict=True)):
                    return node
                pairs = zip(node.roles, bodies, strict=True)
                return replace(node, roles=tuple(replace(role, body=body) for role, body in pairs))
        condition = self.visit(node.condition)
        self.levels.certain = self.depth
        then = self.block(node.then)
        otherwise = None if node.otherwise is None else self.block(node.otherwise)
        self.levels.certain = certain
        if condition is node.condition and then is node.then and otherwise is node.otherwise:
            return node
        return replace(node, condition=condition, then=then, otherwise=otherwise)

    def _loop_body(self, body: Statement, runs: bool) -> Statement:
        certain = self.levels.certain
        self.loops.append(self.places[-1])
        if not runs:
            self.levels.certain = self.depth
        new = self.block(body)
        self.loops.pop()
        self.levels.certain = certain
        return new

    def _let(self, node: ir.Let) -> Statement | None:
        level = self.levels.level(node.value)
        if isinstance(node.value, (Variable, Constant)):
            self.values[node.variable] = self.visit(node.value)
            self.levels.of_names[node.variable] = level
            return None
        if self.levels.is_mixed_sum(node.value):
            self.levels.sums[node.variable] = node.value
        if level < self.depth:
            number = self.numbers.of(node.value)
            value = self._parts(node.value)
            name = self._named(value, number, level, node.variable)
            if name is not node.variable:
                self.values[node.variable] = name
            self.levels.of_names[node.variable] = level
            return None
        value = self.visit(node.value)
        self.levels.of_names[node.variable] = self.depth
        return node if value is node.value else replace(node, value=value)

    # Expressions.

    def visit(self, node: Expression) -> Expression:
        """The expression with its invariant parts named."""
        kind = type(node)
        if kind is Constant:
            return node
        if kind is Variable:
            return self.values.get(node, node)  # type: ignore[arg-type]
        level = self.levels.level(node)
        if level < self.depth and _is_worth_a_name(node):
            number = self.numbers.of(node)
            return self._named(self._parts(node), number, level)
        if kind is Binary and node.operator in ("//", "%") and level <= self.depth:  # type: ignore[union-attr]
            number = self.numbers.of(node)
            if number in self.repeated:
                return self._named(self._parts(node), number, self.depth)
        return self._parts(node)

    def _parts(self, node: Expression) -> Expression:
        """The node with its operands visited; a sum in the order of its terms' levels."""
        if (
            isinstance(node, Binary)
            and node.dtype.is_integer
            and (node.operator in ("+", "-") or self.levels.is_mixed_product(node))
        ):
            node = self.levels.by_level(node) or node
            if type(node) is Binary:
                return self._in_order(node)
        if isinstance(node, (Read, Address)) and node.tensor.scope == ir.REGISTER:
            indices = self._in_place(node.indices)
            return node if indices is node.indices else replace(node, indices=indices)
        if isinstance(node, (Select, Binary)) and is_lazy(node):
            certain, self.levels.certain = self.levels.certain, self.depth
            new = map_expressions(node, self.visit)
            self.levels.certain = certain
            return new
        return map_expressions(node, self.visit)

    def _in_order(self, node: Binary) -> Expression:
        left, right = self._operand(node.left), self._operand(node.right)
        if left is node.left and right is node.right:
            return node
        return Binary(node.operator, left, right, loc=node.loc)

    def _operand(self, node: Expression) -> Expression:
        """An operand of an ordered sum: its leading part is not ordered again."""
        if (
            type(node) is Binary
            and node.operator in ("+", "-")
            and self.levels.level(node) >= self.depth
        ):
            return self._in_order(node)
        return self.visit(node)

    def _in_place(self, indices: tuple[Expression, ...]) -> tuple[Expression, ...]:
        """Indices with removed names replaced, and nothing moved."""
        new = tuple([substitute(index, self.values) for index in indices])
        same = all(a is b for a, b in zip(new, indices, strict=True))
        return indices if same else new

    def _named(
        self, value: Expression, number: int, level: int, name: Variable | None = None
    ) -> Variable:
        """The name of a value at a level: one in scope there, or a new one."""
        place = self.loops[level] if level < self.depth else self.places[-1]
        for layer in range(place.layer, -1, -1):
            known = self.layers[layer].get(number)
            if known is not None:
                return known
        if name is None:
            name = Variable(f"t{self.count}", value.dtype)
            self.count += 1
        self.levels.of_names[name] = level
        self.layers[place.layer][number] = name
        place.output.append(ir.Let(name, value, loc=value.loc))
        return name


def _is_worth_a_name(node: Expression) -> bool:
    """Whether it is more than an instruction operand can compute by itself."""
    match node:
        case Unary() | Cast() | Bitcast():
            return not isinstance(node.operand, (Variable, Constant))
        case Binary(operator="+" | "-", right=Constant()):
            return not isinstance(node.left, (Variable, Constant))
        case Address():
            return False
    return True
