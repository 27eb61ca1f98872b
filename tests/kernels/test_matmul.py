"""Matrix products of the library: every variant, ragged shapes, and the simulator's bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import CompileError
from taskc.kernels.matmul import Panels, batch_matmul, build, matmul, product
from taskc.kernels.matmul.plan import candidates
from taskc.runtime import driver
from taskc.runtime.machine import Machine
from taskc.tune.space import plans
from tests.kernels.conftest import Same
from tests.kernels.problems import gemm

RAGGED = [(1, 1, 1), (2, 3, 5), (3, 15, 2), (15, 17, 16), (16, 48, 8), (17, 127, 3), (129, 49, 1)]
TYPES = [(tc.f32, None), (tc.f64, None), (tc.bf16, tc.f32), (tc.f16, tc.f32), (tc.i8, tc.i32)]


def operands(m: int, n: int, k: int, dtype: tc.DType) -> tuple[Any, Any]:
    random = np.random.default_rng(m * 7 + n)
    if dtype.is_integer:
        return tuple(
            random.integers(-128, 128, shape).astype(dtype.numpy) for shape in ((m, k), (k, n))
        )  # type: ignore[return-value]
    return tuple(random.standard_normal(shape).astype(dtype.numpy) for shape in ((m, k), (k, n)))  # type: ignore[return-value]


def in_order(a: Any, b: Any, total: tc.DType) -> Any:
    """The sum of the language: k ascending, one fused step each."""
    from taskc.ir.arithmetic import fma

    result = np.zeros((a.shape[0], b.shape[1]), total.numpy)
    for q in range(a.shape[1]):
        left, right = a[:, q : q + 1].astype(total.numpy), b[q : q + 1].astype(total.numpy)
        result = fma(*np.broadcast_arrays(left, right, result), total)
    return result


def in_parts(a: Any, b: Any, total: tc.DType, steps: int) -> Any:
    """The sum of sums in order, of so many steps of k each, which are added up in the order of k."""
    result = np.zeros((a.shape[0], b.shape[1]), total.numpy)
    for first in range(0, a.shape[1], steps):
        part = slice(first, first + steps)
        result += in_order(a[:, part], b[part], total)
    return result


def simulated(kernel: tc.KernelDefinition, *arguments: Any) -> Any:
    bound = driver.signature(kernel).bind(arguments, {})
    driver.compile(kernel, "sim").run(bound)
    return bound.returned


@pytest.mark.parametrize("shape", RAGGED, ids=str)
def test_ragged_shapes(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b = operands(m, n, k, tc.f32)
    expected = in_order(a, b, tc.f32)
    kernel = matmul(m, n, k)
    np.testing.assert_array_equal(kernel(a, b), expected)
    np.testing.assert_array_equal(kernel(a, b), expected)  # compiled code takes the arguments now
    np.testing.assert_array_equal(simulated(kernel, a, b), expected)


@pytest.mark.each_value
@pytest.mark.parametrize(("dtype", "total"), TYPES, ids=lambda t: str(t))
@pytest.mark.parametrize("shape", [(5, 7, 9), (33, 50, 17)], ids=str)
def test_types(shape: tuple[int, int, int], dtype: tc.DType, total: tc.DType | None) -> None:
    m, n, k = shape
    a, b = operands(m, n, k, dtype)
    kernel = matmul(m, n, k, dtype=dtype, total=total)
    np.testing.assert_array_equal(kernel(a, b), in_order(a, b, total or dtype))


@pytest.mark.each_value(2)
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("m", [2, 50])
def test_transposed(same_bits: Same, m: int, transpose_a: bool, transpose_b: bool) -> None:
    a, b = operands(m, 70, 19, tc.f32)
    left = np.ascontiguousarray(a.T) if transpose_a else a
    right = np.ascontiguousarray(b.T) if transpose_b else b
    made = same_bits(
        lambda: matmul(m, 70, 19, transpose_a=transpose_a, transpose_b=transpose_b), left, right
    )
    if m == 2 and transpose_b:  # the workers walk along k together
        assert np.all(np.abs(made - a @ b) <= rounding(a, b))
    else:
        np.testing.assert_array_equal(made, in_order(a, b, tc.f32))


def rounding(a: Any, b: Any) -> Any:
    """How far a sum of products in any order may be from any other."""
    magnitude = np.abs(a) @ np.abs(b)
    return 2 * a.shape[1] * np.finfo(a.dtype).eps * magnitude


@pytest.mark.each_value(2)
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (1, 129), (17, 3), (127, 0), (769, 33)])
@pytest.mark.parametrize("m", [1, 3, 8])
def test_few_rows(same_bits: Same, m: int, n: int, k: int, transpose_b: bool) -> None:
    a, b = operands(m, n, k, tc.f32)
    right = np.ascontiguousarray(b.T) if transpose_b else b
    made = same_bits(lambda: matmul(m, n, k, transpose_b=transpose_b), a, right)
    if transpose_b:
        assert np.all(np.abs(made - a @ b) <= rounding(a, b))
    else:
        np.testing.assert_array_equal(made, in_order(a, b, tc.f32))


@tc.function
def relu(x):
    return max(x, 0)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("shape", [(1, 70, 40), (30, 100, 12)], ids=str)
def test_bias_and_activation(shape: tuple[int, int, int], packed: bool) -> None:
    m, n, k = shape
    a, b = operands(m, n, k, tc.f32)
    bias = np.linspace(-1, 1, n, dtype=np.float32)
    kernel = matmul(m, n, k, bias=True, activation=relu, packed=packed)
    right = kernel.pack(b) if packed else b
    expected = np.maximum(in_order(a, b, tc.f32) + bias, 0)
    np.testing.assert_array_equal(kernel(a, right, bias), expected)


@pytest.mark.parametrize("m", [1, 5, 64, 131])
def test_packed(m: int) -> None:
    a, b = operands(m, 131, 33, tc.f32)
    kernel = matmul(m, 131, 33, packed=True)
    panels = kernel.pack(b)
    expected = in_order(a, b, tc.f32)
    np.testing.assert_array_equal(kernel(a, panels), expected)
    np.testing.assert_array_equal(kernel(a, panels), expected)


@pytest.mark.parametrize("form", ["plain", "transposed", "packed"])
def test_one_kernel_for_all_heights(form: str) -> None:
    kernel = matmul(tc.dim("m"), 131, 20, packed=form == "packed", transpose_b=form == "transposed")
    for rows in (0, 1, 2, 3, 7, 8, 9, 64, 129):
        a, b = operands(rows, 131, 20, tc.f32)
        right = kernel.pack(b) if form == "packed" else b
        if form == "transposed":
            made = kernel(a, np.ascontiguousarray(b.T))
            assert np.all(np.abs(made - a @ b) <= rounding(a, b))
        else:
            np.testing.assert_array_equal(kernel(a, right), in_order(a, b, tc.f32))


@pytest.mark.parametrize("transpose_b", [False, True])
def test_a_long_sum_is_taken_in_parts(transpose_b: bool) -> None:
    """Up to 4,096 steps are summed in order, and of more there are sums of so many."""
    for k in (4096, 4099, 8200):
        a, b = operands(17, 50, k, tc.f32)
        right = np.ascontiguousarray(b.T) if transpose_b else b
        made = matmul(17, 50, k, transpose_b=transpose_b)(a, right)
        np.testing.assert_array_equal(made, in_parts(a, b, tc.f32, 4096))


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("n", [1100, 1031])
def test_panels_beside_each_other_are_summed_in_order(n: int, in_place: bool) -> None:
    """Sums go by the plan's parts of k, in its order: each is a sum of its own, which is added to those before."""
    a, b = operands(19, n, 1301, tc.f32)
    plan = Panels(8, 2, 24, tc.machine().lanes, 512, 8, in_place=in_place)
    beside = matmul(19, n, 1301, schedule=plan)
    np.testing.assert_array_equal(beside(a, b), in_parts(a, b, tc.f32, 512))


