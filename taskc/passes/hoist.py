"""Loop-invariant code motion, and common subexpression elimination for costly index arithmetic.

for i in range(n):                                 t0 = worker // 8 * 64
    for j in unroll(4):                            for i in range(n):
        y[j + i * 4 + worker // 8 * 64] =     ->       t1 = t0 + i * 4
            x[worker // 8 * 64 + i]                    t2 = x[t0 + i]
                                                       for j in unroll(4):
                                                           y[t1 + j] = t2

An expression is computed before the outermost loop that it doesn't depend on; the terms of a sum are
ordered for that. Quotients and remainders that occur twice are computed once, at the
first one. Equal expressions share a name while it is in scope.

Moved code runs even if the loop or the branch doesn't, so it must have no effect: a
division by a value that may be 0 stays, and so do reads, except those of "in" parameters in loops that
surely run, outside of branches. A table is read like these, unless it has an entry for every worker:
the workers of a role that doesn't read it would read it, too. Indices of REGISTER tensors stay in place, since
they have to become constants when loops are unrolled.

A name's level is the number of loops around its binding; an expression's level is that of its deepest name. A sum
with terms of several levels is ordered by them, so that its outer part is one expression:

    j + i * 4 + worker // 8 * 64   ->   worker // 8 * 64 + i * 4 + j        j is bound in i's loop

Equal expressions are found by value numbering, without comparing trees.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable
from dataclasses import replace

from taskc.analysis.facts import Facts
from taskc.analysis.prover import addends
from taskc.dataclass import dataclass
from taskc.ir import nodes as ir
from taskc.ir.affine import is_stable
from taskc.ir.code_size import trip_count
from taskc.ir.nodes import (
    Address,
    Binary,
    Bitcast,
    Cast,
    Constant,
    Expression,
    Inline,
    Kernel,
    Lookup,
    Read,
    Select,
    Statement,
    Unary,
    Variable,
)
from taskc.ir.rewrite import expressions, map_expressions, map_roles, substitute, walk
from taskc.ir.types import boolean
from taskc.passes.simplify import without_dead_code


class Numbers:
    """Equal expressions have equal numbers; constants are equal if their bits are."""

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
                # Memory that may change is equal only to itself.
                key = Read, node.tensor if is_stable(node.tensor) else id(node), parts
            else:
                what: Hashable = getattr(node, "operator", None)
                if isinstance(node, (Lookup, Inline)):
                    what = node.table if isinstance(node, Lookup) else node.snippet
                key = type(node), what, node.dtype, parts
                if isinstance(node, Address):
                    key = (*key, node.tensor)
        number = self._keys.setdefault(key, len(self._keys))
        self._of[id(node)] = node, number
        return number


_IN_SUMS = ("+", "-", "*")
PINNED = 1 << 30  # the level of expressions that can't be moved at all


class Levels:
    def __init__(self, kernel: Kernel) -> None:
        self.anywhere = Facts.empty(kernel)
        self.of_names: dict[Variable, int] = {}
        self.certain = 0  # whenever the loop of this level + 1 is reached, so is this point
        self.sums: dict[Variable, Expression] = {}  # names of sums with terms of several levels
        self._levels: dict[int, tuple[Expression, int]] = {}
        self._mixed: dict[int, tuple[Expression, list[tuple[Expression, int]] | None]] = {}
        self._reading: dict[tuple[int, int], tuple[Expression, int]] = {}

    def level(self, node: Expression) -> int:
        """The depth that a value belongs to; PINNED if it must be computed where it is."""
        kind = type(node)
        if kind is Constant:
            return 0
        if kind is Variable:
            return self.of_names.get(node, 0)  # type: ignore[arg-type]
        here = id(node), self.certain  # the level of a read depends on its place
        known = self._levels.get(id(node)) or self._reading.get(here)
        if known is not None:
            return known[1]
        parts = list(expressions(node))
        level = max([self.level(part) for part in parts], default=0)
        reads = any((id(part), self.certain) in self._reading for part in parts)
        if isinstance(node, Read):
            reads = True
            level = max(level, self.certain) if is_stable(node.tensor) else PINNED
        elif isinstance(node, Lookup):
            if not self._has_entry_everywhere(node):
                reads = True
                level = max(level, self.certain)
        elif isinstance(node, Address):
            level = PINNED
        elif isinstance(node, Binary) and node.operator in ("//", "%") and node.dtype.is_integer:
            if type(node.right) is not Constant or node.right.value == 0:
                level = PINNED
        elif reads and isinstance(node, (Select, Binary)) and is_lazy(node):
            level = PINNED  # its place decides whether memory is read
        if reads:
            self._reading[here] = node, level
        else:
            self._levels[id(node)] = node, level
        return level

    def _has_entry_everywhere(self, node: Lookup) -> bool:
        low, high = self.anywhere.interval(node.index)
        return low is not None and low >= 0 and high is not None and high < len(node.table.values)

    # Sums.

    def by_level(self, node: Binary) -> Expression | None:
        """The sum with terms of outer loops first; None if that separates nothing."""
        terms = self._mixed_terms(node)
        if terms is None:
            return None
        levels: dict[int, dict[int, list[tuple[Expression, int]]]] = {}
        constant = 0
        for term, factor in terms:
            if type(term) is Constant:
                constant += factor * int(term.value)
            else:
                groups = levels.setdefault(self.level(term), {})
                groups.setdefault(abs(factor), []).append((term, factor))
        sizes = [abs(constant), *(size for groups in levels.values() for size in groups)]
        if max(sizes) > node.dtype.maximum:
            return None  # it wraps, and its factors don't fit its type
        total: Expression | None = None
        for level in sorted(levels):
            parts = [_scaled_sum(members) for members in levels[level].values()]
            for part, positive in sorted(parts, key=lambda pair: not pair[1]):
                if total is not None:
                    total = Binary("+" if positive else "-", total, part)
                elif positive:
                    total = part
                else:
                    return None  # a sum that starts with a subtraction stays unchanged
        if total is not None and constant:
            sign = "+" if constant > 0 else "-"
            total = Binary(sign, total, Constant(abs(constant), node.dtype))
        return total

    def is_mixed_product(self, node: Binary) -> bool:
        """Whether it is a product of a constant and a sum with terms of several levels."""
        if node.operator != "*" or type(node.right) is not Constant or not node.right.value:
            return False
        return self.is_mixed_sum(node.left)

    def is_mixed_sum(self, node: Expression) -> bool:
        """Whether it is an integer sum with terms of several levels, perhaps through a name."""
        if type(node) is Variable:
            return node in self.sums
        return type(node) is Binary and self._mixed_terms(node) is not None

    def _mixed_terms(self, node: Binary) -> list[tuple[Expression, int]] | None:
        """The terms of a mixed sum; mixed sums within products, or that names stand for, are expanded, too."""
        if node.operator not in _IN_SUMS or not node.dtype.is_integer:
            return None
        known = self._mixed.get(id(node))
        if known is None:
            terms = addends(node, self.sums, self.is_mixed_sum)
            levels = {self.level(term) for term, _ in terms if type(term) is not Constant}
            known = self._mixed[id(node)] = node, terms if len(levels) > 1 else None
        return known[1]


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


def is_lazy(node: Select | Binary) -> bool:
    return isinstance(node, Select) or (node.dtype is boolean and node.operator in ("and", "or"))


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
                node = map_roles(node, lambda role: self.block(role.body))
                self.levels.certain = certain
                return node
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
