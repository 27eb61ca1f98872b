"""Elements of tiles are registers, whose numbers are known when compiling."""

from __future__ import annotations

import pytest

from taskc.ir import nodes as ir
from taskc.passes.lower_mappings import lower_mappings
from tests.passes.kernels import (
    kernel,
    nodes,
    refused,
    through,
)
from tests.passes.test_lower_mappings import FIRST, nodes_of, scalar, variables_of


def slots_of(body: str, own: str, workers: int = 8) -> list[ir.Expression]:
    start = kernel(
        f"tile t: f32[8, 8] by {own} = 0.0\n" + body, "c: inout f32[8, 8]", workers=workers
    )
    made = scalar(start)
    return [n.indices[0] for n in nodes(made, ir.Store) if n.tensor.scope == ir.REGISTER]


def test_registers_are_linear_forms() -> None:
    own = "spatial(4, 2).repeat(2, 4)"
    (slot,) = slots_of(f"each (i, j) in {own}:\n    t[i, j] = 1.0", own)
    assert not [node for node in [slot] if isinstance(node, ir.Lookup)]
    turned = """
each (i, j) in spatial(4, 2).repeat(2, 4, order=(1, 0)):
    t[i, j] = 1.0
"""
    (slot,) = slots_of(turned, own)
    s0, s1 = (v for v in variables_of(slot))
    assert {s0.name, s1.name} == {"s0", "s1"}
    assert not [n for n in nodes_of(slot) if isinstance(n, ir.Lookup)]
    rows = """
for q in range(4):
    each (i, j) in spatial(4, 2).repeat(2, 1):
        t[i, j * 4 + q] = 1.0
"""
    (slot,) = slots_of(rows, own)
    assert {v.name for v in variables_of(slot)} == {"s", "q"}


def test_registers_that_are_no_linear_form_are_looked_up() -> None:
    """Rows in another order: slot 0, 2, 1, 3 in turn."""
    body = """
each (i, j) in spatial(8, 1).repeat(1, 8):
    t[i, j * 3 % 8] = 1.0
"""
    (slot,) = slots_of(body, "spatial(8, 1).repeat(1, 8)")
    (table,) = [n.table for n in nodes_of(slot) if isinstance(n, ir.Lookup)]
    assert table.values.tolist() == [j * 3 % 8 for j in range(8)]


def test_a_loop_over_registers_is_unrolled() -> None:
    start = kernel(
        """
        tile t: f32[8, 8] by spatial(8, 1).repeat(1, 8)
        for q in range(8):
            each i in spatial(8):
                t[i, q] = x[i, q]
        for q in range(8):
            each i in spatial(8):
                c[q, i] = x[i, q]
        """,
        "x: f32[8, 8], c: inout f32[8, 8]",
        workers=8,
    )
    loops = [loop for loop in nodes(scalar(start), ir.For) if loop.variable.name.startswith("q")]
    assert [loop.kind for loop in loops] == ["unroll", "serial"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("for q in range(n):\n    each i in spatial(8):\n        t[i, q % 8] = 1.0",
         "an index into the tile `t` depends on `n`, known only at run time"),
        ("each i in spatial(8):\n    let q = seen[i] % 8\n    t[i, q] = 1.0",
         "an index into the tile `t` depends on `q`, known only at run time"),
        ("each i in spatial(8):\n    t[i, i] = 1.0",
         "the register that holds this element of `t` differs between workers"),
    ],
    ids=["a loop", "memory", "the worker"],
)  # fmt: skip
def test_registers_are_known_when_compiling(body: str, message: str) -> None:
    text = "tile t: f32[8, 8] by spatial(8, 1).repeat(1, 8) = 0.0\n" + body
    start = kernel(text, "seen: inout i64[8]", workers=8, dimensions="n")
    start = through(start, *FIRST)
    error = refused(start, lower_mappings)
    loop = message.replace("`n`", "`q`")
    assert error.message in (message, loop)
    assert error.location.line == text.count("\n") + 2