@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 20])
def test_all_extents_unknown(rows: int, transpose_b: bool) -> None:
    m, n, k = tc.dim("m"), tc.dim("n"), tc.dim("k")
    for given in (m, min(rows, 8) if rows < 9 else m):
        kernel = matmul(given, n, k, transpose_b=transpose_b)
        for columns, depth in ((1, 1), (35, 7), (160, 65)):
            a, b = operands(rows, columns, depth, tc.f32)
            made = kernel(a, np.ascontiguousarray(b.T) if transpose_b else b)
            assert np.all(np.abs(made - a @ b) <= rounding(a, b))


@pytest.mark.each_value
@pytest.mark.parametrize(
    "sizes", [(0, 5, 3), (4, 0, 3), (3, 5, 0), (0, 0, 0), (130, 0, 64), (0, 600, 700)]
)
@pytest.mark.parametrize("how", ["plain", "transposed", "packed"])
def test_empty_operands(sizes: tuple[int, int, int], how: str) -> None:
    m, n, k = sizes
    a, b = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
    if how == "packed":
        kernel = matmul(m, n, k, packed=True)
        made = kernel(a, kernel.pack(b))
    elif how == "transposed":
        made = matmul(m, n, k, transpose_b=True)(a, np.ascontiguousarray(b.T))
    else:
        made = matmul(m, n, k)(a, b)
    assert made.shape == (m, n)
    assert not made.any()


