"""A residual that arrives in the slots by which the result leaves: the same bits, and what goes wrong is seen.

One processor, or two, so that a block has several tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import DType, bf16, f16, f32
from taskc.backend import sim
from taskc.errors import Finding
from taskc.ir.parser import parse
from taskc.ir.printer import to_text
from taskc.ir.target import SM_90A, TARGETS
from taskc.kernels.matmul import matmul
from taskc.lang.definition import KernelDefinition
from taskc.passes import specialize
from taskc.passes.pipeline import lower
from taskc.runtime.checking import CallExamination, examine
from tests.kernels.test_tiles_warp_specialized import tiling

HOPPER = tc.machine("sm_90a")


@pytest.fixture(autouse=True)
def _two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TARGETS, "sm_90a", replace(SM_90A, processors=2))


def operands(shape: tuple[int, int, int], dtype: DType, result: DType) -> list[Any]:
    m, n, k = shape
    random = np.random.default_rng(list(shape))
    a, b = (random.normal(size=s).astype(dtype.numpy) for s in ((m, k), (k, n)))
    return [a, b, random.normal(size=(m, n)).astype(result.numpy)]


def examined(
    definition: tc.KernelDefinition, given: list[Any], stages: Any = ("lean",)
) -> CallExamination:
    (made,) = examine(definition, given, stages=stages, target="sm_90a").calls
    assert not [finding for finding in made.findings if finding.severity == "error"], made.findings
    return made


@tc.function
def relu(x):  # type: ignore[no-untyped-def]
    return max(x, 0)


SIZES = tc.dim("m"), tc.dim("n", multiple=8), tc.dim("k", multiple=8)


@pytest.mark.parametrize(
    ("shape", "columns", "stages", "options"),
    [
        pytest.param((72, 136, 40), 128, "all", {}, id="ragged"),
        pytest.param((136, 256, 32), 256, ("lean",), {}, id="four panels, one step"),
        pytest.param((136, 128, 64), 128, ("lean",), {"result": f32, "activation": relu}, id="f32"),
        pytest.param((136, 136, 40), 128, ("lean",), {"extents": SIZES}, id="open sizes"),
        pytest.param((64, 128, 40), 128, ("lean",), {"dtype": f16}, id="one tile"),
    ],
)  # fmt: skip
def test_the_same_bits_as_by_loads_of_each_worker(
    shape: tuple[int, int, int],
    columns: int,
    stages: Any,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = {"dtype": bf16, "residual": True, **options}
    extents = options.pop("extents", shape)
    plan = tiling(1, columns, 32, 2)
    result = options.get("result", options["dtype"])
    given = operands(shape, options["dtype"], result)
    made = examined(matmul(*extents, machine=HOPPER, tiling=plan, **options), given, stages)
    text = to_text(made.steps[-1].kernel)
    assert "do tma.load(&done_out[" in text
    # A line that a worker stores to, others have read.
    assert ("barrier warp orders" in text) == ("do stmatrix." in text)
    assert not [f for f in made.findings if f.kind == "uncoalesced"]
    monkeypatch.setattr(specialize, "arriving", lambda *_, **__: None)
    apart = examined(matmul(*extents, machine=HOPPER, tiling=plan, **options), given)
    assert "do tma.load(&done_out[" not in to_text(apart.steps[-1].kernel)
    bits = [np.asarray(one.results[-1]).view(np.uint8) for one in (made, apart)]
    assert np.array_equal(*bits)


def two_groups(shape: tuple[int, int, int], **options: Any) -> tuple[KernelDefinition, list[Any]]:
    plan = replace(tiling(2, 128, 32, 2), **options)
    definition = matmul(*shape, dtype=f16, residual=True, machine=HOPPER, tiling=plan)
    assert isinstance(definition, tc.KernelDefinition)
    return definition, operands(shape, f16, f16)


def test_each_warpgroup_releases_its_rows() -> None:
    definition, given = two_groups((384, 128, 32))
    text = to_text(examined(definition, given).steps[-1].kernel)
    assert "do mbarrier.init(&done_out_empty[slot_1], 2)" in text
    definition, given = two_groups((512, 128, 32), cluster=(2, 1))
    assert "do tma.load.multicast(" in to_text(examined(definition, given).steps[-1].kernel)


Epilogue = Callable[[Any, Any, Any, Any, Any, Any], Any]


def kernel_with(epilogue: Epilogue) -> KernelDefinition:
    own = tiling(1, 128, 32, 2).own
    rows = 128

    @tc.kernel(workers=128)
    def kernel(a: f16[rows, 32], b: f16[32, 256], x: f16[rows, 256], c: tc.inout[f16[rows, 256]]):
        for row, col in tc.tiles((rows, 256), by=(64, 128), persistent=True):
            acc = tc.tile(f32, own, 0)
            for p in tc.pipeline(32, by=32, stages=2, specialize=True):
                sa = tc.load(a[row : row + 64, p : p + 32])
                sb = tc.load(b[p : p + 32, col : col + 128])
                tc.mma(acc, sa, sb)
            done = tc.tile(f16, own)
            for i, j in own:
                done[i, j] = (acc[i, j] + epilogue(x, c, row, col, i, j)).to(f16)
            tc.store(c[row : row + 64, col : col + 128], done)

    return kernel


@tc.function
def of_two(x, c, row, col, i, j):  # type: ignore[no-untyped-def]
    return x[row + i, col + j].to(f32) * x[row + i, col + j].to(f32) - x[i, col + j].to(f32)


@tc.function
def from_elsewhere(x, c, row, col, i, j):  # type: ignore[no-untyped-def]
    return x[i, col + j].to(f32)


@tc.function
def in_place(x, c, row, col, i, j):  # type: ignore[no-untyped-def]
    return c[row + i, col + j].to(f32)


@pytest.mark.parametrize(
    ("epilogue", "arrives"), [(of_two, True), (from_elsewhere, False), (in_place, False)],
    ids=["beside others", "from elsewhere", "what is written"],
)  # fmt: skip
def test_what_arrives_is_read_where_the_result_goes(epilogue: Epilogue, *, arrives: bool) -> None:
    """Else workers load it, as before."""
    a, b, x = operands((128, 256, 32), f16, f16)
    c = x[::-1].copy()
    made = examined(kernel_with(epilogue), [a, b, x, c])
    assert ("do tma.load(&done_out[" in to_text(made.steps[-1].kernel)) == arrives
    wide, top = x.astype(np.float64), np.tile(x[:64], (2, 1)).astype(np.float64)
    more = {of_two: wide * wide - top, from_elsewhere: top, in_place: wide[::-1]}[epilogue]
    expected = a.astype(np.float64) @ b.astype(np.float64) + more
    np.testing.assert_allclose(np.asarray(made.results[-1]), expected, atol=0.02)


SMALL = 256, 128, 32  # two tiles for each of two blocks


@pytest.mark.parametrize(
    ("right", "wrong", "kinds"),
    [
        ("", "", set()),
        # A slot is released before the copy that leaves has read it: within a tile, and across tiles.
        ("do tma.wait(1)", "do tma.wait(2)", {"race"}),
        ("do tma.wait(0)\n                    if", "if", {"unwaited-copy"}),
        ("do fence.proxy.async()", "pass", {"missing-fence"}),
        ("barrier role ", "pass  # ", {"race", "missing-fence", "unwaited-copy"}),
        ("mbarrier.init(&done_out_empty[slot_1], 1)", "mbarrier.init(&done_out_empty[slot_1], 2)", {"deadlock"}),
        ("do mbarrier.expect(&done_out_full", "pass  # ", {"deadlock"}),
    ],
)  # fmt: skip
def test_the_simulator_sees_what_is_wrong(right: str, wrong: str, kinds: set[str]) -> None:
    definition = matmul(
        *SMALL, dtype=bf16, residual=True, machine=HOPPER, tiling=tiling(1, 128, 32, 2)
    )
    text = to_text(lower(replace(definition.ir, target="sm_90a")))
    assert right in text
    found = {finding.kind for finding in found_in(text.replace(right, wrong))}
    assert kinds <= found
    assert bool(found) == bool(kinds)


def found_in(text: str) -> tuple[Finding, ...]:
    given = operands(SMALL, bf16, bf16)
    return sim.run(parse(text), [*given, np.zeros_like(given[-1])], seed=1).findings
