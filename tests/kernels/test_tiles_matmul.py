"""Matrix products by blocks of many workers, on the smallest that exercise every stage and edge.

Nothing here runs on a GPU: kernels are checked in the simulator, after every pass or at the end of stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import bf16, f8e4m3, f16, f32, i8, i32, repeat, spatial, tf32, u8
from taskc.backend import sim
from taskc.ir import nodes as ir
from taskc.ir.arithmetic import convert
from taskc.ir.rewrite import walk
from taskc.kernels.matmul import Tiling, matmul
from taskc.kernels.matmul.gpu import is_worth_copying
from taskc.passes.pipeline import lower
from taskc.runtime.checking import CallExamination, examine, for_target
from tests.kernels.problems import copied, gemm, tiling_of

SM_80 = tc.machine("sm_80")
FRAGMENT = repeat(2, 1) * spatial(8, 4) * repeat(1, 2)


@tc.function
def relu(x):  # type: ignore[no-untyped-def]
    return max(x, 0)


ENDS = ("parsed", "synchronized", "lean")


def tiling(dtype: tc.DType, *, stages: int = 3, parts: int = 1) -> Tiling:
    """Two warps, 32 x 16."""
    return Tiling(spatial(2, 1) * repeat(1, 2) * FRAGMENT, 64 // dtype.nbytes, stages, parts=parts)


SQUARES = Tiling(spatial(1, 2) * repeat(4, 1) * spatial(4, 8) * repeat(1, 4), 8, 3)
ACROSS = Tiling(spatial(1, 2) * repeat(4, 2) * spatial(4, 8), 8, 3)


def operands(m: int, n: int, k: int, dtype: tc.DType, **options: Any) -> list[Any]:
    """Small whole numbers, whose sums are exact in any order."""
    random = np.random.default_rng(m * 7 + n)
    shapes = [(k, m) if options.get("transpose_a") else (m, k)]
    shapes += [(n, k) if options.get("transpose_b") else (k, n)]
    made = [random.integers(-4, 5, shape).astype(dtype.numpy) for shape in shapes]
    if options.get("bias"):
        made.append(random.integers(-4, 5, n).astype((options.get("total") or dtype).numpy))
    return made


def expected(arguments: list[Any], **options: Any) -> Any:
    a, b, *rest = (x.astype(np.float64) for x in arguments)
    a = a.T if options.get("transpose_a") else a
    b = b.T if options.get("transpose_b") else b
    return a @ b + (rest[0] if rest else 0)


def checked(
    shape: tuple[int, int, int],
    plan: Tiling,
    *,
    stages: Any = ENDS,
    target: str = "sm_80",
    extents: tuple[Any, Any, Any] | None = None,
    **options: Any,
) -> Sequence[CallExamination]:
    """No findings after the passes, no conflict in shared memory, and the right numbers."""
    m, n, k = shape
    machine = tc.machine(target)
    kernel = matmul(*(extents or shape), machine=machine, tiling=plan, **options)
    activation = options.pop("activation", None)
    arguments = operands(m, n, k, **options)
    examination = examine(kernel, arguments, stages=stages, target=target)
    findings, calls = examination.findings, examination.calls
    assert not [f for f in findings if f.kind != "uncoalesced"], findings
    made = calls[-1].results[-1].astype(np.float64)
    whole = expected(arguments, **options)
    if activation is relu:
        whole = np.maximum(whole, 0)
    np.testing.assert_array_equal(made, whole)
    for call in calls:
        shared = [t.ways for t in call.steps[-1].report.accesses if t.scope == ir.SHARED]
        assert max(shared, default=1) == 1
    return calls


def operations(examination: CallExamination) -> set[str]:
    """What the kernel does with the target's operations at the end."""
    body = examination.steps[-1].kernel.body
    return {node.operation for node in walk(body) if isinstance(node, ir.Do)}