def test_a_packed_operand_has_its_own_order() -> None:
    """It is packed from [k, n] or from [n, k], and neither is taken for the other or unpacked."""
    a, b = operands(4, 4, 4, tc.f32)
    plain, turned = (
        matmul(4, 4, 4, packed=True, transpose_b=is_turned) for is_turned in (False, True)
    )
    np.testing.assert_array_equal(plain(a, plain.pack(b)), in_order(a, b, tc.f32))
    np.testing.assert_array_equal(turned(a, turned.pack(b)), in_order(a, b.T, tc.f32))
    for kernel in (plain, turned):
        with pytest.raises(tc.ArgumentError, match=r"it has a layout: pass kernel\.pack\(b\)"):
            kernel(a, b)
    with pytest.raises(tc.CompileError, match="a packed operand has an order of its own"):
        gemm(4, 4, 4, (tc.f32,) * 3, packed=True, transpose_b=True)


def test_the_mapping_decides_the_registers() -> None:
    """A tile of another mapping is other assembly: as many accumulators as it has registers."""
    from dataclasses import replace

    from taskc.backend.cpu.compile import assembly_of
    from taskc.backend.cpu.processor import host
    from taskc.passes.pipeline import lower

    lanes = tc.machine().lanes
    for rows, vectors in ((2, 2), (4, 3), (6, 2)):
        plan = Panels(rows, vectors, 4 * rows, lanes)
        kernel = matmul(4 * rows, 2 * plan.wide, 64, schedule=plan)
        lean = lower(replace(kernel.ir, target=host().target))
        text = assembly_of(lean, host())
        products = [line for line in text.splitlines() if "vfmadd" in line or "fmla" in line]
        assert len(products) == rows * vectors


def test_schedules_fit_the_machine() -> None:
    wide, narrow = Machine(16, 32, 2, 1 << 20), Machine(8, 16, 2, 1 << 20)
    for machine in (wide, narrow):
        for m in (1, 8, 100, 2039):
            for plan in candidates(gemm(m, 768, 768, (tc.f32,) * 3), machine):
                if isinstance(plan, Panels):
                    assert plan.rows * plan.vectors < machine.registers
                    assert plan.tall % plan.rows == 0


def test_tiles_multiply_more_than_they_load() -> None:
    """With 16 registers, too, where one vector by 12 rows is as many sums as 3 by 4, and twice as slow."""
    for machine in (Machine(8, 32, 1, 1 << 21), Machine(4, 16, 1, 1 << 21)):
        for m, n, k in ((500, 700, 900), (97, 101, 103), (64, 64, 64)):
            for packed in (False, True):
                problem = gemm(m, n, k, (tc.f64,) * 3, packed=packed)
                plan = min(
                    candidates(problem, machine), key=lambda plan: plan.cost(problem, machine)
                )
                assert plan.rows + plan.vectors <= 0.7 * plan.rows * plan.vectors


@pytest.mark.each_value
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "choices",
    [
        {"order": (0, 1)},
        {"depth": 16, "panels": 2},
        {"in_place": True},
        {"in_place": True, "order": (0, 1)},
        {"in_place": True, "depth": 16, "panels": 2},
    ],
)
def test_panels_are_read_and_blocks_ordered_as_a_plan_says(
    choices: dict[str, Any], packed: bool
) -> None:
    plan = Panels(4, 2, 8, tc.machine().lanes, **choices)
    problem = gemm(21, 70, 50, (tc.f32,) * 3, packed=packed)
    if packed and plan.in_place:
        with pytest.raises(CompileError, match="a packed b is read where it lies in any case"):
            build(problem, plan, tc.machine())
        return
    a, b = (np.random.default_rng(0).integers(-3, 4, n).astype("f") for n in ((21, 50), (50, 70)))
    kernel = build(problem, plan, tc.machine())
    assert np.array_equal(kernel(a, kernel.pack(b) if packed else b), a @ b)


def test_a_batch_is_read_where_it_lies() -> None:
    plan = Panels(4, 2, 8, tc.machine().lanes, in_place=True)
    a, b = (
        np.random.default_rng(0).integers(-3, 4, n).astype("f") for n in ((3, 9, 20), (3, 20, 37))
    )
    kernel = batch_matmul(((3,), (3,)), 9, 37, 20, schedule=plan)
    assert np.array_equal(kernel(a, b), a @ b)
    with pytest.raises(CompileError, match="summed over all of k"):
        batch_matmul(((3,), (3,)), 9, 37, 20, schedule=replace(plan, depth=16))


