"""Loads of later steps run ahead of the work, by the transport that they can take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from taskc.ir import nodes as ir
from taskc.passes.overlap import overlap
from taskc.passes.select import select
from tests.passes.kernels import (
    before_and_after,
    keeps_its_result,
    kernel,
    messages,
    nodes,
    refused,
    through,
)

Golden = Callable[[str, str], None]


def pipeline(
    load: str = "x[p + i, j]",
    *,
    extent: str = "32",
    stages: int = 3,
    how: str = "",
    work: str = "",
    before: str = "",
    rows: int = 64,
    columns: int = 8,
    dtype: str = "f32",
    target: str = "sm_90a",
) -> ir.Kernel:
    fill = "0.0" if dtype.startswith("f") else "0"
    return kernel(
        f"""
        tile acc: {dtype}[8, 8] by spatial(8, 4).repeat(1, 2) = {fill}
        local n: i64 = 0
        pipeline p in {extent} by 8 stages={stages}{how}:
            {before or "pass"}
            constant shared s: {dtype}[8, 8]
            move s[i, j] = {load} for (i, j) in (8, 8)
            each (i, j) in spatial(8, 4).repeat(1, 2):
                acc[i, j] = acc[i, j] + s[7 - i, j]
            {work or "pass"}
        move c[i, j] = acc[i, j] for (i, j) in (8, 8)
        """,
        f"x: {dtype}[{rows}, {columns}], table: inout i64[8], c: out {dtype}[8, 8]",
        target=target,
    )


def overlapped(start: ir.Kernel) -> ir.Kernel:
    return through(start, select, overlap)


def transports(start: ir.Kernel) -> set[str]:
    return {step.ring.transport for step in nodes(start, ir.RingStep)}


@pytest.mark.parametrize("stages", [2, 3])
def test_golden(stages: int, golden: Golden) -> None:
    start = select(
        kernel(
            f"""
            tile acc: f32[8, 8] by spatial(8, 4).repeat(1, 2) = 0.0
            pipeline p in 32 by 8 stages={stages}:
                let row = p + 8
                constant shared s: f32[8, 8]
                move s[i, j] = x[row + i, j] for (i, j) in (8, 8)
                each (i, j) in spatial(8, 4).repeat(1, 2):
                    acc[i, j] = acc[i, j] + s[7 - i, j]
            move c[i, j] = acc[i, j] for (i, j) in (8, 8)
            """,
            "x: f32[64, 8], c: out f32[8, 8]",
            target="sm_80",
        )
    )
    golden(f"passes/overlap_{stages}", before_and_after(start, through(start, overlap)))


def steps_of(start: ir.Kernel, count: int) -> list[tuple[str, int]]:
    """The ring steps of a run of `count` steps, in order."""
    found: list[tuple[str, int]] = []

    def visit(statement: ir.Statement, values: dict[ir.Variable, int]) -> None:
        match statement:
            case ir.Sequence():
                for inner in statement.statements:
                    visit(inner, values)
            case ir.For():
                stop = number(statement.stop, values)
                for k in range(number(statement.start, values), stop, statement.step):
                    visit(statement.body, {**values, statement.variable: k})
            case ir.If():
                condition = statement.condition
                assert isinstance(condition, ir.Binary)
                assert condition.operator == "<"
                if number(condition.left, values) < number(condition.right, values):
                    visit(statement.then, values)
            case ir.RingStep():
                found.append((statement.operation, number(statement.step, values)))

    def number(expression: ir.Expression, values: dict[ir.Variable, int]) -> int:
        match expression:
            case ir.Constant():
                return int(expression.value)
            case ir.Variable():
                return values[expression]
            case ir.Binary(operator="+"):
                return number(expression.left, values) + number(expression.right, values)
        raise AssertionError(expression)

    visit(start.body, {})
    return found


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("stages", [2, 3, 5])
@pytest.mark.parametrize("transport", ["registers", "cp.async", "tma"])
def test_the_protocol(transport: str, stages: int, count: int) -> None:
    """Each step is acquired, committed, waited for and released in this order, never two in a slot."""
    start = overlapped(
        pipeline(extent=str(8 * count), stages=stages, how=f" transport={transport}")
    )
    assert transports(start) == {transport}
    (ring,) = {step.ring for step in nodes(start, ir.RingStep)}
    assert ring.stages == stages
    assert [tensor.shape for tensor in ring.tensors] == [(stages, 8, 8)]
    history = steps_of(start, count)
    for k in range(count):
        order = [operation for operation, step in history if step == k]
        assert order == ["acquire", "commit", "wait", "release"]
        assert history.index(("wait", k)) > history.index(("commit", k))
    for k in range(count - stages):
        assert history.index(("release", k)) < history.index(("acquire", k + stages))
    ahead = [step for operation, step in history if operation == "acquire"]
    issued_before_work = [
        step for step in ahead if history.index(("acquire", step)) < history.index(("release", 0))
    ] if count else []  # fmt: skip
    expected = stages - 1 if transport == "registers" else stages
    assert len([step for step in issued_before_work if step < count]) == min(count, expected)
    past = {operation for operation, step in history if step >= count}
    assert past == ({"acquire", "commit"} if transport == "cp.async" else set()), (
        "the groups of cp.async are counted, even where they are empty"
    )


@pytest.mark.each_value
@pytest.mark.parametrize(
    "how", ["", " transport=registers", " transport=tma", " transport=cp.async"]
)
@pytest.mark.parametrize("extent", ["0", "8", "20", "64"])
def test_results_stay(extent: str, how: str) -> None:
    load = "select(p + i < 64, x[p + i, j], 0.0)"
    keeps_its_result(pipeline(load, extent=extent, stages=4, how=how))


@pytest.mark.parametrize("stages", [1, 2, 9])
def test_numbers_of_stages(stages: int) -> None:
    start = pipeline(stages=stages)
    assert bool(nodes(overlapped(start), ir.RingStep)) == (stages > 1)
    keeps_its_result(start)


def test_uniform_scalars_are_computed_for_each_step() -> None:
    start = pipeline("x[first + i, j]", before="let first = p // 2 + 4")
    made = overlapped(start)
    assert transports(made) == {"cp.async"}
    lets = [let for let in nodes(made, ir.Let) if let.variable.name.startswith("first")]
    assert len(lets) == 3, "for the prologue, for the later step and for the work"
    keeps_its_result(start)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ({"load": "x[p + n % 8 + i, j]", "work": "n = n + 3"},
         "reads `n`, which the work writes"),
        ({"load": "x[r + i, j]", "before": "let r = n % 8", "work": "n = n + 3"},
         "reads `n`, which the work writes"),
        ({"load": "x[r + i, j]", "before": "let r = table[0] % 8", "work": "move table[t] = 3 for t in 8"},
         "reads `table`, which the work writes"),
    ],
    ids=["directly", "by a scalar", "by a scalar from memory"],
)  # fmt: skip
def test_what_depends_on_the_work_stays_with_it(case: dict[str, Any], reason: str) -> None:
    start = pipeline(**case)
    made = overlapped(start)
    assert not nodes(made, ir.RingStep)
    assert f"`s` is not pipelined: its load {reason}" in messages(made)
    keeps_its_result(start)


def test_a_load_of_another_load_stays() -> None:
    start = kernel(
        """
        tile acc: f32[8, 8] by spatial(8, 4).repeat(1, 2) = 0.0
        pipeline p in 32 by 8 stages=2:
            constant shared s: f32[8, 8]
            move s[i, j] = x[p + i, j] for (i, j) in (8, 8)
            constant shared t: f32[8, 8]
            move t[i, j] = s[j, i] for (i, j) in (8, 8)
            each (i, j) in spatial(8, 4).repeat(1, 2):
                acc[i, j] = acc[i, j] + t[7 - i, j]
        move c[i, j] = acc[i, j] for (i, j) in (8, 8)
        """,
        "x: f32[64, 8], c: out f32[8, 8]",
    )
    made = overlapped(start)
    (ring,) = {step.ring for step in nodes(made, ir.RingStep)}
    assert [tensor.name for tensor in ring.tensors] == ["s"]
    assert messages(made) == ["`t` is not pipelined: its load reads `s`, which the work writes"]
    keeps_its_result(start)


def test_the_extent_is_asked_once() -> None:
    start = pipeline("x[p % 40 + i, j]", extent="n + 24", work="n = n - 8")
    keeps_its_result(start)


def test_one_pipeline_in_another() -> None:
    keeps_its_result(
        kernel(
            """
            tile acc: f32[8, 8] by spatial(8, 4).repeat(1, 2) = 0.0
            pipeline p in 24 by 8 stages=3:
                constant shared s: f32[8, 8]
                move s[i, j] = x[p + i, j] for (i, j) in (8, 8)
                pipeline q in 32 by 8 stages=4:
                    constant shared t: f32[8, 8]
                    move t[i, j] = x[q + p + i, j] for (i, j) in (8, 8)
                    each (i, j) in spatial(8, 4).repeat(1, 2):
                        acc[i, j] = acc[i, j] + s[7 - i, j] * t[7 - i, j]
            move c[i, j] = acc[i, j] for (i, j) in (8, 8)
            """,
            "x: f32[64, 8], c: out f32[8, 8]",
            target="sm_80",
        )
    )


# Transports.


@pytest.mark.parametrize(
    ("target", "stages", "transport"),
    [
        ("generic", 2, "registers"),
        ("generic", 4, "registers"),
        ("sm_80", 2, "registers"),
        ("sm_80", 3, "cp.async"),
        ("sm_90a", 3, "cp.async"),  # bulk copies only where they are asked for
    ],
)
def test_the_best_transport(target: str, stages: int, transport: str) -> None:
    made = overlapped(pipeline(stages=stages, target=target))
    assert transports(made) == {transport}
    assert messages(made) == []


MISFITS = [
    ("cp.async", {"load": "x[p + i, j] * 2.0"}, "is not a plain copy that fills with zeros"),
    ("cp.async", {"load": "select(p + i < 60, x[p + i, j], 1.0)"}, "is not a plain copy that fills with zeros"),
    ("cp.async", {"load": "select(p + i < 60, x[p + i, j], -0.0)"}, "is not a plain copy that fills with zeros"),
    ("cp.async", {"dtype": "f16", "load": "x[p + i, j + 1]", "columns": 9}, "is not aligned to 4 bytes"),
    ("tma", {"load": "x[p + i, j] * 2.0"}, "is not a plain copy that fills with zeros"),
    ("tma", {"load": "x[p + j, i]"}, "is not a box of its tensor"),
    ("tma", {"load": "x[p + 2 * i, j]"}, "is not a box of its tensor"),
    ("tma", {"load": "x[p + i + j, j]", "rows": 80}, "is not a box of its tensor"),
    ("tma", {"load": "select(p + i < 60, x[p + i, j], 0.0)"}, "fills more than what lies outside its tensor"),
    ("tma", {"load": "select(j < 5, x[p + i, j], 0.0)"}, "fills more than what lies outside its tensor"),
    ("tma", {"columns": 9}, "comes from rows that are not a multiple of 16 bytes"),
    ("tma", {"dtype": "i8", "columns": 16}, "has rows that are not a multiple of 16 bytes"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("transport", "case", "why"), MISFITS, ids=[f"{t}-{list(c.values())}" for t, c, _ in MISFITS]
)
def test_a_transport_that_does_not_fit(transport: str, case: dict[str, Any], why: str) -> None:
    error = refused(pipeline(**case, how=f" transport={transport}"), select, overlap)
    assert error.message == f"this pipeline can't travel by {transport}: the load of `s` {why}"
    assert error.location.line == 4
    start = pipeline(**case)
    made = overlapped(start)
    if transport == "cp.async":
        assert f"this pipeline does not travel by cp.async: the load of `s` {why}" in messages(made)
        assert transports(made) == {"registers"}
    keeps_its_result(start)


def test_bulk_copies_go_to_whole_lines() -> None:
    start = kernel(
        """
        pipeline p in 32 by 2 stages=2 transport=tma:
            constant shared s: f32[2, 4]
            move s[i, j] = x[p + i, j] for (i, j) in (2, 4)
            each (i, j) in spatial(2, 4):
                c[p + i, j] = s[1 - i, j]
        """,
        "x: f32[32, 4], c: out f32[32, 4]",
        workers=8,
        target="sm_90a",
    )
    error = refused(start, select, overlap)
    why = "takes slots that are not a multiple of 128 bytes"
    assert error.message == f"this pipeline can't travel by tma: the load of `s` {why}"


def test_a_transport_that_the_target_lacks() -> None:
    error = refused(pipeline(how=" transport=tma", target="sm_80"), select, overlap)
    assert error.message == "this pipeline can't travel by tma: sm_80 does not have it"


@pytest.mark.parametrize(
    "condition",
    ["p + i < 60", "59 >= i + p", "p + i < 60 and j < 8", "0 <= p + i - 2 and p + i - 2 < 60"],
)
def test_bounds_are_what_a_box_checks(condition: str) -> None:
    shift = " - 2" if "- 2" in condition else ""
    load = f"select({condition}, x[p + i{shift}, j], 0.0)"
    start = pipeline(load, extent="64", rows=60, how=" transport=tma")
    assert transports(overlapped(start)) == {"tma"}
    keeps_its_result(start)


@pytest.mark.parametrize("run", [1, 2, 3, 4, 6, 12])
def test_copies_stay_within_what_a_worker_has(run: int) -> None:
    """Each asynchronous copy is aligned, and of consecutive slots of its worker."""
    by = f"spatial(8, {24 // run}).repeat(1, {run})"
    start = kernel(
        f"""
        tile acc: f32[8, 24] by {by} = 0.0
        pipeline p in 64 by 8 stages=3:
            constant shared s: f32[8, 24]
            move s[i, j] = x[p + i, j] for (i, j) in (8, 24) by {by}
            each (i, j) in {by}:
                acc[i, j] = acc[i, j] + s[i, j]
        move c[i, j] = acc[i, j] for (i, j) in (8, 24)
        """,
        "x: f32[64, 24], c: out f32[8, 24]",
        workers=8 * 24 // run,
        target="sm_80",
    )
    assert transports(overlapped(start)) == {"cp.async"}
    keeps_its_result(start)