def test_after_every_pass() -> None:
    """Three stages go round twice; the last block has one row, one column of pairs, and a part of k."""
    (made,) = checked((33, 18, 168), tiling(f16), stages="all", dtype=f16, total=f32)
    assert operations(made) == {
        "cp.async",
        "cp.async.commit",
        "cp.async.wait",
        "ldmatrix.x4",
        "ldmatrix.x4.trans",
        "mma.sync.m16n8k16.f16",
    }
    assert not made.steps[-1].kernel.notes
    stores = [s for s in walk(made.steps[-1].kernel.body) if isinstance(s, ir.For)]
    assert "vector" in {loop.kind for loop in stores}


CASES: dict[str, tuple[tuple[int, int, int], Tiling, dict[str, Any]]] = {
    "f16 transposed": (
        (34, 16, 166),
        tiling(f16),
        {"dtype": f16, "total": f32, "transpose_a": True, "transpose_b": True, "bias": True},
    ),
    "bf16 to bf16": (
        (32, 17, 160),
        tiling(bf16),
        {"dtype": bf16, "total": f32, "result": bf16, "bias": True, "activation": relu},
    ),
    "i8": ((33, 16, 324), tiling(i8), {"dtype": i8, "total": i32, "transpose_b": True}),
    "tf32": ((33, 16, 84), tiling(tf32), {"dtype": tf32, "total": f32}),
    "tf32 of columns": (
        (32, 17, 84),
        tiling(tf32),
        {"dtype": tf32, "total": f32, "transpose_b": True},
    ),
    "f32": ((17, 66, 42), SQUARES, {"dtype": f32}),
    "f32 of columns": ((17, 33, 44), ACROSS, {"dtype": f32, "transpose_b": True}),
    "odd": ((31, 15, 161), tiling(f16), {"dtype": f16, "total": f32}),
    "two stages": ((32, 16, 136), tiling(f16, stages=2), {"dtype": f16, "total": f32}),
    "shorter than a step": ((32, 16, 8), tiling(f16), {"dtype": f16, "total": f32}),
}


@pytest.mark.parametrize(("shape", "plan", "options"), CASES.values(), ids=list(CASES))
def test_variants(shape: tuple[int, int, int], plan: Tiling, options: dict[str, Any]) -> None:
    (made,) = checked(shape, plan, **options)
    products = {name for name in operations(made) if name.startswith("mma.sync")}
    assert len(products) == (options["dtype"] is not f32)


def test_of_tf32_the_low_bits_do_not_count() -> None:
    """At any stage; what doesn't count may be what hardware drops, or be rounded away before."""
    random = np.random.default_rng(7)
    given = [random.normal(size=shape).astype(np.float32) for shape in ((33, 36), (16, 36))]
    upper = [(x.view(np.uint32) & 0xFFFFE000).view(np.float32) for x in given]
    total = np.zeros((33, 16), np.float32)
    for q in range(36):  # a product of two such numbers is exact in f32
        exact = upper[0][:, None, q].astype(np.float64) * upper[1][None, :, q] + total
        total = exact.astype(np.float32)
    for m, plan in ((33, tiling(tf32)), (1, None)):
        kernel = matmul(
            m, 16, 36, machine=SM_80, tiling=plan, dtype=tf32, total=f32, transpose_b=True
        )
        made = examine(kernel, [given[0][:m], given[1]], stages=ENDS, target="sm_80")
        assert not [f for f in made.findings if f.severity == "error"]
        np.testing.assert_allclose(made.results[-1], total[:m], atol=1e-5)
        if plan is not None:
            np.testing.assert_array_equal(made.results[-1], total)


