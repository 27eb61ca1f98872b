"""Indices that were divided into rows and columns, put together again.

    c[x // n, x % n]                      ->  c'[x]     where c' has the shape (m * n,)
    c[x // (k * n), x // n % k, x % n]    ->  c'[x]

Two such elements are the same exactly where x is, so proofs may look at x, which is a sum of loop
variables, instead of at quotients, which are not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from taskc.ir import nodes as ir
from taskc.ir.bounds import Facts
from taskc.ir.nodes import Binary, Expression, Variable
from taskc.passes.proofs.forms import Form
from taskc.passes.proofs.program import Access, Program


@dataclass(frozen=True, slots=True)
class Row:
    """Indices and their extents; `widths` counts the dimensions that became one."""

    indices: tuple[Expression, ...]
    extents: tuple[int | Expression, ...]
    widths: tuple[int, ...] = ()


def is_opaque(form: Form | None) -> bool:
    """Whether an index is more than a sum of variables."""
    return form is None or any(not isinstance(atom, Variable) for atom in form.terms)


def folded(row: Row, program: Program, facts: Facts) -> Row:
    """All dimensions folded that can be, from the last one on."""
    parts = [resolved(index, program) for index in row.indices]
    sizes = [ir.constant(extent) if isinstance(extent, int) else extent for extent in row.extents]
    widths = [1] * len(sizes)
    position = len(parts) - 2
    while 0 <= position < len(parts) - 1:
        slow, fast = parts[position], parts[position + 1]
        whole = _undivided(slow, fast, sizes[position + 1], program, facts)
        if whole is not None:
            parts[position : position + 2] = [whole]
            sizes[position : position + 2] = [Binary("*", sizes[position], sizes[position + 1])]
            widths[position : position + 2] = [widths[position] + widths[position + 1]]
            position = min(position, len(parts) - 2)
        else:
            position -= 1
    extents = [size.value if isinstance(size, ir.Constant) else size for size in sizes]
    return Row(tuple(parts), tuple(extents), tuple(widths))  # type: ignore[arg-type]


def folded_alike(accesses: list[Access], program: Program) -> list[Access] | None:
    """Accesses to one tensor, with the same of its dimensions folded in each."""
    first = accesses[0].tensor
    rows = [
        folded(Row(access.indices, first.shape), program, program.facts(access.path))
        for access in accesses
    ]
    if len({row.widths for row in rows}) != 1 or max(rows[0].widths) == 1:
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
    if (slow.operator, fast.operator) != ("//", "%") or facts.difference(fast.right, size) != 0:
        return None
    whole = resolved(fast.left, program)
    if facts.difference(slow.left, whole) == 0 and facts.difference(slow.right, size) == 0:
        return whole
    if (
        isinstance(whole, Binary)
        and whole.operator == "//"
        and facts.difference(slow.left, whole.left) == 0
        and facts.difference(slow.right, Binary("*", whole.right, size)) == 0
    ):
        return whole
    return None


def resolved(index: Expression, program: Program) -> Expression:
    """What a name stands for."""
    while isinstance(index, Variable) and index in program.lets:
        index = program.lets[index][0]
    return index
