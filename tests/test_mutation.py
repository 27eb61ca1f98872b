"""The checker on broken programs: every small break of an example is reported, or is proved to be none.

The kernels of all examples are broken in the default run; `pytest -m sweep` adds the other targets,
and demands 95% of all mutants together.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import mutation
from taskc.backend.sim import run
from taskc.errors import InternalError
from taskc.ir import nodes as ir
from taskc.lang.definition import KernelDefinition
from taskc.mutation import Mutant, inputs_of, mutate
from taskc.passes.pipeline import lower_steps
from tests.test_examples import FILES, arguments_of, definitions_of, example, kernels_of

# Each of these is of a kind with another that runs by default, with the same mutants; top_two's many run for seconds.
SWEPT = {"top_two", "unbiased", "segmented_sums", "steady.matmul", "steady.differ"}

# Half a minute each; `softmax` and the scan of blocks have the same kinds of mutants, 03's products the same barriers.
LONG_TO_BREAK = {"05_layer_norm-layer_norm", "16_scan-cumsum.range_prefixes"}
LONG_TO_RUN = {"12_tuning-kernel"}


def kernels(long: set[str]) -> list[Any]:
    """The kernels of all examples; those of SWEPT, and those that take `long` here, are the sweep's."""
    return [
        pytest.param(
            definition,
            id=(identifier := f"{path.stem}-{name}"),
            marks=[pytest.mark.sweep] if name in SWEPT or identifier in long else [],
        )
        for path in FILES
        for name, definition in kernels_of(example(path.stem.partition("_")[2])).items()
    ]


def _is_unused_total(mutant: Mutant) -> bool:
    """Whether the last worker is left out where a scan's blocks hand on their totals: nobody takes its one."""
    line = getattr(mutant.location, "text", "")
    return "tc.scan(" in line and mutant.description.startswith("each limited to")


OF_PHASES = [item for item in kernels(LONG_TO_RUN) if item.values[0].ir.stage == "parsed"]


def mutants_of(definition: KernelDefinition, target: str | None = None) -> list[Mutant]:
    kernel = definition.ir if target is None else replace(definition.ir, target=target)
    return list(mutate(kernel, inputs_of(definition)))


@pytest.mark.parametrize("definition", kernels(LONG_TO_BREAK))
def test_every_break_is_reported_or_is_none(definition: KernelDefinition) -> None:
    mutants = mutants_of(definition)
    assert mutants
    unexplained = [
        f"{m.location}: {m.description}"
        for m in mutants
        if not (m.reported or m.reason or _is_unused_total(m))
    ]
    assert unexplained == []
    deleted = [m for m in mutants if m.kind == "delete" and "barrier" in m.description]
    assert [m.description for m in deleted if not m.reported] == []


@pytest.mark.parametrize("definition", OF_PHASES)
def test_an_unbroken_kernel_is_clean_under_three_schedules(definition: KernelDefinition) -> None:
    """Lean under one: what schedules decide, barriers and waits, is there from `synchronized` on."""
    arguments = arguments_of(definition)
    by_name = {step.name: step.kernel for step in lower_steps(definition.ir)}
    synchronized, lean = by_name["lower_rings"], by_name["hoist"]
    for seed in range(3):
        for kernel in (synchronized, lean) if seed == 0 else (synchronized,):
            report = run(
                kernel, [a.copy() if hasattr(a, "copy") else a for a in arguments], seed=seed
            )
            assert report.findings == (), f"seed {seed}, stage {kernel.stage}"


def test_a_program_that_goes_on_forever_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    @tc.kernel(workers=1)
    def counted(x: tc.inout[tc.i64[1]], goes_on: tc.inout[tc.boolean[1]]):
        for i in tc.spatial(1):
            x[i] = x[i] + 1
            goes_on[i] = x[i] < 50

    @tc.program
    def program(x: tc.inout[tc.i64[1]], goes_on: tc.inout[tc.boolean[1]]):
        for _ in tc.steps_while(goes_on):
            counted(x, goes_on)

    arguments = [(np.array([0]), np.array([True]))]
    assert [*mutate(program.ir, arguments)] == []
    monkeypatch.setattr(mutation, "_MOST_CALLS", 20)
    with pytest.raises(InternalError, match="there are more than 20 calls"):
        [*mutate(program.ir, arguments)]


def test_a_program_is_broken_one_kernel_at_a_time() -> None:
    program = definitions_of(example("split_k"))["split_k"]
    mutants = list(mutate(program.ir, inputs_of(program)))
    assert [m.description for m in mutants if not (m.reported or m.reason)] == []
    alone = [mutants_of(kernel) for kernel in program.kernels]
    assert [(m.kind, m.stage, m.description) for m in mutants] == [
        (m.kind, m.stage, m.description) for kernel in alone for m in kernel
    ]