@pytest.mark.parametrize("transpose_b", [False, True])
def test_operands_are_rounded_on_their_way(transpose_b: bool) -> None:
    """To the nearest, between the registers in which they come and those that are multiplied."""
    random = np.random.default_rng(8)
    a, b = (random.normal(size=shape).astype(np.float32) for shape in ((33, 36), (36, 17)))
    left, right = (convert(x, f32, tf32).astype(np.float64) for x in (a, b))
    total = np.zeros((33, 17), np.float32)
    for q in range(36):
        total = (left[:, q, None] * right[None, q] + total).astype(np.float32)
    options = {"dtype": f32, "by": tf32, "transpose_b": transpose_b}
    given = np.ascontiguousarray(b.T) if transpose_b else b
    for target in ("sm_80", "sm_90a"):
        kernel = matmul(33, 17, 36, machine=tc.machine(target), tiling=tiling(tf32), **options)
        made = examine(kernel, [a, given], stages=ENDS, target=target)
        assert not [f for f in made.findings if f.severity == "error"]
        assert {"mma.sync.m16n8k8.tf32", "ldmatrix.x4"} <= operations(*made.calls)
        np.testing.assert_array_equal(made.results[-1], total)
    vector = matmul(1, 17, 36, machine=SM_80, **options)
    made = examine(vector, [a[:1], given], stages=ENDS, target="sm_80")
    np.testing.assert_allclose(made.results[-1], total[:1], atol=2e-5)  # in another order
    for target in ("sm_80", "sm_90a"):
        types, layout = (f32, f32, f32), {"transpose_b": True}
        plan = tiling_of(4096, 4096, 4096, types, tc.machine(target), by=tf32, **layout)
        assert not plan.specialize
    with pytest.raises(ValueError, match="a processor multiplies f32 as it is, not by tf32"):
        matmul(8, 8, 8, by=tf32)


def test_sizes_known_at_the_call() -> None:
    extents = tc.dim("m"), tc.dim("n", multiple=2), tc.dim("k", multiple=8)
    (made,) = checked((33, 16, 168), tiling(f16), extents=extents, dtype=f16, total=f32)
    assert "cp.async" in operations(made)


def test_parts_of_long_sums() -> None:
    """The second part has fewer steps than the first, and an edge."""
    calls = checked((33, 16, 232), tiling(f16, parts=2), dtype=f16, total=f32, bias=True)
    assert len(calls) == 2


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_rows_of_odd_lengths_are_padded(transpose_a: bool, transpose_b: bool) -> None:
    """Then they travel as rows of even ones do, and what is behind them adds nothing."""
    options = {"dtype": f16, "total": f32, "transpose_a": transpose_a, "transpose_b": transpose_b}
    program = copied(
        gemm(33, 19, 45, (f16, f16, f32), bias=True, transpose_a=transpose_a, transpose_b=transpose_b),
        tiling(f16), SM_80,
    )  # fmt: skip
    arguments = operands(33, 19, 45, bias=True, **options)
    examined = examine(program, arguments, stages=ENDS, target="sm_80")
    assert not [f for f in examined.findings if f.kind != "uncoalesced"], examined.findings
    names = [call.steps[-1].kernel.name for call in examined.calls]
    assert names == ["pad", "pad", "matmul"]
    product = examined.calls[-1]
    assert {"cp.async", "ldmatrix.x4"} <= {
        name.removesuffix(".trans") for name in operations(product)
    }
    made = product.results[-1].astype(np.float64)
    np.testing.assert_array_equal(made, expected(arguments, **options))


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_operands_of_bytes_get_neighbours_along_k(transpose_a: bool, transpose_b: bool) -> None:
    """By copies that are turned, and padded where k is odd: whole lines are moved, and nothing byte by byte."""
    layout = {"transpose_a": transpose_a, "transpose_b": transpose_b}
    program = copied(gemm(33, 19, 150, (u8, i8, i32), **layout), tiling(i8), SM_80)
    arguments = operands(33, 19, 150, dtype=i8, **layout)
    arguments[0] = arguments[0].view(np.uint8)
    examined = examine(program, arguments, stages=ENDS, target="sm_80")
    assert not [f for f in examined.findings if f.severity == "error"], examined.findings
    for call in examined.calls:
        shared = [a.ways for a in call.steps[-1].report.accesses if a.scope == ir.SHARED]
        assert max(shared, default=1) <= 2
    names = [call.steps[-1].kernel.name for call in examined.calls]
    turned = [["transpose"] * transpose_a, ["transpose"] * (not transpose_b)]
    assert names == [*turned[0], "pad", *turned[1], "pad", "matmul"]
    assert {"cp.async", "ldmatrix.x4", "mma.sync.m16n8k32.u8.i8"} <= operations(examined.calls[-1])
    made = examined.calls[-1].results[-1]
    np.testing.assert_array_equal(made, expected(arguments, **layout))


@tc.function
def scaled(x):  # type: ignore[no-untyped-def]
    return x.to(f32) * 0.125


