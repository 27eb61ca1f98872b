"""Cumulative sums and products against NumPy, and against the simulator."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import repeat, spatial
from taskc.kernels.scans import (
    SCAN,
    Lines,
    LookBack,
    Plan,
    Problem,
    Ranges,
    build,
    candidates,
    cumprod,
    cumsum,
    problem_of,
)
from taskc.tune.choose import choose
from tests.backend.cuda.host import COMPILER
from tests.kernels import hosted
from tests.kernels.simulated import simulated


def expected(
    x: np.ndarray, axis: int, *, exclusive: bool, reverse: bool, fold: Any = np.add
) -> np.ndarray:
    x = np.flip(x, axis) if reverse else x
    y = fold.accumulate(x, axis, dtype=x.dtype)
    if exclusive:
        first = np.full_like(x.take([0], axis), fold.identity)
        y = np.concatenate([first, y.take(range(x.shape[axis] - 1), axis)], axis)
    return np.flip(y, axis) if reverse else y


def whole(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Numbers whose sums are exact, in any order."""
    return np.random.default_rng(seed).integers(-9, 10, shape).astype(np.float32)


def planned(shape: tuple[int, ...], plan: Plan, dtype: tc.DType = tc.f32, **options: bool) -> Any:
    problem = problem_of("sum", shape, len(shape) - 1, dtype, **options)
    return build(problem, plan, tc.machine())


@pytest.mark.each_value(2)
@pytest.mark.parametrize("n", [1, 15, 17, 129])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_sizes(n: int, exclusive: bool, reverse: bool, same_bits: Any) -> None:
    options = {"exclusive": exclusive, "reverse": reverse}
    for shape, axis in (((3, n), -1), ((n, 3), 0), ((2, n, 17), 1)):
        x = whole(shape, n)
        y = same_bits(lambda shape=shape, axis=axis: cumsum(shape, axis, **options), x)
        np.testing.assert_array_equal(y, expected(x, axis, **options), strict=True)


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_products(exclusive: bool, reverse: bool, same_bits: Any) -> None:
    options = {"exclusive": exclusive, "reverse": reverse}
    for dtype in (np.float32, np.int32):  # integers wrap
        for shape, axis in (((3, 37), -1), ((37, 3), 0), ((2, 1, 17), 1)):
            factors = [-2, -1, 1, 2] if dtype is np.float32 else range(-7, 8)  # exact, in any order
            x = np.random.default_rng(0).choice(factors, shape).astype(dtype)
            given = tc.f32 if dtype is np.float32 else tc.i32
            y = same_bits(lambda: cumprod(shape, axis, dtype=given, **options), x)
            np.testing.assert_array_equal(
                y, expected(x, axis, fold=np.multiply, **options), strict=True
            )


def test_products_of_ranges(same_bits: Any) -> None:
    x = np.random.default_rng(4).choice([-2, -1, 1, 2], (1, 200)).astype(np.float32)
    problem = problem_of("prod", (1, 200), 1, tc.f32, exclusive=True, reverse=True)
    plan = Ranges(repeat(1, 2) * spatial(1, 16), ranges=3, chunks=1)
    y = same_bits(lambda: build(problem, plan, tc.machine()), x)
    np.testing.assert_array_equal(
        y, expected(x, 1, exclusive=True, reverse=True, fold=np.multiply), strict=True
    )


def test_one_worker_adds_up_in_order(same_bits: Any) -> None:
    x = np.random.default_rng(5).standard_normal((2, 33, 17)).astype(np.float32)
    y = same_bits(lambda: cumsum((2, 33, 17), 1), x)
    assert np.array_equal(y, np.cumsum(x, 1))


@pytest.mark.each_value(2)
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("n", [192, 193, 257, 383])
def test_ranges(n: int, exclusive: bool, reverse: bool, same_bits: Any) -> None:
    """The last range is whole, has one element, or lacks one."""
    options = {"exclusive": exclusive, "reverse": reverse}
    x = whole((2, n), n)
    plan = Ranges(repeat(1, 2) * spatial(1, 16), ranges=3, chunks=2)
    y = same_bits(lambda: planned((2, n), plan, **options), x)
    np.testing.assert_array_equal(y, expected(x, 1, **options), strict=True)


