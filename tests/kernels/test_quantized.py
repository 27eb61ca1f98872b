"""Products with quantized weights, against what their weights stand for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import DType, bf16, f4e2m1, f6e3m2, f16, f32, i4, i8, u4, u8
from taskc.backend.cuda.compile import compile_kernel, disassembler, sass_of
from taskc.backend.cuda.emit import emit
from taskc.ir.printer import to_text
from taskc.kernels.quantized import (
    QUANTIZED,
    Panels,
    Problem,
    Strips,
    Tiles,
    build,
    problem_of,
    quantized_matmul,
)
from taskc.passes.pipeline import lower
from taskc.runtime.checking import for_target
from taskc.tune.choose import choose
from taskc.tune.space import Space
from tests.backend.cuda.host import COMPILER
from tests.ir.test_bits import elements
from tests.kernels import hosted
from tests.kernels.simulated import simulated

Array = np.ndarray[Any, Any]


def numbers(dtype: DType, shape: tuple[int, ...], seed: int) -> Array:
    """Any that a type has."""
    codes = np.random.default_rng([seed, *shape]).integers(0, 1 << dtype.bits, shape)
    return elements(dtype, codes) if dtype.is_sub_byte else codes.astype(np.uint8).view(dtype.numpy)


def operands(
    m: int, n: int, k: int, *, dtype: DType = f32, right: DType = u4, group: int = 32,
    scales: DType = f32, zeros: bool = False, zero: int = 0, bias: bool = False, **_: Any,
) -> tuple[list[Array], Array]:  # fmt: skip
    """Small whole numbers, but for weights, and the exact product."""
    random = np.random.default_rng([m, n, k])
    a = random.integers(-3, 4, (m, k)).astype(dtype.numpy)
    b, groups = numbers(right, (k, n), 1), -(-k // group)
    scale = 2.0 ** random.integers(-2, 2, (groups, n))
    points = numbers(right, (groups, n), 2) if zeros else np.full((groups, n), zero)
    each = np.repeat(points.astype(np.float64), group, axis=0)[:k]
    w = (b.astype(np.float64) - each) * np.repeat(scale, group, axis=0)[:k]
    given = [a, b, scale.astype(scales.numpy), *([points] if zeros else [])]
    offsets = random.integers(-9, 10, n).astype(np.float32)
    return [*given, *([offsets] if bias else [])], a.astype(np.float64) @ w + bias * offsets


def called(kernel: Any, arguments: list[Array]) -> Any:
    """What it computes, with weights that are packed."""
    a, b, *more = arguments
    return kernel(a, kernel.pack(b, "b"), *more)


CASES: list[tuple[tuple[int, int, int], dict[str, Any]]] = [
    ((16, 256, 128), {"zeros": True}),
    ((1, 100, 64), {"right": i4, "group": 64}),
    ((7, 33, 97), {"zeros": True, "group": 16}),
    ((3, 5, 7), {"zero": 8, "group": 128}),
    ((130, 40, 70), {"zero": 8, "scales": f16}),
    ((33, 17, 256), {"right": f4e2m1, "dtype": f16}),
    ((20, 64, 36), {"right": f6e3m2, "group": 12}),
    ((5, 48, 64), {"right": i8, "dtype": f16, "scales": f16}),
    ((5, 48, 64), {"right": u8, "zeros": True}),
    ((2, 16, 5), {"group": 1}),
    ((4, 16, 300), {"group": 300, "right": i4}),
]


@pytest.mark.parametrize(("shape", "options"), CASES, ids=str)
def test_on_a_processor(shape: tuple[int, int, int], options: dict[str, Any]) -> None:
    kernel = quantized_matmul(*shape, **options, result=f32)
    arguments, expected = operands(*shape, **options)
    np.testing.assert_array_equal(called(kernel, arguments), expected)


@pytest.mark.parametrize("shape", [(0, 16, 32), (3, 0, 32), (3, 16, 0), (1, 1, 1)], ids=str)
def test_smallest(shape: tuple[int, int, int]) -> None:
    arguments, expected = operands(*shape)
    np.testing.assert_array_equal(called(quantized_matmul(*shape), arguments), expected)


def test_rows_that_a_call_counts() -> None:
    kernel = quantized_matmul(tc.dim("m"), 40, 70, zeros=True)
    for m in (0, 1, 15, 16, 17, 200):
        arguments, expected = operands(m, 40, 70, zeros=True)
        np.testing.assert_array_equal(called(kernel, arguments), expected)


def test_all_plans_compute_the_same() -> None:
    problem = Problem(
        m=35, n=70, k=96, dtype=f32, right=u4, result=f32, group=32, zeros=True, zero=0
    )
    arguments, expected = operands(35, 70, 96, zeros=True)
    here = tc.machine()
    plans = Space(QUANTIZED, problem, here).plans
    few = [plan for plan in plans if isinstance(plan, Panels) and plan.panels in (1, 4)]
    assert {plan.widens for plan in few} == {False, True} or len(few) > 4
    for plan in few[::3]:
        np.testing.assert_array_equal(called(build(problem, plan, here), arguments), expected)


def test_what_follows_the_sum() -> None:
    @tc.function
    def relu(x):  # type: ignore[no-untyped-def]
        return max(x, 0)

    kernel = quantized_matmul(9, 20, 32, bias=True, residual=True, activation=relu)
    arguments, product = operands(9, 20, 32)
    bias, residual = np.arange(20, dtype=np.float32), np.full((9, 20), -3, np.float32)
    expected = np.maximum(product + bias + residual, 0)
    np.testing.assert_array_equal(called(kernel, [*arguments, bias, residual]), expected)


GPU_CASES = [
    ((37, 48, 96), {"zeros": True}),
    ((5, 21, 40), {"right": i4, "group": 8}),
    ((16, 64, 64), {"right": f4e2m1, "group": 64}),
    ((16, 32, 64), {"right": i8}),
    ((16, 32, 64), {"right": u8, "zero": 7}),
    ((5, 128, 128), {"right": i4, "group": 32, "plan": Strips(1, 2, 32, 3, 2), "bias": True}),
    ((33, 64, 96), {"zeros": True, "dtype": bf16, "plan": Strips(2, 1, 32, 3, 1)}),
    ((3, 64, 128), {"zero": 8, "group": 128, "plan": Strips(1, 1, 64, 4, 2)}),
]


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(("shape", "options"), GPU_CASES, ids=str)
def test_in_the_simulator(
    shape: tuple[int, int, int], options: dict[str, Any], target: str
) -> None:
    options = {"dtype": f16, "scales": f16, **options}
    kernel = quantized_matmul(*shape, **options, result=f32, machine=tc.machine(target))
    arguments, expected = operands(*shape, **options)
    is_followed = "plan" in options and target == "sm_90a"  # after every pass
    made, _ = simulated(kernel, arguments, target, "all" if is_followed else ("parsed", "lean"))
    np.testing.assert_array_equal(made, expected)


def test_large_products_are_by_warpgroups() -> None:
    """Weights are converted in shared memory for two warpgroups; those of 8 bits by no converter."""
    machine, options = tc.machine("sm_90a"), {"dtype": f16, "right": i8, "group": 32, "scales": f16}
    problem = problem_of(m=4096, n=4096, k=4096, result=f32, **options)
    plan = choose(QUANTIZED, problem, machine)
    assert isinstance(plan, Tiles)
    assert plan.own.shape == (256, 128)
    arguments, expected = operands(40, 48, 96, **options)
    small = problem_of(m=40, n=48, k=96, result=f32, **options)
    made, _ = simulated(build(small, plan, machine), arguments, "sm_90a", ("parsed", "lean"))
    np.testing.assert_array_equal(made, expected)
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC isn't published for this machine")
    if disassembler() is not None:
        kernel = lower(for_target(build(small, plan, machine).ir, "sm_90a"))
        text = sass_of(compile_kernel(kernel).cubin)
        assert "HGMMA" in text
        assert "I2F" not in text


@pytest.mark.skipif(COMPILER is None, reason="there is no g++ to compile for the host")
def test_emitted_for_a_gpu() -> None:
    problems = []
    for shape, options in GPU_CASES:
        options = {"dtype": f16, "scales": f16, **options}
        kernel = quantized_matmul(*shape, **options, result=f32, machine=tc.machine("sm_90a"))
        problems.append(hosted.Problem(kernel, "sm_90a", *operands(*shape, **options)))
    hosted.check(problems)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"right": f16}, "quantized weights have 8 bits at most, and f16 has more"),
        ({"right": f4e2m1, "zeros": True}, "weights of f4e2m1 have no zero points, but a zero"),
        ({"right": i4, "zero": 8}, "8 is no zero point of i4"),
        ({"group": 0}, "a group has 1 weight at least, not 0"),
    ],
)
def test_what_there_is_not(options: dict[str, Any], message: str) -> None:
    with pytest.raises(tc.CompileError, match=message):
        quantized_matmul(4, 16, 32, **options)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("m", [1, 64])
def test_weights_stay_packed_where_rows_are_few(m: int, target: str) -> None:
    """Nearly all multiprocessors have a block, and what is copied ahead are words of eight weights."""
    machine = tc.machine(target)
    problem = Problem(m=m, n=4096, k=4096, dtype=f16, right=u4, result=f16, group=128)
    plan = choose(QUANTIZED, problem, machine)
    assert isinstance(plan, Strips)
    blocks = -(-m // (16 * plan.tall)) * 4096 // (64 * plan.warps) * plan.parts
    assert blocks >= 0.9 * machine.threads
    small = replace(problem, m=m, n=128, k=512)
    made = build(small, replace(plan, warps=2, parts=1), machine)
    assert isinstance(made, tc.KernelDefinition)
    kernel = lower(for_target(made.ir, target))
    assert "tc::store_word(&right" in emit(kernel).text()  # two floats at once
    lean = to_text(kernel)
    assert "b: u4[512, 128].words()" in lean
    copies = [line for line in lean.splitlines() if "cp.async(&packed" in line]
    assert copies
    assert all(line.endswith(", 4, True)") for line in copies)


def test_costs_grow_with_the_work() -> None:
    here = tc.machine()
    small = Problem(m=16, n=1024, k=1024, dtype=f32, right=u4, result=f32, group=32)
    large = replace(small, k=4096)
    for problem in (small, large):
        assert all(plan.cost(problem, here) > 0 for plan in Space(QUANTIZED, problem, here).plans)
    first = next(iter(Space(QUANTIZED, small, here).plans))
    assert first.cost(large, here) > 3 * first.cost(small, here)