@pytest.mark.parametrize("result", [i8, f32])
@pytest.mark.parametrize("m", [1, 33])
def test_bytes_of_both_kinds_and_back(m: int, result: tc.DType) -> None:
    """Sums of i32 are scaled, and become f32, or i8 that saturate."""
    random = np.random.default_rng(3)
    a = random.integers(0, 256, (m, 100)).astype(np.uint8)
    b = random.integers(-128, 128, (20, 100)).astype(np.int8)
    bias = random.integers(-1000, 1000, 20).astype(np.int32)
    kernel = matmul(
        m, 20, 100, machine=SM_80, tiling=tiling(i8) if m > 1 else None, dtype=u8, right=i8, total=i32,
        result=result, transpose_b=True, bias=True, activation=scaled,
    )  # fmt: skip
    made = examine(kernel, [a, b, bias], stages=ENDS, target="sm_80")
    assert not [f for f in made.findings if f.severity == "error"]
    sums = (a.astype(np.int64) @ b.astype(np.int64).T + bias) * 0.125
    if result is i8:
        sums = np.clip(np.trunc(sums), -128, 127)
        assert {-128, 127} <= set(sums.reshape(-1))
    np.testing.assert_array_equal(made.results[-1], sums)


def test_what_is_turned() -> None:
    def is_copied(
        types: Any, machine: tc.Machine, m: int = 8192, k: int = 4096, **layout: bool
    ) -> bool:
        return is_worth_copying(gemm(m, 4096, k, types, **layout), machine)

    hopper = tc.machine("sm_90a")
    for types in ((i8, i8, i32), (u8, i8, i32)):
        assert is_copied(types, SM_80)
        assert not is_copied(types, SM_80, transpose_b=True)
        assert is_copied(types, SM_80, transpose_a=True, transpose_b=True)
        assert not is_copied(types, SM_80, k=256)
    for types in ((tf32, tf32, f32), (f8e4m3, f8e4m3, f32)):
        assert is_copied(types, hopper)
        assert not is_copied(types, SM_80)  # which has no f8, and takes tf32 by words
        made = matmul(8192, 1024, 1024, dtype=types[0], total=f32, machine=hopper)
        kernels = [lower(replace(kernel.ir, target="sm_90a")) for kernel in made.kernels]
        assert [kernel.name for kernel in kernels] in (
            ["transpose", "matmul"],
            ["transpose", "partial", "added"],
        )
        assert any(name.startswith("wgmma") for name in products_of(kernels[1]))
        assert not kernels[1].notes
    assert not is_copied((tf32, tf32, f32), hopper, m=4096)  # registers hold b
    assert is_copied((tf32, tf32, f32), hopper, m=4096, transpose_a=True)
    assert not is_copied((f16, f16, f32), hopper)
    assert not is_copied((f32, f32, f32), hopper)


def products_of(kernel: ir.Kernel) -> set[str]:
    return {node.operation for node in walk(kernel.body) if isinstance(node, ir.Do)}


def test_what_is_padded() -> None:
    def is_padded(m: Any, n: Any, k: Any, **layout: bool) -> bool:
        return is_worth_copying(gemm(m, n, k, (f16, f16, f32), **layout), SM_80)

    assert is_padded(2039, 2039, 2039)
    assert not is_padded(2039, 2040, 2040)  # no row of a or b is that long
    assert is_padded(2039, 2040, 2040, transpose_a=True)
    assert not is_padded(2040, 2039, 2040, transpose_b=True)
    assert not is_padded(64, 2039, 2039)
    assert not is_padded(tc.dim("m"), 2039, 2039)
    names = [kernel.name for kernel in matmul(600, 520, 515, machine=SM_80).kernels]
    assert names.count("pad") == 1  # b's rows lie well


