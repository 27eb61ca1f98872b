"""`matmul` on sm_90a: warpgroups multiply, a producer loads, blocks have several tiles; in the simulator."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import DType, bf16, f16, f32, i8, i32, repeat, spatial, tf32
from taskc.backend import sim
from taskc.backend.cuda.compile import compile_many, disassembler, sass_of
from taskc.ir import nodes as ir
from taskc.ir.printer import to_text
from taskc.ir.rewrite import walk
from taskc.ir.target import SM_90A, TARGETS
from taskc.kernels.matmul import Tiling, matmul
from taskc.passes.pipeline import lower
from taskc.runtime.checking import CallExamination, examine
from tests.kernels.problems import tiling_of
from tests.kernels.test_tiles_matmul import expected, operands

HOPPER = tc.machine("sm_90a")
M, N, K = 136, 72, 176


@tc.function
def relu(x):  # type: ignore[no-untyped-def]
    return max(x, 0)


def tiling(warpgroups: int, columns: int, depth: int, stages: int) -> Tiling:
    pairs = repeat(2, 1) * spatial(8, 4) * repeat(1, 2)
    own = spatial(warpgroups, 1) * spatial(4, 1) * repeat(1, columns // 8) * pairs
    return Tiling(own, depth, stages, specialize=True)


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


@pytest.mark.usefixtures("_two_processors")
@pytest.mark.parametrize("is_known", [True, False])
def test_parts_of_long_sums(is_known: bool) -> None:
    """Eight tiles for two blocks; the second part has an edge, and the same steps are added each time."""
    m, n, k = 72, 40, 200
    random = np.random.default_rng(5)
    a, b = (random.normal(size=shape).astype(f16.numpy) for shape in ((m, k), (k, n)))
    bias = random.normal(size=n).astype(np.float32)
    plan = replace(tiling(1, 32, 64, 2), parts=2)
    extents = (m, n) if is_known else (tc.dim("m"), tc.dim("n", multiple=8))
    options = {"dtype": f16, "total": f32, "bias": True, "activation": relu}
    program = matmul(*extents, k, machine=HOPPER, tiling=plan, **options)
    assert isinstance(program, tc.ProgramDefinition)
    stages = "all" if is_known else ("parsed", "lean")
    made = examine(program, [a, b, bias], stages=stages, target="sm_90a")
    assert {finding.kind for finding in made.findings} <= {"bank-conflict"}
    partial, added = (call.steps[-1] for call in made.calls)
    assert max(access.ways for access in partial.report.accesses) <= 2
    assert all(access.sectors == access.ideal for access in added.report.accesses)
    text = to_text(partial.kernel)
    assert all(word in text for word in ("do wgmma.m64n32k16", "tma.load", "tma.store"))
    assert not partial.kernel.notes
    parts = [
        a[:, s].astype(np.float64) @ b[s].astype(np.float64) for s in (slice(128), slice(128, k))
    ]
    sums = parts[0].astype(np.float32) + parts[1].astype(np.float32) + bias
    np.testing.assert_allclose(made.calls[-1].results[-1], np.maximum(sums, 0), atol=1e-4)


SWAPPED = replace(tiling(1, 16, 64, 2), swap_ab=True)


@pytest.mark.usefixtures("_two_processors")
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_few_rows(transpose_a: bool, transpose_b: bool) -> None:
    """They are an instruction's columns: c's transpose is computed, and turned back in shared memory."""
    options = {
        "dtype": f16, "total": f32, "bias": True, "activation": relu,
        "transpose_a": transpose_a, "transpose_b": transpose_b,
    }  # fmt: skip
    rows = 16 if transpose_a else 13
    few_rows_of((rows, 136, 136), SWAPPED, stages=("synchronized", "lean"), **options)


@pytest.mark.usefixtures("_two_processors")
def test_few_rows_after_every_pass() -> None:
    few_rows_of((9, 72, 200), SWAPPED, stages="all", dtype=bf16, total=f32)


@pytest.mark.usefixtures("_two_processors")
def test_few_rows_of_other_kinds() -> None:
    """Parts of k; sizes known at the call; integers."""
    calls = few_rows_of((9, 72, 200), replace(SWAPPED, parts=2), dtype=f16, total=f32, bias=True)
    assert [call.steps[-1].kernel.name for call in calls] == ["partial", "added"]
    sizes = tc.dim("m"), tc.dim("n", multiple=8), tc.dim("k", multiple=8)
    for shape in ((1, 8, 8), (17, 72, 136)):
        few_rows_of(shape, SWAPPED, extents=sizes, dtype=f16, total=f32)
    plan = replace(SWAPPED, depth=128)
    few_rows_of((9, 72, 272), plan, dtype=i8, total=i32, transpose_b=True)


def few_rows_of(
    shape: tuple[int, int, int],
    plan: Tiling,
    *,
    stages: Any = ("parsed", "lean"),
    extents: Any = None,
    **options: Any,
) -> Sequence[CallExamination]:
    definition = matmul(*(extents or shape), machine=HOPPER, tiling=plan, **options)
    activation = options.pop("activation", None)
    arguments = operands(*shape, **options)
    calls = examine(definition, arguments, stages=stages, target="sm_90a").calls
    for call in calls:
        assert not [finding for finding in call.findings if finding.kind != "uncoalesced"]
    first = calls[0].steps[-1].kernel
    assert not first.notes
    assert all(word in to_text(first) for word in ("do wgmma.m64n16k", "tma.load"))
    result = expected(arguments, **options)
    result = np.maximum(result, 0) if activation is relu else result
    np.testing.assert_array_equal(calls[-1].results[-1], result)
    return calls


@pytest.mark.parametrize("rows", [5, 16, 33])
def test_few_rows_are_turned(rows: int) -> None:
    """A block has few of b's columns and all of a's rows, so that b is read once; nearly all have one."""
    for transpose_b in (False, True):
        plan = tiling_of(rows, 4096, 4096, (bf16, bf16, f32), HOPPER, transpose_b=transpose_b)
        assert plan.swap_ab
        high, broad = plan.block
        assert rows <= high < rows + 8
        assert 0.9 * HOPPER.threads < 4096 // broad * plan.parts <= HOPPER.threads
        assert plan.bytes(2) >= 64 << 10  # under way in each multiprocessor


@pytest.mark.parametrize(
    ("shape", "parts"), [((128, 768, 3072), 5), ((512, 512, 16384), 8), ((256, 256, 1 << 16), 16)]
)
def test_less_than_a_wave_is_split(shape: tuple[int, int, int], parts: int) -> None:
    """So that nearly every processor has a block, without more waves than one."""
    plan = tiling_of(*shape, (bf16, bf16, f32), HOPPER)
    assert (plan.specialize, plan.parts) == (True, parts)
    tall, wide = plan.own.shape
    blocks = -(-shape[0] // tall) * -(-shape[1] // wide) * parts
    assert 0.9 * HOPPER.threads < blocks <= HOPPER.threads


@pytest.mark.parametrize(
    ("shape", "instruction", "stored"),
    [
        ((128, 768, 3072), "HGMMA.64x64x16", "UTMASTG"),
        ((16, 4096, 4096), "HGMMA.64x16x16", "STG.E.128"),
    ],
)
def test_parts_compile(shape: tuple[int, int, int], instruction: str, stored: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC isn't published for this machine")
    made = matmul(*shape, machine=HOPPER, dtype=bf16, total=f32, result=bf16)
    kernels = [lower(replace(kernel.ir, target="sm_90a")) for kernel in made.kernels]
    partial, added = compile_many(kernels)
    for one in (partial, added):
        assert (one.resources.spill_stores, one.resources.spill_loads) == (0, 0)
        assert not one.resources.remarks
    if disassembler() is not None:
        text = sass_of(partial.cubin)
        assert all(word in text for word in (f"{instruction}.F32.BF16", "UTMALDG", stored))
        parts = tiling_of(*shape, (bf16, bf16, f32), HOPPER).parts
        assert len(re.findall(r"LDG\.E\.128", sass_of(added.cubin))) == parts


@pytest.mark.usefixtures("_two_processors")
@pytest.mark.parametrize("transpose_b", [False, True])
def test_blocks_that_load_for_each_other_after_every_pass(transpose_b: bool) -> None:
    """Each block of the cluster has two tiles, and each tile two more steps than there are stages."""
    plan = replace(tiling(1, 32, 64, 2), cluster=(2, 1))
    shape = 4 * 64 - 8, 32, (plan.stages + 1) * 64 + 8
    options: Any = {"dtype": bf16, "total": f32, "transpose_b": transpose_b}
    definition = matmul(*shape, machine=HOPPER, tiling=plan, result=bf16, **options)
    arguments = operands(*shape, **options)
    made = examine(definition, arguments, stages="all", target="sm_90a")
    assert not made.findings
    last = made.calls[0].steps[-1]
    text = to_text(last.kernel)
    assert all(word in text for word in ("tma.load.multicast(&sb[", "stmatrix.x4(", "tma.store("))
    assert {access.ways for access in last.report.accesses if access.scope == ir.SHARED} == {1}
    result = expected(arguments, **options).astype(bf16.numpy)
    np.testing.assert_array_equal(made.results[-1], result)


@pytest.mark.parametrize(
    ("rows", "cluster"),
    [(4096, (2, 1)), (4000, (2, 1)), (3968, (1, 1)), (tc.dim("m", multiple=256), (1, 1))],
    ids=["32 tiles", "with an edge", "31 tiles", "unknown"],
)
def test_which_blocks_load_for_each_other(rows: Any, cluster: tuple[int, int]) -> None:
    plan = tiling_of(rows, 4096, 4096, (bf16, bf16, f32), HOPPER)
    assert (plan.own.shape, plan.cluster) == ((128, 256), cluster)


@pytest.mark.parametrize(
    ("dtype", "steps", "options"),
    [
        (bf16, 4096, {}),
        (f16, 1024, {"bias": True}),
        (f16, 4096, {"transpose_b": True, "bias": True, "activation": relu}),
        (bf16, tc.dim("k", multiple=8), {"bias": True, "activation": relu}),
    ],
    ids=["bf16", "16 steps", "f16, bias", "unknown steps"],
)
def test_products_go_on_while_blocks_load_for_each_other(
    dtype: DType, steps: Any, options: Any
) -> None:
    """ptxas leaves them asynchronous; and a release waits for no memory, nor empties it a cache."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC isn't published for this machine")
    made = matmul(
        4096, 4096, steps, machine=HOPPER, dtype=dtype, total=f32, result=dtype, **options
    )
    assert isinstance(made, tc.KernelDefinition)
    (one,) = compile_many([lower(replace(made.ir, target="sm_90a"))])
    assert not one.resources.remarks
    assert (one.resources.spill_stores, one.resources.spill_loads) == (0, 0)
    if disassembler() is not None:
        text = sass_of(one.cubin)
        assert all(word in text for word in ("UTMALDG.2D.MULTICAST", "STSM.16.M88.4", "UTMASTG.2D"))
        assert not re.search(r"\bSTS\b", text)
        ways = 2 if isinstance(steps, int) else 1
        assert text.count("HGMMA.64x256x16") == 4 * ways, "of the first step, and of a later one"
        loop = text[text.index("WARPGROUP.ARRIVE") : text.index("WARPGROUP.DEPBAR.LE gsb0, 0x0")]
        assert "SYNCS.ARRIVE" in loop
        assert not any(word in loop for word in ("MEMBAR.ALL.GPU", "CCTL"))


