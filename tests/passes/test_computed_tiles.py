"""Elements of a tile that a math function changes are stored by a loop, on processors."""

from __future__ import annotations

from math import erf
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f32, repeat, spatial
from taskc.backend.cpu.compile import assembly_of
from taskc.backend.cpu.processor import typical
from taskc.ir import nodes as ir
from taskc.ir.rewrite import walk
from taskc.kernels.matmul import matmul
from taskc.passes.pipeline import lower
from taskc.runtime.checking import for_target
from tests.stages import same_after_every_pass

ROWS, LANES = 12, 16


def stored(change: Any, rows: int = ROWS) -> tc.KernelDefinition:
    """Sums of two tensors in a tile, changed as they are stored."""
    own = repeat(rows, 1) * spatial(1, LANES)

    @tc.kernel(workers=LANES)
    def store(x: f32[rows, LANES], w: f32[LANES], y: tc.out[f32[rows, LANES]]) -> None:
        acc = tc.tile(f32, own, 0)
        for c in range(4):
            for i, j in own:
                acc[i, j] += x[i, c] * w[j]
        for i, j in own:
            if i + j >= 0:
                y[i, j] = change(acc[i, j])

    return store


def loops_with(kernel: tc.KernelDefinition, operator: str, target: str) -> list[str]:
    """The kinds of the loops around an operator, at the last stage."""
    lean = lower(for_target(kernel.ir, target))
    return [
        node.kind
        for node in walk(lean.body)
        if isinstance(node, ir.For)
        and any(isinstance(n, ir.Unary) and n.operator == operator for n in walk(node.body))
    ]


@pytest.mark.parametrize(
    ("name", "rows", "target", "kind"),
    [
        ("gelu", ROWS, "avx512", "serial"),
        ("gelu", ROWS, "avx2", "serial"),
        ("sigmoid", 28, "avx512", "serial"),
        ("gelu", 4, "avx512", "unroll"),
        ("abs", ROWS, "avx512", "unroll"),
        ("gelu", ROWS, "sm_80", "unroll"),
    ],
)
def test_loops_over_registers_stay_loops(name: str, rows: int, target: str, kind: str) -> None:
    function = tc.function(lambda x: abs(x)) if name == "abs" else getattr(tc, name)
    assert loops_with(stored(function, rows), name, target) == [kind]


def test_every_pass_keeps_the_results() -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((ROWS, LANES)).astype(np.float32)
    w = random.standard_normal(LANES).astype(np.float32)
    kernel = stored(tc.gelu)
    lowered = for_target(kernel.ir, "avx512")
    same_after_every_pass(lowered, [x, w, np.zeros((ROWS, LANES), np.float32)])
    y = kernel(x, w)
    sums = x[:, :4].astype(np.float64).sum(1, keepdims=True) * w
    expected = sums * 0.5 * (1 + np.vectorize(erf)(sums / np.sqrt(2)))
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_constants_take_no_register_of_the_main_loop() -> None:
    """Twelve sums, three vectors of b and an element of a are all registers of AVX2."""
    silu = tc.function(lambda x: x * tc.sigmoid(x))
    kernel = matmul(96, 960, 64, packed=True, activation=silu, machine=tc.machine("avx2"))
    lean = lower(for_target(kernel.ir, "avx2"))
    blocks = assembly_of(lean, typical("avx2")).split("\n.LBB")
    (main_loop,) = [block for block in blocks if block.count("vfmadd231ps") == ROWS]
    assert "(%rsp" not in main_loop[: main_loop.index("\tjne")]
