"""Products of bytes, against NumPy's integers: every pair of types, and every kind of zero point."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

import taskc as tc
from taskc.ir.printer import to_text
from taskc.onnx.model import Model
from taskc.onnx.session import compile
from taskc.programs.ir import calls_of
from taskc.runtime.driver import scheduled
from tests.onnx.models import model, node, tensor

Array = np.ndarray[Any, Any]
KINDS = {np.uint8: TensorProto.UINT8, np.int8: TensorProto.INT8}


def numbers(dtype: Any, *shape: int, seed: int = 0) -> Array:
    """All of a type's numbers, its ends among them."""
    ends = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(ends.min, ends.max + 1, shape).astype(dtype)


def product(a: Array, b: Array, zeros: dict[str, Array], is_constant: bool = True) -> Model:
    """MatMulInteger; zero points are constants, as in models that tools write."""
    named = {**zeros, **({"b": b} if is_constant else {})}
    inputs = {"a": a, **({} if is_constant else {"b": b})}
    return compile(
        model(
            [node("MatMulInteger", ["a", "b", *(it if it in zeros else "" for it in ("p", "q"))], ["y"])],
            [tensor(name, *x.shape, type=KINDS[x.dtype.type]) for name, x in inputs.items()],
            ["y"],
            initializer=[numpy_helper.from_array(array, name) for name, array in named.items()],
        )
    )  # fmt: skip


def expected(a: Array, b: Array, zeros: dict[str, Array]) -> Array:
    p, q = (zeros.get(name, np.zeros((), np.int64)).astype(np.int64) for name in ("p", "q"))
    return np.asarray((a - (p[:, None] if p.ndim else p)) @ (b.astype(np.int64) - q))


@pytest.mark.each_value(2)
@pytest.mark.parametrize("is_constant", [True, False], ids=["constant", "given"])
@pytest.mark.parametrize("right", [np.uint8, np.int8])
@pytest.mark.parametrize("left", [np.uint8, np.int8])
def test_zero_points(left: Any, right: Any, is_constant: bool) -> None:
    a, b = numbers(left, 5, 70), numbers(right, 70, 37, seed=1)
    for p in (None, 0, 100, numbers(left, 5, seed=2)):
        for q in (None, 100, numbers(right, 37, seed=3)):
            zeros = {"p": np.asarray(p, left)} if p is not None else {}
            zeros |= {"q": np.asarray(q, right)} if q is not None else {}
            (made,) = product(a, b, zeros, is_constant).run(
                None, {"a": a} if is_constant else {"a": a, "b": b}
            )
            np.testing.assert_array_equal(made, expected(a, b, zeros))


@pytest.mark.each_value
@pytest.mark.parametrize("has_instruction", [True, False])
@pytest.mark.parametrize(
    "shapes", [((1, 1), (1, 1)), ((0, 3), (3, 4)), ((3, 0), (0, 4)), ((3, 4), (4, 0)), ((5,), (5, 3)),
               ((3, 5), (5,)), ((2, 3, 5), (5, 7)), ((2, 3, 5), (1, 5, 7)), ((2, 3, 300), (2, 300, 4)),
               ((2, 3, 5), (2, 5, 4)), ((127, 129), (129, 31))], ids=str,
)  # fmt: skip
def test_shapes(
    shapes: tuple[Any, Any], has_instruction: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_instruction:
        described = replace(tc.machine(), products=())
        monkeypatch.setattr(tc, "machine", lambda: described)
    a, b = numbers(np.uint8, *shapes[0]), numbers(np.int8, *shapes[1], seed=1)
    zeros = {"p": np.array(7, np.uint8), "q": np.array(-3, np.int8)}
    (made,) = product(a, b, zeros).run(None, {"a": a})
    np.testing.assert_array_equal(made, expected(a, b, zeros))


def test_the_largest_sums_are_exact() -> None:
    """Products at the ends of their range: what adds two of them in 16 bits is off."""
    a, b = np.full((3, 4096), 255, np.uint8), np.full((4096, 16), -128, np.int8)
    np.testing.assert_array_equal(product(a, b, {})(a), expected(a, b, {}))


def test_a_symmetric_weight_is_one_kernel_that_multiplies_packs() -> None:
    a, b = numbers(np.uint8, 16, 64), numbers(np.int8, 64, 32)
    made = product(a, b, {"p": np.array(128, np.uint8)})
    (call,) = calls_of(scheduled(made.program({"a": a}).program)[0].calls)
    assert {str(it.dtype) for it in call.callee.parameters[:2]} == {"u8", "i8"}
    assert "mma acc +=" in to_text(call.callee)
