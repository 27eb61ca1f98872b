"""A producer warp gets the loads, the consumer all the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from taskc.ir import nodes as ir
from taskc.ir.rewrite import walk
from taskc.ir.target import TARGETS
from taskc.passes.select import select
from taskc.passes.specialize import specialize
from tests.passes.kernels import (
    after,
    before_and_after,
    keeps_its_result,
    kernel,
    messages,
    nodes,
    refused,
    through,
)

Golden = Callable[[str, str], None]


def producing(
    load: str = "x[p + i, j]",
    *,
    before: str = "pass",
    inside: str = "pass",
    extent: str = "40",
    how: str = "",
    columns: int = 8,
    tail: str = "pass",
    target: str = "sm_90a",
    workers: int = 32,
) -> ir.Kernel:
    return kernel(
        f"""
        local n: i64 = 3
        {before}
        tile acc: f32[8, 8] by spatial(8, 4).repeat(1, 2).replicate({workers // 32}) = 0.0
        pipeline p in {extent} by 8 stages=3{how} specialize:
            {inside}
            constant shared s: f32[8, 8]
            move s[i, j] = {load} for (i, j) in (8, 8)
            each (i, j) in spatial(8, 4).repeat(1, 2).replicate({workers // 32}):
                acc[i, j] = acc[i, j] + s[7 - i, j]
        {tail}
        move c[i, j] = acc[i, j] for (i, j) in (8, 8)
        """,
        f"x: inout f32[64, {columns}], y: f32[8, 8], c: out f32[8, 8]",
        target=target,
        workers=workers,
    )


def specialized(start: ir.Kernel) -> ir.Kernel:
    return through(start, select, specialize)


def roles(start: ir.Kernel) -> dict[str, ir.Role]:
    (found,) = nodes(start, ir.Roles)
    return {role.name: role for role in found.roles}


def test_golden(golden: Golden) -> None:
    start = select(
        kernel(
            """
            tile acc: f32[8, 8] by spatial(8, 4).repeat(1, 2) = 0.0
            pipeline p in 32 by 8 stages=3 specialize:
                let row = p + 8
                constant shared s: f32[8, 8]
                move s[i, j] = x[row + i, j] for (i, j) in (8, 8)
                each (i, j) in spatial(8, 4).repeat(1, 2):
                    acc[i, j] = acc[i, j] + s[7 - i, j]
            move c[i, j] = acc[i, j] for (i, j) in (8, 8)
            """,
            "x: f32[64, 8], c: out f32[8, 8]",
            target="sm_90a",
        )
    )
    golden("passes/specialize", before_and_after(start, through(start, specialize)))


@pytest.mark.parametrize("workers", [32, 64, 128])
@pytest.mark.parametrize("columns", [8, 9])
def test_results_stay(workers: int, columns: int) -> None:
    """By bulk copies, and where rows aren't a multiple of 16 bytes by the producer's lanes."""
    start = producing(columns=columns, workers=workers)
    made = specialized(start)
    (ring,) = {step.ring for step in nodes(made, ir.RingStep)}
    assert ring.transport == ("tma" if columns == 8 else "registers")
    keeps_its_result(start)


def test_who_does_what() -> None:
    made = specialized(
        producing(workers=64, tail="move x[i, j] = 2.0 for (i, j) in (64, 8)", load="y[i, j]")
    )
    assert (made.workers, made.helpers) == (64, 32)
    producer, consumer = roles(made)["producer"], roles(made)["consumer"]
    assert (producer.first, producer.workers) == (64, 32)
    assert (consumer.first, consumer.workers) == (0, 64)
    steps = {
        name: [node.operation for node in walk(role.body) if isinstance(node, ir.RingStep)]
        for name, role in roles(made).items()
    }
    assert steps == {"producer": ["acquire", "commit"], "consumer": ["wait", "release"]}
    loads = [node for node in walk(producer.body) if isinstance(node, ir.Move)]
    assert [move.tensor.name for move in loads] == ["s"]
    assert all(move.by is not None and move.by.workers == 32 for move in loads)
    assert not [node for node in walk(producer.body) if isinstance(node, ir.Each)]


def test_the_producer_computes_the_scalars_that_it_needs() -> None:
    start = producing(
        "x[first + p + i, j]", before="let half = 8 // 2", inside="let first = half * 2"
    )
    names = {let.variable.name for let in nodes(specialized(start), ir.Let)}
    assert {"half", "first"} <= names
    keeps_its_result(start)


@pytest.mark.parametrize(
    ("start", "why"),
    [
        (producing("x[p + r + i, j]", before="let r = n % 5"), "reads `n`"),
        (producing("x[p + r + i, j]", inside="let r = n % 5"), "reads `n`"),
        (producing(before="move x[i, j] = 3.0 for (i, j) in (64, 8)"), "reads `x`"),
        (producing(tail="move x[i, j] = 3.0 for (i, j) in (64, 8)"), "reads `x`"),
    ],
    ids=["a scalar", "a scalar of the loop", "written before", "written after"],
)
def test_what_the_consumer_computes_stays_with_it(start: ir.Kernel, why: str) -> None:
    made = specialized(start)
    assert not nodes(made, ir.Roles)
    assert made.helpers == 0
    (reason, nothing) = messages(made)
    assert reason.startswith(f"`s` is not loaded by the producer warp: its load {why}")
    assert nothing == "there is nothing that a producer warp could load"
    keeps_its_result(start)


def test_steps_that_only_the_consumer_can_count() -> None:
    start = producing(before="n = n + 29", extent="n", load="y[i, j]")
    made = specialized(start)
    assert not nodes(made, ir.Roles)
    assert messages(made)[0].startswith("a producer warp can't count the steps: ")
    keeps_its_result(start)


def test_the_load_of_a_load_stays_with_the_consumer() -> None:
    start = kernel(
        """
        tile acc: f32[8, 8] by spatial(8, 4).repeat(1, 2) = 0.0
        pipeline p in 32 by 8 stages=3 specialize:
            constant shared s: f32[8, 8]
            move s[i, j] = x[p + i, j] for (i, j) in (8, 8)
            constant shared t: f32[8, 8]
            move t[i, j] = s[j, i] for (i, j) in (8, 8)
            each (i, j) in spatial(8, 4).repeat(1, 2):
                acc[i, j] = acc[i, j] + s[7 - i, j] * t[j, i]
        move c[i, j] = acc[i, j] for (i, j) in (8, 8)
        """,
        "x: f32[64, 8], c: out f32[8, 8]",
        target="sm_90a",
    )
    made = specialized(start)
    assert [t.name for s in nodes(made, ir.RingStep) for t in s.ring.tensors] == ["s"] * 4
    keeps_its_result(start)


def test_a_pipeline_behind_it_is_the_consumers() -> None:
    """Its ring belongs to one role: asynchronous copies are counted in groups, not by mbarriers."""
    second = """pipeline q in 24 by 8 stages=3{}:
            constant shared t: f32[8, 8]
            move t[i, j] = x[q + i, j] for (i, j) in (8, 8)
            each (i, j) in spatial(8, 4).repeat(1, 2).replicate(2):
                acc[i, j] = acc[i, j] + t[7 - i, j]
"""
    for how in ("", " transport=tma", " transport=registers"):
        start = producing(tail=second.format(how), workers=64)
        made = after(start, "lower_rings")
        waits = [do for do in nodes(made, ir.Do) if do.operation == "cp.async.wait"]
        assert bool(waits) == (how == "")
        keeps_its_result(start)


@pytest.mark.parametrize("workers", [32, 64])
def test_persistent_tiles(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TARGETS, "sm_90a", replace(TARGETS["sm_90a"], processors=3))
    start = kernel(
        f"""
        grid r in 7 by 1 persistent:
            tile acc: f32[8, 8] by spatial(8, 4).repeat(1, 2).replicate({workers // 32}) = 0.0
            pipeline p in 40 by 8 stages=3 specialize:
                constant shared s: f32[8, 8]
                move s[i, j] = x[p + i, j] for (i, j) in (8, 8)
                each (i, j) in spatial(8, 4).repeat(1, 2).replicate({workers // 32}):
                    acc[i, j] = acc[i, j] + s[7 - i, j] + r.to(f32)
            move c[r + i, j] = acc[i, j] for (i, j) in (1, 8)
        """,
        "x: f32[64, 8], c: out f32[7, 8]",
        target="sm_90a",
        workers=workers,
    )
    assert nodes(specialized(start), ir.Roles)
    keeps_its_result(start)


def test_another_transport_than_asked_for() -> None:
    error = refused(producing(how=" transport=cp.async"), select, specialize)
    assert error.message == (
        "a producer warp can't load by cp.async: its copies can't be counted by an mbarrier"
    )
    error = refused(producing(how=" transport=tma", columns=9), select, specialize)
    assert error.message.startswith("a producer warp can't load by tma: the load of `s` comes from")


def test_two_of_them() -> None:
    one = """pipeline {v} in 32 by 8 stages=3 specialize:
        constant shared {v}s: f32[8, 8]
        move {v}s[i, j] = x[{v} + i, j] for (i, j) in (8, 8)
"""
    start = kernel(one.format(v="p") + one.format(v="q"), "x: f32[64, 8]", target="sm_90a")
    error = refused(start, select, specialize)
    assert error.message == "only one pipeline of a kernel can have a producer warp"
    assert (error.location.line, error.notes[0][1].line) == (5, 2)


@pytest.mark.parametrize("around", ["for t in range(2):", "if x[0, 0] < 3.0:"])
def test_one_inside_of_something(around: str) -> None:
    start = kernel(
        f"""
        {around}
            pipeline p in 32 by 8 stages=3 specialize:
                constant shared s: f32[8, 8]
                move s[i, j] = x[p + i, j] for (i, j) in (8, 8)
        """,
        "x: f32[64, 8]",
        target="sm_90a",
    )
    error = refused(start, select, specialize)
    assert error.message.startswith("a pipeline with a producer warp has to stand at the top of")
    assert error.location.line == 3


def test_a_kernel_without_one_is_left_alone() -> None:
    start = select(kernel("move c[i] = x[i] for i in 64"))
    assert specialize(start) is start


def test_a_block_without_room_for_one() -> None:
    """1024 workers multiply; a producer would be beyond what a block may have."""

    def of(workers: int) -> ir.Kernel:
        start = kernel(
            f"""
            pipeline p in 32 by 8 stages=3 specialize:
                constant shared s: f32[8, {workers}]
                move s[i, j] = x[p + i, j] for (i, j) in (8, {workers})
                each i in spatial({workers}):
                    c[i] = s[0, i] + c[i]
            """,
            f"x: f32[32, {workers}], c: inout f32[{workers}]",
            target="sm_90a",
            workers=workers,
        )
        return specialize(select(start))

    (note,) = of(1024).notes
    assert note[0] == "sm_90a has no workers left in a block for a producer warp"
    assert not of(1024).helpers
    assert of(992).helpers == 32  # and a pipeline alone in its kernel is found
