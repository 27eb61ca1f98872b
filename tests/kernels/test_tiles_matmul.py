"""Matrix products by blocks of many workers, on the smallest that exercise every stage and edge.

Nothing here runs on a GPU: kernels are checked in the simulator, after every pass or at the end of stages.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import bf16, f16, f32, i8, i32, repeat, spatial, tf32
from taskc.backend import sim
from taskc.checking import Examination, examine, examine_program
from taskc.ir import nodes as ir
from taskc.ir.rewrite import walk
from taskc.kernels.matmul import matmul
from taskc.kernels.padded_matmul import is_worth_padding, padded_matmul
from taskc.kernels.tiles_matmul import Tiling, choose
from taskc.passes.pipeline import lower

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
) -> list[Examination]:
    """No findings after the passes, no conflict in shared memory, and the right numbers."""
    m, n, k = shape
    machine = tc.machine(target)
    kernel = matmul(*(extents or shape), machine=machine, tiling=plan, **options)
    activation = options.pop("activation", None)
    arguments = operands(m, n, k, **options)
    if isinstance(kernel, tc.ProgramDefinition):
        program = examine_program(kernel, arguments, stages=stages, target=target)
        findings, calls = program.findings, list(program.calls)
    else:
        examination = examine(kernel, arguments, stages=stages, target=target)
        findings, calls = examination.findings, [examination]
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


def operations(examination: Examination) -> set[str]:
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
    program = padded_matmul(33, 19, 45, machine=SM_80, tiling=tiling(f16), bias=True, **options)
    arguments = operands(33, 19, 45, bias=True, **options)
    examined = examine_program(program, arguments, stages=ENDS, target="sm_80")
    assert not [f for f in examined.findings if f.kind != "uncoalesced"], examined.findings
    names = [call.steps[-1].kernel.name for call in examined.calls]
    assert names == ["pad", "pad", "matmul"]
    product = examined.calls[-1]
    assert {"cp.async", "ldmatrix.x4"} <= {
        name.removesuffix(".trans") for name in operations(product)
    }
    made = product.results[-1].astype(np.float64)
    np.testing.assert_array_equal(made, expected(arguments, **options))


def test_what_is_padded() -> None:
    assert is_worth_padding(2039, 2039, 2039, f16)
    assert not is_worth_padding(2039, 2040, 2040, f16)  # no row of a or b is that long
    assert is_worth_padding(2039, 2040, 2040, f16, transpose_a=True)
    assert not is_worth_padding(2040, 2039, 2040, f16, transpose_b=True)
    assert not is_worth_padding(64, 2039, 2039, f16)
    assert not is_worth_padding(tc.dim("m"), 2039, 2039, f16)
    names = [kernel.name for kernel in matmul(600, 520, 515, machine=SM_80).kernels]
    assert names == ["pad", "matmul"]  # b's rows lie well


def test_what_is_chosen() -> None:
    """Large blocks for large products, parts of k where few blocks would be left, rows for few rows."""
    types = f16, f16, f32
    large = choose(4096, 4096, 4096, types, SM_80)
    assert large.own.shape == (128, 256)
    assert large.parts == 1
    few = choose(1, 4096, 4096, types, SM_80)
    assert few.own.shape[0] == 16
    assert few.parts > 1
    assert choose(128, 768, 3072, types, SM_80).parts > 1
    for name in ("sm_80", "sm_89", "sm_90a"):
        machine = tc.machine(name)
        for dtypes in ((f16, f16, f32), (tf32, tf32, f32), (i8, i8, i32), (f32, f32, f32)):
            for shape in ((4096, 4096, 4096), (1, 1000, 2048), (2039, 2039, 2039)):
                plan = choose(*shape, dtypes, machine)
                assert plan.stages >= 3
                assert plan.bytes(dtypes[0].nbytes) <= machine.near


@pytest.mark.parametrize("dtype", [f16, tf32, f32], ids=str)
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_what_is_chosen_has_no_conflicts(
    dtype: tc.DType, transpose_a: bool, transpose_b: bool
) -> None:
    """The tiles for large products, one of them and two steps of k."""
    types = dtype, dtype, f32
    plan = choose(4096, 4096, 4096, types, SM_80, transpose_b=transpose_b)
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
