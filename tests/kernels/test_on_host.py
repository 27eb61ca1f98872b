"""Kernels for GPUs that use matrix instructions, as emitted code that runs on this machine's processor.

Numbers are small and whole, so that sums are exact in any order; expected is what NumPy computes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import bf16, f8e4m3, f8e5m2, f16, f32, i8, i32, repeat, spatial, tf32, u8
from taskc.ir.target import SM_90A, TARGETS
from taskc.kernels.attention import Plan, attention
from taskc.kernels.convolution import Tiling as ConvolutionTiling, convolution
from taskc.kernels.matmul import Tiling, matmul
from tests.backend.cuda.host import COMPILER
from tests.kernels import test_attention, test_convolution
from tests.kernels.hosted import Problem, check
from tests.kernels.problems import tiling_of

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++ to compile for the host")

FRAGMENT = repeat(2, 1) * spatial(8, 4) * repeat(1, 2)
TRANSPOSED = (
    {},
    {"transpose_a": True},
    {"transpose_b": True},
    {"transpose_a": True, "transpose_b": True},
)


@tc.function
def relu(x):  # type: ignore[no-untyped-def]
    return max(x, 0)


def small(dtype: tc.DType, stages: int = 3, **options: Any) -> Tiling:
    """Two warps, 32 x 16."""
    return Tiling(spatial(2, 1) * repeat(1, 2) * FRAGMENT, 64 // dtype.nbytes, stages, **options)


def specialized(warpgroups: int, columns: int, depth: int, stages: int, **options: Any) -> Tiling:
    """A producer loads for so many warpgroups."""
    own = spatial(warpgroups, 1) * spatial(4, 1) * repeat(1, columns // 8) * FRAGMENT
    return Tiling(own, depth, stages, specialize=True, **options)


# Two consumers, each with tiles of 128 x 128.
IN_TURN = replace(
    specialized(1, 128, 32, 2), own=repeat(2, 1) * specialized(1, 128, 32, 2).own, consumers=2
)


def whole(shape: tuple[int, ...], dtype: tc.DType, seed: int) -> Any:
    low = 0 if dtype is u8 else -4
    return np.random.default_rng([seed, *shape]).integers(low, 5, shape).astype(dtype.numpy)


def product(
    target: str,
    shape: tuple[int, int, int],
    tiling: Tiling | None,
    extents: Any = None,
    **options: Any,
) -> Problem:
    m, n, k = shape
    options = {"total": i32 if options["dtype"] in (i8, u8) else f32, **options}
    definition = matmul(*(extents or shape), machine=tc.machine(target), tiling=tiling, **options)
    dtype, result = options["dtype"], options.get("result") or options["total"]
    a, b = whole((m, k), dtype, 0), whole((k, n), dtype, 1)
    arguments = [a.T if options.get("transpose_a") else a, b.T if options.get("transpose_b") else b]
    expected = a.astype(np.float64) @ b.astype(np.float64)
    if options.get("bias"):
        arguments.append(whole((n,), options["total"], 2))
        expected = expected + arguments[-1].astype(np.float64)
    if options.get("residual"):
        arguments.append(whole((m, n), result, 3))
        expected = expected + arguments[-1].astype(np.float64)
    if options.get("activation") is not None:
        expected = np.maximum(expected, 0)
    rounded = expected.astype(result.numpy).astype(np.float64)
    return Problem(definition, target, [np.ascontiguousarray(x) for x in arguments], rounded)


@pytest.fixture
def _two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a block has several tiles, one after another."""
    monkeypatch.setitem(TARGETS, "sm_90a", replace(SM_90A, processors=2))


