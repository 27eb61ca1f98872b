"""Folding of indices that were divided into rows and columns.

    c[x // n, x % n]                      ->  c'[x]     where c' has the shape (m * n,)
    c[x // (k * n), x // n % k, x % n]    ->  c'[x]
    c[x // n, y, x % n]                   ->  c'[x, y]
    c[x % n, x // n]                      ->  c'[x]     as the order of dimensions is irrelevant

    c[x % n]                          ->  c'[x]     if x is less than n
    c[x // n, x // n % 1, x % n]      ->  c'[0, 0, x]

Two such elements are the same exactly if x is, so proofs may use x, which is a sum of loop
variables, instead of quotients, which are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from math import gcd
from typing import TypeVar

from taskc.analysis.facts import Facts
from taskc.analysis.indices import Index
from taskc.analysis.prover import addends
from taskc.dataclass import dataclass
from taskc.ir import nodes as ir
from taskc.ir.build import multiply
from taskc.ir.nodes import Binary, Constant, Expression, Unary, Variable
from taskc.passes.proofs.accesses import GuardedAccess, KernelAccesses, used_variables


@dataclass(frozen=True, slots=True)
class Row:
    """Indices and their extents; `joined` has the original dimensions of each."""

    indices: tuple[Expression, ...]
    extents: tuple[int | Expression, ...]
    joined: tuple[tuple[int, ...], ...] = ()


def is_opaque(form: Index | None) -> bool:
    """Whether an index is more than a sum of variables."""
    return form is None or any(not isinstance(atom, Variable) for atom in form.terms)


def folded(row: Row, collected: KernelAccesses, facts: Facts) -> Row:
    """Fold all possible dimensions, from the last one on, neighbouring ones first."""
    parts = [_whole(resolved(index, collected), collected, facts) for index in row.indices]
    sizes = [ir.constant(extent) if isinstance(extent, int) else extent for extent in row.extents]
    joined: list[tuple[int, ...]] = [(d,) for d in range(len(sizes))]

    def fold(slow: int, fast: int) -> bool:
        whole = _undivided(parts[slow], parts[fast], sizes[fast], collected, facts)
        if whole is None:
            return False
        parts[slow], sizes[slow] = whole, Binary("*", sizes[slow], sizes[fast])
        joined[slow] += joined[fast]
        del parts[fast], sizes[fast], joined[fast]
        return True

    def pairs() -> Iterator[tuple[int, int]]:
        every = permutations(range(len(parts)), 2)
        return iter(
            sorted(every, key=lambda pair: (pair[0] > pair[1], abs(pair[1] - pair[0]), -pair[0]))
        )

    while any(fold(slow, fast) for slow, fast in pairs()):
        pass
    extents = [size.value if isinstance(size, ir.Constant) else size for size in sizes]
    return Row(tuple(parts), tuple(extents), tuple(joined))  # type: ignore[arg-type]


def folded_alike(
    accesses: list[GuardedAccess], collected: KernelAccesses
) -> list[GuardedAccess] | None:
    """Accesses to one tensor, with the same dimensions folded in each."""
    first = accesses[0].tensor
    rows = [
        folded(Row(access.indices, first.shape), collected, collected.facts(access.path))
        for access in accesses
    ]
    if len({row.joined for row in rows}) != 1 or len(rows[0].joined) == len(first.shape):
        return None
    return [
        replace(access, indices=row.indices) for access, row in zip(accesses, rows, strict=True)
    ]


def _undivided(
    slow: Expression, fast: Expression, size: Expression, collected: KernelAccesses, facts: Facts
) -> Expression | None:
    """x for x // n and x % n; also x // n for x // (n * m) and x // n % m."""
    if not (isinstance(slow, Binary) and isinstance(fast, Binary)):
        return None
    if (slow.operator, fast.operator) != ("//", "%") or facts.constant_difference(
        fast.right, size
    ) != 0:
        return None
    whole = resolved(fast.left, collected)
    if (
        facts.constant_difference(slow.left, whole) == 0
        and facts.constant_difference(slow.right, size) == 0
    ):
        return whole
    if (
        isinstance(whole, Binary)
        and whole.operator == "//"
        and facts.constant_difference(slow.left, whole.left) == 0
        and facts.constant_difference(slow.right, Binary("*", whole.right, size)) == 0
    ):
        return whole
    return None


