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
surely run, outside of branches. Indices of REGISTER tensors stay in place, since they must be seen
to be constant when loops are unrolled.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, replace

from taskc.ir import nodes as ir
from taskc.ir.affine import is_stable
from taskc.ir.nodes import (
    Address,
    Binary,
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
from taskc.ir.rewrite import expressions, map_expressions, substitute, walk
from taskc.ir.types import boolean
from taskc.passes.unroll import trip_count

_PINNED = 1 << 30  # the level of what can't be moved at all


def hoist(kernel: Kernel) -> Kernel:
    """See the head of this file."""
    hoister = _Hoister(kernel)
    body = hoister.block(kernel.body)
    return kernel if body is kernel.body else replace(kernel, body=body)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where new Lets go: the end of what a block has so far, and what is known there."""

    output: list[Statement]
    layer: int


class _Numbers:
    """One number for each value: equal expressions have equal numbers."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[Expression, int]] = {}
        self._keys: dict[Hashable, int] = {}

    def of(self, node: Expression) -> int:
        found = self._of.get(id(node))
        if found is not None:
            return found[1]
        key: Hashable
        if type(node) is Variable:
            key = node
        elif type(node) is Constant:
            key = Constant, repr(node.value), node.dtype
        else:
            parts = tuple([self.of(part) for part in expressions(node)])
            if isinstance(node, Read):
                # Memory that may change is equal to itself only.
                key = Read, node.tensor if is_stable(node.tensor) else id(node), parts
            else:
                what = getattr(node, "operator", None) or getattr(node, "table", None)
                key = type(node), what, node.dtype, parts
                if isinstance(node, Address):
                    key = (*key, node.tensor)
        number = self._keys.setdefault(key, len(self._keys))
        self._of[id(node)] = node, number
        return number


class _Hoister:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.numbers = _Numbers()
        self.levels: dict[Variable, int] = {}
        self.values: dict[Variable, Expression] = {}
        self.loops: list[_Place] = []  # before each of the loops around here
        self.places: list[_Place] = []  # the blocks around here
        self.layers: list[dict[int, Variable]] = []  # numbers that have names, by block
        self.certain = 0  # whenever the loop of this level + 1 is reached, so is this point
        self._levels: dict[int, tuple[Expression, int]] = {}
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
            case ir.Store() | ir.Atomic() | ir.Do() | ir.Print() | ir.Assert():
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
        reads = isinstance(node, Read) or any(id(part) in self._reading for part in parts)
        if isinstance(node, Read):
            level = max(level, self.certain) if is_stable(node.tensor) else _PINNED
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
        if isinstance(node, Binary) and node.operator in ("+", "-") and node.dtype.is_integer:
            node = self._by_level(node) or node
        if isinstance(node, (Read, Address)) and node.tensor.scope == ir.REGISTER:
            indices = self._in_place(node.indices)
            return node if indices is node.indices else replace(node, indices=indices)
        if isinstance(node, (Select, Binary)) and _is_lazy(node):
            certain, self.certain = self.certain, self.depth
            new = map_expressions(node, self.visit)
            self.certain = certain
            return new
        return map_expressions(node, self.visit)

    def _in_place(self, indices: tuple[Expression, ...]) -> tuple[Expression, ...]:
        """Indices with names replaced that are gone, and nothing moved."""
        new = tuple([substitute(index, self.values) for index in indices])
        same = all(a is b for a, b in zip(new, indices, strict=True))
        return indices if same else new

    def _by_level(self, node: Binary) -> Expression | None:
        """The sum with terms of outer loops first; None where that separates nothing."""
        plus: list[Expression] = []
        minus: list[Expression] = []
        stack: list[tuple[Expression, bool]] = [(node, True)]
        while stack:
            term, positive = stack.pop()
            if type(term) is Binary and term.operator in ("+", "-") and term.dtype.is_integer:
                stack.append((term.right, positive == (term.operator == "+")))
                stack.append((term.left, positive))
            else:
                (plus if positive else minus).append(term)
        if len(plus) + len(minus) < 3 or not plus:
            return None
        levels = sorted({self.level(term) for term in (*plus, *minus)})
        if len(levels) < 2:
            return None
        total: Expression | None = None
        for level in levels:
            added = [term for term in plus if self.level(term) == level]
            taken = [term for term in minus if self.level(term) == level]
            if total is None and not added:
                return None
            for term in added:
                total = term if total is None else Binary("+", total, term)
            for term in taken:
                assert total is not None
                total = Binary("-", total, term)
        return total

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
