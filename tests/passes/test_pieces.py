"""Loops that multiply what lies in shared memory are cut where reads become one access; results stay."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

import taskc as tc
from taskc.backend.cuda.compile import compile_kernel, disassembler, sass_of
from taskc.ir import nodes as ir
from taskc.ir.code_size import trip_count
from taskc.ir.nodes import Binary, Cast, Constant, Expression, For, Statement, Variable
from taskc.ir.rewrite import walk
from taskc.ir.types import f16, f32
from taskc.kernels.matmul import matmul
from taskc.passes.pipeline import lower
from taskc.passes.vectorize import vectorize
from tests.analysis.test_facts import b, loop
from tests.programs_of_loops import arguments_for, run_kernel

Q, R, N = Variable("q"), Variable("i"), Variable("n", multiple=4)
X = ir.Tensor("x", f32, (64,), ir.GLOBAL)
Y = ir.Tensor("y", f32, (64,), ir.GLOBAL, role="inout")
ACC = ir.Tensor("acc", f32, (4,), ir.REGISTER)
WIDE, NARROW = (ir.Tensor("s", dtype, (64,), ir.SHARED) for dtype in (f32, f16))
ROW = b("+", b("*", R, 8), Q)


def over(variable: Variable, count: int, body: Statement, kind: str = "serial") -> For:
    return replace(loop(variable, 0, count), body=body, kind=kind)


def added(tensor: ir.Tensor, offset: Expression, *more: Statement) -> Statement:
    """To each of four registers, an element of memory."""
    value = Binary("+", ir.Read(ACC, (R,)), Cast(ir.Read(tensor, (offset,)), f32))
    return over(R, 4, ir.Sequence((ir.Store(ACC, (R,), value), *more)), "unroll")


def kernel_of(trips: int, body: Statement, target: str = "sm_80") -> ir.Kernel:
    p, j = Variable("p"), Variable("j")
    filled = [ir.Store(s, (p,), Cast(ir.Read(X, (p,)), s.dtype)) for s in (WIDE, NARROW)]
    parts = (
        ir.Allocate(WIDE),
        ir.Allocate(NARROW),
        over(p, 64, ir.Sequence(tuple(filled))),
        ir.Allocate(ACC, Constant(0.0, f32)),
        over(Q, trips, body),
        over(j, 4, ir.Store(Y, (j,), ir.Read(ACC, (j,))), "unroll"),
    )
    return ir.Kernel("k", (X, Y), (N,), 1, ir.Sequence(parts), "lean", target=target)


def loops_over_q(kernel: ir.Kernel) -> list[tuple[str, int | None]]:
    found = [n for n in walk(kernel.body) if isinstance(n, For) and n.variable.name.startswith("q")]
    return [(one.kind, trip_count(one)) for one in found]


@pytest.mark.parametrize(
    ("tensor", "trips", "offset", "expected"),
    [
        (WIDE, 8, ROW, [("serial", 2), ("unroll", 4)]),
        (WIDE, 4, ROW, [("unroll", 4)]),
        (WIDE, 6, ROW, [("serial", 3), ("unroll", 2)]),
        (WIDE, 7, ROW, [("serial", 7)]),
        (WIDE, 8, b("+", ROW, 2), [("serial", 4), ("unroll", 2)]),
        (WIDE, 8, b("+", ROW, 1), [("serial", 8)]),
        (WIDE, 8, b("+", ROW, b("%", N, 8)), [("serial", 2), ("unroll", 4)]),
        (WIDE, 8, b("+", b("*", Q, 4), R), [("serial", 8)]),  # neighbours are other registers'
        (NARROW, 8, ROW, [("unroll", 8)]),
        (NARROW, 4, b("+", ROW, 4), [("unroll", 4)]),
        (X, 8, ROW, [("serial", 8)]),
    ],
)
def test_which_loops(
    tensor: ir.Tensor, trips: int, offset: Expression, expected: list[Any]
) -> None:
    kernel = kernel_of(trips, added(tensor, offset))
    made = vectorize(kernel)
    assert loops_over_q(made) == expected
    for n in (4, 12):
        arguments = arguments_for(kernel)
        assert run_kernel(made, arguments, {N: n}) == run_kernel(kernel, arguments, {N: n})


def test_what_stays() -> None:
    """What changes memory, is too much code, or is for a processor, whose workers read single elements."""
    stored = added(WIDE, ROW, ir.Store(WIDE, (R,), Constant(1.0, f32)))
    assert loops_over_q(vectorize(kernel_of(8, stored))) == [("serial", 8)]
    inside = over(Variable("r"), 3, added(WIDE, ROW))
    assert loops_over_q(vectorize(kernel_of(8, inside))) == [("serial", 8)]
    assert loops_over_q(vectorize(kernel_of(8, added(WIDE, ROW), "avx2"))) == [("serial", 8)]
    again = ir.Store(ACC, (R,), ir.Read(ACC, (R,)))
    for count, expected in ((60, 4), (120, 2)):
        long = vectorize(kernel_of(8, added(WIDE, ROW, *[again] * count)))
        assert loops_over_q(long) == [("serial", 8 // expected), ("unroll", expected)]
    assert loops_over_q(vectorize(kernel_of(8, added(WIDE, ROW, *[again] * 300)))) == [
        ("serial", 8)
    ]


@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_products_of_f32_read_16_bytes_at_a_time(target: str, transpose_b: bool) -> None:
    """And leave registers for a second block beside the first."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC isn't published for this machine")
    definition = matmul(2048, 2048, 2048, transpose_b=transpose_b, machine=tc.machine(target))
    (kernel,) = definition.kernels
    made = compile_kernel(lower(replace(kernel.ir, target=target)))
    # Turning both operands as they are loaded takes more of them.
    blocks = 1 if transpose_b and target == "sm_90a" else 2
    assert blocks * made.threads * made.resources.registers <= 1 << 16
    assert made.resources.spill_loads == 0
    if disassembler() is not None:
        rows = re.findall(r"/\*[0-9a-f]{4}\*/ +(\S+)", sass_of(made.cubin))
        assert rows.count("FFMA") >= 12 * rows.count("LDS.128") > 0
        first, last = rows.index("FFMA"), len(rows) - rows[::-1].index("FFMA")
        # NVRTC allocates registers differently from one run to the next, and sometimes reads a
        # single element again in place of keeping it.
        loads = [row for row in rows[first:last] if row.startswith("LDS")]
        assert loads.count("LDS.128") >= 0.95 * len(loads)
