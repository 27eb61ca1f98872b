"""Loops are unrolled where registers or small bodies ask for it, and written out on request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from taskc.ir import nodes as ir
from taskc.ir.nodes import Constant, For, Variable, constant
from taskc.ir.printer import to_text
from taskc.ir.rewrite import walk
from taskc.ir.types import f32, u64
from taskc.passes.unroll import Options, unroll
from tests.analysis.test_facts import b, loop
from tests.programs_of_loops import arguments_for, random_kernel, run_kernel

Y = ir.Tensor("y", f32, (64,), ir.GLOBAL, role="inout")
ACC = ir.Tensor("acc", f32, (64,), ir.REGISTER)
ONE = Constant(1.0, f32)


def kernel_of(body: ir.Statement) -> ir.Kernel:
    return ir.Kernel("k", (Y,), (), 1, body, "scalar")


def over(variable: Variable, count: int, body: ir.Statement) -> For:
    return replace(loop(variable, 0, count), body=body)


def kinds(kernel: ir.Kernel) -> list[str]:
    return [f"{n.variable}:{n.kind}" for n in walk(kernel.body) if isinstance(n, For)]


@pytest.mark.parametrize("limit", [1, 2, 4])
def test_results_stay(limit: int) -> None:
    for seed in range(80):
        kernel, sizes = random_kernel(seed)
        new = unroll(kernel, options=Options(limit=limit, trips=4))
        arguments = arguments_for(kernel)
        assert run_kernel(new, arguments, sizes) == run_kernel(kernel, arguments, sizes), seed
        for node in walk(new.body):
            if isinstance(node, For) and node.kind == "unroll":
                count = len(range(node.start.value, node.stop.value, node.step))  # type: ignore[union-attr]
                assert count > limit
        names = [node.variable for node in walk(new.body) if isinstance(node, (ir.Let, For))]
        assert len(names) == len(set(names)), "a name is bound once"


def test_registers_need_it() -> None:
    i, t, n = Variable("i"), Variable("t"), Variable("n")
    body = ir.Sequence((ir.Let(t, b("+", i, 0)), ir.Store(ACC, (t,), ONE)))
    kernel = kernel_of(ir.Sequence((ir.Allocate(ACC), over(i, 64, body))))
    assert kinds(unroll(kernel)) == ["i:unroll"]
    memory = kernel_of(over(i, 64, ir.Store(Y, (i,), ONE)))
    assert unroll(memory) is memory
    open_ended = kernel_of(For(i, constant(0), n, 1, ir.Store(Y, (i,), ONE)))
    assert unroll(open_ended) is open_ended


def test_small_loops() -> None:
    i, j = Variable("i"), Variable("j")
    store = ir.Store(Y, (b("+", b("*", i, 4), j),), ONE)
    assert kinds(unroll(kernel_of(over(i, 16, store)))) == ["i:unroll"]
    assert kinds(unroll(kernel_of(over(i, 17, store)))) == ["i:serial"]
    assert kinds(unroll(kernel_of(over(i, 8, over(j, 4, store))))) == ["i:unroll", "j:unroll"]
    # A loop around one that stays, or around too much, stays.
    assert kinds(unroll(kernel_of(over(i, 2, over(j, 30, store))))) == ["i:serial", "j:serial"]
    many = ir.Sequence((store,) * 100)
    assert kinds(unroll(kernel_of(over(i, 16, many)))) == ["i:serial"]
    # How much is too much depends on what a statement is.
    some = kernel_of(over(i, 16, ir.Sequence((store,) * 10)))
    assert kinds(unroll(some)) == ["i:unroll"]
    assert kinds(unroll(replace(some, target="avx512"))) == ["i:serial"]


def test_loops_around_others_stay_where_code_would_grow() -> None:
    """Sixteen sums under way are enough; ten times as many would take registers, and code."""
    c, p, s, t = Variable("c"), Variable("p"), Variable("s"), Variable("t")
    value = ir.Read(Y, (b("+", b("*", b("+", b("*", c, 8), p), 2), s),))
    added = ir.Store(ACC, (s,), ir.Binary("+", ir.Read(ACC, (s,)), value))
    inner = over(p, 8, ir.Sequence((ir.Let(t, b("*", p, 8)), over(s, 2, added))))
    kernel = kernel_of(ir.Sequence((ir.Allocate(ACC), over(c, 10, inner))))
    made = unroll(replace(kernel, target="sm_80"))
    assert kinds(made) == ["c:serial", "p:unroll", "s:unroll"]


def test_loops_that_wait_for_copies_stay() -> None:
    """Sixteen steps of 64 are a product's whole depth of 1024."""
    i = Variable("i")
    full = ir.Tensor("full", u64, (4,), ir.BARRIER)
    wait = ir.Do("mbarrier.wait", (ir.Address(full, (b("%", i, 4),)), b("%", b("//", i, 4), 2)))
    store = ir.Store(Y, (i,), ONE)
    assert kinds(unroll(kernel_of(over(i, 16, ir.Sequence((wait, store)))))) == ["i:serial"]
    assert kinds(unroll(kernel_of(over(i, 1, ir.Sequence((wait, store)))))) == []


def test_one_iteration_is_its_body(golden: Any) -> None:
    i, j, t = Variable("i"), Variable("j"), Variable("t")
    inner = ir.Sequence((ir.Let(t, b("+", i, j)), ir.Store(Y, (t,), ONE)))
    kernel = kernel_of(over(i, 2, over(j, 1, inner)))
    golden("passes/unroll_one", to_text(unroll(kernel)))
    golden("passes/unroll_two", to_text(unroll(kernel, options=Options(limit=2))))
