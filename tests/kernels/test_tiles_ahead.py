"""`matmul` on sm_90a: warpgroups multiply, a producer loads, blocks have several tiles; in the simulator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import DType, bf16, f16, f32, i8, i32, repeat, spatial, tf32
from taskc.backend import sim
from taskc.ir import nodes as ir
from taskc.ir.printer import to_text
from taskc.ir.target import SM_90A, TARGETS
from taskc.kernels.matmul import matmul
from taskc.kernels.tiles_matmul import Tiling, choose
from taskc.passes.pipeline import lower

HOPPER = tc.machine("sm_90a")
M, N, K = 136, 72, 176


@tc.function
def relu(x):  # type: ignore[no-untyped-def]
    return max(x, 0)


def tiling(warpgroups: int, columns: int, depth: int, stages: int) -> Tiling:
    pairs = repeat(2, 1) * spatial(8, 4) * repeat(1, 2)
    own = spatial(warpgroups, 1) * spatial(4, 1) * repeat(1, columns // 8) * pairs
    return Tiling(own, depth, stages, ahead=True)


def product(
    plan: Tiling, *given: Any, extents: Any = (M, N, K), **options: Any
) -> tuple[np.ndarray[Any, Any], str]:
    definition = matmul(*extents, machine=HOPPER, tiling=plan, **options)
    assert isinstance(definition, tc.KernelDefinition)
    kernel = lower(replace(definition.ir, target="sm_90a"))
    out = kernel.parameters[-1]
    assert isinstance(out, ir.Tensor)
    result = np.zeros((M, N), out.dtype.numpy)
    report = sim.run(kernel, [*given, result], seed=1)
    assert not report.findings, str(report)
    shared = [access.ways for access in report.accesses if access.scope == ir.SHARED]
    assert max(shared, default=1) <= 2
    return result, to_text(kernel)


@pytest.fixture
def _two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TARGETS, "sm_90a", replace(SM_90A, processors=2))


@pytest.mark.usefixtures("_two_processors")
@pytest.mark.parametrize("plan", [tiling(2, 32, 64, 3), tiling(1, 64, 64, 2)], ids=["2", "1"])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_bias_and_activation(plan: Tiling, transpose_b: bool) -> None:
    random = np.random.default_rng(3)
    a, b = (random.normal(size=shape).astype(bf16.numpy) for shape in ((M, K), (K, N)))
    bias = random.normal(size=N).astype(np.float32)
    given = np.ascontiguousarray(b.T) if transpose_b else b
    result, text = product(
        plan, a, given, bias,
        dtype=bf16, total=f32, transpose_b=transpose_b, bias=True, activation=relu,
    )  # fmt: skip
    assert all(word in text for word in ("do wgmma.m64n", "tma.load", "tma.store"))
    expected = np.maximum(a.astype(np.float64) @ b.astype(np.float64) + bias, 0)
    assert np.abs(result - expected).max() < 1e-4


@pytest.mark.usefixtures("_two_processors")
def test_integers_and_unknown_sizes() -> None:
    random = np.random.default_rng(4)
    a, b = (random.integers(-128, 128, (x, K)).astype(np.int8) for x in (M, N))
    sizes = (tc.dim("m"), tc.dim("n", multiple=4), tc.dim("k", multiple=16))
    result, text = product(
        tiling(1, 32, 128, 2), a, b, extents=sizes, dtype=i8, total=i32, transpose_b=True
    )
    assert all(word in text for word in ("wgmma.m64n32k32.i8", "tma.load", "tma.store"))
    assert np.array_equal(result, a.astype(np.int32) @ b.astype(np.int32).T)


@pytest.mark.parametrize(
    ("shape", "dtype", "options", "own"),
    [
        ((8192, 8192, 1024), bf16, {}, (128, 256)),
        ((4096, 4096, 4096), f16, {"transpose_b": True}, (128, 256)),
        ((4096, 4096, 4096), tf32, {"transpose_b": True}, (128, 256)),
    ],
)
def test_what_is_chosen_for_large_products(
    shape: tuple[int, int, int], dtype: DType, options: Any, own: tuple[int, int]
) -> None:
    """A block takes what it can have of shared memory, with room for its results."""
    plan = choose(*shape, (dtype, dtype, f32), HOPPER, **options)
    assert (plan.ahead, plan.own.shape) == (True, own)
    made = matmul(*shape, machine=HOPPER, dtype=dtype, total=f32, result=dtype, **options)
    assert isinstance(made, tc.KernelDefinition)
    kernel = lower(replace(made.ir, target="sm_90a"))
    text = to_text(kernel)
    words = ("do wgmma.m64n256k", "setmaxnreg(24)", "setmaxnreg(240)", "tma.load", "tma.store")
    assert all(word in text for word in words)
    assert not kernel.notes


@pytest.mark.parametrize(
    ("shape", "types"),
    [((2039, 2039, 2039), (bf16, bf16, f32)), ((512, 512, 512), (i8, i8, i32))],
    ids=["rows that bulk copies do not take", "8 bits with neighbours along n"],
)
def test_where_warps_multiply(shape: tuple[int, int, int], types: Any) -> None:
    assert not choose(*shape, types, HOPPER).ahead