def test_products_by_warps() -> None:
    """Three stages go round twice; the last blocks have one row, a column or two, and a part of k."""
    check(
        [
            product("sm_80", (33, 18, 168), small(f16), dtype=f16),
            product(
                "sm_80",
                (32, 17, 160),
                small(bf16),
                dtype=bf16,
                result=bf16,
                bias=True,
                activation=relu,
            ),
            product("sm_80", (33, 16, 84), small(tf32), dtype=tf32, transpose_b=True),
            product("sm_80", (33, 16, 324), small(i8), dtype=i8, transpose_b=True),
            product("sm_89", (33, 16, 324), small(f8e4m3), dtype=f8e4m3, transpose_b=True),
            product("sm_80", (33, 16, 232), small(f16, parts=2), dtype=f16, bias=True),
        ]
    )


@pytest.mark.usefixtures("_two_processors")
def test_products_by_warpgroups() -> None:
    shape = 136, 72, 176
    check(
        [
            product(
                "sm_90a",
                shape,
                specialized(2, 32, 64, 3),
                dtype=bf16,
                result=bf16,
                bias=True,
                activation=relu,
            ),
            product(
                "sm_90a",
                shape,
                specialized(1, 64, 64, 2),
                dtype=f16,
                transpose_a=True,
                transpose_b=True,
            ),
            product("sm_90a", shape, specialized(2, 32, 32, 3), dtype=tf32, transpose_b=True),
            product(
                "sm_90a", (136, 72, 400), specialized(1, 32, 128, 2), dtype=i8, transpose_b=True
            ),
            product(
                "sm_90a", (136, 72, 400), specialized(2, 64, 128, 2), dtype=f8e5m2, transpose_b=True
            ),
            product(
                "sm_90a", (256, 128, 208), specialized(1, 64, 64, 2, cluster=(2, 1)), dtype=bf16
            ),
            product(
                "sm_90a",
                (392, 264, 40),
                specialized(2, 256, 32, 2),
                dtype=bf16,
                result=bf16,
                residual=True,
            ),
            product("sm_90a", (392, 136, 104), IN_TURN, dtype=bf16, result=bf16),
            product("sm_90a", (392, 136, 40), IN_TURN, dtype=bf16, result=bf16, residual=True),
        ]
    )