def _whole(index: Expression, collected: KernelAccesses, facts: Facts) -> Expression:
    """x for x % n, and 0 for x // n, if x is known to be less than n."""
    if not isinstance(index, Binary) or index.operator not in ("//", "%"):
        return index
    below = Binary("<", index.left, index.right)
    if facts.prove(Binary(">=", index.left, ir.constant(0))) and facts.prove(below):
        if index.operator == "//":
            return ir.constant(0)
        return _whole(resolved(index.left, collected), collected, facts)
    return index


def resolved(index: Expression, collected: KernelAccesses) -> Expression:
    """The definition of a name."""
    while isinstance(index, Variable) and index in collected.lets:
        index = collected.lets[index]
    return index


# --- Indices that were made one of several, taken apart again -----------------------------------
#     c[row * n + col]              ->  c'[row, col]      where 0 <= col < n, and c' is (m, n)
#     c[2 * i]  and  c[2 * i + 1]   ->  c'[i, 0]  and  c'[i, 1]
#     c[i]  and  c[i + n // 2]      ->  c'[0, i]  and  c'[1, i]      where c' is (2, n // 2)
#
# Two such elements are the same exactly where both parts are, so proofs may look at the parts. The
# opposite of taskc/passes/proofs/folding.py.


T = TypeVar("T")


def unfolded(accesses: list[GuardedAccess], collected: KernelAccesses) -> list[Row] | None:
    """The indices of accesses to one tensor, with dimensions split in the same way."""
    shape = accesses[0].tensor.shape
    facts = [collected.facts(access.path) for access in accesses]
    rows = [Row(access.indices, shape) for access in accesses]
    d, is_new = 0, False
    while d < len(rows[0].extents):
        for divisor, whole in _divisors(rows, d, collected):
            parts = [
                _parts(row.indices[d], divisor, collected, known)
                for row, known in zip(rows, facts, strict=True)
            ]
            if all(part is not None for part in parts):
                extents = whole, _plain(divisor)
                rows = [
                    Row(_at(row.indices, d, part), _at(row.extents, d, extents))
                    for row, part in zip(rows, parts, strict=True)
                    if part is not None
                ]
                is_new = True
                break
        else:
            d += 1
    return rows if is_new else None


def unfolded_alike(
    accesses: list[GuardedAccess], collected: KernelAccesses
) -> list[GuardedAccess] | None:
    rows = unfolded(accesses, collected)
    if rows is None:
        return None
    return [
        replace(access, indices=row.indices) for access, row in zip(accesses, rows, strict=True)
    ]