@pytest.mark.parametrize("dtype", [tc.i8, tc.u32, tc.f64, tc.f16], ids=str)
def test_types_of_ranges(dtype: tc.DType, same_bits: Any) -> None:
    x = np.random.default_rng(3).integers(0, 3, (1, 200)).astype(dtype.numpy)
    options = {"exclusive": False, "reverse": False}
    plan = Ranges(repeat(1, 2) * spatial(1, 16), ranges=2, chunks=1)
    y = same_bits(lambda: planned((1, 200), plan, dtype, **options), x)
    assert np.array_equal(y, expected(x, 1, **options))


def test_a_long_line_of_an_awkward_length() -> None:
    n = (1 << 24) + 3
    x = np.random.default_rng(1).integers(-9, 10, n).astype(np.int32)
    assert np.array_equal(cumsum((n,), 0, dtype=tc.i32)(x), np.cumsum(x, dtype=np.int32))


def test_sums_of_floats_are_close() -> None:
    """Closer than sums that are added up one after another."""
    x = np.random.default_rng(2).random(100_003).astype(np.float32)
    exact = np.cumsum(x.astype(np.float64))
    for plan in (
        None,
        Lines(repeat(1, 8) * spatial(1, 16)),
        Ranges(repeat(1, 8) * spatial(1, 16), 5),
    ):
        problem = problem_of("sum", (len(x),), 0, tc.f32, exclusive=False, reverse=False)
        error = np.abs(build(problem, plan, tc.machine())(x) - exact).max()
        assert error <= np.abs(np.cumsum(x) - exact).max()


def plan_of(shape: tuple[int, ...], threads: int) -> str:
    """The name of the plan of least cost for a processor of so many threads."""
    machine = replace(tc.machine("avx512"), threads=threads)
    problem: Problem = problem_of(
        "sum", shape, len(shape) - 1, tc.f32, exclusive=False, reverse=False
    )
    best = min(candidates(problem, machine), key=lambda plan: plan.cost(problem, machine))
    return type(best).__name__


@pytest.mark.parametrize(
    ("shape", "threads", "name"),
    [
        ((1, 1 << 24), 1, "Lines"),
        ((1, 1 << 24), 2, "Ranges"),
        ((1, 1 << 24), 64, "Ranges"),
        ((1, 1000), 64, "Lines"),
        ((4096, 4096), 2, "Lines"),
        ((4096, 16), 2, "Lines"),
        ((100_000, 3), 2, "Serial"),
    ],
)
def test_plans(shape: tuple[int, ...], threads: int, name: str) -> None:
    assert plan_of(shape, threads) == name


@pytest.mark.parametrize("dtype", [tc.i8, tc.u16, tc.i32, tc.i64, tc.f64])
def test_types(dtype: tc.DType, same_bits: Any) -> None:
    x = np.random.default_rng(3).integers(0, 100, (6, 35)).astype(dtype.numpy)
    y = same_bits(lambda: cumsum((6, 35), 1, dtype=dtype), x)
    assert np.array_equal(y, expected(x, 1, exclusive=False, reverse=False))


@pytest.mark.parametrize("dtype", [tc.f16, tc.bf16], ids=str)
def test_numbers_of_16_bits_are_added_up_in_f32(dtype: tc.DType, same_bits: Any) -> None:
    x = np.full((3, 70), 1 / 3, np.float32).astype(dtype.numpy)
    y = same_bits(lambda: cumsum((3, 70), 1, dtype=dtype), x)
    assert np.array_equal(y, np.cumsum(x.astype(np.float32), 1).astype(dtype.numpy))


