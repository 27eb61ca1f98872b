"""The epilogue of products: bias, scales, a residual and an activation, by all algorithms, of awkward sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import bf16, f16, f32, i8, i32
from taskc.kernels import convolution
from taskc.kernels.convolution.problem import problem_of
from taskc.kernels.matmul import Panels, Problem, build
from taskc.kernels.matmul.panels import packs, panels
from taskc.kernels.matmul.plan import candidates, candidates_of_batches, candidates_of_packs
from taskc.tune.space import plans
from tests.kernels.problems import copied, gemm, tiling_of
from tests.kernels.simulated import simulated

Array = np.ndarray[Any, Any]


@tc.function
def relu(x):  # type: ignore[no-untyped-def]
    return max(x, 0)


WHOLE = {"bias": True, "scale": True, "residual": True, "activation": relu}
RESIDUAL = {"residual": True}
FLOATS, HALVES, BYTES = (f32, f32, f32), (f16, f16, f32), (i8, i8, i32)


def arguments_of(problem: Any, seed: int = 1) -> list[Array]:
    """Small whole numbers; an extent that is known only at a call is 17."""
    random = np.random.default_rng(seed)
    left, other, further, _ = problem.types
    shapes = [
        (x.dtype, tuple(n if isinstance(n, int) else 17 for n in x.shape))
        for x in (left, other, *further)
    ]
    return [random.integers(-2, 3, shape).astype(dtype.numpy) for dtype, shape in shapes]


def finished(problem: Any, sums: Array, further: list[Array], axis: int = -1) -> Array:
    """What the epilogue makes of sums."""
    wide = [x.astype(np.float64) for x in further]
    of_features = [1] * sums.ndim
    of_features[axis] = -1
    offsets = wide.pop(0).reshape(of_features) if problem.bias else 0
    factors = wide.pop(0).reshape(of_features) if problem.scale else 1
    result = sums * factors + offsets + (wide.pop() if problem.residual else 0)
    return np.maximum(result, 0) if problem.activation else result


def product_of(problem: Problem, arguments: list[Array]) -> Array:
    a, b = (x.astype(np.float64) for x in arguments[:2])
    a = a.swapaxes(-1, -2) if problem.transpose_a else a
    return finished(problem, a @ (b.swapaxes(-1, -2) if problem.transpose_b else b), arguments[2:])


def _elements(plan: Any) -> int:
    """Of a tile, if the plan has one."""
    return int(np.prod(plan.own.shape)) if hasattr(plan, "own") else 0


def one_of_each(space: Any, problem: Problem, machine: tc.Machine) -> list[Any]:
    """The smallest plan of each form: by its type, with parts of k and without, with a producer and so on."""
    found: dict[Any, Any] = {}
    for plan in sorted(plans(space, problem, machine), key=_elements):
        form = [
            bool(value) if name in ("depth", "ahead", "turned") else value > 1
            for name in ("depth", "ahead", "turned", "parts", "beside", "columns")
            if (value := getattr(plan, name, None)) is not None
        ]
        found.setdefault((type(plan), tuple(form)), plan)
    return list(found.values())


@pytest.mark.each_value
@pytest.mark.parametrize("options", [WHOLE, RESIDUAL], ids=str)
@pytest.mark.parametrize(
    ("space", "make", "problem"),
    [
        (candidates, build, gemm(33, 70, 50, FLOATS)),
        (candidates, build, gemm(5, 70, 50, FLOATS)),
        (candidates, build, gemm(5, 70, 50, FLOATS, transpose_b=True)),
        (candidates, build, gemm(tc.dim("m"), 70, 50, FLOATS)),
        (candidates, build, gemm(9, 33, 20, BYTES, result=f32)),
        (candidates_of_packs, packs, gemm(33, 70, 50, (i8, i8, i32), result=f32)),
        (candidates_of_packs, packs, gemm(33, 70, 50, (bf16, bf16, f32))),
        (candidates_of_batches, panels, gemm(9, 70, 50, FLOATS, batch=((3,), (3,)))),
        (candidates_of_batches, panels, gemm(9, 33, 20, FLOATS, batch=((3, 2), ()))),
    ],
)
def test_processors(space: Any, make: Any, problem: Problem, options: dict[str, Any]) -> None:
    if problem.total is i32 and "scale" not in options:
        options = {**options, "scale": True}
    problem = replace(problem, **options)
    arguments, machine = arguments_of(problem), tc.machine()
    exact = product_of(problem, arguments)
    for plan in one_of_each(space, problem, machine):
        made = make(problem, plan, machine) if make is build else make(problem, plan)
        np.testing.assert_array_equal(made(*arguments), exact, err_msg=str(plan))


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("sm_80", gemm(17, 24, 520, HALVES, **WHOLE)),
        ("sm_80", gemm(33, 50, 40, HALVES, result=f16, **RESIDUAL)),
        ("sm_80", gemm(3, 70, 520, HALVES, **WHOLE)),
        ("sm_80", gemm(70, 2, 520, HALVES, **WHOLE)),
        ("sm_80", gemm(17, 24, 32, FLOATS, **WHOLE)),
        ("sm_80", gemm(17, 24, 64, BYTES, result=f32, transpose_b=True, **WHOLE)),
        ("sm_90a", gemm(17, 40, 520, HALVES, result=f16, **WHOLE)),
        ("sm_90a", gemm(70, 40, 64, HALVES, **RESIDUAL)),
    ],
)
def test_gpus(target: str, problem: Problem) -> None:
    machine, arguments = tc.machine(target), arguments_of(problem)
    exact = product_of(problem, arguments)
    for plan in one_of_each(candidates, problem, machine):
        made, _ = simulated(build(problem, plan, machine), arguments, target, "lean")
        np.testing.assert_array_equal(made, exact, err_msg=str(plan))


def test_copies_around_a_product() -> None:
    problem, machine = gemm(20, 30, 41, HALVES, **WHOLE), tc.machine("sm_80")
    arguments = arguments_of(problem)
    tiling = tiling_of(20, 30, 41, HALVES, machine)
    made, _ = simulated(copied(problem, tiling, machine), arguments, "sm_80", "lean")
    np.testing.assert_array_equal(made, product_of(problem, arguments))


IMAGES = [
    {"channels": 6, "features": 10, "size": 3, "padding": 1},
    {"channels": 8, "features": 12, "size": 1},
    {"channels": 8, "features": 12, "size": 3, "groups": 2, "stride": 2},
    {"channels": 6, "features": 6, "size": 3, "groups": 6},
]


@pytest.mark.each_value(2)
@pytest.mark.parametrize("target", [None, "sm_80", "sm_90a"], ids=str)
@pytest.mark.parametrize("order", ["NHWC", "NCHW"])
@pytest.mark.parametrize("sizes", IMAGES, ids=str)
def test_convolutions(sizes: dict[str, Any], order: str, target: str | None) -> None:
    """The sums are those of the same convolution without an epilogue, whose tests are elsewhere."""
    dtype = f16 if target else f32
    problems = [
        problem_of(
            2, (7, 5), **{"stride": 1, "padding": 0, "dilation": 1, "groups": 1, **sizes},
            order=order, filters="OHWI", dtype=dtype, total=None, result=f32, **options,
        )
        for options in ({**dict.fromkeys(("bias", "scale", "residual"), False), "activation": None}, WHOLE)
    ]  # fmt: skip
    machine = tc.machine(target)
    arguments = arguments_of(problems[1])
    plain, whole = (
        simulated(made, values, target, "lean")[0] if target else made(*values)
        for made, values in (
            (convolution.build(problems[0], None, machine), arguments[:2]),
            (convolution.build(problems[1], None, machine), arguments),
        )
    )
    shape, axis = problems[1].types[3].shape, 1 if order == "NCHW" else 3
    sums = np.asarray(plain, np.float64).reshape(shape)
    exact = finished(problems[1], sums, arguments[2:], axis)
    np.testing.assert_array_equal(np.asarray(whole).reshape(shape), exact)


def test_a_plan_of_panels_in_parts_of_k() -> None:
    problem = gemm(33, 70, 50, FLOATS, **WHOLE)
    arguments = arguments_of(problem)
    for plan in (Panels(4, 2, 8, tc.machine().lanes, 16, 2), Panels(4, 2, 8, tc.machine().lanes)):
        made = build(problem, plan, tc.machine())
        np.testing.assert_array_equal(made(*arguments), product_of(problem, arguments))