def test_a_survivor_without_a_reason_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checker that sees no races leaves the deleted barrier unreported."""
    definition = kernels_of(example("transpose"))["transpose"]
    monkeypatch.setattr("taskc.mutation._Trial.wrong_result", lambda *_: None)
    deleted = [m for m in mutants_of(definition) if m.kind == "delete"]
    assert deleted
    assert not any(m.reported or m.reason for m in deleted)


n = tc.dim("n", example=31)


@tc.kernel(workers=32)
def copy_of_odd_size(x: tc.f32[n], y: tc.out[tc.f32[n]]):
    for start in tc.tiles(n, by=32):
        for i in tc.spatial(32):
            if start + i < n:
                y[start + i] = x[start + i]


def test_survivors_are_tried_with_inputs_of_another_size() -> None:
    """The last worker has nothing to do for 31 elements, and something for 32."""
    kernel, inputs = copy_of_odd_size.ir, inputs_of(copy_of_odd_size)
    assert [[array.size for array in given] for given in inputs] == [[31, 31], [32, 32]]
    few, more = list(mutate(kernel, inputs[:1])), list(mutate(kernel, inputs))
    assert [(m.description, m.is_equivalent) for m in few] == [("each limited to (31,)", True)]
    assert [m.reported for m in more] == [True]


@tc.kernel(workers=64)
def turned_whole(x: tc.f32[2, 32].reshape(64), y: tc.out[tc.f32[4, 4, 4].reshape(64)]):
    s = tc.shared(tc.f32[64])
    for i in tc.spatial(64):
        s[i] = x[i]
    for i in tc.spatial(64):
        y[i] = s[63 - i]


def test_a_kernel_that_sees_another_shape_than_its_caller() -> None:
    """What it is called with has the caller's."""
    inputs = inputs_of(turned_whole)
    assert [array.shape for array in inputs[0]] == [(2, 32), (4, 4, 4)]
    made = list(mutate(turned_whole.ir, inputs))
    assert made
    assert all(m.reported for m in made)


@tc.kernel(workers=64)
def one_memory_for_two(x: tc.f32[64], y: tc.out[tc.f32[64]]):
    mine = tc.tile(tc.f32, tc.spatial(64))
    s = tc.shared(tc.f32[2, 32].laid(tc.repeat(2, 32, order=(1, 0))))
    for i in tc.spatial(64):
        s[i // 32, i % 32] = x[i]
    for i in tc.spatial(64):
        mine[i] = s[i // 32, i % 32]
    t = tc.shared(tc.f32[64])
    for i in tc.spatial(64):
        t[i] = mine[i]
    for i in tc.spatial(64):
        y[i] = t[i ^ 32]


def test_where_elements_lie_shows_at_the_last_stage() -> None:
    """By their indices alone, no worker touches what another one has of the memory that s and t share."""
    made = list(mutate(one_memory_for_two.ir, inputs_of(one_memory_for_two)))
    barriers = [m for m in made if m.kind == "delete" and m.stage == "synchronized"]
    assert [m.reported for m in barriers] == [True] * 2


@tc.kernel(workers=64)
def with_one_store_too_many(x: tc.f32[63], y: tc.out[tc.f32[63]]):
    s = tc.shared(tc.f32[64])
    for i in tc.spatial(64):
        s[i] = x[min(i, 62)]
    for i in tc.spatial(64):
        if i < 63:
            y[i] = s[62 - i]


def test_what_is_stored_and_never_read_may_be_left_out() -> None:
    made = list(mutate(with_one_store_too_many.ir, inputs_of(with_one_store_too_many)))
    survivors = [m for m in made if not m.reported]
    assert [m.description for m in survivors] == [
        "each limited to (63,)"
    ] * 2  # the other has a guard
    assert all(m.reason.startswith("each store that it drops changes nothing") for m in survivors)


@tc.cuda.kernel(workers=64)
def with_barriers_of_its_own(x: tc.f32[64], y: tc.out[tc.f32[64]]):
    s = tc.shared(tc.f32[64])
    w = tc.worker()
    s[w] = x[w]
    tc.sync()
    mine = s[w]
    theirs = s[63 - w]
    y[w] = theirs - mine


def test_a_barrier_may_move_where_workers_are_by_themselves() -> None:
    """Behind the read of what a worker wrote itself, and no further."""
    made = list(mutate(with_barriers_of_its_own.ir, inputs_of(with_barriers_of_its_own)))
    left = [m for m in made if not m.reported]
    assert [(m.kind, m.is_equivalent) for m in left] == [("move", True)]
    assert left[0].description.startswith("the block barrier moved behind let")
    assert left[0].reason.endswith("of the runs with 2 inputs")


@pytest.mark.sweep
def test_of_all_mutants_on_all_targets_95_in_100_are_reported() -> None:
    counts: Counter[bool] = Counter()
    for parameter in kernels(set()):
        definition: Any = parameter.values[0]
        for target in ("generic", "sm_80", "sm_90a"):
            counts.update(mutant.reported for mutant in mutants_of(definition, target))
    assert counts[True] >= 0.95 * counts.total(), counts


def test_mutants_are_made_of_every_kind() -> None:
    definition = kernels_of(example("matmul"))["pipelined"]
    made = mutants_of(definition, "sm_80")
    assert {m.kind for m in made} == {"delete", "move", "slot", "buffer", "mapping"}
    assert all(ir.STAGES.index(m.stage) >= ir.STAGES.index("synchronized") for m in made)


@tc.kernel(workers=32)
def with_room_that_nobody_uses(x: tc.f32[32], y: tc.out[tc.f32[32]]):
    s = tc.shared(tc.f32[40])
    for i in tc.spatial(32):
        s[i] = x[i]
    for i in tc.spatial(32):
        y[i] = s[31 - i]


def test_a_buffer_may_be_smaller_where_nobody_uses_its_end() -> None:
    made = list(mutate(with_room_that_nobody_uses.ir, inputs_of(with_room_that_nobody_uses)))
    left = [m for m in made if not m.reported]
    assert [(m.description, m.is_equivalent) for m in left] == [("s shrunk to [39]", True)]
    assert left[0].reason == "no access reaches what is cut off of the runs with 2 inputs"
