"""Invariants move out of loops, nothing with an effect does, and results stay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from taskc.ir import nodes as ir
from taskc.ir.nodes import Constant, Expression, For, Variable, constant
from taskc.ir.parser import parse
from taskc.ir.printer import to_text
from taskc.ir.rewrite import walk
from taskc.ir.types import boolean, f32, i64
from taskc.passes.hoist import hoist
from tests.analysis.test_facts import b, loop
from tests.programs_of_loops import arguments_for, random_kernel, run_kernel

X = ir.Tensor("x", f32, (256,), ir.GLOBAL)
Y = ir.Tensor("y", f32, (256,), ir.GLOBAL, role="inout")
ACC = ir.Tensor("acc", f32, (64,), ir.REGISTER)


def kernel_of(body: ir.Statement, *names: Variable) -> ir.Kernel:
    return ir.Kernel("k", (X, Y), names, 32, body, "scalar")


def over(variable: Variable, count: int | Expression, body: ir.Statement) -> For:
    return replace(loop(variable, 0, count), body=body)


def test_results_stay() -> None:
    for seed in range(150):
        kernel, sizes = random_kernel(seed)
        arguments = arguments_for(kernel)
        expected = run_kernel(kernel, arguments, sizes)
        new = hoist(kernel)
        assert run_kernel(new, arguments, sizes) == expected, seed
        assert run_kernel(hoist(new), arguments, sizes) == expected, seed
        names = [node.variable for node in walk(new.body) if isinstance(node, (ir.Let, For))]
        assert len(names) == len(set(names)), "a name is bound once"


def test_offsets_by_level(golden: Any) -> None:
    i, j, n = Variable("i"), Variable("j"), Variable("n")
    kernel = kernel_of(constant_body := ir.Sequence(()), n)
    assert hoist(kernel).body is constant_body
    base = b("*", b("//", kernel.worker, 8), 64)
    target = b("+", b("+", j, b("*", i, 4)), base)
    store = ir.Store(Y, (target,), ir.Read(X, (b("+", base, i),)))
    inner = replace(over(j, 4, store), kind="unroll")
    golden("passes/hoist_levels", to_text(hoist(replace(kernel, body=over(i, n, inner)))))


def test_quotients_once(golden: Any) -> None:
    kernel = kernel_of(ir.Sequence(()))
    worker = kernel.worker
    stores = tuple(
        ir.Store(Y, (b("+", b("%", b("//", worker, 4), 8), offset),), Constant(1.0, f32))
        for offset in (0, 8)
    )
    golden("passes/hoist_quotients", to_text(hoist(replace(kernel, body=ir.Sequence(stores)))))


def hoisted_reads(body: ir.Statement, *names: Variable) -> bool:
    """Whether a Let outside of all loops reads memory."""
    new = hoist(kernel_of(body, *names)).body
    parts = new.statements if isinstance(new, ir.Sequence) else (new,)
    return any(
        isinstance(part, ir.Let) and any(isinstance(node, ir.Read) for node in walk(part.value))
        for part in parts
    )


def test_reads_move_only_if_they_surely_run() -> None:
    i, j, n = Variable("i"), Variable("j"), Variable("n")
    read = ir.Read(X, (constant(3),))
    store = ir.Store(Y, (i,), read)
    assert hoisted_reads(over(i, 8, store))
    assert hoisted_reads(over(i, 8, over(j, 4, store)))
    assert not hoisted_reads(over(i, n, store), n)
    assert not hoisted_reads(over(i, 8, over(j, n, store)), n)
    assert not hoisted_reads(over(i, 0, store))
    assert not hoisted_reads(over(i, 8, ir.If(b("<", i, 4), store)))
    lazy = ir.Select(b("<", i, 4), read, Constant(0.0, f32))
    assert not hoisted_reads(over(i, 8, ir.Store(Y, (i,), lazy)))
    # Nor if the memory may change.
    assert not hoisted_reads(over(i, 8, ir.Store(Y, (i,), ir.Read(Y, (constant(3),)))))


TABLE = """
kernel k(y: inout i64[4, 8]) workers=8{helpers} stage=lean:
    table tasks = [{entries}]
    for p in range(4):
        {around}:
            y[p * 8 + worker] = tasks[worker]
