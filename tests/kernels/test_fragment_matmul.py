"""Products by fragments: one template for mma.sync and wgmma, in the simulator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import bf16, f32, i8, i32
from taskc.backend import sim
from taskc.ir import nodes as ir
from taskc.ir.printer import to_text
from taskc.ir.target import SM_90A, TARGETS
from taskc.kernels.fragment_matmul import Schedule, fragment_matmul, warpgroups, warps
from taskc.passes.pipeline import lower

M, N, K = 136, 72, 168


@tc.function
def relu(x):  # type: ignore[no-untyped-def]
    return max(x, 0)


@pytest.fixture(autouse=True)
def _two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TARGETS, "sm_90a", replace(SM_90A, processors=2))


def compiled(definition: tc.KernelDefinition, target: str, *given: Any) -> tuple[Any, ir.Kernel]:
    kernel = lower(replace(definition.ir, target=target))
    out = kernel.parameters[-1]
    assert isinstance(out, ir.Tensor)
    result = np.zeros((M, N), out.dtype.numpy)
    report = sim.run(kernel, [*given, result], seed=1)
    assert not report.findings, str(report)
    return result, kernel


SCHEDULES = [
    pytest.param(warpgroups(2, 32, stages=3), "sm_90a", "wgmma.m64n32k16", id="two warpgroups"),
    pytest.param(warpgroups(1, 64, stages=2), "sm_90a", "wgmma.m64n64k16", id="one warpgroup"),
    pytest.param(warps((2, 2), (2, 2), stages=3), "sm_80", "mma.sync.m16n8k16", id="warps"),
]


@pytest.mark.parametrize(("schedule", "target", "instruction"), SCHEDULES)
def test_bias_and_activation(schedule: Schedule, target: str, instruction: str) -> None:
    random = np.random.default_rng(3)
    a, b = (random.normal(size=shape).astype(bf16.numpy) for shape in ((M, K), (K, N)))
    bias = random.normal(size=N).astype(np.float32)
    definition = fragment_matmul(M, N, K, bias=True, activation=relu, result=f32, schedule=schedule)
    result, kernel = compiled(definition, target, a, b, bias)
    assert instruction in to_text(kernel)
    expected = np.maximum(a.astype(np.float64) @ b.astype(np.float64) + bias, 0)
    assert np.abs(result - expected).max() < 1e-4


@pytest.mark.parametrize("schedule", [warpgroups(1, 32, depth=64, stages=3)])
def test_integers_and_unknown_sizes(schedule: Schedule) -> None:
    random = np.random.default_rng(4)
    a, b = (random.integers(-128, 128, (x, 176)).astype(np.int8) for x in (M, N))
    sizes = (tc.dim("m"), tc.dim("n", multiple=4), tc.dim("k", multiple=16))
    definition = fragment_matmul(
        *sizes, dtype=i8, total=i32, result=i32, transpose_b=True, schedule=schedule
    )
    result, kernel = compiled(definition, "sm_90a", a, b)
    text = to_text(kernel)
    assert all(word in text for word in ("wgmma.m64n32k32.i8", "tma.load", "tma.store"))
    assert np.array_equal(result, a.astype(np.int32) @ b.astype(np.int32).T)


def test_the_largest_fits() -> None:
    """128 by 256 by 64, four stages, and two panels of results in 227 KiB."""
    kernel = lower(
        replace(fragment_matmul(8192, 8192, 1024, schedule=warpgroups()).ir, target="sm_90a")
    )
    text = to_text(kernel)
    words = ("wgmma.m64n256k16.bf16", "setmaxnreg(24)", "setmaxnreg(240)", "tma.load", "tma.store")
    assert all(word in text for word in words)
    assert not kernel.notes
