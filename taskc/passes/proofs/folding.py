"""Indices that were divided into rows and columns, put together again.

    c[x // n, x % n]                      ->  c'[x]     where c' has the shape (m * n,)
    c[x // (k * n), x // n % k, x % n]    ->  c'[x]
    c[x // n, y, x % n]                   ->  c'[x, y]
    c[x % n, x // n]                      ->  c'[x]     for the order of dimensions is no matter

    c[x % n]                          ->  c'[x]     where x is less than n
    c[x // n, x // n % 1, x % n]      ->  c'[0, 0, x]

Two such elements are the same exactly where x is, so proofs may look at x, which is a sum of loop
variables, instead of at quotients, which are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations

from taskc.analysis.facts import Facts
from taskc.analysis.indices import Index
from taskc.ir import nodes as ir
from taskc.ir.nodes import Binary, Expression, Variable
from taskc.passes.proofs.program import Access, Program


@dataclass(frozen=True, slots=True)
class Row:
    """Indices and their extents; `joined` has the dimensions that each of them was."""

    indices: tuple[Expression, ...]
    extents: tuple[int | Expression, ...]
    joined: tuple[tuple[int, ...], ...] = ()


def is_opaque(form: Index | None) -> bool:
    """Whether an index is more than a sum of variables."""
    return form is None or any(not isinstance(atom, Variable) for atom in form.terms)


def folded(row: Row, program: Program, facts: Facts) -> Row:
    """All dimensions folded that can be, from the last one on, those beside each other first."""
    parts = [_whole(resolved(index, program), program, facts) for index in row.indices]
    sizes = [ir.constant(extent) if isinstance(extent, int) else extent for extent in row.extents]
    joined: list[tuple[int, ...]] = [(d,) for d in range(len(sizes))]

    def fold(slow: int, fast: int) -> bool:
        whole = _undivided(parts[slow], parts[fast], sizes[fast], program, facts)
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


def folded_alike(accesses: list[Access], program: Program) -> list[Access] | None:
    """Accesses to one tensor, with the same of its dimensions folded in each."""
    first = accesses[0].tensor
    rows = [
        folded(Row(access.indices, first.shape), program, program.facts(access.path))
        for access in accesses
    ]
    if len({row.joined for row in rows}) != 1 or len(rows[0].joined) == len(first.shape):
        return None
    return [
        replace(access, indices=row.indices) for access, row in zip(accesses, rows, strict=True)
    ]


def _undivided(
    slow: Expression, fast: Expression, size: Expression, program: Program, facts: Facts
) -> Expression | None:
    """x of x // n and x % n; also x // n of x // (n * m) and x // n % m."""
    if not (isinstance(slow, Binary) and isinstance(fast, Binary)):
        return None
    if (slow.operator, fast.operator) != ("//", "%") or facts.constant_difference(
        fast.right, size
    ) != 0:
        return None
    whole = resolved(fast.left, program)
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


def _whole(index: Expression, program: Program, facts: Facts) -> Expression:
    """x of x % n, and 0 of x // n, where x is less than n anyway."""
    if not isinstance(index, Binary) or index.operator not in ("//", "%"):
        return index
    below = Binary("<", index.left, index.right)
    if facts.prove(Binary(">=", index.left, ir.constant(0))) and facts.prove(below):
        if index.operator == "//":
            return ir.constant(0)
        return _whole(resolved(index.left, program), program, facts)
    return index


def resolved(index: Expression, program: Program) -> Expression:
    """What a name stands for."""
    while isinstance(index, Variable) and index in program.lets:
        index = program.lets[index]
    return index
