"""The table of ATen's operators: each row names operators that exist, and computes what NumPy does. No PyTorch."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f32, i64
from taskc.errors import CompileError
from taskc.ir.types import from_numpy
from taskc.operators.op import op, signatures
from taskc.torch import aten

# The strings in the table that name operators: `_compared("Less")`.
_NAMERS = {"_compared", "_logical", "_extreme", "_place", "_any", "_recurrent"}


def operators_of(source: str) -> set[str]:
    """The names of operators that rows call: `op.Relu`, and the arguments of functions that make rows."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name(id="op"), attr=name):
                names.add(name)
            case ast.Call(func=ast.Name(id=maker), args=arguments) if maker in _NAMERS:
                names |= {one.value for one in arguments if isinstance(one, ast.Constant)}
    return names


def test_each_row_names_operators_of_the_library() -> None:
    names = operators_of(inspect.getsource(aten))
    assert len(names) > 70
    assert names <= signatures().keys()


def test_a_wrong_name_is_seen() -> None:
    source = 'ROWS = {"relu": lambda op, x: op.Relux(x), "any": _any("ReduceMost")}'
    assert operators_of(source) - signatures().keys() == {"Relux", "ReduceMost"}


def test_no_operator_is_in_two_tables() -> None:
    assert len(aten.ROWS) == sum(map(len, aten.TABLES.values()))


def computed(name: str, *args: Any, **options: Any) -> Any:
    """A row's result for arrays, as a program of `tc.op`."""
    places = [place for place, x in enumerate(args) if isinstance(x, np.ndarray)]
    kinds = {f"x{place}": from_numpy(args[place].dtype)[args[place].shape] for place in places}

    def body(*handles: Any) -> Any:
        passed = [*args]
        for place, handle in zip(places, handles, strict=True):
            passed[place] = handle
        made = aten.ROWS[name][1](op, *passed, **options)
        return made[0] if isinstance(made, tuple) else made

    return tc.trace("row", kinds, body)(*[args[place] for place in places])


_rng = np.random.default_rng(1)
X = _rng.standard_normal((3, 5)).astype(np.float32)
Y = _rng.uniform(0.5, 2, (3, 5)).astype(np.float32)
W = _rng.standard_normal((5, 4)).astype(np.float32)
N = np.array([[7, -7, 5], [-5, 9, -1]], np.int64)
IMAGES = _rng.standard_normal((1, 2, 6, 6)).astype(np.float32)
FILTERS = _rng.standard_normal((3, 2, 3, 3)).astype(np.float32)


def correlated(x: Any, w: Any) -> Any:
    """A convolution without padding."""
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))
    return np.einsum("nchwij,fcij->nfhw", windows, w)


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        ("add.Tensor", (X, Y), X + Y),
        ("sub.Scalar", (X, 2), X - 2),
        ("div.Tensor_mode", (N, 3, "floor"), N // 3),
        ("div.Tensor_mode", (N, 3, "trunc"), np.trunc(N / 3).astype(np.int64)),
        ("div.Tensor_mode", (X, Y, "floor"), np.floor(X / Y)),
        ("remainder.Scalar", (N, 3), N % 3),
        ("pow.Tensor_Scalar", (Y, 2), Y**2),
        ("pow.Tensor_Scalar", (Y, -0.5), Y**-0.5),
        ("pow.Tensor_Scalar", (Y, 1.7), Y**1.7),
        ("clamp.default", (X, -0.5, 0.5), X.clip(-0.5, 0.5)),
        ("trunc.default", (X,), np.trunc(X)),
        ("exp2.default", (X,), np.exp2(X)),
        ("silu.default", (X,), X / (1 + np.exp(-X))),
        ("softplus.default", (X, 2), np.log1p(np.exp(2 * X)) / 2),
        ("atan2.default", (X, Y - 1), np.arctan2(X, Y - 1)),
        ("where.self", (X > 0, X, Y), np.where(X > 0, X, Y)),
        ("ne.Scalar", (N, 7), N != 7),
        ("logical_and.default", (X > 0, Y > 1), (X > 0) & (Y > 1)),
        ("addmm.default", (W[:, 0][:4].copy(), X, W), X @ W + W[:4, 0]),
        ("mm.default", (X, W), X @ W),
        ("sum.dim_IntList", (X, [1]), X.sum(1)),
        ("mean.dim", (X, [-1], True), X.mean(1, keepdims=True)),
        ("amax.default", (X, [0]), X.max(0)),
        ("argmin.default", (X, 1), X.argmin(1)),
        ("argmax.default", (X,), X.argmax()),
        ("any.dim", (X > 1, 1), (X > 1).any(1)),
        ("var.correction", (X, [1]), X.var(1, ddof=1)),
        ("max.dim", (X, 1), X.max(1)),
        ("_softmax.default", (X, 1, False), np.exp(X) / np.exp(X).sum(1, keepdims=True)),
        ("convolution.default", (IMAGES, FILTERS, None, [1], [0], [1], False, [0], 1),
         correlated(IMAGES, FILTERS)),
        ("max_pool2d_with_indices.default", (IMAGES, [2, 2]),
         IMAGES.reshape(1, 2, 3, 2, 3, 2).max((3, 5))),
        ("avg_pool2d.default", (IMAGES, [2]), IMAGES.reshape(1, 2, 3, 2, 3, 2).mean((3, 5))),
        ("_adaptive_avg_pool2d.default", (IMAGES, [1, 1]), IMAGES.mean((2, 3), keepdims=True)),
        ("_adaptive_avg_pool2d.default", (IMAGES, [3, 2]),
         IMAGES.reshape(1, 2, 3, 2, 2, 3).mean((3, 5))),
        ("upsample_nearest2d.default", (IMAGES, [12, 12]), IMAGES.repeat(2, 2).repeat(2, 3)),
        ("permute.default", (IMAGES, [0, -2, 3, 1]), IMAGES.transpose(0, 2, 3, 1)),
        ("view.default", (X, [5, -1]), X.reshape(5, 3)),
        ("expand.default", (X[:, :1].copy(), [2, -1, 4]), np.broadcast_to(X[:, :1], (2, 3, 4))),
        ("slice.Tensor", (X, 1, -3, None, 2), X[:, -3::2]),
        ("select.int", (X, 1, -1), X[:, -1]),
        ("constant_pad_nd.default", (X, [1, 2, 0, -1], 3.0),
         np.pad(X[:2], ((0, 0), (1, 2)), constant_values=3)),
        ("flip.default", (X, [1]), X[:, ::-1]),
        ("repeat.default", (X, [2, 1, 3]), np.tile(X, (2, 1, 3))),
        ("slice_scatter.default", (X, Y[:, :2].copy(), 1, 1, 5, 2),
         np.stack([X[:, 0], Y[:, 0], X[:, 2], Y[:, 1], X[:, 4]], 1)),
        ("select_scatter.default", (X, Y[:, 0].copy(), 1, -1),
         np.concatenate([X[:, :4], Y[:, :1]], 1)),
        ("tril.default", (X,), np.tril(X)),
        ("embedding.default", (X, np.array([[2, 0]])), X[[[2, 0]]]),
        ("cumsum.default", (X, 1), X.cumsum(1)),
    ],
)  # fmt: skip
def test_a_row_computes_what_numpy_does(name: str, args: tuple[Any, ...], expected: Any) -> None:
    result = computed(name, *args)
    assert np.shape(result) == np.shape(expected)
    np.testing.assert_allclose(result, expected, rtol=2e-5, atol=2e-6)


