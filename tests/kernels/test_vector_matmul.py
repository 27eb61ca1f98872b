"""Products of a few vectors and a matrix on GPUs, in the simulator: right, each byte once, by whole lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import bf16, f16, f32, f64, i8, i32, tf32
from taskc.backend.cuda.compile import compile_many, disassembler, sass_of
from taskc.ir import nodes as ir
from taskc.ir.rewrite import walk
from taskc.kernels.matmul import matmul
from taskc.kernels.matmul.plan_gpu import MOST_VECTORS as MOST
from taskc.passes.pipeline import lower
from taskc.runtime.checking import CallExamination, examine
from tests.kernels.test_tiles_matmul import expected, operands, relu

HOPPER = tc.machine("sm_90a")
LAYOUTS = [(False, False), (False, True), (True, False), (True, True)]


def examined(
    shape: tuple[int, int, int],
    *,
    stages: Any = ("parsed", "lean"),
    extents: tuple[Any, Any, Any] | None = None,
    **options: Any,
) -> Sequence[CallExamination]:
    made = matmul(*(extents or shape), machine=HOPPER, **options)
    activation = options.pop("activation", None)
    arguments = operands(*shape, **options)
    calls = examine(made, arguments, stages=stages, target="sm_90a").calls
    findings = [finding for call in calls for finding in call.findings]
    assert {finding.kind for finding in findings} <= {"bank-conflict", "uncoalesced"}, findings
    accesses = [access for call in calls for access in call.steps[-1].report.accesses]
    assert max((access.ways for access in accesses if access.scope == ir.SHARED), default=1) <= 2
    whole = expected(arguments, **options)
    result = calls[-1].results[-1].astype(np.float64)
    np.testing.assert_array_equal(result, np.maximum(whole, 0) if activation is relu else whole)
    return calls


@pytest.mark.each_value
@pytest.mark.parametrize(("transpose_a", "transpose_b"), LAYOUTS)
@pytest.mark.parametrize(
    "shape", [(1, 40, 72), (1, 37, 131), (3, 66, 90), (40, 1, 72), (37, 2, 131), (1, 1, 5)], ids=str
)
def test_layouts(shape: tuple[int, int, int], transpose_a: bool, transpose_b: bool) -> None:
    options = {"dtype": bf16, "total": f32, "transpose_a": transpose_a, "transpose_b": transpose_b}
    (call,) = examined(shape, bias=True, activation=relu, **options)
    assert call.steps[-1].kernel.workers == 256


@pytest.mark.each_value
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize(
    "types",
    [
        {"dtype": f16, "total": f32, "result": f16},
        {"dtype": tf32, "total": f32},
        {"dtype": f32},
        {"dtype": f64},
        {"dtype": i8, "total": i32},
    ],
    ids=lambda types: str(types["dtype"]),
)
def test_types(types: Any, transpose_b: bool) -> None:
    examined((2, 48, 80), transpose_b=transpose_b, **types)


@pytest.mark.parametrize("transpose_b", [False, True])
def test_after_every_pass(transpose_b: bool) -> None:
    """Two steps, the second of which has an edge."""
    k = 1200 if transpose_b else 264
    examined((2, 12, k), dtype=bf16, total=f32, transpose_b=transpose_b, stages="all")


@pytest.mark.parametrize("transpose_b", [False, True])
def test_parts(transpose_b: bool) -> None:
    """Of two steps and more; the last one is shorter, and has an edge."""
    k = 4136 if transpose_b else 1096
    calls = examined((1, 20, k), dtype=f32, bias=True, transpose_b=transpose_b)
    assert [call.steps[-1].kernel.name for call in calls] == ["partial", "added"]


@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("multiple", [1, 8])
def test_sizes_known_at_the_call(multiple: int, transpose_b: bool) -> None:
    extents = 1, tc.dim("n", multiple=multiple), tc.dim("k", multiple=multiple)
    options = {"dtype": bf16, "total": f32, "transpose_b": transpose_b}
    for shape in ((1, 72, 328), (1, 8, 8)):
        examined(shape, extents=extents, **options)


@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("shape", [(1, 0, 40), (1, 40, 0), (0, 1, 40)], ids=str)
def test_nothing(shape: tuple[int, int, int], transpose_b: bool) -> None:
    examined(shape, dtype=f32, transpose_b=transpose_b)


@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("m", [1, MOST])
def test_each_byte_is_read_once_by_whole_sectors(m: int, transpose_b: bool) -> None:
    n, k = (64, 1024) if not transpose_b else (32, 2048)
    calls = examined((m, n, k), dtype=bf16, total=f32, transpose_b=transpose_b)
    accesses = [a for call in calls for a in call.steps[-1].report.accesses if a.scope == ir.GLOBAL]
    assert all(access.sectors == access.ideal for access in accesses)
    body = calls[0].steps[-1].kernel.body
    reads = [node.tensor.name for node in walk(body) if isinstance(node, ir.Read)]
    assert reads.count("b") == 1


@pytest.mark.parametrize(("target", "transpose_b"), [("sm_80", True), ("sm_90a", False)])
def test_machine_code(target: str, transpose_b: bool) -> None:
    """All processors have blocks, with enough under way: 32 KB each, and two fit."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC isn't published for this machine")
    machine = tc.machine(target)
    options = {"dtype": bf16, "total": f32, "result": bf16, "transpose_b": transpose_b}
    for m in (1, MOST):
        made = matmul(m, 4096, 4096, machine=machine, **options)
        kernels = made.kernels if isinstance(made, tc.ProgramDefinition) else [made]
        lean = [lower(replace(kernel.ir, target=target)) for kernel in kernels]
        first, *_ = compile_many(lean)
        assert isinstance(lean[0].blocks, ir.Constant)
        assert lean[0].blocks.value >= 3 * machine.threads // 2
        assert (first.resources.spill_stores, first.resources.spill_loads) == (0, 0)
        assert first.resources.registers <= 128
        if disassembler() is not None:
            text = sass_of(first.cubin)
            assert len(re.findall(r"LDG\.E\.128", text)) >= 8
            assert not re.findall(r"LDG\.E\.(U16|64)", text)