@pytest.mark.parametrize("packed", [False, True])
def test_spaces_are_large_and_what_is_in_them_fits(packed: bool) -> None:
    for machine in (Machine(16, 32, 2, 1 << 20), Machine(8, 16, 4, 1 << 20)):
        problem = gemm(1024, 1024, 1024, (tc.f32,) * 3, packed=packed)
        found = list(plans(candidates, problem, machine))
        assert len(found) >= 200
        assert not [plan for plan in found if plan.misfit(problem)]


def test_of_tf32_the_low_bits_do_not_count(same_bits: Same) -> None:
    a, b = operands(9, 35, 20, tc.f32)
    made = same_bits(lambda: matmul(9, 35, 20, dtype=tc.tf32, total=tc.f32), a, b)
    upper = [(x.view(np.uint32) & 0xFFFFE000).view(np.float32) for x in (a, b)]
    assert np.array_equal(made, in_order(*upper, tc.f32))
    assert not np.array_equal(made, in_order(a, b, tc.f32))


def test_operands_of_two_types(same_bits: Same) -> None:
    random = np.random.default_rng(2)
    for m in (2, 17):
        a = random.integers(0, 256, (m, 30)).astype(np.uint8)
        b = random.integers(-128, 128, (30, 35)).astype(np.int8)
        made = same_bits(
            lambda m=m: matmul(m, 35, 30, dtype=tc.u8, right=tc.i8, total=tc.i32), a, b
        )
        assert np.array_equal(made, a.astype(np.int32) @ b.astype(np.int32))


@pytest.mark.parametrize("dtype", [tc.bf16, tc.f32], ids=str)
@pytest.mark.parametrize(("m", "n", "k"), [(5, 7, 9), (1, 100, 33), (8, 16, 1), (17, 130, 70)])
def test_weights_of_linear_layers_are_packed_as_they_lie(
    m: int, n: int, k: int, dtype: Any
) -> None:
    rng = np.random.default_rng(n)
    a, b = (rng.standard_normal(shape).astype(dtype.numpy) for shape in ((m, k), (n, k)))
    turned = matmul(m, n, k, dtype=dtype, packed=True, transpose_b=True)
    plain = matmul(m, n, k, dtype=dtype, packed=True)
    expected = plain(a, plain.pack(np.ascontiguousarray(b.T)))
    np.testing.assert_array_equal(turned(a, turned.pack(b)), expected)
    if n % 16:
        with pytest.raises(tc.ArgumentError, match=r"it has a layout: pass kernel\.pack\(b\)"):
            turned(a, b)


def test_packs_of_instructions_are_made_of_rows_too() -> None:
    a, b = (
        np.arange(99, dtype=np.int8).reshape(3, 33) % 7,
        np.arange(660, dtype=np.int8).reshape(20, 33) % 5,
    )
    kernel = product(3, 20, 33, dtype=tc.i8, packed=True, transpose_b=True)
    np.testing.assert_array_equal(
        kernel(a, kernel.pack(b)), a.astype(np.int32) @ b.astype(np.int32).T
    )
    with pytest.raises(tc.CompileError, match=r"b is \[k, n\] here, or packed from \[n, k\]"):
        product(3, 20, 33, dtype=tc.i8, transpose_b=True)


@pytest.mark.parametrize("dtype", [tc.f32, tc.f64])
def test_few_rows_take_panels_in_turn(dtype: tc.DType) -> None:
    """What a row of b costs to find is shared by its panels; many rows have other things to do."""
    machine = tc.machine("avx512", threads=1)
    for m, panels in ((16, 8), (32, 8), (2048, 1)):
        problem, seen = gemm(m, 3072, 768, (dtype, dtype, dtype)), machine.of(dtype)
        untuned = [plan for plan in candidates(problem, seen) if isinstance(plan, Panels)]
        copying = [plan for plan in untuned if not plan.in_place]
        assert min(copying, key=lambda plan: plan.cost(problem, seen)).panels == panels
    a, b = (
        np.random.default_rng(0).standard_normal(n, dtype.numpy) for n in ((17, 200), (200, 900))
    )
    schedule = Panels(4, 2, 20, machine.of(dtype).lanes, 64, 8)
    made = matmul(17, 900, 200, dtype=dtype, schedule=schedule)(a, b)
    np.testing.assert_allclose(made, a @ b, rtol=1e-4, atol=1e-4)
