"""Operators in users' programs, by their names."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import CompileError, DType, f32, i32, op

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((5, 7)).astype(np.float32)
W = RANDOM.standard_normal((7, 3)).astype(np.float32)


def computed(body: Callable[..., Any], *arrays: Any) -> Any:
    """What a program of the body's results makes of arrays."""
    kinds = {f"x{number}": f32[array.shape] for number, array in enumerate(arrays)}
    return tc.trace("own", kinds, lambda *handles: {"y": body(*handles)})(*arrays)


def softmax(x: Any) -> Any:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def test_in_a_program() -> None:
    n = tc.dim("n")

    @tc.program
    def head(x: f32[n, 7], w: f32[7, 3], y: tc.out[f32[n, 3]]) -> None:
        op.Softmax(op.Relu(op.MatMul(x, w)), axis=-1, out=y)

    np.testing.assert_allclose(head(X, W), softmax(np.maximum(X @ W, 0)), rtol=1e-5)
    np.testing.assert_allclose(head(X[:1], W), softmax(np.maximum(X[:1] @ W, 0)), rtol=1e-5)


def test_numbers_and_lists_are_of_the_other_inputs_type() -> None:
    np.testing.assert_array_equal(computed(lambda x: op.Add(x, 1), X), X + 1)
    np.testing.assert_array_equal(
        computed(lambda x: op.Where(op.Less(0.0, x), x, -1), X).shape, (5, 7)
    )
    np.testing.assert_array_equal(computed(lambda x: op.Reshape(x, [7, -1]), X), X.reshape(7, 5))
    np.testing.assert_array_equal(computed(lambda x: op.Gather(x, [4, 0], axis=0), X), X[[4, 0]])
    np.testing.assert_array_equal(computed(lambda x: op.Transpose(x, perm=[1, 0]), X), X.T)


def test_extents_of_the_program_are_numbers_of_a_shape() -> None:
    n = tc.dim("n")

    @tc.program
    def flat(x: f32[n, 7], y: tc.out[f32[7 * n]]) -> None:
        op.Reshape(x, [7 * n], out=y)

    np.testing.assert_array_equal(flat(X), X.reshape(-1))


def test_inputs_and_outputs_by_name() -> None:
    image = RANDOM.standard_normal((1, 3, 6, 6)).astype(np.float32)
    weights = RANDOM.standard_normal((2, 3, 3, 3)).astype(np.float32)
    made = computed(lambda x: op.Conv(x, W=weights, B=np.zeros(2, np.float32), pads=[1] * 4), image)
    assert made.shape == (1, 2, 6, 6)
    values = computed(lambda x: op.TopK(x, [2], axis=1)[0], X)
    np.testing.assert_array_equal(values, -np.sort(-X, axis=1)[:, :2])
    parts = computed(lambda x: op.Split(x, outputs=7, axis=1)[3], X)
    np.testing.assert_array_equal(parts, X[:, 3:4])


def test_two_outputs_are_written_where_they_are_asked_for() -> None:
    @tc.program
    def best(x: f32[5, 7], values: tc.out[f32[5, 1]], places: tc.out[tc.i64[5, 1]]) -> None:
        op.TopK(x, [1], out=(values, places))

    values, places = best(X)
    np.testing.assert_array_equal(values[:, 0], X.max(1))
    np.testing.assert_array_equal(places[:, 0], X.argmax(1))


def test_what_depends_on_constants_alone_is_an_array() -> None:
    found = []

    def body(x: Any) -> Any:
        found.append(op.Sin(np.float32([0, 1])))
        found.append(op.Shape(x))
        return op.Relu(x)

    computed(body, X)
    np.testing.assert_allclose(found[0], np.sin(np.float32([0, 1])))
    assert [*found[1]] == [5, 7]


def test_empty_and_single_elements() -> None:
    assert computed(lambda x: op.Concat(x, x, axis=0), X[:0]).shape == (0, 7)
    np.testing.assert_array_equal(computed(lambda x: op.Softmax(x), X[:1, :1]), [[1]])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (lambda x: op.Softmax(x, axes=1), "op.Softmax: it has no 'axes'"),
        (lambda x: op.Softmax(x, axis=2), "op.Softmax: there is no axis 2 in 2 dimensions"),
        (lambda x: op.Softmax(x, axis=1.5), "op.Softmax: its attribute 'axis' is float"),
        (lambda x: op.Softmax(), "op.Softmax: its input 'input' is missing"),
        (lambda x: op.Softmax(x, x), "op.Softmax: it takes 1 inputs, and gets 2"),
        (lambda x: op.Softmax(x, input=x), "op.Softmax: its input 'input' is given twice"),
        (lambda x: op.Concat(x, x), "op.Concat: its attribute 'axis' is missing"),
        (lambda x: op.Split(x, outputs=0), "op.Split: it has 1 to"),
        (lambda x: op.Add(x, np.ones(7)), "op.Add: 'A' is f32, and 'B' is f64"),
        (lambda x: op.Add(x, "one"), "op.Add: its input 'B' is str, which is no tensor"),
        (lambda x: op.Add(x, np.ones(6, np.float32)), "op.Add: the shapes .* can't be broadcast"),
        (lambda x: op.Gemm(op.Reshape(x, [35]), W), r"op.Gemm: its input 0 is f32\[35\], and has"),
        (lambda x: op.NonZero(x), "op.NonZero: how many elements it makes is known only when"),
        (lambda x: op.Reshape(x, op.Cast(x, to=7)), "op.Reshape: its input 1, 'shape', is known"),
    ],
)
def test_what_does_not_fit(body: Callable[..., Any], message: str) -> None:
    with pytest.raises(CompileError) as caught:
        computed(body, X)
    assert re.match(message, caught.value.message)  # not the source line, which has it, too
    assert caught.value.location.file == __file__