def in_program(function: Callable[..., Any], *arrays: Any) -> Any:
    kinds = {f"x{n}": from_numpy(array.dtype)[array.shape] for n, array in enumerate(arrays)}
    return tc.trace("row", kinds, function)(*arrays)


def test_indices_of_two_axes_stay_where_the_axes_are() -> None:
    rows, columns = np.array([[0], [2]]), np.array([1, 0, 3])
    x = _rng.standard_normal((2, 3, 4)).astype(np.float32)
    result = in_program(
        lambda x, i, j: aten.ROWS["index.Tensor"][1](op, x, [None, i, j]), x, rows, columns
    )
    np.testing.assert_array_equal(result, x[:, rows, columns])


def test_values_are_put_and_added_at_indices() -> None:
    index, values = np.array([2, 0, 2]), np.ones((3, 5), np.float32)
    expected = X.copy()
    np.add.at(expected, index, values)
    row = aten.ROWS["index_put.default"][1]
    result = in_program(lambda x, i, v: row(op, x, [i], v, True), X, index, values)
    np.testing.assert_allclose(result, expected)


def test_parts_of_a_split_and_of_a_joined_tensor() -> None:
    def body(x: Any) -> dict[str, Any]:
        first, second = aten.ROWS["split.Tensor"][1](op, x, 3, 1)
        return {"first": first, "back": aten.ROWS["cat.default"][1](op, [second, first], -1)}

    first, back = tc.trace("parts", {"x": f32[3, 5]}, body)(X)
    np.testing.assert_array_equal(first, X[:, :3])
    np.testing.assert_array_equal(back, np.concatenate([X[:, 3:], X[:, :3]], 1))


def test_known_ranges_are_arrays() -> None:
    row = aten.ROWS["arange.start_step"][1]
    np.testing.assert_array_equal(row(op, 1, 8, 3, dtype=f32), np.array([1, 4, 7], np.float32))
    assert row(op, 0, 3, dtype=i64).dtype == np.int64
    in_program(_filled, X)


def _filled(x: Any) -> Any:
    filled = aten.ROWS["full_like.default"][1](op, x, 2)
    np.testing.assert_array_equal(filled, np.full_like(X, 2))
    return op.Add(x, filled)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("avg_pool2d.default", (IMAGES, [2], [2], 0, False, True, 3)),
        ("_adaptive_avg_pool2d.default", (IMAGES, [4, 4])),
        ("_scaled_dot_product_flash_attention_for_cpu.default", (X, X, X, 0.5)),
        ("scatter.src", (X, 0, N, Y)),
    ],
)
def test_a_form_that_no_operator_has_is_refused(name: str, args: tuple[Any, ...]) -> None:
    with pytest.raises(CompileError):
        computed(name, *args)