def convolved(
    target: str,
    shape: tuple[int, int, int, int],
    tiling: Any,
    *,
    size: Any = (2, 2),
    **options: Any,
) -> Problem:
    """Of two images."""
    height, width, channels, features = shape
    options = {"dtype": f16, **options}
    dtype, groups = options["dtype"], options.get("groups", 1)
    total = i32 if dtype is i8 else f32
    x = whole((2, height, width, channels), dtype, 0)
    w = whole((features, *size, channels // groups), dtype, 1)
    offsets = whole((features,), total, 2)
    definition = convolution(
        tc.dim("images"),
        *shape,
        size=size,
        bias=True,
        tiling=tiling,
        machine=tc.machine(target),
        **options,
    )
    padding = options.get("padding", 0)
    padding = (padding,) * 4 if isinstance(padding, int) else tuple(padding) * (4 // len(padding))
    pairs = [options.get(name, (1, 1)) for name in ("stride", "dilation")]
    wide = [value.astype(np.float64) for value in (x, w, offsets)]
    exact = test_convolution.exact(*wide[:2], pairs[0], padding, pairs[1], groups) + wide[2]
    if options.get("activation") is test_convolution.relu:
        exact = np.maximum(exact, 0)
    expected = exact.astype((i32 if dtype is i8 else dtype).numpy).astype(np.float64)
    if options.get("order") == "NCHW":
        x, expected = x.transpose(0, 3, 1, 2), expected.transpose(0, 3, 1, 2)
    if options.get("filters") == "OIHW":
        w = w.transpose(0, 3, 1, 2)
    arguments = [np.ascontiguousarray(value) for value in (x, w, offsets)]
    return Problem(definition, target, arguments, expected)


BY_WARPS = ConvolutionTiling(spatial(2, 1) * repeat(1, 2) * FRAGMENT, 16, 3)
BY_WARPGROUPS = ConvolutionTiling(spatial(4, 1) * repeat(1, 2) * FRAGMENT, 16, 3)


def test_convolutions() -> None:
    check(
        [
            convolved("sm_80", (5, 4, 32, 12), BY_WARPS, padding=1),
            convolved("sm_90a", (5, 4, 32, 12), BY_WARPGROUPS, padding=1),
            convolved("sm_90a", (5, 4, 32, 12), BY_WARPGROUPS, order="NCHW", filters="OIHW"),
            convolved("sm_90a", (3, 4, 64, 72), test_convolution.SWAPPED, padding=1),
        ]
    )


def attended(target: str, shape: tuple[int, ...], dtype: tc.DType, **options: Any) -> Problem:
    """Scores are real numbers: the bound is that of the tests in the simulator."""
    batches, heads, groups, length, keys, features, results = shape
    arguments = [x.astype(dtype.numpy) for x in test_attention.operands(*shape)]
    definition = attention(
        batches, heads, length, keys, features,
        kv_heads=groups, value_features=results, dtype=dtype, machine=tc.machine(target), **options,
    )  # fmt: skip
    seen = {"scale": options.get("scale")}
    if options.get("causal"):
        seen["offset"] = keys - length
    expected, bound = test_attention.exact(*arguments, **seen)
    sizes, _ = test_attention.exact(*arguments[:2], np.abs(arguments[2]), **seen)
    rounding = {f16: 2.0**-11, bf16: 2.0**-8, f32: 0.0}[dtype]
    bound = bound + rounding * (sizes + np.abs(expected))
    return Problem(definition, target, arguments, expected, bound)


def test_attentions() -> None:
    check(
        [
            attended("sm_80", (1, 1, 1, 20, 60, 16, 24), f16, causal=True, plan=Plan(1, 1, 16, 3)),
            attended(
                "sm_90a", (1, 2, 1, 80, 120, 16, 24), f16, causal=True, plan=Plan(4, 1, 16, 3)
            ),
            attended(
                "sm_90a",
                (1, 2, 1, 140, 130, 16, 24),
                f16,
                causal=True,
                plan=Plan(8, 1, 32, 2, specialize=True),
            ),
            attended(
                "sm_90a",
                (1, 1, 1, 200, 100, 16, 16),
                f16,
                plan=Plan(12, 1, 32, 2, specialize=True),
            ),
            attended(
                "sm_80", (2, 4, 2, 3, 60, 16, 24), f16, causal=True, plan=Plan(1, 1, 16, 3, part=32)
            ),
        ]
    )


# --- what takes longer -----------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_90a"])
@pytest.mark.parametrize("dtype", [f16, bf16, tf32, i8, u8, f8e4m3, f8e5m2, f32], ids=str)
def test_every_type_by_warps(target: str, dtype: tc.DType) -> None:
    if target == "sm_80" and dtype in (f8e4m3, f8e5m2):
        pytest.skip("sm_80 has no products of 8-bit floats")
    tiling = small(dtype)
    steps = 5 * tiling.depth
    check(
        [
            product(target, shape, tiling, dtype=dtype, **options)
            for options in TRANSPOSED
            for shape in ((33, 16, steps + 8), (31, 15, steps + 1), (1, 1, 1))
        ]
    )


def is_taken(dtype: tc.DType, options: dict[str, bool]) -> bool:
    """Whether asynchronous products take operands that lie so: only those of 16 bits along m and n."""
    return dtype.nbytes == 2 or options == {"transpose_b": True}


@pytest.mark.sweep
@pytest.mark.usefixtures("_two_processors")
@pytest.mark.parametrize("dtype", [f16, bf16, tf32, i8, f8e4m3, f8e5m2], ids=str)
@pytest.mark.parametrize(
    ("warpgroups", "columns", "stages"),
    [(1, 8, 2), (1, 32, 3), (2, 64, 4), (2, 128, 2), (1, 256, 2)],
)
def test_every_type_by_warpgroups(
    dtype: tc.DType, warpgroups: int, columns: int, stages: int
) -> None:
    """Two blocks of two tiles each; the last ones are ragged."""
    depth = 128 // dtype.nbytes
    tiling = specialized(warpgroups, columns, depth, stages)
    shape = 64 * warpgroups + 8, columns + 8, (stages + 2) * depth + 16
    check(
        [
            product("sm_90a", shape, tiling, dtype=dtype, **options)
            for options in TRANSPOSED
            if is_taken(dtype, options)
        ]
    )


@pytest.mark.sweep
@pytest.mark.usefixtures("_two_processors")
@pytest.mark.parametrize("cluster", [(2, 1), (1, 2), (2, 2), (4, 1)], ids=str)
@pytest.mark.parametrize("options", TRANSPOSED, ids=str)
def test_clusters(cluster: tuple[int, int], options: dict[str, bool]) -> None:
    tiling = specialized(1, 32, 64, 2, cluster=cluster)
    shape = 64 * cluster[0] * 2, 32 * cluster[1] * 2, 6 * 64 + 8
    check([product("sm_90a", shape, tiling, dtype=bf16, **options)])


@pytest.mark.sweep
@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_90a"])
@pytest.mark.parametrize("dtype", [f16, tf32, i8, f32], ids=str)
@pytest.mark.parametrize("options", TRANSPOSED, ids=str)
def test_what_is_chosen(target: str, dtype: tc.DType, options: dict[str, bool]) -> None:
    """The tiles for large products, on the smallest one that goes around all stages and has edges."""
    total = i32 if dtype is i8 else f32
    machine = tc.machine(target)
    tiling = tiling_of(4096, 4096, 4096, (dtype, dtype, total), machine, **options)
    (m, n), depth = tiling.own.shape, tiling.depth
    shape = m * tiling.cluster[0] - 8, n * tiling.cluster[1] - 8, (tiling.stages + 2) * depth + 16
    check([product(target, shape, tiling, dtype=dtype, **options)])


@pytest.mark.sweep
@pytest.mark.parametrize("form", test_convolution.FORMS)
@pytest.mark.parametrize("dtype", [f16, bf16, i8, tf32, f32], ids=str)
def test_forms_of_convolutions(form: str, dtype: tc.DType) -> None:
    shape, options = test_convolution.FORMS[form]
    is_depthwise = options.get("groups", 1) == shape[2]
    check(
        [
            convolved(target, shape, tiling, dtype=dtype, **options)  # type: ignore[arg-type]
            for target, tiling in (
                ("sm_80", None if is_depthwise else BY_WARPS),
                ("sm_90a", None if is_depthwise else BY_WARPGROUPS),
                ("sm_90a", None),
            )
        ]
    )


@pytest.mark.sweep
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    ("shape", "dtype", "options"),
    [
        ((1, 1, 1, 20, 40, 20, 12), bf16, {"plan": Plan(2, 1, 16, 3)}),
        ((1, 1, 1, 40, 20, 16, 16), f16, {"causal": True, "plan": Plan(1, 2, 32, 2)}),
        ((1, 1, 1, 140, 150, 16, 16), f16, {"causal": True, "plan": Plan(4, 1, 32, 2)}),
        ((1, 1, 1, 20, 70, 10, 33), f32, {"causal": True, "plan": Plan(1, 1, 32, 2)}),
        ((1, 6, 2, 3, 50, 16, 16), f16, {"causal": True}),
        ((1, 1, 1, 17, 40, 16, 16), f16, {"scale": -0.5}),
        ((1, 1, 1, 140, 400, 64, 64), bf16, {}),
        ((1, 1, 1, 140, 400, 128, 128), f16, {"causal": True}),
    ],
    ids=str,
)
def test_forms_of_attention(target: str, shape: Any, dtype: tc.DType, options: Any) -> None:
    check([attended(target, shape, dtype, **options)])


@pytest.mark.sweep
@pytest.mark.usefixtures("_two_processors")
def test_attention_of_several_tiles_a_block() -> None:
    plan = Plan(4, 1, 32, 2, specialize=True)
    check([attended("sm_90a", (1, 2, 1, 130, 100, 16, 24), f16, plan=plan)])
