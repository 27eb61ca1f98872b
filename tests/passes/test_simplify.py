"""Simplified programs keep their results."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest

from taskc.ir import nodes as ir
from taskc.ir.nodes import (
    Constant,
    For,
    Variable,
    constant,
)
from taskc.ir.printer import to_text
from taskc.ir.types import f32
from taskc.passes.simplify import simplify
from tests.analysis.test_facts import b, loop
from tests.programs_of_loops import arguments_for, random_kernel, run_kernel


def bits(value: Any) -> Any:
    return struct.pack("d", value) if isinstance(value, float) else value


@pytest.mark.parametrize("block", range(4))
def test_programs_keep_their_results(block: int) -> None:
    for seed in range(block * 60, block * 60 + 60):
        kernel, sizes = random_kernel(seed)
        simple = simplify(kernel)
        again = simplify(simple)
        arguments = arguments_for(kernel)
        expected = run_kernel(kernel, arguments, sizes)
        assert run_kernel(simple, arguments, sizes) == expected, seed
        assert run_kernel(again, arguments, sizes) == expected, seed


def test_nothing_to_do_gives_the_same_object() -> None:
    for seed in range(30):
        kernel, _ = random_kernel(seed)
        for _ in range(4):
            kernel = simplify(kernel)
        assert simplify(kernel) is kernel, seed


def test_a_loop_and_its_conditions(golden: Any) -> None:
    """The example of the pass: one iteration, a decided condition, a loop without iterations."""
    n, i, j, q, t = (Variable(name) for name in "nijqt")
    y = ir.Tensor("y", f32, (64,), ir.GLOBAL, role="inout")
    unread = ir.Tensor("unread", f32, (4,), ir.LOCAL)
    one = Constant(1.0, f32)
    inner = ir.If(b("<", q, 8), ir.Store(y, (b("+", b("*", q, 8), t),), one))
    body = ir.Sequence(
        (
            ir.Allocate(unread),
            ir.Let(t, b("*", i, 4)),
            inner,
            ir.Store(unread, (constant(0),), one),
            For(j, n, n, 1, ir.Store(y, (j,), one)),
            ir.If(b(">=", q, 8), ir.Store(y, (constant(0),), one)),
        )
    )
    kernel = ir.Kernel(
        "k", (y,), (n,), 1, For(q, constant(0), constant(8), 1, loop_of(i, 1, body)), "scalar"
    )
    simple = simplify(kernel)
    golden("passes/simplify_loop", to_text(simple))
    assert simplify(simple) is simple


def test_named_quotients_and_remainders_are_put_together() -> None:
    """The sum of names is as short, and hides that neighbours of x are neighbours in memory."""
    f, s, q, p, i, j = (Variable(name) for name in "fsqpij")
    y = ir.Tensor("y", f32, (6400,), ir.GLOBAL, role="inout")
    column = b("+", b("*", q, 25), p)
    place = b("+", b("*", b("+", b("*", b("+", f, s), 40), i), 40), j)
    lets = ir.Let(i, b("//", column, 40)), ir.Let(j, b("%", column, 40))
    body: ir.Statement = ir.Sequence((*lets, ir.Store(y, (place,), Constant(1.0, f32))))
    for variable, count in ((p, 25), (q, 64), (s, 2), (f, 3)):
        body = loop_of(variable, count, body)
    simple = to_text(simplify(ir.Kernel("k", (y,), (), 1, body, "scalar")))
    assert "y[(f + s) * 1600 + q * 25 + p] = 1.0" in simple


def loop_of(variable: Variable, count: int, body: ir.Statement) -> For:
    return replace(loop(variable, 0, count), body=body)
