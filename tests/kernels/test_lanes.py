"""Plans know how many numbers a vector has: no default plan wants more vectors of sums than there are registers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil
from typing import Any

import pytest

import taskc as tc
from taskc import DType, Machine, bf16, f16, f32, f64, i8
from taskc.ir import nodes as ir
from taskc.ir.rewrite import walk_statements
from taskc.kernels.attention import attention
from taskc.kernels.convolution import convolution, convolution_1d, convolution_3d
from taskc.kernels.matmul import batch_matmul, matmul, product
from taskc.kernels.pooling import average_pool, max_pool, sum_pool
from taskc.kernels.quantized import quantized_matmul
from taskc.kernels.reductions import argmax, reduction
from taskc.kernels.rows import layer_norm, log_softmax, rms_norm, softmax
from taskc.kernels.scans import cumsum
from taskc.kernels.transpose import transpose
from taskc.tune.space import Space

TARGETS = ("avx512", "avx2", "sse2")
TYPES = (f64, f32, f16, bf16)

Make = Callable[..., Any]


def _made(make: Make, *sizes: Any, **options: Any) -> Callable[[DType, Machine], Any]:
    return lambda dtype, machine: make(*sizes, dtype=dtype, machine=machine, **options)


# Every operator of the library, in sizes that leave nothing to do for some lanes, and in large ones.
OPERATORS: dict[str, Callable[[DType, Machine], Any]] = {
    **{f"matmul {sizes}": _made(matmul, *sizes) for sizes in (
        (1024, 1024, 1024), (97, 101, 103), (1, 768, 768), (1, 768, 4096), (5, 40, 9), (4096, 24, 64),
        (tc.dim("m"), 200, 96),
    )},
    "matmul of a transposed b": _made(matmul, 3, 130, 500, transpose_b=True),
    "matmul of a packed b": _made(matmul, 130, 200, 96, packed=True),
    "batch_matmul": _made(batch_matmul, ((3,), (3,)), 65, 70, 40),
    "batch_matmul of a transposed b": _made(batch_matmul, ((3,), (3,)), 9, 70, 40, transpose_b=True),
    "product": _made(product, 65, 96, 70),
    "convolution": _made(convolution, 1, 14, 14, 40, 72, padding=1),
    "convolution of NCHW": _made(convolution, 1, 14, 14, 40, 72, order="NCHW", filters="OIHW"),
    "convolution of NCHWc": _made(convolution, 1, 14, 14, 40, 72, order="NCHWc"),
    "convolution in groups": _made(convolution, 1, 14, 14, 12, 24, groups=4),
    "convolution of depth": _made(convolution, 1, 14, 14, 24, 24, groups=24),
    "convolution of pixels": _made(convolution, 2, 28, 28, 64, 96, size=1),
    "convolution_1d": _made(convolution_1d, 1, 100, 24, 40),
    "convolution_3d": _made(convolution_3d, 1, 5, 14, 14, 8, 40),
    **{f"{make.__name__} {sizes}": _made(make, *sizes) for make in (softmax, log_softmax, layer_norm, rms_norm)
       for sizes in ((64, 1000), (5, 3))},
    "softmax of columns": _made(softmax, 8, 40, inner=70),
    **{f"reduction {operator} {axes}": _made(reduction, operator, (60, 50, 70), axes)
       for operator in ("sum", "mean", "max") for axes in ((2,), (0,), (0, 1, 2))},
    "argmax": _made(argmax, (60, 500), 1),
    "cumsum": _made(cumsum, (60, 500), 1),
    "cumsum of columns": _made(cumsum, (60, 500), 0),
    "transpose": _made(transpose, (130, 70), (1, 0)),
    **{f"{make.__name__} of {order}": _made(make, 2, 28, 28, 64, size=3, stride=2, order=order)
       for make in (max_pool, sum_pool, average_pool) for order in ("NHWC", "NCHW")},
    "attention": _made(attention, 2, 4, 70, 70, 64, causal=True),
    "attention of a query": _made(attention, 2, 4, 1, 70, 64),
}  # fmt: skip


def vectors_of_tiles(kernel: ir.Kernel, machine: Machine) -> Iterator[tuple[str, int]]:
    """Each tile of sums of a kernel, and the vector registers that it takes.

    Two are none. `turned` is a convolution's tile with pixels along the lanes, from which each number is stored once.
    `strip` has the totals of a reduction's columns, in the nearest cache, each of them read once for several rows.
    """
    for node in walk_statements(kernel.body):
        is_tile = isinstance(node, ir.Allocate) and node.tensor.scope == ir.TILE
        if is_tile and node.tensor.name not in ("turned", "strip"):
            owners = node.tensor.owners
            assert owners is not None
            bits = owners.workers * node.tensor.dtype.bits
            yield node.tensor.name, owners.slots * ceil(bits / (8 * machine.vector_bytes))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_sums_of_default_plans_fit_the_registers(dtype: DType, target: str) -> None:
    machine = tc.machine(target)
    found = 0
    for name, make in OPERATORS.items():
        for kernel in make(dtype, machine).kernels:
            for tile, vectors in vectors_of_tiles(kernel.ir, machine):
                assert vectors <= machine.registers, f"{name} of {dtype}: {tile}"
                found += 1
    assert found > len(OPERATORS) // 2


@pytest.mark.parametrize("target", TARGETS)
def test_sums_of_quantized_products_fit_the_registers(target: str) -> None:
    machine = tc.machine(target)
    for kernel in quantized_matmul(40, 130, 256, machine=machine).kernels:
        for tile, vectors in vectors_of_tiles(kernel.ir, machine):
            assert vectors <= machine.registers, tile


@pytest.mark.parametrize("target", [*TARGETS, "neon"])
def test_a_vector_has_half_as_many_f64(target: str) -> None:
    machine = tc.machine(target)
    assert (
        machine.of(f64).lanes * 2 == machine.lanes == machine.of(i8).lanes == machine.of(f16).lanes
    )
    assert machine.of(f64).of(f64) == machine.of(f64)
    assert machine.of(f64).of(f32) == machine
    assert machine.of(f64).vector_bytes == machine.vector_bytes


def test_a_gpu_has_as_many_workers_to_a_warp_for_every_type() -> None:
    machine = tc.machine("sm_80")
    assert machine.of(f64) is machine


def test_a_space_sees_the_lanes_of_its_problem() -> None:
    from taskc.kernels.matmul import MATMUL
    from taskc.kernels.matmul.problem import problem_of

    machine = tc.machine("avx512")
    lanes = [
        {plan.lanes for plan in Space(MATMUL, problem_of(256, 256, 256, dtype), machine).plans}
        for dtype in (f64, f32)
    ]
    assert lanes == [{8}, {16}]
