"""`tc.compute`: what its function may name, and the computation that it becomes."""

from __future__ import annotations

from typing import Any

import numpy as np

import taskc as tc
from taskc import f32


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
