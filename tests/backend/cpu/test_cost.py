"""Whether a call's blocks are worth waking another thread for."""

from __future__ import annotations

from dataclasses import replace

import pytest

import taskc as tc
from taskc.backend.cpu.block_count import cost_of, count_text
from taskc.ir import nodes as ir
from taskc.ir.nodes import Expression, Statement, Unary, Variable, constant
from taskc.ir.types import f32, i64
from taskc.passes.pipeline import lower
from tests.analysis.test_facts import b, loop

X, N = Variable("x"), Variable("n")
Y = ir.Tensor("y", i64, (8,), ir.GLOBAL, role="inout")


def store(value: Expression) -> Statement:
    return ir.Store(Y, (constant(0),), value)


ADDITION = store(b("+", X, 1))


@pytest.mark.parametrize(
    ("statement", "cost"),
    [
        (store(X), 0),
        (ADDITION, 1),
        (store(b("+", b("*", X, 3), ir.Read(Y, (X,)))), 3),
        (ir.Sequence((ADDITION, ADDITION)), 2),
        (replace(loop(X, 0, 10, 3), body=ADDITION), 4),
        (replace(loop(X, 0, 0), body=ADDITION), 0),
        (replace(loop(X, 0, N), body=ADDITION), 64),
        (replace(loop(X, 0, b("+", N, 1)), body=ADDITION), 1 + 64 * 2),
        (ir.While(b("<", X, N), ADDITION), 1 + 64 * 2),
        (ir.If(b("<", X, N), ADDITION, ADDITION), 3),
        (ir.Let(Variable("e", f32), Unary("exp", Variable("v", f32))), 20),
    ],
)
def test_operations_are_counted_with_their_loops(statement: Statement, cost: int) -> None:
    assert cost_of(statement) == cost


@pytest.mark.parametrize("trips", [1, 1000])
def test_few_blocks_of_little_work_have_one_thread(trips: int) -> None:
    """The number of blocks is negative where one thread is enough."""

    @tc.kernel(workers=16)
    def kernel(x: tc.f32[64, 16], y: tc.out[tc.f32[64, 16]]):
        for row, _ in tc.tiles((64, 16), by=(1, 16)):
            for i in tc.spatial(16):
                total = tc.f32(0)
                for _ in range(trips):
                    total += x[row, i]
                y[row, i] = total

    lean = lower(replace(kernel.ir, target="avx2"))
    number = -64 if trips == 1 else 64
    assert f"ret i64 {number}\n" in count_text(lean, 1)
    assert f"ret i64 {abs(number)}\n" in count_text(lean, 40_000)
