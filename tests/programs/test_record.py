"""Programs as plain data: what is read back prints as what was recorded, and is as far the same objects."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import boolean, f32
from taskc.errors import InternalError
from taskc.ir.printer import to_text
from taskc.programs.ir import Branch, Program, While
from taskc.programs.plan import from_record, recorded

n = tc.dim("n", multiple=4)


@tc.kernel(workers=4)
def scaled(x: f32[n, 8], by: f32, y: tc.out[f32[n, 8]]):
    for row, col in tc.tiles((n, 8), by=(4, 8)):
        for i, j in tc.spatial(4, 1) * tc.repeat(1, 8):
            y[row + i, col + j] = x[row + i, col + j] * by


@tc.program
def steps(x: f32[n, 8], by: f32, y: tc.out[f32[n, 8]]):
    whole = tc.empty(f32[n, 8])
    scaled(x, by, out=whole)
    for step in tc.steps(n // 4):
        tc.compute(8, lambda j: whole[step, j] + 1.5, name="row")
    tc.compute((n, 8), lambda i, j: tc.exp(whole[i, j]), out=y)


def back(*roots: Any, also: Any = ()) -> list[Any]:
    """Through JSON's text."""
    return from_record(json.loads(json.dumps(recorded(*roots, also=also))), also)


def test_a_program_comes_back() -> None:
    (found,) = back(steps.ir)
    assert isinstance(found, Program)
    assert to_text(found) == to_text(steps.ir)
    assert tc.ProgramDefinition.of(found).ir is found  # which is held to all that tracing checks
    kernel = found.calls[0].callee  # type: ignore[union-attr]
    assert kernel.parameters[0] is not found.parameters[0]
    assert found.parameters[0].argument_shape[0] is found.dimensions[0]  # type: ignore[union-attr]


def test_branches_and_whiles_come_back() -> None:
    @tc.program
    def chosen(x: tc.inout[f32[n, 8]], flags: tc.inout[boolean[2]]):
        with tc.branch(flags[0:1]):
            for _ in tc.steps_while(flags[1:2]):
                tc.compute((n, 8), lambda i, j: f32(1), name="ones", out=x)
                tc.compute(1, lambda i: i < 0, name="done", out=flags[1:2])
        with tc.otherwise():
            tc.compute((n, 8), lambda i, j: f32(0), name="zeros", out=x)

    (found,) = back(chosen.ir)
    (branch,) = found.calls
    assert [type(step) for step in (branch, *branch.then)] == [Branch, While]
    assert branch.condition in [view.tensor for view in found.views]
    assert to_text(found) == to_text(chosen.ir)


def test_what_is_shared_stays_shared_among_all_that_is_recorded() -> None:
    program = steps.ir
    found, tensors = back(program, [*program.temporaries])
    assert len(tensors) == len(program.temporaries) > 0
    assert all(one is other for one, other in zip(tensors, found.temporaries, strict=True))


@pytest.mark.parametrize(
    "layout", ["repeat(2, 4)", "repeat(4, 2, order=(1, 0))", "repeat(2, 1) * repeat(1, 4)"]
)
def test_layouts_come_back(layout: str) -> None:
    tensor = tc.ir.nodes.Tensor("t", f32, (4, 4), "global", layout=tc.Mapping.parse(layout))
    (found,) = back(tensor)
    assert found.layout == tensor.layout
    assert str(found.layout) == str(tensor.layout)
    assert found.dtype is f32


def test_a_layout_by_enumeration_comes_back() -> None:
    layout = tc.mapping((4,), 1, lambda worker: [(2,), (0,), (3,), (1,)])
    (found,) = back(tc.ir.nodes.Tensor("t", f32, (4,), "global", layout=layout))
    assert found.layout == layout


def test_numbers_keep_their_kinds() -> None:
    values = [1, 1.5, 0.1, -0.0, float("inf"), True, None, "name", 2**63]
    (found,) = back([*values, np.float32(0.25), np.int64(7)])
    assert [*map(repr, found)] == [*map(repr, values), "0.25", "7"]


def test_what_is_no_node_is_refused() -> None:
    with pytest.raises(InternalError, match="no record of set"):
        recorded({1})


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"nodes": [], "found": [{"at": 0}]},
        {"nodes": [["Tensor", "t"]], "found": []},
        {"nodes": [["system", "t"]], "found": []},
        {"nodes": [["DType", "f33"]], "found": []},
        {"nodes": 3, "found": []},
        {"nodes": [[]], "found": []},
    ],
)
def test_a_record_that_is_none_is_an_error_of_python(record: Any) -> None:
    with pytest.raises((LookupError, TypeError, ValueError)):
        from_record(record)
