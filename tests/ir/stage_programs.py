"""One program for each stage, built from nodes by hand; together they use every node type.

They obey their stage's rules, and mean nothing in particular.
"""

from __future__ import annotations

import numpy as np

from taskc.ir import nodes as ir
from taskc.ir.mapping import Mapping, repeat, replicate, spatial
from taskc.ir.nodes import Binary, Constant, Read, Store, Tensor, Variable, constant
from taskc.ir.types import bf16, boolean, f16, f32, i32, i64, u64

OWN = spatial(4, 8) * repeat(8, 4)
ROWS: Mapping = spatial(4, 1) * repeat(8, 1)


def v(name: str, dtype: ir.DType = i64) -> Variable:
    return Variable(name, dtype)


ROOT_OF = Variable("x", f32)
SQUARE_ROOT = ir.Snippet(
    "sqrt", 'sqrt.rn.f32 %0, %1; // "exact"\n', (ROOT_OF,), ir.Unary("sqrt", ROOT_OF)
)


def add(a: ir.Expression, b: ir.Expression) -> Binary:
    return Binary("+", a, b)


def parameters() -> tuple[Tensor, Tensor, Variable]:
    n = Variable("n", multiple=16)
    a = Tensor("a", f32, (64, n), ir.GLOBAL, layout=None)
    c = Tensor("c", f32, (64, 64), ir.GLOBAL, role="inout", layout=repeat(8, 64) * repeat(8, 1))
    return a, c, n


def larger() -> ir.Combine:
    """Of two pairs the one with the larger first number."""
    names = [v(name, f32) for name in ("value", "weight", "value", "weight")]
    first = v("first", boolean)
    let = ir.Let(first, Binary(">=", names[0], names[2]))
    values = tuple([ir.Select(first, names[k], names[k + 2]) for k in range(2)])
    return ir.Combine("larger", tuple(names[:2]), tuple(names[2:]), (let,), values)


def parsed() -> ir.Kernel:
    a, c, n = parameters()
    scale = v("scale", f32)
    row, col, p = v("row"), v("col"), v("p")
    sa = Tensor("s", f32, (32, 8), ir.SHARED, constant=True)
    acc = Tensor("acc", f32, (32, 32), ir.TILE, owners=OWN)
    total = Tensor("total", f32, (32,), ir.TILE, owners=OWN.project((0,)))
    prefix = Tensor("prefix", f32, (32, 32), ir.TILE, owners=OWN)
    peak = Tensor("peak", f32, (32,), ir.TILE, owners=OWN.project((0,)))
    other = Tensor("s", f32, (8, 32), ir.SHARED)
    cell = Tensor("cell", i64, (), ir.LOCAL)
    i, q = v("i"), v("q")
    inside = Binary("and", Binary("<", add(row, i), constant(64)), Binary("<", add(p, q), n))
    load = ir.Select(inside, Read(a, (add(row, i), add(p, q))), Constant(0.0, f32))
    x, y, k = v("i"), v("j"), v("k")
    old = v("old", f32)
    work = ir.Each(
        (x, y),
        OWN,
        None,
        ir.Sequence(
            (
                ir.For(
                    k,
                    constant(0),
                    constant(8),
                    1,
                    Store(
                        acc,
                        (x, y),
                        ir.Fused(Read(sa, (x, k)), Read(other, (k, y)), Read(acc, (x, y))),
                    ),
                    "unroll",
                ),
                ir.Atomic("max", c, (x, y), Constant(-0.5, f32), old),
                ir.If(
                    Binary("<", old, Constant(float("inf"), f32)),
                    Store(acc, (x, y), ir.Unary("-", old)),
                    ir.If(
                        ir.Unary("not", Constant(True, boolean)),
                        ir.Print("old {} at {}", (old, x)),
                        ir.Sequence(()),
                    ),
                ),
            )
        ),
    )
    u, w = v("u"), v("w")
    body = ir.Sequence(
        (
            ir.Allocate(acc, Constant(float("nan"), f32)),
            ir.Allocate(other),
            ir.Allocate(total),
            ir.Allocate(prefix),
            ir.Allocate(peak),
            ir.Allocate(cell, constant(3)),
            ir.While(Binary(">", Read(cell, ()), constant(0)), Store(cell, (), constant(0))),
            ir.Pipeline(
                p,
                n,
                8,
                2,
                ir.Sequence((ir.Allocate(sa), ir.Move(sa, (i, q), (i, q), (32, 8), load), work)),
                "cp.async",
                True,
            ),
            ir.Mma(
                acc,
                ir.Operand(other, (constant(0), constant(0)), (32, 8), True),
                ir.Operand(other, (constant(0), constant(0)), (8, 32)),
                by=bf16,
            ),
            ir.Reduce((total,), (acc,), 1, "max"),
            ir.Scan((prefix,), (acc,), 0, "+", exclusive=True),
            ir.Reduce((total, peak), (acc, acc), 1, larger()),
            ir.Assert(Binary("!=", row, constant(-1)), 'the "row" is\nthere'),
            ir.Breakpoint(),
            ir.Move(
                c,
                (add(row, u), add(col, w)),
                (u, w),
                (32, 32),
                Binary("*", Read(acc, (u, w)), scale),
                Binary("<", add(row, u), constant(64)),
            ),
        )
    )
    block_rows = v("rows")
    grid = ir.Grid(
        (row, col),
        (64, block_rows),
        (32, 32),
        body,
        ("grouped", 8),
        persistent=True,
        cluster=(2, 1),
    )
    rows = ir.Let(block_rows, Binary("//", add(n, constant(15)), constant(16)))
    top = ir.Sequence((rows, grid))
    return ir.Kernel("parsed", (a, c, scale), (n,), 32, top)


