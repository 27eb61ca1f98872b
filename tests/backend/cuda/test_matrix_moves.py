"""Moves of whole matrices in CUDA C++: run on the host, and compiled; no GPU runs them here."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f16, f32, i8, i32, repeat, spatial, tf32
from taskc.backend.cuda.compile import compile_kernel, ptx_of
from taskc.backend.cuda.emit import emit
from taskc.ir import nodes as ir
from taskc.kernels.matmul import Tiling, matmul
from taskc.passes.pipeline import lower
from tests.backend.cuda import host
from tests.passes.kernels import arguments_for, kernel, result

FRAGMENT = repeat(2, 1) * spatial(8, 4) * repeat(1, 2)
TILE = spatial(2, 1) * repeat(1, 2) * FRAGMENT
CASES: dict[str, dict[str, Any]] = {
    "f16": {"dtype": f16, "total": f32},
    "f16 transposed": {"dtype": f16, "total": f32, "transpose_a": True, "transpose_b": True},
    "tf32": {"dtype": tf32, "total": f32, "transpose_b": True},
    "f32 by tf32": {"dtype": f32, "total": f32, "by": tf32, "transpose_b": True},
    "i8": {"dtype": i8, "total": i32, "transpose_b": True},
}
SHAPE = (33, 18, 328)


def product(options: dict[str, Any]) -> ir.Kernel:
    plan = Tiling(TILE, 64 // options["dtype"].nbytes, 3)
    made = matmul(*SHAPE, machine=tc.machine("sm_80"), tiling=plan, **options)
    assert isinstance(made, tc.KernelDefinition)
    return lower(replace(made.ir, target="sm_80"))


STORES = """
    tile t: {dtype}[32, 32] by spatial(2, 1).repeat(1, 4).{fragment}
    move t[i, j] = x[i, j] for (i, j) in (32, 32)
    shared s: {dtype}[32, 32]
    move {place} = t[i, j] for (i, j) in (32, 32)
    move c[i, j] = s[i, j] for (i, j) in (32, 32)
"""


def stores(place: str) -> ir.Kernel:
    return kernel(
        STORES.format(place=place, dtype="f16", fragment=FRAGMENT),
        "x: f16[32, 32], c: out f16[32, 32]",
        workers=64,
        target="sm_90a",
    )


@pytest.mark.skipif(host.COMPILER is None, reason="there is no g++ to compile for the host")
def test_on_the_host() -> None:
    m, n, k = SHAPE
    turned = [stores("s[i, j]"), stores("s[j, i]")]
    runnables = host.build([*map(product, CASES.values()), *map(lower, turned)])
    random = np.random.default_rng(0)
    for options, runnable in zip(CASES.values(), runnables, strict=False):
        dtype = options["dtype"].numpy
        a, b = (random.integers(-4, 5, shape).astype(dtype) for shape in ((m, k), (k, n)))
        c = np.zeros((m, n), options["total"].numpy)
        left = np.ascontiguousarray(a.T) if "transpose_a" in options else a
        right = np.ascontiguousarray(b.T) if "transpose_b" in options else b
        assert runnable.run([left, right, c]) == 0
        np.testing.assert_array_equal(c, a.astype(np.float64) @ b.astype(np.float64))
    for start, runnable in zip(turned, runnables[len(CASES) :], strict=True):
        arguments = arguments_for(start)
        assert runnable.run(arguments) == 0
        for made, expected in zip(arguments, result(start), strict=True):
            np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize(
    ("start", "instructions"),
    [
        (
            lambda: product(CASES["f16"]),
            ["ldmatrix.sync.aligned.m8n8.x4.shared.b16", ".x4.trans.shared"],
        ),
        (lambda: product(CASES["i8"]), ["ldmatrix.sync.aligned.m8n8.x4.shared.b16"]),
        (lambda: lower(stores("s[i, j]")), ["stmatrix.sync.aligned.m8n8.x4.shared.b16"]),
        (lambda: lower(stores("s[j, i]")), ["stmatrix.sync.aligned.m8n8.x4.trans.shared.b16"]),
    ],
    ids=["f16", "i8", "stores", "transposed stores"],
)
def test_compiled(start: Callable[[], ir.Kernel], instructions: list[str]) -> None:
    lean = start()
    text = ptx_of(emit(lean))
    assert all(instruction in text for instruction in instructions)
    resources = compile_kernel(lean).resources
    assert (resources.spill_stores, resources.spill_loads) == (0, 0)


@pytest.mark.parametrize("name", [name for name in CASES if name != "f32 by tf32"])
def test_registers_are_moved_whole(name: str) -> None:
    """No instruction stands between a load of matrices and the products of what it loads."""
    lines = ptx_of(emit(product(CASES[name]))).splitlines()
    loads = [line for line in lines if "ldmatrix" in line]
    products = [line for line in lines if "mma.sync" in line]
    loaded = {register for line in loads for register in re.findall(r"%r\d+", line.split("}")[0])}
    taken = [re.findall(r"%\w+", part) for line in products for part in line.split("}")[1:3]]
    by_matrices = [group for group in taken if loaded.intersection(group)]
    assert by_matrices
    assert all(loaded.issuperset(group) for group in by_matrices)