"""


@pytest.mark.parametrize(
    ("helpers", "entries", "around", "is_moved"),
    [
        ("", 8, "if worker < p", True),
        ("", 4, "if worker < 4", False),
        (" helpers=32", 8, "if worker < 8", False),
        (" helpers=32", 40, "if worker < 8", True),
    ],
)
def test_tables_are_read_by_workers_that_have_an_entry(
    helpers: str, entries: int, around: str, is_moved: bool
) -> None:
    numbers = ", ".join(map(str, range(entries)))
    kernel = parse(TABLE.format(helpers=helpers, entries=numbers, around=around))
    body = hoist(kernel).body
    statements = body.statements if isinstance(body, ir.Sequence) else (body,)
    moved = [s for s in statements if isinstance(s, ir.Let) and isinstance(s.value, ir.Lookup)]
    assert bool(moved) is is_moved


def test_divisions_by_what_may_be_zero_stay() -> None:
    i, n = Variable("i"), Variable("n")
    kernel = kernel_of(ir.Sequence(()), n)
    for divisor, moves in ((constant(3), True), (n, False)):
        quotient = b("*", b("//", kernel.worker, divisor), 2)
        body = over(i, 8, ir.Store(Y, (b("+", quotient, i),), Constant(1.0, f32)))
        new = hoist(replace(kernel, body=body)).body
        assert isinstance(new, ir.Sequence) is moves


def test_register_indices_stay() -> None:
    i, j = Variable("i"), Variable("j")
    store = ir.Store(ACC, (b("+", b("*", i, 8), j),), Constant(1.0, f32))
    body = ir.Sequence((ir.Allocate(ACC), over(i, 8, over(j, 8, store))))
    kernel = kernel_of(body)
    assert hoist(kernel) is kernel


def test_names_are_shared_in_scope_only() -> None:
    i, j = Variable("i"), Variable("j")
    kernel = kernel_of(ir.Sequence(()))
    product = b("*", b("+", kernel.worker, 1), 3)
    store = ir.Store(Y, (b("+", product, i),), Constant(1.0, f32))
    other = ir.Store(Y, (b("+", product, j),), Constant(2.0, f32))
    two = ir.Sequence((over(i, 8, store), over(j, 8, other)))
    lets = [n for n in walk(hoist(replace(kernel, body=two)).body) if isinstance(n, ir.Let)]
    assert len(lets) == 1
    condition = b("<", kernel.worker, 5)
    branches = ir.If(condition, over(i, 8, store), over(j, 8, other))
    lets = [n for n in walk(hoist(replace(kernel, body=branches)).body) if isinstance(n, ir.Let)]
    assert len(lets) == 2


def test_conditions_and_zeros_are_told_apart() -> None:
    """0.0 == -0.0, but they are different values; and bools may be named, too."""
    i = Variable("i")
    kernel = kernel_of(ir.Sequence(()))
    single = ir.Cast(kernel.worker, f32)
    zeros = [ir.Binary("*", ir.Binary("+", single, single), Constant(z, f32)) for z in (0.0, -0.0)]
    body = ir.Sequence(tuple(ir.Store(Y, (i,), value) for value in zeros))
    new = hoist(replace(kernel, body=over(i, 8, body)))
    products = [n for n in walk(new.body) if isinstance(n, ir.Binary) and n.operator == "*"]
    assert [repr(node.right.value) for node in products] == ["0.0", "-0.0"]  # type: ignore[union-attr]
    guarded = ir.If(b("<", kernel.worker, 7), ir.Store(Y, (i,), Constant(1.0, f32)))
    new = hoist(replace(kernel, body=over(i, 8, guarded)))
    (let,) = (node for node in walk(new.body) if isinstance(node, ir.Let))
    assert let.variable.dtype is boolean


def test_new_names_follow_the_old_ones() -> None:
    i, old = Variable("i"), Variable("t4", i64)
    kernel = kernel_of(ir.Sequence(()))
    store = ir.Store(Y, (b("+", b("*", kernel.worker, 7), i),), Constant(1.0, f32))
    body = ir.Sequence((ir.Let(old, b("+", kernel.worker, 1)), over(i, 4, store)))
    new = hoist(replace(kernel, body=body))
    names = [node.variable.name for node in walk(new.body) if isinstance(node, ir.Let)]
    assert names == ["t4", "t5"]
