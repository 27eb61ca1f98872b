"""What is built for a processor that isn't here: its plans, its code, and its results in the simulator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f32, i8, i32, u8
from taskc.backend.cpu.compile import compile_kernel
from taskc.backend.cpu.processor import typical
from taskc.ir.signature import inputs_of
from taskc.kernels.convolution import convolution, convolution_1d
from taskc.kernels.matmul import MATMUL, PRODUCT, batch_matmul, matmul, product
from taskc.kernels.matmul.problem import problem_of
from taskc.kernels.rows import softmax
from taskc.passes.pipeline import lower
from taskc.runtime.checking import examine
from taskc.tune.space import Space

TARGETS = ("sse2", "neon", "avx2", "avx2_vnni", "avx512", "avx512_vnni", "avx512_bf16", "avx512_amx")  # fmt: skip


def plan_of_matmul(target: str, **options: Any) -> Any:
    problem = problem_of(256, 256, 256, f32, **options)
    return Space(MATMUL, problem, tc.machine(target)).default


@pytest.mark.parametrize("target", TARGETS)
def test_tiles_are_of_its_vectors_and_fit_its_registers(target: str) -> None:
    plan, machine = plan_of_matmul(target), tc.machine(target)
    assert plan.lanes == machine.lanes
    assert machine.registers // 2 <= plan.rows * plan.vectors < machine.registers


def test_the_larger_tile_is_of_the_machine_with_more_registers() -> None:
    of_arm, of_intel = plan_of_matmul("neon"), plan_of_matmul("sse2")  # both of 4 lanes
    assert of_arm.rows * of_arm.vectors > of_intel.rows * of_intel.vectors


@pytest.mark.parametrize(
    ("target", "step"), [("avx512_amx", 64), ("avx512_vnni", 4), ("avx2_vnni", 4), ("avx2", 1)]
)
def test_products_are_by_the_instructions_that_it_has(target: str, step: int) -> None:
    """AMX goes through 64 bytes of k at a time, VNNI through 4."""
    problem = problem_of(64, 64, 64, u8, right=i8, total=i32)
    assert Space(PRODUCT, problem, tc.machine(target)).default.step == step


def kernels_for(target: str) -> dict[str, tuple[Any, Any]]:
    """Kernels of odd sizes, and what NumPy says of their inputs."""
    machine = tc.machine(target)
    return {
        "matmul": (matmul(17, 70, 20, machine=machine), np.matmul),
        "batch_matmul": (batch_matmul(((2,), (2,)), 9, 18, 12, machine=machine), np.matmul),
        "product": (product(9, 40, 24, dtype=u8, machine=machine), np.matmul),
        "softmax": (softmax(3, 37, machine=machine), softmaxed),
        "convolution": (convolution(1, 5, 6, 8, 20, dtype=f32, machine=machine), convolved),
        "convolution_1d": (
            convolution_1d(1, 6, 8, 20, dtype=f32, machine=machine),
            lambda x, w: convolved(x[:, None], w[:, None])[:, 0],
        ),
    }


def softmaxed(x: Any) -> Any:
    powers = np.exp(x - x.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def convolved(x: Any, w: Any) -> Any:
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[1:3], (1, 2))
    return np.einsum("nhwcrs,frsc->nhwf", windows, w)


@pytest.mark.parametrize("target", ["sse2", "neon", "avx2", "avx512", "avx512_amx"])
def test_it_is_compiled_here_and_right_in_the_simulator(target: str) -> None:
    random = np.random.default_rng(4)
    for name, (definition, exact) in kernels_for(target).items():
        for kernel in definition.kernels:
            made = compile_kernel(lower(replace(kernel.ir, target=target)), typical(target))
            assert made.code, name
        parameters = inputs_of(definition.ir.parameters)
        inputs = [random.integers(0, 3, item.argument_shape) for item in parameters]
        given = [x.astype(p.dtype.numpy) for x, p in zip(inputs, parameters, strict=True)]
        result = simulated(definition, given, target)
        expected = exact(*(x.astype(np.float64) for x in inputs))
        np.testing.assert_allclose(result, expected, rtol=1e-5, err_msg=name)


def simulated(definition: Any, arguments: list[Any], target: str) -> Any:
    """What the last call writes."""
    examined = examine(definition, arguments, stages=("lean",), target=target)
    assert examined.ok, examined.findings
    return examined.calls[-1].results[-1]
