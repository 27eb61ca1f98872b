"""MatMul and Gemm of all ranks and kinds of operands, against NumPy."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

import taskc as tc
from taskc.errors import NOWHERE
from taskc.lang.source import called_from
from taskc.onnx.session import compile
from taskc.operators.operands import kernel_of
from taskc.profiling.profile import origins_text
from taskc.programs.ir import calls_of
from taskc.tune.choose import recorded

from .models import model, node, tensor

SHAPES = [
    ((5,), (5,)),
    ((5,), (5, 7)),
    ((3, 5), (5,)),
    ((4, 3, 5), (5,)),
    ((5,), (4, 5, 7)),
    ((3, 5), (5, 7)),
    ((2, 3, 5), (5, 7)),
    ((2, 3, 5), (2, 5, 7)),
    ((1, 3, 5), (4, 5, 7)),
    ((3, 5), (4, 5, 7)),
    ((2, 1, 3, 5), (1, 4, 5, 7)),
    ((2, 3, 1, 4, 5), (2, 1, 6, 5, 7)),
    ((2, 1, 3, 1, 4, 5), (1, 2, 1, 3, 5, 6)),
    ((2, 3, 5), (1, 5, 7)),
    ((0, 5), (5, 7)),
    ((3, 0), (0, 7)),
]


def product(a: Any, b: Any, is_constant: bool, operator: str = "MatMul", **attributes: Any) -> Any:
    """What a model of one product makes."""
    made = model(
        [helper.make_node(operator, ["a", "b"], ["y"], **attributes)],
        [tensor("a", *a.shape)] + ([] if is_constant else [tensor("b", *b.shape)]),
        ["y"],
        initializer=[numpy_helper.from_array(b, "b")] if is_constant else [],
    )
    return compile(made).run(None, {"a": a} if is_constant else {"a": a, "b": b})[0]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_operands_are_multiplied_as_numpy_does(shapes: tuple[Any, Any]) -> None:
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(shape).astype(np.float32) for shape in shapes)
    expected = a @ b
    for is_constant in (False, True):
        found = product(a, b, is_constant)
        assert found.shape == expected.shape
        assert np.allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("is_constant", [False, True])
@pytest.mark.parametrize("turned", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_gemm_turns_and_scales_its_operands(turned: tuple[int, int], is_constant: bool) -> None:
    random = np.random.default_rng(1)
    a = random.standard_normal((4, 3) if turned[0] else (3, 4)).astype(np.float32)
    b = random.standard_normal((5, 4) if turned[1] else (4, 5)).astype(np.float32)
    found = product(a, b, is_constant, "Gemm", transA=turned[0], transB=turned[1], alpha=0.5)
    expected = 0.5 * (a.T if turned[0] else a) @ (b.T if turned[1] else b)
    assert np.allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_what_was_tuned_since_is_asked_for() -> None:
    """Kernels are remembered within one model: another import chooses its plans anew."""
    made = model([node("MatMul", ["a", "b"], ["y"])], [tensor("a", 3, 5), tensor("b", 5, 7)], ["y"])
    feeds = {"a": np.ones((3, 5), np.float32), "b": np.ones((5, 7), np.float32)}
    found = []
    for _ in range(2):
        with recorded() as spaces:
            compile(made).program(feeds)
        found.append(set(spaces))
    assert found[0] == found[1] != set()


def test_what_nodes_share_comes_from_each_of_them() -> None:
    """A template that is a program is traced at the first node that needs it; its calls are the other nodes', too."""

    def make(*, machine: tc.Machine) -> tc.ProgramDefinition:
        @tc.program
        def raised(x: tc.f32[4], y: tc.out[tc.f32[4]]):
            tc.compute((4,), lambda i: x[i] + 1, out=y)

        return raised

    def body(x: Any) -> Any:
        for title in ("first", "second"):
            with called_from(replace(NOWHERE, file="m.onnx", text=title)):
                x = shared()(x)
        return x

    shared = partial(kernel_of, make)
    program = tc.trace("program", {"x": tc.TensorType(tc.f32, (4,))}, body)
    origins = [origins_text(call.origins) for call in calls_of(program.ir.calls)]
    assert origins == [("first",), ("second",)]


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_a_weight_and_its_transpose_are_two(precision: str) -> None:
    """Both are views of one memory, of one shape."""
    rng = np.random.default_rng(0)
    w, x = (rng.standard_normal(shape, np.float32) for shape in ((16, 16), (2, 16)))
    proto = model(
        [node("MatMul", ["x", "w"], ["a"]), node("Gemm", ["a", "w"], ["y"], transB=1)],
        [tensor("x", 2, 16)],
        ["y"],
        initializer=[numpy_helper.from_array(w, "w")],
    )
    found, expected = tc.compile(proto, precision=precision)(x), x @ w @ w.T
    bound = 1e-5 if precision == "f32" else 2e-2
    assert np.abs(found - expected).max() <= bound * np.abs(expected).max()


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_a_weight_that_nodes_share_is_packed_once(precision: str) -> None:
    """Nodes reshape and transpose the weight: each has a view of its own."""
    rng = np.random.default_rng(0)
    w, w_turned, x = (
        rng.standard_normal(shape, np.float32) for shape in ((16, 16), (16, 16), (2, 16))
    )
    proto = model(
        [
            node("MatMul", ["x", "w"], ["a"]),
            node("Gemm", ["a", "turned"], ["b"], transB=1),
            node("Unsqueeze", ["b", "zero"], ["c"]),
            node("MatMul", ["c", "w"], ["d"]),
            node("Squeeze", ["d", "zero"], ["e"]),
            node("Gemm", ["e", "turned"], ["y"], transB=1),
        ],
        [tensor("x", 2, 16)],
        ["y"],
        initializer=[
            numpy_helper.from_array(w, "w"),
            numpy_helper.from_array(w_turned, "turned"),
            numpy_helper.from_array(np.array([0]), "zero"),
        ],
    )
    found = tc.compile(proto, precision=precision)
    expected = x @ w @ w_turned.T @ w @ w_turned.T
    bound = 1e-5 if precision == "f32" else 2e-2
    assert np.abs(found(x) - expected).max() <= bound * np.abs(expected).max()
    (compiled,) = found.programs
    assert len(compiled.program.ir.constants) == 2