def _divisors(
    rows: list[Row], d: int, collected: KernelAccesses
) -> Iterator[tuple[Expression, int | Expression]]:
    """The divisor and the quotient's extent for splitting an index: two factors of the extent, a step that all indices
    have, or a part of the extent that sets two indices apart.
    """
    extent = rows[0].extents[d]
    factors = [] if isinstance(extent, int) else list(_factors(extent, collected))
    for position, factor in reversed(list(enumerate(factors))):
        if len(factors) > 1:
            yield factor, _plain(_product(factors[:position] + factors[position + 1 :]))
    step = gcd(*(_step(row.indices[d], collected) for row in rows))
    if step > 1 and extent != step:
        if isinstance(extent, int):
            yield ir.constant(step), -(-extent // step)
        else:
            above = Binary("+", extent, ir.constant(step - 1))
            yield ir.constant(step), Binary("//", above, ir.constant(step))
    if isinstance(extent, int):
        # A factor of an addend, if it divides the extent: n for row * n + col.
        candidates = {
            number for number in _numbers(rows[0].indices[d], collected) if number <= extent
        }
        yield from ((ir.constant(n), extent // n) for n in sorted(candidates) if extent % n == 0)
        return
    sizes = Facts.empty(collected.kernel)
    for addend in [addend for row in rows for addend, _ in _addends(row.indices[d], collected)]:
        if used_variables(collected, [addend]) <= set(collected.kernel.dimensions):
            for count in range(2, len(rows) + 1):
                parts = Binary("*", ir.constant(count), addend)
                if sizes.prove(Binary("==", parts, extent)):
                    yield addend, count


def _numbers(index: Expression, collected: KernelAccesses) -> Iterator[int]:
    """The factors of addends."""
    for addend, _ in _addends(index, collected):
        if not isinstance(addend, Constant):
            factors = _factors(addend, collected)
            yield from (int(f.value) for f in factors if isinstance(f, Constant) and f.value > 1)


def _step(index: Expression, collected: KernelAccesses) -> int:
    """A number that divides an index without its constant part."""
    step = 0
    for addend, _ in _addends(index, collected):
        if not isinstance(addend, Constant):
            numbers = [f.value for f in _factors(addend, collected) if isinstance(f, Constant)]
            step = gcd(step, int(numbers[0]) if numbers else 1)
    return step


def _parts(
    index: Expression, divisor: Expression, collected: KernelAccesses, facts: Facts
) -> tuple[Expression, Expression] | None:
    """(q, r) with index == q * divisor + r, 0 <= r < divisor."""
    whole: list[tuple[Expression, bool]] = []
    rest: list[tuple[Expression, bool]] = []
    for addend, negative in _addends(index, collected):
        quotient = _quotient(addend, divisor, collected, facts)
        if quotient is None:
            rest.append((addend, negative))
        else:
            whole.append((quotient, negative))
    remainder = _sum(rest)
    if facts.prove(Binary(">=", remainder, ir.constant(0))) is not True:
        return None
    if facts.prove(Binary("<", remainder, divisor)) is not True:
        return None
    return _sum(whole), remainder


def _quotient(
    addend: Expression, divisor: Expression, collected: KernelAccesses, facts: Facts
) -> Expression | None:
    factors = list(_factors(addend, collected))
    for position, factor in enumerate(factors):
        others = factors[:position] + factors[position + 1 :]
        if isinstance(factor, Constant) and isinstance(divisor, Constant):
            if factor.value and factor.value % divisor.value == 0:
                others.append(ir.constant(int(factor.value // divisor.value)))
                return _product(others)
        elif facts.constant_difference(factor, divisor) == 0:
            return _product(others)
    return None


def _addends(node: Expression, collected: KernelAccesses) -> list[tuple[Expression, bool]]:
    """The addends of a sum, and whether each is subtracted."""
    terms = addends(node, collected.lets, opens=lambda inner: False)
    return [(multiply(term, abs(times)), times < 0) for term, times in terms]


def _factors(node: Expression, collected: KernelAccesses) -> Iterator[Expression]:
    node = resolved(node, collected)
    if isinstance(node, Binary) and node.operator == "*":
        yield from _factors(node.left, collected)
        yield from _factors(node.right, collected)
    else:
        yield node


def _sum(addends: list[tuple[Expression, bool]]) -> Expression:
    total: Expression | None = None
    for addend, negative in addends:
        if total is None:
            total = Unary("-", addend) if negative else addend
        else:
            total = Binary("-" if negative else "+", total, addend)
    return ir.constant(0) if total is None else total


def _product(factors: list[Expression]) -> Expression:
    total: Expression | None = None
    for factor in factors:
        total = factor if total is None else Binary("*", total, factor)
    return ir.constant(1) if total is None else total


def _plain(extent: Expression) -> int | Expression:
    return int(extent.value) if isinstance(extent, Constant) else extent


def _at(items: tuple[T, ...], d: int, parts: tuple[T, T]) -> tuple[T, ...]:
    return (*items[:d], *parts, *items[d + 1 :])