def test_what_is_chosen() -> None:
    """Large blocks for large products, parts of k where few blocks would be left, rows for few rows."""
    types = f16, f16, f32
    large = tiling_of(4096, 4096, 4096, types, SM_80)
    assert large.own.shape == (128, 256)
    assert large.parts == 1
    few = tiling_of(1, 4096, 4096, types, SM_80)
    assert few.own.shape[0] == 16
    assert few.parts > 1
    assert tiling_of(128, 768, 3072, types, SM_80).parts > 1
    for name in ("sm_80", "sm_89", "sm_90a"):
        machine = tc.machine(name)
        for dtypes in ((f16, f16, f32), (tf32, tf32, f32), (i8, i8, i32), (f32, f32, f32)):
            for shape in ((4096, 4096, 4096), (1, 1000, 2048), (2039, 2039, 2039)):
                plan = tiling_of(*shape, dtypes, machine)
                assert plan.stages >= 3
                assert plan.bytes(dtypes[0].nbytes) <= machine.fast_memory


def test_what_was_fastest_is_chosen() -> None:
    """Of all plans that were measured on an H100."""
    hopper = tc.machine("sm_90a")

    def chosen(dtype: tc.DType, *shape: int) -> tuple[Any, ...]:
        result = bf16 if dtype is bf16 else f32
        plan = tiling_of(*shape, (dtype, dtype, f32), hopper, result=result)
        return plan.block, plan.own.workers, plan.consumers, plan.parts

    for shape in ((4096, 4096, 4096), (8192, 8192, 8192), (8192, 8192, 1024), (16384, 768, 768)):
        assert chosen(bf16, *shape) == ((128, 256), 256, 1, 1)
    assert chosen(bf16, 1024, 1024, 1024) == ((64, 128), 128, 1, 1)
    assert chosen(bf16, 64, 8192, 8192) == ((64, 128), 256, 1, 2)
    assert chosen(tf32, 4096, 4096, 4096) == ((256, 128), 256, 1, 1)
    assert chosen(tf32, 128, 768, 3072) == ((128, 64), 128, 1, 8)
    assert chosen(f32, 4096, 4096, 4096) == ((128, 128), 256, 1, 1)
    assert chosen(f32, 128, 768, 3072) == ((128, 64), 128, 1, 11)


@pytest.mark.each_value(2)
@pytest.mark.parametrize("dtype", [f16, tf32, f32], ids=str)
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_what_is_chosen_has_no_conflicts(
    dtype: tc.DType, transpose_a: bool, transpose_b: bool
) -> None:
    """The tiles for large products, one of them and two steps of k."""
    types = dtype, dtype, f32
    plan = tiling_of(4096, 4096, 4096, types, SM_80, transpose_b=transpose_b)
    (m, n), k = plan.own.shape, 2 * plan.depth
    options = {"dtype": dtype, "total": f32, "transpose_a": transpose_a, "transpose_b": transpose_b}
    made = matmul(m, n, k, machine=SM_80, tiling=plan, **options)
    assert isinstance(made, tc.KernelDefinition)
    lean = lower(replace(made.ir, target="sm_80"))
    arguments = operands(m, n, k, **options)
    c = np.zeros((m, n), np.float32)
    report = sim.run(lean, [*arguments, c], statistics=True)
    assert not report.findings, str(report)
    np.testing.assert_array_equal(c, expected(arguments, **options))


def test_the_machine_has_to_be_known() -> None:
    with pytest.raises(ValueError, match="no machine 'sm_12'"):
        tc.machine("sm_12")
    with pytest.raises(ValueError, match="pack it for processors"):
        matmul(8, 8, 8, packed=True, machine=SM_80)


@pytest.mark.each_value(2)
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("dtype", [f16, tf32, i8, f32], ids=str)
def test_what_is_chosen_fits(dtype: tc.DType, transpose_a: bool, transpose_b: bool) -> None:
    """Where shared memory is smallest; what lies across the instruction's rows takes more of it."""
    machine = tc.machine("sm_89")
    options: dict[str, Any] = {"dtype": dtype, "total": i32 if dtype is i8 else f32}
    types = dtype, dtype, options["total"]
    options |= {"transpose_a": transpose_a, "transpose_b": transpose_b}
    plan = tiling_of(
        4096, 4096, 4096, types, machine, transpose_a=transpose_a, transpose_b=transpose_b
    )
    made = matmul(4096, 4096, 4096, tiling=plan, machine=machine, **options)
    kernels = made.kernels if isinstance(made, tc.ProgramDefinition) else [made]
    for kernel in kernels:
        lower(for_target(kernel.ir, "sm_89"))
