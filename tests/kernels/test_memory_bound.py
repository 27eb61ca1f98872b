"""Rows, reductions and transposes as they are built for GPUs.

Nothing here runs on a GPU: kernels are checked in the simulator, after every pass or at the end of stages,
and compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import bf16, f16, f32, f64, i8, i32
from taskc.ir import nodes as ir
from taskc.ir.rewrite import expressions, statements, walk
from taskc.kernels.owners import along, owners_of_boxes
from taskc.kernels.reductions import argmax, reduction
from taskc.kernels.rows import layer_norm, log_softmax, rms_norm, softmax
from taskc.kernels.rows.plan import owners_of_whole_rows
from taskc.kernels.scans import cumsum
from taskc.kernels.transpose import transpose
from taskc.lang.definition import Definition, KernelDefinition
from taskc.mutation import inputs_of, mutate
from taskc.passes.pipeline import lower
from taskc.runtime.checking import examine
from taskc.runtime.machine import Machine
from tests.kernels.simulated import simulated

TARGET = "sm_90a"
HOPPER = tc.machine(TARGET)
ENDS = ("parsed", "synchronized", "lean")
Array = np.ndarray[Any, Any]


def numbers(*shape: int, dtype: tc.DType = f32, seed: int = 0) -> Array:
    random = np.random.default_rng([seed, *shape])
    if dtype.is_float:
        return random.standard_normal(shape).astype(dtype.numpy)
    return random.integers(-3, 4, shape).astype(dtype.numpy)


@pytest.fixture(params=["sm_90a", pytest.param("sm_80", marks=pytest.mark.sweep)])
def target(request: pytest.FixtureRequest) -> str:
    """A few kernels are simulated for sm_80, too, wherever tests run: see below."""
    return str(request.param)


@pytest.fixture
def machine(target: str) -> Machine:
    return tc.machine(target)


def checked(
    target: str,
    definition: Definition,
    *arguments: Array,
    stages: Any = ENDS,
    ways: int = 1,
    sectors: float = 1.0,
) -> Array:
    """What a kernel computes where the simulator finds nothing wrong.

    ways     of bank conflicts that there are
    sectors  that requests touch, of those that they could do with
    """
    calls = examine(definition, arguments, stages=stages, target=target).calls
    for call in calls:
        assert [finding.message for finding in call.findings if finding.severity == "error"] == []
        for traffic in call.steps[-1].report.accesses:
            assert traffic.ways <= ways, traffic
            assert traffic.sectors <= max(sectors * traffic.ideal, traffic.ideal + 1), traffic
    result: Array = calls[-1].results[-1]
    return result


def accessed(target: str, definition: Definition) -> dict[str, set[int]]:
    """The bytes of the accesses to each tensor in memory, of all kernels."""
    found: dict[str, set[int]] = {}

    def visit(node: ir.Statement, lanes: int) -> None:
        if isinstance(node, ir.For) and node.kind == "vector":
            assert isinstance(node.stop, ir.Constant)
            lanes = int(node.stop.value)
        reads = [n for e in expressions(node) for n in walk(e) if isinstance(n, ir.Read)]
        for access in [*reads, *([node] if isinstance(node, ir.Store) else [])]:
            if access.tensor.scope in (ir.GLOBAL, ir.SHARED):
                width = lanes * access.tensor.dtype.nbytes
                found.setdefault(access.tensor.name, set()).add(width)
        for inner in statements(node):
            visit(inner, lanes)

    for kernel in definition.kernels:
        visit(lower(replace(kernel.ir, target=target)).body, 1)
    return found


# --- rows ------------------------------------------------------------------------------------


def exact_softmax(x: Array) -> Array:
    wide = x.astype(np.float64)
    powers = np.exp(wide - wide.max(axis=1, keepdims=True))
    result: Array = powers / powers.sum(axis=1, keepdims=True)
    return result


def exact_norm(x: Array, *, centred: bool) -> Array:
    wide = x.astype(np.float64)
    wide = wide - wide.mean(axis=1, keepdims=True) if centred else wide
    result: Array = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-5)
    return result


def test_rows_after_every_pass(target: str, machine: Machine) -> None:
    x, scale, shift = numbers(3, 260), numbers(260, seed=1), numbers(260, seed=2)
    y = checked(target, softmax(3, 260, machine=machine), x, stages="all")
    assert np.abs(y - exact_softmax(x)).max() < 1e-6
    y = checked(target, layer_norm(3, 260, machine=machine), x, scale, shift, stages="all")
    assert np.abs(y - (exact_norm(x, centred=True) * scale + shift)).max() < 1e-5


# Parts of a warp, a warp, a block with a row; rows at any address; and one that fits no registers.
ROWS = ((1, 1), (5, 2), (40, 3), (5, 31), (3, 127), (2, 1023), (2, 2050), (1, 33_000))


@pytest.mark.parametrize("shape", ROWS)
def test_rows(shape: tuple[int, int], target: str, machine: Machine) -> None:
    x = numbers(*shape)
    y = checked(target, softmax(*shape, machine=machine), x, stages=("lean",), sectors=1.25)
    assert np.abs(y - exact_softmax(x)).max() < 1e-6
    y = checked(target, log_softmax(*shape, machine=machine), x, stages=("lean",), sectors=1.25)
    assert np.abs(y - np.log(exact_softmax(x))).max() < 1e-5
    kernel = layer_norm(*shape, scaled=False, shifted=False, machine=machine)
    y = checked(target, kernel, x, stages=("lean",), sectors=1.25)
    assert np.abs(y - exact_norm(x, centred=True)).max() < 1e-5
    y = checked(
        target,
        rms_norm(*shape, scaled=False, machine=machine),
        x,
        stages=("lean",),
        sectors=1.25,
    )
    assert np.abs(y - exact_norm(x, centred=False)).max() < 1e-5


@pytest.mark.parametrize(("dtype", "bits"), [(f16, 11), (bf16, 8), (f64, 50)])
def test_types_of_rows(dtype: tc.DType, bits: int, target: str, machine: Machine) -> None:
    x, scale = numbers(3, 80, dtype=dtype), numbers(80, dtype=dtype, seed=1)
    y = checked(target, softmax(3, 80, dtype=dtype, machine=machine), x)
    assert np.abs(y.astype(np.float64) - exact_softmax(x)).max() < 2.0**-bits
    y = checked(target, rms_norm(3, 80, dtype=dtype, machine=machine), x, scale)
    expected = exact_norm(x, centred=False) * scale.astype(np.float64)
    assert np.abs(y.astype(np.float64) - expected).max() < 2.0**-bits * 16


def test_rows_of_any_length(target: str, machine: Machine) -> None:
    m, n, fours = tc.dim("m"), tc.dim("n"), tc.dim("fours", multiple=4)
    for width, columns in ((n, 3), (n, 2051), (fours, 2052)):
        x = numbers(2, columns)
        y = checked(target, softmax(m, width, machine=machine), x, stages=("lean",), sectors=1.25)
        assert np.abs(y - exact_softmax(x)).max() < 1e-6
    assert accessed(target, softmax(m, fours, machine=machine))["x"] == {16}


@pytest.mark.parametrize("inner", [5, 64])
def test_rows_along_the_middle_axis(inner: int, target: str, machine: Machine) -> None:
    x, scale = numbers(3, 20, inner), numbers(20, seed=1)
    y = checked(target, softmax(3, 20, inner=inner, machine=machine), x, sectors=1.25)
    assert np.abs(y - exact_softmax(x)).max() < 1e-6
    kernel = layer_norm(3, 20, inner=inner, shifted=False, machine=machine)
    y = checked(target, kernel, x, scale, sectors=1.25)
    assert np.abs(y - exact_norm(x, centred=True) * scale[:, None]).max() < 1e-5


def test_infinite_numbers(target: str, machine: Machine) -> None:
    x = np.zeros((3, 20), np.float32)
    x[0, 3], x[1], x[2, 5] = -np.inf, 3e38, np.nan
    y = checked(target, softmax(3, 20, machine=machine), x, stages=("lean",))
    assert y[0, 3] == 0
    assert np.allclose(y[:2].sum(1), 1)
    assert np.isnan(y[2]).all()


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_a_row_is_read_once_and_by_16_bytes(target: str) -> None:
    machine = tc.machine(target)
    for dtype in (f32, f16):
        for shape in ((64, 64), (8, 1024), (8, 16_384)):
            kernels = [
                make(*shape, dtype=dtype, machine=machine) for make in (softmax, log_softmax)
            ]
            kernels += [
                make(*shape, dtype=dtype, machine=machine) for make in (layer_norm, rms_norm)
            ]
            for kernel in kernels:
                widths = accessed(target, kernel)
                assert widths["x"] == widths["y"] == {16}
                assert widths.get("scale", {16}) == {16}
                reads = [
                    n
                    for n in walk(kernel.ir.body)
                    if isinstance(n, ir.Read) and n.tensor.name == "x"
                ]
                assert len(reads) == 1


# --- reductions ------------------------------------------------------------------------------

REDUCTIONS: tuple[tuple[str, tuple[int, ...], tuple[int, ...], tc.DType], ...] = (
    ("sum", (3, 1024), (1,), f32),
    ("mean", (70, 256), (0,), f32),
    ("mean", (3, 5, 7, 9), (1, 3), f32),
    ("max", (3, 5, 7, 9), (0, 2), f32),
    ("min", (300, 33), (1,), f32),
    ("prod", (31, 2), (1,), f64),
    ("sum", (40_003,), (0,), f32),  # by parts
    ("mean", (40_000,), (0,), f16),
    ("sum", (3000, 3), (0,), i32),
    ("sum", (129, 130), (0,), i8),
)


@pytest.mark.parametrize("case", REDUCTIONS, ids=lambda case: f"{case[0]}-{case[1]}-{case[3]}")
def test_reductions(
    case: tuple[str, tuple[int, ...], tuple[int, ...], tc.DType], target: str, machine: Machine
) -> None:
    operator, shape, axes, dtype = case
    x = numbers(*shape, dtype=dtype)
    kernel = reduction(operator, shape, axes, dtype=dtype, machine=machine)
    # Parts of a few short rows lie apart, whoever reads them.
    y = checked(target, kernel, x, sectors=8 if len(shape) > 2 else 1.25)
    wide = x.astype(np.float64) if dtype.is_float else x.astype(np.int64)
    expected = getattr(np, operator)(wide, axis=axes).astype(dtype.numpy)
    assert y.shape == expected.shape
    if dtype.is_float:
        size = np.abs(wide).sum(axis=axes) if operator == "sum" else 1
        bound = (2.0**-10 if dtype is f16 else 2.0**-20) * size
        assert (np.abs(y.astype(np.float64) - expected) <= bound).all()
    else:
        assert (y == expected).all()


def test_reductions_of_any_size(target: str, machine: Machine) -> None:
    m, n = tc.dim("m"), tc.dim("n", multiple=4)
    x = numbers(37, 260)
    for axis in (0, 1):
        kernel = reduction("sum", (m, n), (axis,), machine=machine)
        y = checked(target, kernel, x)
        assert np.abs(y.ravel() - x.astype(np.float64).sum(axis)).max() < 1e-4
        assert accessed(target, kernel)["x"] == {16}


@pytest.mark.parametrize("axis", [0, 1])
def test_places_and_scans(axis: int, target: str, machine: Machine) -> None:
    x = np.random.default_rng(0).integers(-9, 9, (70, 96)).astype(np.float32)
    for last in (False, True):
        # The neighbours that a worker has are read one by one, and places have 8 bytes.
        kernel = argmax((70, 96), axis, last=last, machine=machine)
        y = checked(target, kernel, x, sectors=4, ways=2)
        first = np.flip(x, axis).argmax(axis) if last else x.argmax(axis)
        assert np.array_equal(y, x.shape[axis] - 1 - first if last else first)
    # Neighbours in a line are one worker's, one after another.
    y = checked(
        target, cumsum((70, 96), axis, machine=machine), x, sectors=1.25 if axis == 0 else 32
    )
    assert np.array_equal(y, x.cumsum(axis))


def test_few_results_are_the_work_of_all_processors(target: str, machine: Machine) -> None:
    for shape, axes in (((1 << 22,), (0,)), ((4096, 256), (0,)), ((8, 1 << 18), (1,))):
        program = reduction("sum", shape, axes, machine=machine)
        assert not isinstance(program, KernelDefinition)
        partial = program.kernels[0]
        assert accessed(target, program)["x"] == {16, 4} if shape == (1 << 22,) else {16}
        assert partial.ir.parameters[0].argument_shape == shape  # type: ignore[union-attr]


# --- transpose -------------------------------------------------------------------------------

TRANSPOSES: tuple[tuple[tuple[int, ...], tuple[int, ...], tc.DType], ...] = (
    ((100, 132), (1, 0), f32),
    ((136, 152), (1, 0), f16),
    ((65, 33), (1, 0), f32),
    ((70, 66), (1, 0), f64),
    ((64, 96), (1, 0), i8),
    ((2, 30, 4), (0, 2, 1), f32),
    ((2, 3, 5, 64), (0, 2, 1, 3), f32),
    ((1, 7), (1, 0), f32),
)


@pytest.mark.parametrize("case", TRANSPOSES, ids=str)
def test_transposes(
    case: tuple[tuple[int, ...], tuple[int, ...], tc.DType], target: str, machine: Machine
) -> None:
    shape, order, dtype = case
    x = numbers(*shape, dtype=dtype)
    kernel = transpose(shape, order, dtype=dtype, machine=machine)
    # Of accesses of 8 bytes, half as wide as the others', lines of banks hold two rows.
    y = checked(target, kernel, x, sectors=2, ways=2 if dtype is i8 else 1)
    assert np.array_equal(y, x.transpose(order))


@pytest.mark.parametrize("dtype", [f32, f16, f64])
def test_a_transpose_has_wide_accesses_alone(
    dtype: tc.DType, target: str, machine: Machine
) -> None:
    kernel = transpose((512, 512), dtype=dtype, machine=machine)
    assert accessed(target, kernel) == {"x": {16}, "columns": {16}, "y": {16}}


def test_transposes_of_any_size(target: str, machine: Machine) -> None:
    x = numbers(37, 41)
    kernel = transpose((tc.dim("m"), tc.dim("n")), machine=machine)
    assert (checked(target, kernel, x, sectors=2) == x.T).all()


# --- requests --------------------------------------------------------------------------------

ALIGNED: dict[str, Callable[[Machine], Definition]] = {
    "softmax": lambda machine: softmax(8, 1024, machine=machine),
    "softmax f16": lambda machine: softmax(16, 256, dtype=f16, machine=machine),
    "layer_norm": lambda machine: layer_norm(6, 512, machine=machine),
    "layer_norm bf16": lambda machine: layer_norm(2, 4096, dtype=bf16, machine=machine),
    "sum of rows": lambda machine: reduction("sum", (64, 512), (1,), machine=machine),
    "sum of columns": lambda machine: reduction("sum", (64, 512), (0,), machine=machine),
    "sum": lambda machine: reduction("sum", (1 << 16,), (0,), machine=machine),
    "transpose": lambda machine: transpose((128, 192), machine=machine),
    "transpose f16": lambda machine: transpose((128, 192), dtype=f16, machine=machine),
}


@pytest.mark.each_value
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", ALIGNED)
def test_requests_touch_no_sector_too_many(target: str, name: str) -> None:
    """Where rows begin well: the simulator counts the 32 bytes of memory that each request of a warp touches."""
    definition = ALIGNED[name](tc.machine(target))
    for call in examine(definition, stages=("lean",), target=target).calls:
        assert not call.findings
        traffic = [t for t in call.steps[-1].report.accesses if t.scope == ir.GLOBAL]
        assert traffic
        assert all(t.sectors == t.ideal for t in traffic), traffic


# --- who has what ----------------------------------------------------------------------------


def test_owners() -> None:
    assert owners_of_whole_rows(4096, 64, f32, HOPPER) == tc.spatial(16, 1) * along(16, 1, 4)
    assert owners_of_whole_rows(4096, 1024, f32, HOPPER) == tc.spatial(8, 1) * along(32, 8, 4)
    assert owners_of_whole_rows(4096, 4096, f16, HOPPER) == tc.spatial(1, 1) * along(256, 2, 8)
    assert owners_of_whole_rows(4096, 1 << 16, f32, HOPPER) is None
    assert owners_of_whole_rows(4096, tc.dim("n"), f32, HOPPER) is None
    assert owners_of_whole_rows(4096, 64, f32, tc.machine()) is None
    large = owners_of_boxes((1, 1, 4096, 4096), 4, HOPPER)
    assert (large.workers, large.shape) == (256, (1, 1, 1, 4096))
    flat = owners_of_boxes((1, 1, 1 << 20, 64), 4, HOPPER)
    assert (flat.workers, flat.shape) == (256, (1, 1, 64, 64))


# --- broken, and compiled --------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: softmax(2, 1100, machine=HOPPER),
        lambda: reduction("sum", (70, 256), (0,), machine=HOPPER),
        lambda: transpose((70, 68), machine=HOPPER),
    ],
    ids=["softmax", "sum", "transpose"],
)
def test_what_is_broken_is_reported(make: Callable[[], KernelDefinition]) -> None:
    kernel = make()
    broken = replace(kernel.ir, target=TARGET)
    mutants = list(mutate(broken, inputs_of(kernel), seeds=(None, 0)))
    unreported = [m.description for m in mutants if not m.reported and not m.is_equivalent]
    assert len(mutants) > 2
    assert len(unreported) <= 0.05 * len(mutants), unreported


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_compiled_without_spills(target: str) -> None:
    """Those that have the most in registers."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC isn't published for this machine")
    from taskc.backend.cuda.compile import compile_many

    machine = tc.machine(target)
    made = (
        log_softmax(64, 32_768, machine=machine),
        layer_norm(64, 32_768, dtype=f16, machine=machine),
        layer_norm(8192, 1024, machine=machine),
        reduction("sum", (4096, 4096), (0,), dtype=f16, machine=machine),
        transpose((4096, 4096), dtype=f16, machine=machine),
    )
    lean = [lower(replace(k.ir, target=target)) for d in made for k in d.kernels]
    for compiled in compile_many(lean):
        resources = compiled.resources
        assert (resources.spill_stores, resources.spill_loads, resources.stack) == (0, 0, 0)


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", [i8, f16, f32, f64], ids=str)
@pytest.mark.parametrize(
    "shape", [(4, 100), (4, 128), (8, 136), (16, 136), (128, 4), (64, 40), (40, 63)]
)
def test_small_transposes_have_few_conflicts(dtype: tc.DType, shape: tuple[int, int]) -> None:
    """Few rows or columns leave a warp many of the others at one time."""
    x = np.arange(prod(shape)).reshape(shape).astype(dtype.numpy)
    made, _ = simulated(
        transpose(shape, dtype=dtype, machine=HOPPER), [x], TARGET, stages=("lean",)
    )
    assert np.array_equal(made.reshape(shape[::-1]), x.T.astype(np.float64))
