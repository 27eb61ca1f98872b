"""Invariants out of loops, and costly index arithmetic once.

for i in range(n):                                 t0 = worker // 8 * 64
    for j in unroll(4):                            for i in range(n):
        y[j + i * 4 + worker // 8 * 64] =     ->       t1 = t0 + i * 4
            x[worker // 8 * 64 + i]                    t2 = x[t0 + i]
                                                       for j in unroll(4):
                                                           y[t1 + j] = t2

A name's level is the number of loops around its binding; an expression's is that of its deepest
name. An expression is computed before the outermost loop that it doesn't depend on, and a sum is
put in the order of its terms' levels first, so that its outer part is one expression. Quotients
and remainders that occur twice are computed once, where the first one is. Equal expressions share
a name, as long as it is in scope.

What is moved runs even where the loop or the branch does not, so it must have no effect: a
division by what may be 0 stays, and so do reads, but for those of "in" parameters in loops that
surely run, outside of branches. A table is read like those, unless it has an entry for every worker:
those of a role that doesn't read it are workers, too. Indices of REGISTER tensors stay in place, since
they must be seen to be constant when loops are unrolled.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace

from taskc.ir import nodes as ir
from taskc.ir.affine import is_stable
from taskc.ir.bounds import Facts
from taskc.ir.nodes import (
    Address,
    Binary,
    Cast,
    Constant,
    Expression,
    Kernel,
    Lookup,
    Read,
    Select,
    Statement,
    Unary,
    Variable,
)
from taskc.ir.rewrite import expressions, map_expressions, substitute, walk
from taskc.ir.types import boolean
from taskc.passes.dead_code import without_dead_code
from taskc.passes.unroll import trip_count
from taskc.passes.value_numbers import Numbers

_PINNED = 1 << 30  # the level of what can't be moved at all


def hoist(kernel: Kernel) -> Kernel:
    """See the head of this file."""
    hoister = _Hoister(kernel)
    body = hoister.block(kernel.body)
    if hoister.sums:
        body = without_dead_code(body)
    return kernel if body is kernel.body else replace(kernel, body=body)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where new Lets go: the end of what a block has so far, and what is known there."""

    output: list[Statement]
    layer: int