@pytest.mark.parametrize(
    ("dtype", "number"),
    [(tc.u8, -1), (tc.i8, 300), (tc.i32, 1.5), (tc.i32, True), (tc.boolean, 1)],
    ids=str,
)
def test_numbers_that_are_none_of_the_other_inputs_type(dtype: DType, number: Any) -> None:
    x = np.ones(2, dtype.numpy)
    with pytest.raises(CompileError, match=rf"op.Equal: its input 'B', {number}, doesn't fit"):
        tc.trace("own", {"x": dtype[2]}, lambda x: {"y": op.Equal(x, number)})(x)


def test_outputs_that_do_not_fit() -> None:
    def wrong(x: f32[5, 7], y: tc.out[i32[5, 7]]) -> None:
        op.Relu(x, out=y)

    with pytest.raises(CompileError, match=r"op.Relu: it makes f32, and its output is i32"):
        tc.program(wrong)


def test_outside_of_a_program() -> None:
    with pytest.raises(CompileError, match=r"op.Relu: it has no program to be a part of"):
        op.Relu(X)


def test_names() -> None:
    assert len(dir(op)) == 159
    assert repr(op.Softmax) == "<op.Softmax(input, *, axis=-1, outputs=None, out=None)>"
    with pytest.raises(AttributeError, match=r"there is no op.SoftMax; did you mean op.Softmax\?"):
        _ = op.SoftMax
    with pytest.raises(AttributeError, match=r"there is no op.If; a program has tc.branch"):
        _ = op.If
    assert repr(op.microsoft.BiasGelu) == "<op.microsoft.BiasGelu(A, B, *, outputs=None, out=None)>"
    with pytest.raises(AttributeError, match=r"did you mean op.microsoft.BiasGelu\?"):
        _ = op.microsoft.BiassGelu


def uncaught(run: Callable[[], object], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines that Python prints of an error that nobody catches."""
    with pytest.raises((AttributeError, CompileError)) as caught:
        run()
    sys.__excepthook__(caught.type, caught.value, None)
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("run", "last"),
    [
        (lambda: op.SoftMax, "there is no op.SoftMax; did you mean op.Softmax?"),
        (lambda: op.If, "there is no op.If; a program has tc.branch"),
        (
            lambda: getattr(tc, "ndarray"),  # noqa: B009
            "module 'taskc' has no attribute 'ndarray'; a parameter's type is"
            " f32[m, n], tc.out[f32[m, n]] or tc.inout[f32[m, n]]",
        ),
        (
            lambda: tc.cuda.shfl,
            "there is no tc.cuda.shfl; use tc.cuda.shuffle_index(value, lane) in a tc.cuda.kernel",
        ),
        (
            lambda: getattr(tc, "spatail"),  # noqa: B009
            "module 'taskc' has no attribute 'spatail'. Did you mean: 'spatial'?",  # Python's
        ),
    ],
)
def test_a_name_that_does_not_exist_has_one_hint(
    run: Callable[[], object], last: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert uncaught(run, capsys)[-1] == f"AttributeError: {last}"


def test_a_mistake_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    def wrong(x: f32[5, 7], w: f32[6, 3]) -> Any:
        return op.MatMul(x, w)

    text = "\n".join(uncaught(lambda: tc.program(wrong), capsys))
    assert text.count("argument 'b' must be f32[7, 3], not f32[6, 3]") == 1
    assert "direct cause" not in text


DTYPES: tuple[DType, ...] = (tc.f16, tc.f32, tc.f64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_element_types(dtype: DType) -> None:
    x = X.astype(dtype.numpy)
    made = tc.trace("own", {"x": dtype[x.shape]}, lambda x: {"y": op.Exp(op.Mul(x, 0.5))})(x)
    assert made.dtype == x.dtype
    np.testing.assert_allclose(made, np.exp(x * 0.5), rtol=2e-3)