def test_any_size() -> None:
    m, n = tc.dim("m"), tc.dim("n")
    kernels = [cumsum((m, n), axis, reverse=axis == 1) for axis in (0, 1)]
    for shape in ((1, 1), (3, 17), (300, 5), (0, 4), (4, 0)):
        x = whole(shape)
        for axis, kernel in enumerate(kernels):
            y = expected(x, axis, exclusive=False, reverse=axis == 1)
            assert np.array_equal(kernel(x), y)


def test_signs_of_zeros() -> None:
    x = np.array([-0.0, -0.0, 0.0, -0.0], np.float32)
    assert np.signbit(cumsum((4,), 0)(x)).tolist() == [True, True, False, False]
    assert not np.signbit(cumsum((4,), 0, exclusive=True)(x)).any()


def test_refusals() -> None:
    with pytest.raises(tc.CompileError, match="axis 2 is not one of 2"):
        cumsum((3, 4), 2)
    with pytest.raises(tc.CompileError, match="there is no sum of bool"):
        cumsum((3,), 0, dtype=tc.boolean)
    with pytest.raises(tc.CompileError, match="there is no prod of bool"):
        cumprod((3,), 0, dtype=tc.boolean)


LOOKING_BACK: list[tuple[tuple[int, int], LookBack, tc.DType, str, dict[str, bool]]] = [
    ((1, 5000), LookBack(1, 1), tc.f32, "sum", {}),  # 40 blocks: a group and a part of one
    ((2, 1001), LookBack(2, 1), tc.i32, "prod", {"exclusive": True}),
    ((3, 513), LookBack(1, 2), tc.f16, "sum", {"reverse": True}),
    ((1, 1), LookBack(1, 1), tc.f32, "sum", {"exclusive": True, "reverse": True}),
    (
        (1, 140_000),
        LookBack(1, 1),
        tc.f32,
        "sum",
        {},
    ),  # a row of 32 groups and a part of one: not simulated
]


def looking_back(number: int) -> tuple[Any, np.ndarray, np.ndarray]:
    shape, plan, dtype, operator, given = LOOKING_BACK[number]
    options = {"exclusive": False, "reverse": False, **given}
    problem = problem_of(operator, shape, 1, dtype, **options)
    random = np.random.default_rng(number)
    x = random.integers(-2, 3, shape) if operator == "sum" else random.choice([-1, 1, 3], shape)
    x = x.astype(dtype.numpy)
    fold = np.add if operator == "sum" else np.multiply
    return build(problem, plan, tc.machine("sm_80")), x, expected(x, 1, fold=fold, **options)


@pytest.mark.parametrize("number", range(len(LOOKING_BACK) - 1))
def test_blocks_look_back_in_the_simulator(number: int) -> None:
    definition, x, wanted = looking_back(number)
    made, _ = simulated(definition, [x], "sm_80", "all" if number == 2 else ("parsed", "lean"))
    np.testing.assert_array_equal(made, wanted.astype(np.float64))


@pytest.mark.skipif(COMPILER is None, reason="there is no g++ to compile for the host")
def test_blocks_look_back_as_emitted() -> None:
    hosted.check(
        [
            hosted.Problem(definition, "sm_80", [x], wanted.astype(np.float64))
            for definition, x, wanted in map(looking_back, range(len(LOOKING_BACK)))
        ]
    )


def test_few_long_lines_are_read_once_on_a_gpu() -> None:
    machine = tc.machine("sm_90a")
    options = {"exclusive": False, "reverse": False}
    for shape in ((1, 1 << 24), (8, 1 << 20), (1, 100_000)):
        assert isinstance(
            choose(SCAN, problem_of("sum", shape, 1, tc.f32, **options), machine), LookBack
        )
    assert isinstance(
        choose(SCAN, problem_of("sum", (4096, 4096), 1, tc.f32, **options), machine), Lines
    )
    # Sums of 64 bits don't fit in a word beside what says that they are there.
    assert isinstance(
        choose(SCAN, problem_of("sum", (1, 1 << 24), 1, tc.f64, **options), machine), Ranges
    )