def selected() -> ir.Kernel:
    a, c, n = parameters()
    acc = Tensor("acc", f32, (32, 32), ir.TILE, owners=OWN)
    left = Tensor("left", f16, (32, 16), ir.SHARED)
    i, j = v("i"), v("j")
    t, h = v("t"), v("h")
    body = ir.Sequence(
        (
            ir.Allocate(acc, Constant(float(np.float32(1e-5)), f32)),
            ir.Allocate(left),
            ir.Mma(
                acc,
                ir.Operand(left, (constant(0), constant(0)), (32, 16)),
                ir.Operand(left, (constant(0), constant(0)), (16, 32), True),
                "mma.sync.m16n8k16.f16",
            ),
            ir.Each((t,), spatial(1) * repeat(4), constant(0), ir.Print("t {}", (t,))),
            ir.Each((h,), replicate(32) * repeat(2), None, ir.Sequence(())),
            ir.Move(c, (i, j), (i, j), (32, 32), Read(acc, (i, j)), None, OWN, "vector 4"),
        )
    )
    return ir.Kernel("selected", (a, c), (n,), 32, body, "selected", "cpu")


def pipelined() -> ir.Kernel:
    a, c, n = parameters()
    ring_tensor = Tensor("sa", f32, (3, 32, 8), ir.SHARED)
    full = Tensor("full", u64, (3,), ir.BARRIER)
    ring = ir.Ring("ring", (ring_tensor,), 3, "tma")
    worker, k, step, i, j = v("worker"), v("k"), v("k"), v("i"), v("j")
    slot = Binary("%", k, constant(3))
    producer = ir.For(
        k,
        constant(0),
        n,
        8,
        ir.Sequence(
            (
                ir.RingStep("acquire", ring, k),
                ir.Do("mbarrier.expect", (ir.Address(full, (slot,)), constant(1024))),
                ir.RingStep("commit", ring, k),
            )
        ),
    )
    consumer = ir.For(
        step,
        constant(0),
        n,
        8,
        ir.Sequence(
            (
                ir.RingStep("wait", ring, step),
                ir.Each((i, j), ROWS, worker, ir.Sequence(())),
                ir.RingStep("release", ring, step),
            )
        ),
    )
    body = ir.Sequence(
        (
            ir.Allocate(ring_tensor),
            ir.Allocate(full),
            ir.Roles(
                (
                    ir.Role("consumer", 0, 32, consumer),
                    ir.Role("the producer", 32, 32, producer),
                )
            ),
        )
    )
    return ir.Kernel("pipelined", (a, c), (n,), 32, body, "pipelined", "cuda", 32, worker=worker)


def synchronized() -> ir.Kernel:
    a, c, n = parameters()
    shared = Tensor("shared", f32, (32, 8), ir.SHARED, swizzle=ir.Swizzle(2, 0, 3), offset=1024)
    there = Tensor("there", f32, (32, 8), ir.SHARED, swizzle=ir.Swizzle(2, 0, 3))
    worker, got = v("worker"), v("got", f32)
    i = v("i")
    body = ir.Sequence(
        (
            ir.Allocate(shared),
            ir.Each((i,), spatial(32), None, Store(shared, (i, constant(0)), Constant(2.0, f32))),
            ir.Barrier("block", 'write of "shared" (line 3) before its read'),
            ir.Barrier("warp"),
            ir.Barrier("grid"),
            ir.Do("cluster.arrive", ()),
            ir.Peer(there, shared, Binary("%", worker, constant(2))),
            Store(there, (worker, constant(1)), Constant(2.0, f32)),
            ir.Do("shuffle.xor", (Constant(1.0, f32), constant(16)), got),
            ir.If(Binary("==", worker, constant(0)), Store(c, (worker, constant(0)), got)),
        )
    )
    return ir.Kernel(
        "synchronized", (a, c), (n,), 32, body, "synchronized", cluster=2, worker=worker
    )


def scalar() -> ir.Kernel:
    a, c, n = parameters()
    worker, block = v("worker"), v("block")
    table = ir.Table("table", np.array([0, 3, -1, 2], np.int64))
    registers = Tensor("registers", f32, (32,), ir.REGISTER)
    s = v("s")
    inner = v("x")
    body = ir.Sequence(
        (
            ir.Allocate(registers, Constant(-0.0, f32)),
            ir.Sequence((ir.Let(inner, ir.Lookup(table, worker)),)),
            ir.For(
                s,
                constant(31),
                constant(-1),
                -1,
                Store(
                    registers,
                    (s,),
                    ir.Inline(SQUARE_ROOT, (ir.Cast(ir.Unary("-", Constant(3, i64)), f32),)),
                ),
            ),
            ir.Barrier("block"),
            Store(c, (block, worker), ir.Unary("exp", ir.Bitcast(Constant(3, i32), f32))),
        )
    )
    blocks = Binary("//", add(n, constant(63)), constant(64))
    return ir.Kernel(
        "scalar", (a, c), (n,), 32, body, "scalar", worker=worker, block=block, blocks=blocks
    )


def lean() -> ir.Kernel:
    a, c, n = parameters()
    worker, block = v("worker", i32), v("block", i32)
    i, base = v("i", i32), v("base", i32)
    body = ir.Sequence(
        (
            ir.Let(base, add(Binary("*", block, Constant(2048, i32)), worker)),
            ir.For(
                i,
                Constant(0, i32),
                Constant(4, i32),
                1,
                Store(c, (add(base, i),), Read(a, (add(base, i),))),
                "vector",
            ),
        )
    )
    return ir.Kernel("lean", (a, c), (n,), 32, body, "lean", "sm_90a", worker=worker, block=block)


PROGRAMS = (parsed, selected, pipelined, synchronized, scalar, lean)
