"""The loop that a value belongs to: the analysis of `hoist`.

A name's level is the number of loops around its binding; an expression's level is that of its deepest name. A sum
with terms of several levels is ordered by them, so that its outer part is one expression:

    j + i * 4 + worker // 8 * 64   ->   worker // 8 * 64 + i * 4 + j        j is bound in i's loop
"""

from __future__ import annotations

from taskc.analysis.facts import Facts
from taskc.analysis.sums import addends
from taskc.ir.affine import is_stable
from taskc.ir.nodes import (
    Address,
    Binary,
    Constant,
    Expression,
    Kernel,
    Lookup,
    Read,
    Select,
    Variable,
)
from taskc.ir.rewrite import expressions
from taskc.ir.types import boolean

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