class _Hoister:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.anywhere = Facts.empty(kernel)
        self.numbers = Numbers()
        self.levels: dict[Variable, int] = {}
        self.values: dict[Variable, Expression] = {}
        self.loops: list[_Place] = []  # before each of the loops around here
        self.places: list[_Place] = []  # the blocks around here
        self.layers: list[dict[int, Variable]] = []  # numbers that have names, by block
        self.certain = 0  # whenever the loop of this level + 1 is reached, so is this point
        self._levels: dict[int, tuple[Expression, int]] = {}
        self.sums: dict[Variable, Expression] = {}  # names of sums with terms of several levels
        self._mixed: dict[int, tuple[Expression, bool]] = {}
        self._reading: dict[int, Expression] = {}
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
        """A body: its statements, each after the Lets that it asked for here."""
        place = _Place([], len(self.layers))
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
                self.levels[node.variable] = self.depth + 1
                runs = bool(trip_count(node))
                body = self._loop_body(node.body, runs)
                if start is node.start and stop is node.stop and body is node.body:
                    return node
                return replace(node, start=start, stop=stop, body=body)
            case ir.While():
                self.loops.append(self.places[-1])
                certain, self.certain = self.certain, self.depth
                condition = self.visit(node.condition)
                self.certain = certain
                self.loops.pop()
                body = self._loop_body(node.body, False)
                if condition is node.condition and body is node.body:
                    return node
                return replace(node, condition=condition, body=body)
            case ir.Store() | ir.Atomic() | ir.Do() | ir.Print() | ir.Assert() | ir.Peer():
                result = getattr(node, "result", None)
                if result is not None:
                    self.levels[result] = self.depth
                if isinstance(node, ir.Store) and node.tensor.scope == ir.REGISTER:
                    value = self.visit(node.value)
                    indices = self._in_place(node.indices)
                    if value is node.value and indices is node.indices:
                        return node
                    return replace(node, value=value, indices=indices)
                return map_expressions(node, self.visit)
        return node

    def _branches(self, node: ir.Sequence | ir.Roles | ir.If) -> Statement:
        certain = self.certain
        match node:
            case ir.Sequence():
                return self.block(node)
            case ir.Roles():
                self.certain = self.depth
                bodies = [self.block(role.body) for role in node.roles]
                self.certain = certain
                if all(a is b.body for a, b in zip(bodies, node.roles, strict=True)):
                    return node
                pairs = zip(node.roles, bodies, strict=True)
                return replace(node, roles=tuple(replace(role, body=body) for role, body in pairs))
        condition = self.visit(node.condition)
        self.certain = self.depth
        then = self.block(node.then)
        otherwise = None if node.otherwise is None else self.block(node.otherwise)
        self.certain = certain
        if condition is node.condition and then is node.then and otherwise is node.otherwise:
            return node
        return replace(node, condition=condition, then=then, otherwise=otherwise)

    def _loop_body(self, body: Statement, runs: bool) -> Statement:
        certain = self.certain
        self.loops.append(self.places[-1])
        if not runs:
            self.certain = self.depth
        new = self.block(body)
        self.loops.pop()
        self.certain = certain
        return new

    def _let(self, node: ir.Let) -> Statement | None:
        level = self.level(node.value)
        if isinstance(node.value, (Variable, Constant)):
            self.values[node.variable] = self.visit(node.value)
            self.levels[node.variable] = level
            return None
        if self._is_mixed_sum(node.value):
            self.sums[node.variable] = node.value
        if level < self.depth:
            number = self.numbers.of(node.value)
            value = self._parts(node.value)
            name = self._named(value, number, level, node.variable)
            if name is not node.variable:
                self.values[node.variable] = name
            self.levels[node.variable] = level
            return None
        value = self.visit(node.value)
        self.levels[node.variable] = self.depth
        return node if value is node.value else replace(node, value=value)

    # Expressions.

    def level(self, node: Expression) -> int:
        """The depth that its value belongs to; _PINNED if it must be computed where it is."""
        kind = type(node)
        if kind is Constant:
            return 0
        if kind is Variable:
            return self.levels.get(node, 0)  # type: ignore[arg-type]
        found = self._levels.get(id(node))
        if found is not None:
            return found[1]
        parts = list(expressions(node))
        level = max([self.level(part) for part in parts], default=0)
        reads = any(id(part) in self._reading for part in parts)
        if isinstance(node, Read):
            reads = True
            level = max(level, self.certain) if is_stable(node.tensor) else _PINNED
        elif isinstance(node, Lookup):
            if not self._has_entry_everywhere(node):
                reads = True
                level = max(level, self.certain)
        elif isinstance(node, Address):
            level = _PINNED
        elif isinstance(node, Binary) and node.operator in ("//", "%") and node.dtype.is_integer:
            if type(node.right) is not Constant or node.right.value == 0:
                level = _PINNED
        elif reads and isinstance(node, (Select, Binary)) and _is_lazy(node):
            level = _PINNED  # whether memory is read is decided there
        if reads:
            self._reading[id(node)] = node  # where it is read decides its level
        else:
            self._levels[id(node)] = node, level
        return level

    def _has_entry_everywhere(self, node: Lookup) -> bool:
        low, high = self.anywhere.interval(node.index)
        return low is not None and low >= 0 and high is not None and high < len(node.table.values)

    def visit(self, node: Expression) -> Expression:
        """The expression with its invariant parts named."""
        kind = type(node)
        if kind is Constant:
            return node
        if kind is Variable:
            return self.values.get(node, node)  # type: ignore[arg-type]
        level = self.level(node)
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
            and (node.operator in ("+", "-") or self._is_mixed_product(node))
        ):
            node = self._by_level(node) or node
            if type(node) is Binary:
                parts = self._operand(node.left), self._operand(node.right)
                if parts[0] is node.left and parts[1] is node.right:
                    return node
                return Binary(node.operator, *parts, loc=node.loc)
        if isinstance(node, (Read, Address)) and node.tensor.scope == ir.REGISTER:
            indices = self._in_place(node.indices)
            return node if indices is node.indices else replace(node, indices=indices)
        if isinstance(node, (Select, Binary)) and _is_lazy(node):
            certain, self.certain = self.certain, self.depth
            new = map_expressions(node, self.visit)
            self.certain = certain
            return new
        return map_expressions(node, self.visit)

    def _operand(self, node: Expression) -> Expression:
        """An operand of a sum that is in order: the front of it is not ordered again."""
        if type(node) is Binary and node.operator in ("+", "-") and self.level(node) >= self.depth:
            parts = self._operand(node.left), self._operand(node.right)
            if parts[0] is node.left and parts[1] is node.right:
                return node
            return Binary(node.operator, *parts, loc=node.loc)
        return self.visit(node)

    def _in_place(self, indices: tuple[Expression, ...]) -> tuple[Expression, ...]:
        """Indices with names replaced that are gone, and nothing moved."""
        new = tuple([substitute(index, self.values) for index in indices])
        same = all(a is b for a, b in zip(new, indices, strict=True))
        return indices if same else new

    def _by_level(self, node: Binary) -> Expression | None:
        """The sum with terms of outer loops first; None where that separates nothing."""
        if not self._is_mixed_sum(node):
            return None
        levels: dict[int, dict[int, list[tuple[Expression, int]]]] = {}
        constant = 0
        for term, factor in self._terms(node):
            if type(term) is Constant:
                constant += factor * int(term.value)
            else:
                groups = levels.setdefault(self.level(term), {})
                groups.setdefault(abs(factor), []).append((term, factor))
        sizes = [abs(constant), *(size for groups in levels.values() for size in groups)]
        if max(sizes) > node.dtype.maximum:
            return None  # it wraps, and its factors are no numbers of its type
        total: Expression | None = None
        for level in sorted(levels):
            parts = [_scaled_sum(members) for members in levels[level].values()]
            for part, positive in sorted(parts, key=lambda pair: not pair[1]):
                if total is not None:
                    total = Binary("+" if positive else "-", total, part)
                elif positive:
                    total = part
                else:
                    return None  # a sum that starts with a subtraction stays as it is
        if total is not None and constant:
            sign = "+" if constant > 0 else "-"
            total = Binary(sign, total, Constant(abs(constant), node.dtype))
        return total

    def _terms(self, node: Expression) -> list[tuple[Expression, int]]:
        """What a sum adds up, with factors.

        Sums within products, or behind names, are taken apart if they have terms of several levels.
        """
        found: list[tuple[Expression, int]] = []
        stack = [(node, 1)]
        while stack:
            term, factor = stack.pop()
            inner = term
            if type(inner) is Variable:
                inner = self.sums.get(inner, inner)
            if type(inner) is Binary and inner.dtype is node.dtype:
                if inner.operator in ("+", "-"):
                    sign = 1 if inner.operator == "+" else -1
                    stack += ((inner.right, factor * sign), (inner.left, factor))
                    continue
                if inner.operator == "*" and type(inner.right) is Constant and inner.right.value:
                    scale = factor * int(inner.right.value)
                    if self._is_mixed_sum(inner.left):
                        stack.append((inner.left, scale))
                    else:
                        found.append((inner.left, scale))
                    continue
            found.append((term, factor))
        return found

    def _is_mixed_product(self, node: Binary) -> bool:
        """A product of a constant and a sum with terms of several levels."""
        if node.operator != "*" or type(node.right) is not Constant or not node.right.value:
            return False
        return self._is_mixed_sum(node.left)

    def _is_mixed_sum(self, node: Expression) -> bool:
        """An integer sum with terms of several levels, perhaps behind a name."""
        if type(node) is Variable:
            return node in self.sums
        if type(node) is not Binary or not node.dtype.is_integer:
            return False
        known = self._mixed.get(id(node))
        if known is None:
            terms = self._terms(node)
            levels = {self.level(term) for term, _ in terms if type(term) is not Constant}
            known = self._mixed[id(node)] = node, len(levels) > 1
        return known[1]

    def _named(
        self, value: Expression, number: int, level: int, name: Variable | None = None
    ) -> Variable:
        """The name of a value at a level: one that is in scope there, or a new one."""
        place = self.loops[level] if level < self.depth else self.places[-1]
        for layer in range(place.layer, -1, -1):
            known = self.layers[layer].get(number)
            if known is not None:
                return known
        if name is None:
            name = Variable(f"t{self.count}", value.dtype)
            self.count += 1
        self.levels[name] = level
        self.layers[place.layer][number] = name
        place.output.append(ir.Let(name, value, loc=value.loc))
        return name


def _scaled_sum(members: list[tuple[Expression, int]]) -> tuple[Expression, bool]:
    """Terms of one factor, up to its sign, added up and multiplied; and the sign of the whole."""
    positive = any(factor > 0 for _, factor in members)
    total: Expression | None = None
    for term, factor in sorted(members, key=lambda pair: (pair[1] > 0) is not positive):
        if total is None:
            total = term
        else:
            total = Binary("+" if (factor > 0) is positive else "-", total, term)
    assert total is not None
    size = abs(members[0][1])
    return Binary("*", total, Constant(size, total.dtype)) if size != 1 else total, positive


def _is_lazy(node: Select | Binary) -> bool:
    return isinstance(node, Select) or (node.dtype is boolean and node.operator in ("and", "or"))


def _is_worth_a_name(node: Expression) -> bool:
    """More than an instruction operand can do by itself."""
    match node:
        case Unary() | Cast():
            return not isinstance(node.operand, (Variable, Constant))
        case Binary(operator="+" | "-", right=Constant()):
            return not isinstance(node.left, (Variable, Constant))
        case Address():
            return False
    return True
