"""`tc.compute`: what its function may name, and the computation that it becomes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f32, op
from taskc.programs.ir import Call


def test_tensors_of_one_name_are_several_parameters() -> None:
    def body(out: Any) -> Any:
        twice = [tc.compute((3,), lambda i: out[i] * factor) for factor in (2, 3)]
        one, other = twice
        return tc.compute((3,), lambda i: one[i] - other[i] + out[i])

    made = tc.trace("difference", {"out_": f32[3]}, body)
    assert made(np.float32([1, 2, 3])).tolist() == [0, 0, 0]
    names = [parameter.name for parameter in made.ir.calls[-1].callee.parameters]
    assert len({*names}) == 4
    assert names[-1] == "out"


def _joined(parts: list[Any]) -> Any:
    """The element of one of some tensors, each with one."""
    if len(parts) == 1:
        (part,) = parts
        return tc.function(lambda i: part[0])
    first, others = _joined(parts[:1]), _joined(parts[1:])
    return tc.function(lambda i: first(i) if i < 1 else others(i - 1))


def test_helpers_of_one_text_call_each_other() -> None:
    def body(*parts: Any) -> Any:
        value = _joined([*parts])
        return tc.compute((3,), lambda i: value(i))

    joined = tc.trace("joined", dict.fromkeys("abc", f32[1]), body)
    assert joined(*np.float32([[1], [2], [3]])).tolist() == [1, 2, 3]


def test_equal_functions_of_operators_have_one_computation() -> None:
    def body(x: Any, y: Any) -> Any:
        results = [
            op.Add(x, y), op.Add(y, x), op.Add(x, x),
            op.LeakyRelu(x, alpha=0.5), op.LeakyRelu(y, alpha=0.5), op.LeakyRelu(x, alpha=0.0),
            op.LeakyRelu(x, alpha=-0.0),
        ]  # fmt: skip
        return {f"y{number}": result for number, result in enumerate(results)}

    traced = tc.trace("several", {"x": f32[4, 8], "y": f32[4, 8]}, body)
    computations = [call.callee for call in traced.ir.calls if isinstance(call, Call)][:7]
    sums, leaks = computations[:3], computations[3:]
    assert sums[0] is sums[1] is not sums[2]
    assert leaks[0] is leaks[1]
    assert len({*map(id, leaks)}) == 3
    x, y = np.random.default_rng(0).standard_normal((2, 4, 8), np.float32)
    for made, expected in zip(traced(x, y)[:3], (x + y, y + x, x + x), strict=True):
        assert made.tobytes() == expected.tobytes()


_factor = 2


def test_a_function_of_a_user_is_read_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it reads from its module may have changed."""

    def scaled(x: Any) -> Any:
        return tc.compute((4,), lambda i: x[i] * _factor)

    def body(x: Any) -> Any:
        first = scaled(x)
        monkeypatch.setattr(f"{__name__}._factor", 3)
        return {"first": first, "second": scaled(x)}

    first, second = tc.trace("twice", {"x": f32[4]}, body)(np.ones(4, np.float32))
    assert (first[0], second[0]) == (2, 3)


def test_a_condition_under_several_conditions_has_its_value_under_each() -> None:
    """The part that both sides use reads by data, where its own condition holds."""

    @tc.program
    def f(x: f32[7], y: f32[5], ids: tc.i64[7], z: tc.out[f32[7]]) -> None:
        @tc.function
        def value(i: Any) -> Any:
            part = y[ids[i + 2]] if i + 2 < 7 else f32(0)
            return (part * 2 if x[i] > 0 else f32(0)) + (part * 3 if x[i] < 1 else f32(0))

        tc.compute(7, value, out=z)

    x, y = np.float32([-1, 2, 0.5, -3, 4, 1, 0]), np.float32([1, 2, 3, 4, 5])
    ids = np.array([0, 1, 2, 3, 4, 0, 1])
    parts = [*y[ids[2:]], 0, 0]
    expected = [p * ((v > 0) * 2 + (v < 1) * 3) for p, v in zip(parts, x, strict=True)]
    assert f(x, y, ids).tolist() == expected
