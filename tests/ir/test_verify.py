"""What the verifier accepts, and that it refuses each broken rule with its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import get_args

import pytest

from taskc.errors import InternalError
from taskc.ir import nodes as ir, parse, specification, to_text
from taskc.ir.mapping import repeat, spatial
from taskc.ir.nodes import Binary, Constant, Read, Store, Tensor, Variable, constant
from taskc.ir.types import f32, i32, i64, u8
from taskc.ir.verify import verify
from tests.counting import instructions
from tests.ir.stage_programs import PROGRAMS


@pytest.mark.parametrize("build", PROGRAMS, ids=lambda build: build.__name__)
def test_programs_in_order_pass(build: Callable[[], ir.Kernel]) -> None:
    verify(build())
    verify(parse(to_text(build())))


def test_every_node_type_and_scope_has_its_stages() -> None:
    for what in (*get_args(ir.Statement), *get_args(ir.Expression), *ir.SCOPES):
        first, last = specification.stages_of(what)
        assert 0 <= first <= last < len(ir.STAGES)


def refused(kernel: ir.Kernel) -> str:
    with pytest.raises(InternalError) as caught:
        verify(kernel)
    assert caught.value.ir == to_text(kernel)
    return caught.value.message


def text(body: str, stage: str = "parsed") -> ir.Kernel:
    """A kernel of 32 workers, with the usual tensors, around the lines of a body."""
    lines = [
        "kernel f[m](a: f32[8, 32], c: out f32[8, 32], h: inout i64[m], n: i64, r: f32)",
        f" workers=32 stage={stage}:\n",
        *(f"    {line}\n" for line in body.splitlines()),
    ]
    return parse("".join(lines))


_CLUSTER = "grid g in 8 by 1 cluster=2:\n    shared s: f32[4]\n"
_SNIPPET = "snippet f(x: i32) = x"
EACH = "each (i, j) in repeat(8, 1).spatial(1, 32):\n    "
TILE = "tile t: f32[8, 32] by repeat(8, 1).spatial(1, 32)\n"
TOTAL = "tile s: f32[8] by replicate(32).repeat(8)\n"


@pytest.mark.parametrize(
    ("stage", "body", "rule"),
    [
        # names
        ("parsed", "let y = n\nlet z = r + y.to(f32) + 1.0\nc[0, 0] = z", None),
        ("parsed", "each i in spatial(32):\n    c[0, i] = a[0, i]", None),
        # types
        ("parsed", "let y = n + r", "the operands of `n + r` have one type, not i64 and f32"),
        ("parsed", "let y = r & r", "'&' is not defined on f32"),
        ("parsed", "let y = n / 2", "'/' is not defined on i64"),
        ("parsed", "let y = not n", "'not' is not defined on i64"),
        ("parsed", "let y = sqrt(n)", "'sqrt' is not defined on i64"),
        ("parsed", "let y: f32 = n", "a variable and its value have one type, not f32 and i64"),
        ("parsed", "let y = select(n, 1, 2)", "a condition and its meaning have one type"),
        ("parsed", "let y = select(n < 1, n, r)", "the branches of a select have one type"),
        ("parsed", "let y = fma(n, n, n)", "a fused multiply-add is not defined on i64"),
        ("parsed", "let y = fma(r, r, n)", "the operands of a fused multiply-add have one type"),
        (
            "parsed",
            "if n:\n    pass",
            "a condition and its meaning have one type, not i64 and bool",
        ),
        ("parsed", "while r < 1.0 and n:\n    pass", "the operands of `r < 1.0 and n`"),
        ("parsed", 'assert n, "n"', "a condition and its meaning have one type"),
        ("parsed", "c[r, 0] = 1.0", "an index is i64, not f32"),
        ("parsed", "c[i32(1), 0] = 1.0", "an index is i64, not i32"),
        ("parsed", "let y = a[0, n.to(i32)]", "an index is i64, not i32"),
        ("parsed", "c[0, 0] = n", "c and what is stored have one type, not f32 and i64"),
        ("parsed", "for i: i32 in range(n, 8):\n    pass", "a loop's variable and its bounds"),
        ("parsed", "let y = r.to(f8e4m3)\nlet z = y + y", "'+' is not defined on f8e4m3"),
        # elements and writes
        ("parsed", "a[0, 0] = 1.0", "a is only read"),
        (
            "parsed",
            "constant shared s: f32[4]\ns[0] = 1.0",
            "the block value s is written by a move",
        ),
        ("parsed", "constant shared s: f32[4]", "the block value s is written once, not 0 times"),
        (
            *("parsed", "constant shared s: f32[4]\n" + 2 * "move s[i] = 1.0 for i in 4\n"),
            "the block value s is written once, not 2 times",
        ),
        (
            "scalar",
            "shared s: f32[4] = 0.0",
            "the shared tensor s isn't filled by its allocation, but by stores",
        ),
        # loops and their kinds
        (
            "parsed",
            "for i in unroll(n):\n    pass",
            "the bounds of a loop of kind 'unroll' are con",
        ),
        ("scalar", "for i in vector(4):\n    pass", "a For is no vector loop in the stages parsed"),
        (
            "lean",
            "for i in vector(4):\n    if n == 3:\n        c[i] = 0.0",
            "a vector loop holds names and stores only",
        ),
        ("parsed", "for i in range(0, 8, 0):\n    pass", "a loop's step is not 0"),
        ("parsed", 'print "{} {}", n', "2 places for 1 values"),
        # tensors
        ("parsed", "tile t: f32[8]", "t has owners if and only if it is a tile"),
        ("parsed", "shared t: f32[8] by spatial(8)", "t has owners if and only if it is a tile"),
        ("parsed", "tile t: f32[8] by spatial(8)", "the owners of t are 8 workers of 32"),
        ("parsed", "tile t: f32[8] by spatial(32)", "the owners of t have its shape"),
        ("parsed", "global t: f32[8]", "t is global, so it is a parameter"),
        ("parsed", "shared t: f32[n]", "the shape of t is constant"),
        ("parsed", "shared t: f32[8].at(16)", "a Tensor has no offset in the stages parsed"),
        ("synchronized", "local t: f32[8].at(16)", "t has an offset but is not shared"),
        ("parsed", "shared t: f32[8].laid(spatial(8))", "the layout of t has one worker"),
        ("parsed", "shared t: f32[8, 2].laid(repeat(16))", "the layout of t has its rank"),
        ("parsed", "shared t: f32[8].laid(repeat(4))", "the layout of t covers its shape"),
        (
            "parsed",
            "local t: f32[8] = 1.0\nlocal u: i64 = f32(2.0)",
            "u and its fill have one type",
        ),
        # phases
        ("parsed", EACH + "move c[p, q] = 1.0 for (p, q) in (8, 32)", "a move stands outside map"),
        ("parsed", EACH + "pipeline p in 8 by 1 stages=1:\n        pass", "a pipeline stands outs"),
        ("parsed", EACH + "shared s: f32[4]", "the shared tensor s is allocated outside mapping"),
        (
            "parsed",
            TILE + EACH + "reduce t = + over t axis=0",
            "a reduction stands outside mapping",
        ),
        (
            "parsed",
            "if n < 1:\n    grid i in 8 by 1:\n        pass",
            "there is at most one grid, at",
        ),
        ("parsed", "grid i in 8 by 1:\n    pass\nlet y = n", "beside a grid stand only the Lets"),
        ("parsed", "c[0, 0] = 1.0\ngrid i in 8 by 1:\n    pass", "beside a grid stand only the"),
        ("parsed", "grid i in 8 by 1 order=(1,):\n    pass", "a grid's order names each dimension"),
        ("parsed", "grid i in 8 by 1 cluster=(1, 1):\n    pass", "a cluster has the grid's rank"),
        ("parsed", "grid i in 8 by 0:\n    pass", "a grid's tiles aren't empty"),
        ("parsed", "pipeline p in 8 by 0 stages=1:\n    pass", "a pipeline's step and stages are"),
        ("parsed", "pipeline p in 8 by 1 stages=1 turns=bus:\n    pass", "no turns by 'bus'"),
        ("parsed", "pipeline p in 8 by 1 stages=1 transport=bus:\n    pass", "no transport 'bus'"),
        ("parsed", "each i in spatial(8):\n    pass", "the mapping has 8 workers, the group 32"),
        ("parsed", "each i in spatial(8) on n:\n    pass", None),
        # uniformity
        (
            "parsed",
            TILE + "if t[0, 0] < 1.0:\n    pass",
            "a condition outside mapping loops is the",
        ),
        ("parsed", TILE + "let y = t[0, 0]", "a value outside mapping loops is the same for all"),
        ("parsed", TILE + "t[0, 0] = 1.0", "outside mapping loops nobody owns t's elements"),
        ("parsed", TOTAL + "let y = s[0]\ns[1] = y", None),
        (
            *("parsed", f"local k: i64 = 0\n{EACH}k = i\nfor q in range(k):\n    pass"),
            "bounds outside mapping loops is the same for all workers",
        ),
        (
            *("parsed", f"local k: i64 = 0\nwhile k < 3:\n    {EACH}        k = i"),
            "a condition outside mapping loops is the same for all workers",
        ),
        ("parsed", "local k: i64 = 0\nwhile k < 3:\n    k = k + 1", None),
        ("synchronized", "let o: i64 = atomic h[0] release= 1", "a release has no result"),
        ("parsed", "atomic h[0] += 1", "an atomic stands in a mapping loop"),
        ("parsed", EACH + "atomic a[0, 0] += 1.0", "a is only read"),
        ("parsed", EACH + "local x: i64 = 0\n    atomic x += 1", "x is not shared or global"),
        ("parsed", EACH + "let o: f32 = atomic h[0] += 1", "the atomic's result and its tensor"),
        # whole-block operations
        ("parsed", "move c[i, j] = 1.0 for (i, j) in (8, 32) if n", "a condition and its meaning"),
        ("parsed", "move c[i, j] = 1 + n for (i, j) in (8, 32)", "c and what is moved have one"),
        (
            "selected",
            "move c[i, j] = 1.0 for (i, j) in (8, 32)",
            "a Move has a by in the stages sel",
        ),
        (
            "parsed",
            "move c[i, j] = 1.0 for (i, j) in (8, 32) how=x",
            "a Move has no how in the stag",
        ),
        (
            *("selected", "move c[i, j] = 1.0 for (i, j) in (8, 32) by spatial(8, 4)"),
            "a move's mapping covers its shape",
        ),
        (
            *("selected", "move c[i, j] = 1.0 for (i, j) in (8, 32) by spatial(8, 32)"),
            "a move's mapping has 256 workers of 32",
        ),
        (
            "parsed",
            TILE + "mma t += a[0, 0].as(8, 4) @ a[0, 0].as(8, 32)",
            "the matrices (8, 4) and",
        ),
        (
            "parsed",
            TILE + "mma t += a[0, 0].as(8, 4) @ a[0, 0].as(4, 16)",
            "the accumulator t is 8",
        ),
        ("parsed", "mma c += a[0, 0].as(8, 4) @ a[0, 0].as(4, 32)", "the accumulator c is a tile"),
        (
            "selected",
            TILE + "mma t += a[0, 0].as(8, 4) @ a[0, 0].as(4, 32) onto n > 0 how=fma",
            "only an asynchronous product may not accumulate",
        ),
        (
            "synchronized",
            TILE + "mma t += a[0, 0].as(8, 4) @ a[0, 0].as(4, 32) how=wgmma.m64n8k16.bf16",
            "wgmma.m64n8k16.bf16 is of bf16 and f32",
        ),
        ("parsed", TILE + TOTAL + "reduce s = max over t axis=0", "s has the shape (32,)"),
        ("parsed", TILE + TOTAL + "reduce s = max over t axis=2", "t has no axis 2"),
        (
            "parsed",
            TILE + "reduce c = max over t axis=1",
            "a reduction is from tile to tile, and c",
        ),
        ("parsed", TILE + TOTAL + "scan s = + over t axis=1", "s has the shape (8, 32)"),
        # stages
        (
            "pipelined",
            "pipeline p in 8 by 1 stages=1:\n    pass",
            "Pipeline belongs in the stages pa",
        ),
        ("parsed", "barrier block", "Barrier belongs in the stages pipelined to lean"),
        ("parsed", "do fence.proxy.async()", "Do belongs in the stages selected to lean"),
        ("scalar", "each i in spatial(32):\n    pass", "Each belongs in the stages parsed to sync"),
        (
            "lean",
            "grid i in 8 by 1:\n    pass",
            "Grid belongs in the stages parsed to synchronized",
        ),
        (
            "scalar",
            "tile t: f32[32] by spatial(32)",
            "tile belongs in the stages parsed to synchro",
        ),
        ("parsed", "register t: f32[4]", "register belongs in the stages scalar to lean"),
        ("parsed", "mbarrier t: u64[4]", "barrier belongs in the stages pipelined to lean"),
        ("parsed", "let y = worker", "worker belongs in the stages synchronized to lean"),
        ("pipelined", "let y = block", "block belongs in the stages synchronized to lean"),
        ("parsed", "table t = [1]\nlet y = t[0]", "Lookup belongs in the stages scalar to lean"),
        ("scalar", "register t: f32[4]\nc[0, 0] = t[block]", None),
        ("synchronized", f"{_CLUSTER}    peer p = s at 1\n    p[0] = 1.0", None),
        (
            "synchronized",
            "shared s: f32[4]\npeer p = s at 1",
            "peers are in a cluster, and there is none",
        ),
        (
            "synchronized",
            f"{_CLUSTER}    peer p = s at 1\n    peer q = p at 0",
            "p is a peer's already",
        ),
        ("synchronized", f"{_CLUSTER}    peer p = c at 1", "c has peers, so it is shared"),
        (
            "synchronized",
            f"{_CLUSTER}    mbarrier b: u64[1]\n    peer p = b at 1\n    do mbarrier.arrive(&p[0])",
            None,
        ),
        (
            "synchronized",
            f"{_CLUSTER}    mbarrier b: u64[1]\n    peer p = b at 1\n    do mbarrier.wait(&p[0], 0)",
            "mbarrier.wait takes memory of its own block",
        ),
        (
            "synchronized",
            f"{_CLUSTER}    peer p = s at 1\n    move p[i] = 1.0 for i in 4 by spatial(4)",
            "a move takes memory of its own block",
        ),
        ("synchronized", "do cluster.wait()", "cluster.wait is for clusters, and there is none"),
        ("pipelined", f"{_CLUSTER}    peer p = s at 1", "Peer belongs in the stages synchronized"),
        ("parsed", f'{_SNIPPET} as "mov.b32 %0, %1;"\nlet y = f(1)', None),
        (
            "parsed",
            f'{_SNIPPET} as "mov.b32 %0, %1;"\nlet y = f(n)',
            "the snippet f takes [i32], not [i64]",
        ),
        ("parsed", f'{_SNIPPET} as ""\nlet y = f(1)', "in the snippet f, the text is empty"),
        (
            "parsed",
            'snippet f(x: i32) = x // x as "div.s32 %0, %1, %1;"\nlet y = f(1)',
            "in the snippet f, the meaning divides by what may be 0",
        ),
        (
            "parsed",
            'snippet f(x: i64) = x + n as "add.s64 %0, %1, %1;"\nlet y = f(1)',
            "in the snippet f, the meaning names n, which is no parameter",
        ),
        (
            "parsed",
            'snippet f(x: i8) = x as "mov.b8 %0, %1;"\nlet y = f(1)',
            "in the snippet f, i8 has no register",
        ),
        ("lean", "c[0, 1] = 1.0", "c has one linear index, not 2"),
        ("lean", "let y = a[1, 2]", "a has one linear index, not 2"),
        ("lean", "let y = a[worker.to(i32)]", None),
        ("lean", "let y = a[worker.to(i16)]", "an index is i32 or i64, not i16"),
        (
            "scalar",
            TILE.replace("tile", "register").split(" by")[0] + "\nmma t += a[0, 0].as(8, 4)"
            " @ a[0, 0].as(4, 32)",
            "Mma belongs in the stages parsed to synchronized",
        ),
        # rings, roles, barriers, operations
        (
            *("synchronized", "shared s: f32[2]\nring g = (s) stages=2 transport=tma\nwait g[0]"),
            "RingStep belongs in the stages selected to pipelined",
        ),
        (
            *("pipelined", "shared s: f32[3]\nring g = (s) stages=2 transport=tma\nwait g[0]"),
            "s of the ring g is shared and has 2 slots",
        ),
        (
            *("pipelined", "shared s: f32[2]\nring g = (s) stages=2 transport=bus\nwait g[0]"),
            "the ring g is well-formed",
        ),
        (
            *("synchronized", "roles:\n    role p first=0 workers=32:\n        barrier block"),
            "a role uses no barrier of the block",
        ),
        (
            *("synchronized", "roles:\n    role p first=0 workers=32:\n        barrier grid"),
            "a role uses no barrier of the grid",
        ),
        ("synchronized", "barrier grid", None),
        ("lean", "barrier grid", None),
        (
            *("pipelined", "barrier grid"),
            "a Barrier is of no grid in the stages pipelined to pipelined",
        ),
        (
            "pipelined",
            "roles:\n    role p first=0 workers=8:\n        pass\n"
            "    role q first=4 workers=8:\n        pass",
            "the role q overlaps another",
        ),
        (
            *("pipelined", "roles:\n    role p first=0 workers=64:\n        pass"),
            "the roles take 64 workers of 32",
        ),
        (
            "pipelined",
            "roles:\n    role p first=0 workers=8:\n        each i in spatial(32):\n"
            "            pass",
            "the mapping has 32 workers, the group 8",
        ),
        ("synchronized", "do cp.async.wait(n)", "an operand of cp.async.wait is a constant"),
        ("synchronized", "do cp.async.wait()", "cp.async.wait takes 1 operands, not 0"),
        ("synchronized", "do setmaxnreg(100)", "a worker can't have 100 registers"),
        ("synchronized", "do setmaxnreg(264)", "a worker can't have 264 registers"),
        (
            "synchronized",
            "mbarrier full: u64[1]\ndo mbarrier.init(&full[0], 1048576)",
            "an mbarrier doesn't count to 1048576",
        ),
        ("synchronized", "do mbarrier.arrive(n)", "an operand of mbarrier.arrive is a place"),
        (
            "synchronized",
            "let y: i64 = do vote.all(True)",
            "the result of vote.all and its variable",
        ),
        (
            "synchronized",
            "let y = &a[0, 0]",
            "an address is an operand of an operation and nothing",
        ),
        ("synchronized", "if worker < 3:\n    barrier block", None),
        (
            *("synchronized", "if worker < 3:\n    each i in spatial(32):\n        pass"),
            "a mapping loop is not in divergent control flow",
        ),
        (
            "synchronized",
            "local k: i64 = 0\nk = worker\nwhile k < 3:\n"
            "    move c[i, j] = 1.0 for (i, j) in (8, 32) by repeat(8, 1).spatial(1, 32)",
            "a move is not in divergent control flow",
        ),
    ],
)
def test_rules(stage: str, body: str, rule: str | None) -> None:
    kernel = text(body, stage)
    if rule is None:
        verify(kernel)
    else:
        assert refused(kernel).startswith(f"f breaks a rule of stage {stage}: {rule}")


def test_a_message_shows_the_statement_and_its_place() -> None:
    assert refused(text("let y = 1\nc[0, y] = n")) == (
        "f breaks a rule of stage parsed: c and what is stored have one type, not f32 and i64,"
        " in `c[0, y] = n` (<ir>:3:5)"
    )


# What the text can't say.


def kernel(*statements: ir.Statement, stage: str = "parsed") -> ir.Kernel:
    return ir.Kernel("f", (), (), 32, ir.Sequence(statements), stage)


def test_a_name_is_bound_before_it_is_used() -> None:
    y, x = Variable("y"), Tensor("x", f32, (8,), ir.SHARED)
    message = "a name is used within its scope, but y is used without being bound"
    assert message in refused(kernel(ir.Let(Variable("z"), y), ir.Let(y, constant(1))))
    assert "x is used without being bound" in refused(
        kernel(Store(x, (constant(0),), Constant(1.0, f32)), ir.Allocate(x))
    )
    assert "x is used without being bound" in refused(
        kernel(ir.Let(Variable("z", f32), Read(x, (constant(0),))))
    )


def test_a_name_is_used_within_its_scope() -> None:
    y, z = Variable("y"), Variable("z")
    inner = ir.Sequence((ir.Let(y, constant(1)),))
    assert "y is used after its scope has ended" in refused(kernel(inner, ir.Let(z, y)))
    loop = ir.For(y, constant(0), constant(8), 1, ir.Sequence(()))
    assert "y is used after its scope has ended" in refused(kernel(loop, ir.Let(z, y)))
    x = Tensor("x", f32, (8, 8), ir.SHARED)
    move = ir.Move(x, (y, y), (y,), (8,), Constant(0.0, f32))
    late = Store(x, (y, y), Constant(0.0, f32))
    assert "y is used after its scope has ended" in refused(kernel(ir.Allocate(x), move, late))


def test_a_name_is_bound_once() -> None:
    y, x = Variable("y"), Tensor("x", f32, (8,), ir.SHARED)
    once = ir.Let(y, constant(1))
    assert "a name is bound once, but y is bound again" in refused(kernel(once, once))
    scopes = ir.Sequence((once,)), ir.Sequence((once,))
    assert "y is bound again" in refused(kernel(*scopes))
    assert "x is bound again" in refused(kernel(ir.Allocate(x), ir.Allocate(x)))


def test_as_many_indices_as_dimensions() -> None:
    x = Tensor("x", f32, (8, 8), ir.SHARED)
    store = Store(x, (constant(0),), Constant(1.0, f32))
    assert "x has 2 dimensions, but 1 indices" in refused(kernel(ir.Allocate(x), store))
    read = ir.Print("{}", (Read(x, (constant(0),)),))
    assert "x has 2 dimensions, but 1 indices" in refused(kernel(ir.Allocate(x), read))


@pytest.mark.parametrize(
    ("value", "dtype"), [(0.1, f32), (300, u8), (2**63, i64), (1.5, i32), (True, i64)]
)
def test_a_constant_is_a_value_of_its_type(value: float, dtype: ir.DType) -> None:
    let = ir.Let(Variable("x", dtype), Constant(value, dtype))
    assert f"a constant is of its type, but {value!r} is no {dtype}" in refused(kernel(let))


def test_what_is_no_node_is_refused() -> None:
    assert "'x' is no expression" in refused(kernel(ir.Print("{}", ("x",))))  # type: ignore[arg-type]
    assert "this is no statement" in refused(kernel("x"))  # type: ignore[arg-type]
    plus = ir.Let(Variable("y"), Binary("plus", constant(1), constant(1)))
    assert "there is no operator 'plus' here" in refused(kernel(plus))


def test_attributes_of_the_kernel() -> None:
    program = kernel(ir.Let(Variable("y"), constant(1)))
    assert "there is no stage 'late'" in refused(replace(program, stage="late"))
    assert "at least one worker" in refused(replace(program, workers=0))
    assert "a Kernel has no helpers in the stages parsed to parsed" in refused(
        replace(program, helpers=32)
    )
    assert "a Kernel has no blocks in the stages parsed to pipelined" in refused(
        replace(program, blocks=constant(4))
    )
    shared = Tensor("x", f32, (4,), ir.SHARED)
    assert "the parameter x is global" in refused(replace(program, parameters=(shared,)))


def test_a_deep_expression_is_no_problem() -> None:
    n = Variable("n")
    total: ir.Expression = n
    for i in range(5000):
        total = Binary("+", total, constant(i))
    verify(replace(kernel(ir.Let(Variable("x"), total)), parameters=(n,)))


def test_its_work_grows_as_the_nodes_do() -> None:
    own = spatial(4, 8) * repeat(2, 2)
    x = Tensor("x", f32, (8, 16), ir.GLOBAL, role="inout")

    def loops(count: int) -> ir.Kernel:
        statements = []
        for _ in range(count):
            i, j = Variable("i"), Variable("j")
            place = Binary("%", Binary("+", i, constant(1)), constant(8)), j
            statements.append(ir.Each((i, j), own, None, Store(x, place, Read(x, (i, j)))))
        return replace(kernel(*statements), parameters=(x,))

    few, many = (instructions(partial(verify, loops(count))) for count in (100, 200))
    assert many < 2.2 * few
    assert few < 100 * 11 * 400  # loops of 11 nodes; about three times what it takes
