"""A bug of the compiler is reported as its own, with the node or the kernel: never as the user's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import CompileError, f32
from taskc.errors import InternalError
from taskc.kernels.rows.problem import Problem
from taskc.operators import call as operators, norms
from taskc.passes import pipeline
from taskc.programs import pipeline as program_pipeline

from .onnx.models import model, node, tensor

X = np.ones((3, 5), np.float32)


def _broken(*_: Any, **__: Any) -> Any:
    return {}["missing"]


def _softmax() -> Any:
    return tc.compile(model([node("Softmax", ["x"], ["y"])], [tensor("x", "n", "k")], ["y"]))


def _check(text: str, error: InternalError) -> None:
    assert text in str(error)
    assert "KeyError: 'missing' (this is a bug in taskc; please report it" in str(error)
    assert isinstance(error.__cause__, KeyError)


def test_in_a_builder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norms, "_by_rows", _broken)
    with pytest.raises(InternalError) as caught:
        _softmax()(X)
    _check("Softmax node that makes 'y', of f32[3, 5]: KeyError", caught.value)


def test_in_a_builder_of_open_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = _softmax()
    for extent in (1, 2):
        compiled(X[:extent])
    monkeypatch.setattr(norms, "_by_rows", _broken)
    with pytest.raises(InternalError) as caught:  # the program with dimensions is built now
        compiled(X)
    _check("Softmax node that makes 'y'", caught.value)


def test_in_a_template(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Problem, "kernel", _broken)
    with pytest.raises(InternalError) as caught:
        _softmax()(np.ones((7, 11), np.float32))  # a template's kernel that no other test makes
    _check("Softmax node that makes 'y'", caught.value)


def test_in_a_pass_over_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [*pipeline.PASSES]
    at = next(number for number, row in enumerate(rows) if row.name == "flatten")
    monkeypatch.setattr(pipeline, "PASSES", (*rows[:at], pipeline.Pass(_broken), *rows[at + 1 :]))

    @tc.kernel(workers=1)
    def doubled(x: f32[3], y: tc.out[f32[3]]) -> None:
        for i in tc.repeat(3):
            y[i] = x[i] * 2

    with pytest.raises(InternalError) as caught:
        doubled(np.ones(3, np.float32))
    _check("_broken: KeyError", caught.value)
    assert "kernel doubled" in caught.value.ir


def test_in_a_pass_over_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_pipeline, "schedule", _broken)

    @tc.program
    def doubled(x: f32[3], y: tc.out[f32[3]]) -> None:
        tc.compute((3,), lambda i: x[i] * 2, out=y)

    with pytest.raises(InternalError) as caught:
        doubled(np.ones(3, np.float32))
    _check("schedule: KeyError", caught.value)
    assert "doubled" in caught.value.ir


def test_a_users_builder_raises_what_it_likes() -> None:
    operators.operator("Own", domain="here")(_broken)
    try:
        proto = model(
            [node("Own", ["x"], ["y"], domain="here")], [tensor("x", 3)], ["y"], domains=("here",)
        )
        with pytest.raises(KeyError, match="missing"):
            tc.compile(proto)(X[0, :3])
    finally:
        operators._builders.pop(("here", "Own"))


def test_a_wrong_model_is_the_users() -> None:
    proto = model([node("Gemm", ["x", "x"], ["y"])], [tensor("x", 3)], ["y"])
    with pytest.raises(CompileError, match=r"Gemm node .*: its input 0 is f32\[3\], and has to be"):
        tc.compile(proto)(X[0, :3])
