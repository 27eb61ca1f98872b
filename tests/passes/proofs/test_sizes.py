"""Acceptance doesn't depend on how large an extent is: examples and templates, proved and not run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import taskc as tc
from taskc import bf16, f16, f32, i8, spatial
from taskc.kernels.attention import attention
from taskc.kernels.convolution import convolution
from taskc.kernels.matmul import batch_matmul, matmul, product
from taskc.kernels.reductions import reduction
from taskc.kernels.rows import layer_norm, log_softmax, rms_norm, softmax
from taskc.kernels.transpose import transpose
from taskc.passes.prove import findings
from tests.test_examples import example

Make = Callable[[Any, tc.Machine], Any]

SIZES = (1, 37, 1_000, 1 << 17, (1 << 24) + 5, 1 << 31)
FEW = (37, (1 << 24) + 5)
MACHINES = (None, "sm_80", "sm_90a")

EXAMPLES: dict[str, Make] = {
    "vector_add": lambda n, _: example("vector_add").make_vector_add(n),
    "transpose rows": lambda n, _: example("transpose").make_transpose(n, 70),
    "transpose columns": lambda n, _: example("transpose").make_transpose(70, n),
    "naive m": lambda n, _: example("matmul").make_naive(n, 70, 44),
    "naive n": lambda n, _: example("matmul").make_naive(50, n, 44),
    "naive k": lambda n, _: example("matmul").make_naive(50, 70, n),
    "mapped m": lambda n, _: example("matmul").make_mapped(n, 70, 44),
    "mapped k": lambda n, _: example("matmul").make_mapped(50, 70, n),
    "pipelined m": lambda n, _: example("matmul").make_pipelined(n, 70, 44),
    "pipelined k": lambda n, _: example("matmul").make_pipelined(50, 70, n),
    "tensor_cores n": lambda n, _: example("matmul").make_tensor_cores(50, n, 168),
    "softmax": lambda n, _: example("softmax").make_softmax(n, 100),
    "layer_norm": lambda n, _: example("layer_norm").make_layer_norm(n, 300),
    "convolution images": lambda n, _: example("convolution").make_convolution(n, 7, 9, 5, 35),
    "convolution channels": lambda n, _: example("convolution").make_convolution(2, 7, 9, n, 35),
    "convolution features": lambda n, _: example("convolution").make_convolution(2, 7, 9, 5, n),
    "histogram": lambda n, _: example("histogram").make_histogram(n, 100),
    "attention heads": lambda n, _: example("attention").make_attention(n, 50, 12),
    "attention length": lambda n, _: example("attention").make_attention(2, n, 12),
    "epilogue m": lambda n, _: example("epilogue").make_layer(n, 41, 29, transpose_b=True),
    "epilogue n": lambda n, _: example("epilogue").make_layer(37, n, 29, biased=False),
    "epilogue k": lambda n, _: example("epilogue").make_layer(37, 41, n, transpose_a=True),
    "split_k m": lambda n, _: example("split_k").make_split_k(n, 20, 150, 4),
    "split_k k": lambda n, _: example("split_k").make_split_k(12, 20, n, 4),
}  # fmt: skip


@tc.function
def scaled(x, y):  # type: ignore[no-untyped-def]
    return x * 2 - y


TEMPLATES: dict[str, Make] = {
    "matmul m": lambda n, machine: matmul(n, 100, 60, machine=machine),
    "matmul n": lambda n, machine: matmul(100, n, 60, machine=machine),
    "matmul k": lambda n, machine: matmul(40, 24, n, machine=machine),
    "matmul f16 m": lambda n, machine: matmul(n, 128, 64, dtype=f16, total=f32, machine=machine),
    "matmul f16 n": lambda n, machine: matmul(64, n, 64, dtype=f16, total=f32, machine=machine),
    "matmul f16 k": lambda n, machine: matmul(64, 64, n, dtype=f16, total=f32, machine=machine),
    "matmul one row": lambda n, machine: matmul(1, n, 64, machine=machine),
    "matmul one column": lambda n, machine: matmul(n, 1, 64, machine=machine),
    "batch_matmul": lambda n, machine: batch_matmul(([n], [n]), 9, 20, 12),
    "batch_matmul m": lambda n, machine: batch_matmul(([2, 3], [1, 3]), n, 20, 12),
    "product": lambda n, machine: product(n, 48, 64, dtype=bf16),
    "softmax rows": lambda n, machine: softmax(n, 100, machine=machine),
    "softmax columns": lambda n, machine: softmax(10, n, machine=machine),
    "log_softmax rows": lambda n, machine: log_softmax(n, 100, machine=machine),
    "log_softmax columns": lambda n, machine: log_softmax(10, n, machine=machine),
    "layer_norm rows": lambda n, machine: layer_norm(n, 100, machine=machine),
    "layer_norm columns": lambda n, machine: layer_norm(10, n, machine=machine),
    "rms_norm columns": lambda n, machine: rms_norm(10, n, dtype=bf16, machine=machine),
    "sum of rows": lambda n, machine: reduction("sum", (n, 50), (1,), machine=machine),
    "sum of long rows": lambda n, machine: reduction("sum", (6, n), (1,), machine=machine),
    "sum of columns": lambda n, machine: reduction("sum", (n, 50), (0,), machine=machine),
    "sum of all": lambda n, machine: reduction("sum", (n,), (0,), machine=machine),
    "sum of the middle": lambda n, machine: reduction("max", (3, n, 5), (1,), machine=machine),
    "transpose rows": lambda n, machine: transpose((n, 40), machine=machine),
    "transpose columns": lambda n, machine: transpose((40, n), machine=machine),
    "transpose short": lambda n, machine: transpose((n, 3), dtype=i8, machine=machine),
    "transpose of three": lambda n, machine: transpose((5, n, 6), (2, 0, 1), machine=machine),
    "attention batches": lambda n, machine: attention(n, 2, 40, 50, 64, machine=machine),
    "attention length": lambda n, machine: attention(1, 2, n, 50, 64, machine=machine),
    "attention keys": lambda n, machine: attention(1, 2, 40, n, 64, machine=machine),
    "attention one query": lambda n, machine: attention(1, 8, 1, n, 64, kv_heads=2, machine=machine),
    "attention causal": lambda n, machine: attention(1, 2, n, n, 64, causal=True, dtype=f16, machine=machine),
    "convolution images": lambda n, machine: convolution(n, 8, 8, 16, 24, padding=1, machine=machine),
    "convolution f32 images": lambda n, machine: convolution(n, 9, 7, 3, 8, dtype=f32, machine=machine),
    "convolution NCHW images": lambda n, machine: convolution(n, 8, 8, 16, 24, order="NCHW", machine=machine),
    "depthwise images": lambda n, machine: convolution(n, 8, 8, 16, 16, groups=16, padding=1, machine=machine),
}  # fmt: skip


def refusals(make: Make, sizes: tuple[Any, ...], machine: str | None) -> list[str]:
    """What is said against the kernels of these sizes, and of any."""
    wrong = []
    for size in (*sizes, tc.dim("n")):
        made = make(size, tc.machine(machine))
        for kernel in made.kernels:
            wrong += [f"{size}: {error}" for error in findings(kernel.ir)]
    return wrong


@pytest.mark.parametrize("name", [*EXAMPLES, *TEMPLATES])
def test_examples_and_templates(name: str) -> None:
    assert not refusals((EXAMPLES | TEMPLATES)[name], FEW, None)


@pytest.mark.sweep
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", [*EXAMPLES, *TEMPLATES])
def test_all_sizes(name: str, machine: str | None) -> None:
    assert not refusals((EXAMPLES | TEMPLATES)[name], SIZES, machine)


def named(n: Any) -> Any:
    """A stencil whose guards have names."""

    @tc.kernel(workers=16)
    def stencil(u: f32[n], v: tc.out[f32[n]]):  # type: ignore[valid-type, no-untyped-def]
        for x in tc.tiles(n, by=16):
            for i in spatial(16):
                at = x + i
                mask = at < n
                if mask:
                    inside = 0 < at < n - 1
                    v[at] = u[at - 1] + u[at + 1] if inside else u[at]

    return stencil


def scrambled(n: Any) -> Any:
    """Right where n is a multiple of 16, which nothing proves."""

    @tc.kernel(workers=4)
    def kernel(v: tc.out[f32[n]]):  # type: ignore[valid-type, no-untyped-def]
        for x in tc.tiles(n // 4, by=1):
            for i in spatial(4):
                v[(x ^ 2) * 4 + i] = 1.0

    return kernel


@pytest.mark.parametrize(("make", "is_accepted"), [(named, True), (scrambled, False)])
def test_one_verdict_at_all_sizes(make: Callable[[Any], Any], is_accepted: bool) -> None:
    for size in (16, 64, 1_024, 1 << 18, 1 << 24, 1 << 31, tc.dim("n", multiple=16)):
        assert is_accepted == (not findings(make(size).ir)), size
