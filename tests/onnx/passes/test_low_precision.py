"""Products with weights by operands of bf16: what is rounded, and what is left alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import ModelProto, numpy_helper

import taskc as tc
from taskc import CompileError
from taskc.onnx.session import compile
from taskc.programs.ir import calls_of
from taskc.runtime.driver import scheduled
from tests.onnx.models import model, node, tensor

Array = np.ndarray[Any, Any]


def noise(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def rounded(x: Array) -> Array:
    """The numbers that bf16 has, in f64: an oracle that shares nothing with the compiler."""
    return x.astype(ml_dtypes.bfloat16).astype(np.float64)


def of_one_node(
    operator: str, x: Array, weights: dict[str, Array], **attributes: Any
) -> ModelProto:
    kinds = {np.float32: 1, np.float64: 11, np.int32: 6}
    return model(
        [node(operator, ["x", *weights], ["y"], **attributes)],
        [tensor("x", *x.shape, type=kinds[x.dtype.type])],
        ["y"],
        initializer=[numpy_helper.from_array(array, name) for name, array in weights.items()],
    )


@pytest.mark.each_value
@pytest.mark.parametrize("has_instruction", [False, True])
@pytest.mark.parametrize(
    "shapes", [((5, 33), (33, 47)), ((2, 3, 64), (64, 16)), ((7,), (7, 1)), ((1, 1), (1, 1)), ((0, 3), (3, 5)),
               ((4, 0), (0, 5)), ((2, 31), (31,)), ((3, 5), (1, 5, 4))], ids=str,
)  # fmt: skip
def test_operands_are_rounded_and_sums_are_not(
    shapes: tuple[Any, Any], has_instruction: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, other = tc.machine(), tc.machine("avx512_bf16")
    if has_instruction:
        described = replace(here, products=other.products)
        monkeypatch.setattr(tc, "machine", lambda: described)
    x, w = noise(*shapes[0]), noise(*shapes[1], seed=1)
    (made,) = compile(of_one_node("MatMul", x, {"w": w}), precision="bf16").run(None, {"x": x})
    expected = rounded(x) @ rounded(w)
    assert made.shape == expected.shape
    assert made.dtype == np.float32
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5)
    if expected.size and shapes[0][-1] > 1:
        assert np.abs(made - x @ w).max() > 1e-4


@pytest.mark.parametrize("turned", [(0, 0), (1, 0), (0, 1)])
def test_gemm(turned: tuple[int, int]) -> None:
    x = noise(*((33, 5) if turned[0] else (5, 33)))
    w, c = noise(*((7, 33) if turned[1] else (33, 7)), seed=1), noise(7, seed=2)
    attributes = {"transA": turned[0], "transB": turned[1]}
    made = of_one_node("Gemm", x, {"w": w, "c": c}, **attributes)
    (found,) = compile(made, precision="bf16").run(None, {"x": x})
    a, b = rounded(x), rounded(w)
    expected = (a.T if turned[0] else a) @ (b.T if turned[1] else b) + c
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float64, np.int32])
def test_other_types_stay_as_they_are(dtype: Any) -> None:
    x, w = (100 * noise(4, 9, dtype=np.float64)).astype(dtype), noise(9, 5, dtype=np.float64)
    made = of_one_node("MatMul", x, {"w": (100 * w).astype(dtype)})
    alike = (compile(made, precision=which).run(None, {"x": x})[0] for which in ("f32", "bf16"))
    np.testing.assert_array_equal(*alike)


def test_products_of_activations_stay_as_they_are() -> None:
    made = model([node("MatMul", ["x", "x"], ["y"])], [tensor("x", 9, 9)], ["y"])
    alike = (compile(made, precision=which)(noise(9, 9)) for which in ("f32", "bf16"))
    np.testing.assert_array_equal(*alike)


def test_what_several_products_read_is_rounded_once() -> None:
    weights = [numpy_helper.from_array(noise(32, n), f"w{n}") for n in (16, 24, 40)]
    nodes = [node("MatMul", ["h", f"w{n}"], [f"y{n}"]) for n in (16, 24, 40)]
    made = compile(
        model(
            [node("Softmax", ["x"], ["h"]), *nodes, node("Identity", ["h"], ["y"])],
            [tensor("x", 2, 4, 32)],
            ["y16", "y24", "y40", "y"],
            initializer=weights,
        ),
        precision="bf16",
    )
    program = scheduled(made.program({"x": noise(2, 4, 32)}).program)[0]
    softmax, *products = calls_of(program.calls)
    assert len(products) == 3
    assert len(softmax.arguments) == 3, "x, y, and what the products read"
    kinds = {str(constant.dtype) for constant, _ in program.constants}
    assert kinds == {"bf16"}


def test_a_precision_that_is_not_there() -> None:
    with pytest.raises(CompileError, match=r"no precision 'f8'.*"):
        compile(of_one_node("MatMul", noise(2, 2), {"w": noise(2, 2)}), precision="f8")