@pytest.mark.parametrize(
    ("shape", "dtype", "options", "own"),
    [
        ((8192, 8192, 2048), bf16, {}, (128, 256)),
        ((4096, 4096, 4096), f16, {"transpose_b": True}, (128, 256)),
        ((4096, 4096, 4096), tf32, {"transpose_b": True}, (128, 256)),
    ],
)
def test_what_is_chosen_for_large_products(
    shape: tuple[int, int, int], dtype: DType, options: Any, own: tuple[int, int]
) -> None:
    """A block takes what it can have of shared memory, with room for its results."""
    plan = tiling_of(*shape, (dtype, dtype, f32), HOPPER, **options)
    assert (plan.specialize, plan.own.shape, plan.cluster) == (True, own, (2, 1))
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
    assert not tiling_of(*shape, types, HOPPER).specialize


@pytest.mark.parametrize("result", [f16, f32])
@pytest.mark.parametrize(
    ("extents", "plan"),
    [
        ((1024, 256, 2304), tiling(2, 128, 64, 4)),
        ((8192, 8192, tc.dim("k", multiple=64)), tiling(1, 64, 64, 4)),
        ((8192, 8192, 64), tiling(2, 256, 64, 4)),
    ],
    ids=["one tile a block", "unknown depth", "one step"],
)
def test_one_product_is_always_under_way(extents: Any, plan: Tiling, result: DType) -> None:
    """The assembler finds nothing for which it would have to wait for each."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC isn't published for this machine")
    made = matmul(*extents, machine=HOPPER, tiling=plan, dtype=f16, total=f32, result=result)
    assert isinstance(made, tc.KernelDefinition)
    (one,) = compile_many([lower(replace(made.ir, target="sm_90a"))])
    assert not one.resources.remarks
    if disassembler() is not None and extents[2] != 64:
        assert "gsb0, 0x1" in sass_of(one.cubin)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.usefixtures("_two_processors")
def test_registers_hold_what_lies_across_k(parts: int) -> None:
    """An instruction on tf32 takes only what lies along k from memory: b, which doesn't, isn't copied."""
    plan = replace(tiling(2, 64, 32, 3), swap_ab=True, parts=parts)
    made = matmul(M, N, K, dtype=tf32, total=f32, machine=HOPPER, tiling=plan, bias=parts > 1)
    given = operands(M, N, K, tf32, bias=parts > 1, total=f32)
    examined = examine(made, given, stages=("parsed", "lean"), target="sm_90a")
    assert not [finding for finding in examined.findings if finding.severity == "error"]
    np.testing.assert_array_equal(examined.results[-1], expected(given))
    body = examined.calls[0].steps[-1].kernel.body
    products = {node.operation for node in walk(body) if isinstance(node, ir.Do)}
    assert "wgmma.m64n64k8.tf32" in products
    shared = [it for it in examined.calls[0].steps[-1].report.accesses if it.scope == ir.SHARED]
    assert max(access.ways for access in shared) == 2  # its lines lie in different banks
