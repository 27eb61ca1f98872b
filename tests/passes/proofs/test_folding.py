"""Folded indices are the same element exactly where the unfolded ones are, and lie in one as the others in all."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from taskc.analysis.facts import Facts
from taskc.ir import nodes as ir
from taskc.ir.nodes import Expression, Variable
from taskc.ir.printer import expression_text
from taskc.passes.proofs.accesses import KernelAccesses
from taskc.passes.proofs.folding import Row, folded
from tests.analysis.test_facts import b, loop
from tests.evaluator import Machine
from tests.ir.stage_programs import parsed

X, Y, NAMED = Variable("x"), Variable("y"), Variable("named")
RANGES = {X: range(24), Y: range(3)}

CASES: list[tuple[tuple[Expression | int, ...], tuple[int, ...], list[str]]] = [
    ((b("//", X, 4), b("%", X, 4)), (6, 4), ["x"]),
    ((b("%", X, 4), b("//", X, 4)), (4, 6), ["x"]),
    ((b("//", X, 12), b("%", b("//", X, 4), 3), b("%", X, 4)), (2, 3, 4), ["x"]),
    ((b("//", X, 4), Y, b("%", X, 4)), (6, 3, 4), ["x", "y"]),
    ((b("//", X, 24), b("%", X, 24)), (1, 24), ["0", "x"]),
    ((Y, b("%", X, 24)), (3, 24), ["y", "x"]),
    # What is divided by one number and has the remainder of another stays as it is.
    ((b("//", X, 4), b("%", X, 6)), (6, 6), ["x // 4", "x % 6"]),
    ((b("//", X, 4), b("%", X, 4)), (6, 5), ["x // 4", "x % 4"]),
    ((b("//", X, 4), b("%", b("+", X, 1), 4)), (6, 4), ["x // 4", "(x + 1) % 4"]),
    ((b("//", NAMED, 4), b("%", NAMED, 4)), (18, 4), ["x * 3 + y"]),
]


VALUE = b("+", b("*", X, 3), Y)


def facts() -> Facts:
    known = Facts.empty()
    for variable, values in RANGES.items():
        known = known.enter(loop(variable, 0, len(values)))
    return known.enter(ir.Let(NAMED, VALUE))


@pytest.mark.parametrize(("indices", "extents", "expected"), CASES)
def test_what_is_folded(indices: Any, extents: tuple[int, ...], expected: list[str]) -> None:
    program = KernelAccesses(parsed(), lets={NAMED: VALUE})
    row = folded(Row(indices, extents), program, facts())
    assert [expression_text(index) for index in row.indices] == expected
    assert sorted(d for joined in row.joined for d in joined) == list(range(len(extents)))
    machine, elements = Machine(), {}
    for x, y in product(*RANGES.values()):
        names = {X: x, Y: y}
        names[NAMED] = machine.value(VALUE, names)
        before = tuple(machine.value(index, names) for index in indices)
        after = tuple(machine.value(index, names) for index in row.indices)
        assert elements.setdefault(before, after) == after
        sizes = [machine.value(n, {}) if isinstance(n, Expression) else n for n in row.extents]
        inside = all(0 <= i < n for i, n in zip(before, extents, strict=True))
        assert inside == all(0 <= i < n for i, n in zip(after, sizes, strict=True))
    assert len(set(elements.values())) == len(elements)
