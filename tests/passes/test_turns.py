"""Two consumers that take a block's tiles in turn (ping-pong): the bits of one, and what goes wrong is seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from taskc import bf16, repeat, spatial
from taskc.backend import sim
from taskc.backend.cuda.compile import compile_many
from taskc.errors import Finding
from taskc.ir.parser import parse
from taskc.ir.printer import to_text
from taskc.ir.target import SM_90A, TARGETS
from taskc.kernels.matmul import Tiling, matmul
from taskc.passes.pipeline import lower
from tests.passes.test_arriving_operands import HOPPER, SIZES, examined, operands


@pytest.fixture(autouse=True)
def _two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TARGETS, "sm_90a", replace(SM_90A, processors=2))


def in_turn(rows: int, columns: int, stages: int, **options: Any) -> Tiling:
    """Tiles of 64 * rows, by a warpgroup."""
    fragment = repeat(1, columns // 8) * (repeat(2, 1) * spatial(8, 4) * repeat(1, 2))
    own = repeat(rows, 1) * spatial(4, 1) * fragment
    return Tiling(own, 32, stages, specialize=True, consumers=2, **options)


def result_of(plan: Tiling, shape: tuple[int, int, int], stages: Any, **options: Any) -> Any:
    options = {"dtype": bf16, **options}
    extents = options.pop("extents", shape)
    given = operands(shape, bf16, bf16)[: 3 if options.get("residual") else 2]
    made = examined(matmul(*extents, machine=HOPPER, tiling=plan, **options), given, stages)
    return np.asarray(made.results[-1]).view(np.uint16), made.steps[-1].kernel


@pytest.mark.parametrize(
    ("shape", "plan", "stages", "options"),
    [
        # An odd number of tiles for the first block, whose consumers have two and one.
        pytest.param((300, 72, 72), in_turn(1, 64, 2), "all", {}, id="ragged"),
        pytest.param((520, 128, 32), in_turn(2, 128, 2), ("lean",), {}, id="one step"),
        pytest.param((192, 72, 40), in_turn(1, 64, 2), ("lean",), {"extents": SIZES}, id="open"),
        pytest.param((512, 64, 104), in_turn(1, 64, 2, cluster=(2, 1)), ("lean",), {}, id="cluster"),
        pytest.param((300, 128, 72), in_turn(1, 128, 3), ("pipelined", "lean"), {"residual": True}, id="residual"),
    ],
)  # fmt: skip
def test_the_bits_of_one_consumer(
    shape: tuple[int, int, int], plan: Tiling, stages: Any, options: dict[str, Any]
) -> None:
    found, kernel = result_of(plan, shape, stages, **options)
    assert "role consumer_1 first=128" in to_text(kernel)
    assert not kernel.notes
    alone, _ = result_of(replace(plan, consumers=1), shape, ("lean",), **options)
    assert np.array_equal(found, alone)


def test_one_consumer_where_there_are_no_turns() -> None:
    """Blocks of one tile."""
    _, kernel = result_of(in_turn(1, 64, 2), (64, 64, 32), ("lean",))
    assert "consumer_1" not in to_text(kernel)
    assert "one consumer instead of 2: blocks have one tile each" in kernel.notes[0][0]


def test_turns_are_printed_and_read() -> None:
    definition = matmul(300, 72, 72, dtype=bf16, machine=HOPPER, tiling=in_turn(1, 64, 2))
    text = to_text(definition.ir)
    assert "stages=2 specialize turns=tiles:" in text
    assert to_text(parse(text)) == text


SMALL = 256, 128, 72  # two tiles of three steps for each of two blocks


@pytest.mark.parametrize(
    ("right", "wrong", "kinds"),
    [
        ("", "", set()),
        # Who doesn't wait for his turn takes the parity of an earlier step for that of his own.
        ("mbarrier.wait(&sa_sb_turn", "mbarrier.wait(&sa_sb_turn[i32(0)], 1)  # ", {"over-arrival"}),
        ("mbarrier.wait(&done_out_turn", "mbarrier.wait(&done_out_turn[i32(0)], 1)  # ", {"deadlock"}),
        ("do mbarrier.arrive(&sa_sb_turn", "pass  # ", {"deadlock"}),
        ("do mbarrier.arrive(&done_out_turn", "pass  # ", {"deadlock"}),
        ("do wgmma.wait(1)", "pass", {"unwaited-product"}),
        ("do fence.proxy.async()", "pass", {"missing-fence"}),
        ("do tma.wait(0)\n                if t7", "if t7", {"race"}),
    ],
)  # fmt: skip
def test_the_simulator_sees_what_is_wrong(right: str, wrong: str, kinds: set[str]) -> None:
    plan = in_turn(1, 128, 3)
    definition = matmul(*SMALL, dtype=bf16, residual=True, machine=HOPPER, tiling=plan)
    text = to_text(lower(replace(definition.ir, target="sm_90a")))
    assert right in text
    found = {finding.kind for finding in found_in(text.replace(right, wrong))}
    assert kinds <= found
    assert bool(found) == bool(kinds)


def found_in(text: str) -> tuple[Finding, ...]:
    given = operands(SMALL, bf16, bf16)
    return sim.run(parse(text), [*given, np.zeros_like(given[-1])], seed=1).findings


@pytest.mark.parametrize(
    ("k", "residual", "consumers"),
    [(1024, True, 2), (1024, False, 1), (8192, True, 1), (128, True, 1)],
)
def test_short_sums_and_a_residual_are_for_two_consumers(
    k: int, residual: bool, consumers: int
) -> None:
    """Without a residual an H100 takes 0.197 ms by one consumer and 0.216 by two, for k = 1024."""
    definition = matmul(8192, 8192, k, dtype=bf16, residual=residual, machine=HOPPER)
    assert ("turns=tiles" in to_text(definition.ir)) == (consumers == 2)


def test_nothing_spills_in_what_is_chosen() -> None:
    """Nor has the assembler a remark; with a residual, too."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC isn't published for this machine")
    kernels = [
        matmul(8192, 8192, 1024, dtype=bf16, residual=residual, machine=HOPPER).ir
        for residual in (False, True)
    ]
    for one in compile_many([lower(replace(kernel, target="sm_90a")) for kernel in kernels]):
        assert not one.resources.remarks
        assert (one.resources.spill_stores, one.resources.spill_loads) == (0, 0)
