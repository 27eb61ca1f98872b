"""Programs computed by NumPy: equal bits to compiled code, or none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import bf16, boolean, f16, f32, f64, i8, i32, i64, op, u8, u16
from taskc.ir.types import DType
from taskc.operators.tensors import _math, results_now
from taskc.programs.evaluate import evaluate
from tests.each_value import few

SHAPE = (5, 7)
FLOATS = (f16, bf16, f32, f64)
INTEGERS = (i8, u8, u16, i32, i64)
SPECIAL = (
    0.0,
    -0.0,
    np.inf,
    -np.inf,
    np.nan,
    1.0,
    -1.0,
    0.5,
    1.5,
    2.5,
    65504.0,
    1e-7,
    3e38,
    1e-40,
    -129.5,
)


def _no_math(name: str, operands: Any) -> Any:
    raise AssertionError(f"{name} was called")


def _random(dtype: DType, seed: int, shape: tuple[int, ...] = SHAPE) -> Any:
    pick = np.random.default_rng(seed)
    if dtype is boolean:
        return pick.integers(0, 2, shape).astype(bool)
    if dtype.is_integer:
        bounds = np.iinfo(dtype.numpy)
        whole = pick.integers(bounds.min, bounds.max, shape, dtype.numpy, endpoint=True)
        return np.where(pick.random(shape) < 0.5, whole, pick.integers(0, 5, shape)).astype(
            dtype.numpy
        )
    values = pick.standard_normal(shape) * 10.0 ** pick.integers(-3, 4, shape)
    special = pick.choice(SPECIAL, shape)
    with np.errstate(all="ignore"):
        return np.where(pick.random(shape) < 0.3, special, values).astype(dtype.numpy)


def _check(body: Callable[[], Any], math: Any = _no_math) -> None:
    program = tc.trace("once", {}, body)
    results = evaluate(program.ir, math)
    assert results is not None
    compiled = program()
    several = compiled if isinstance(compiled, tuple) else (compiled,)
    for one, other in zip(results, several, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        is_nan = one != one  # of which hardware and compilers choose the sign
        assert np.array_equal(is_nan, other != other)
        assert one[~is_nan].tobytes() == other[~is_nan].tobytes()


def _elementwise(function: Callable[..., Any], *arrays: Any) -> None:
    def body() -> Any:
        constants = [tc.constant(array) for array in arrays]
        return tc.compute(SHAPE, lambda *at: function(*[x[at] for x in constants]))

    _check(body)


_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "fused": lambda a, b: a * b + a,
    "min": lambda a, b: min(a, b),
    "max": lambda a, b: max(a, b),
    "choice": lambda a, b: a if a < b else -b,
    "abs": lambda a, b: abs(a - b),
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b or a > b,
    ">": lambda a, b: a > b and not (b < a + a),
}
_OF_FLOATS: dict[str, Callable[..., Any]] = {
    "/": lambda a, b: a / b,
    "sqrt": lambda a, b: tc.sqrt(a),
    "floor": lambda a, b: tc.floor(a),
    "ceil": lambda a, b: tc.ceil(b),
    "round": lambda a, b: round(a),
    "isnan": lambda a, b: tc.isnan(a),
}
_OF_INTEGERS: dict[str, Callable[..., Any]] = {
    "//": lambda a, b: a // 3,
    "%": lambda a, b: a % 3,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "<<": lambda a, b: a << 2,
    ">>": lambda a, b: a >> 1,
}


@pytest.mark.parametrize("dtype", few((f32, i64, f16, i8, bf16, f64, u8, u16, i32), 4))
def test_arithmetic(dtype: DType) -> None:
    functions = _ARITHMETIC | (_OF_FLOATS if dtype.is_float else _OF_INTEGERS)
    for seed, function in enumerate(functions.values()):
        _elementwise(tc.function(function), _random(dtype, seed), _random(dtype, seed + 50))


@pytest.mark.parametrize("source", few((f32, i64, boolean, f16, bf16, f64, i8, u8, u16, i32), 3))
def test_conversions(source: DType) -> None:
    for seed, target in enumerate((*FLOATS, *INTEGERS, boolean)):
        _elementwise(_conversion(target), _random(source, seed))


def _conversion(target: DType) -> Any:
    return tc.function(lambda a: a.to(target))


_X = _random(f32, 1, (3, 4, 5))
_PLACES = np.array([[2, -1, 0], [1, 1, -3]])
_MOVED: dict[str, Callable[[Any], Any]] = {
    "Transpose": lambda x: op.Transpose(x, perm=[2, 0, 1]),
    "Reshape": lambda x: op.Reshape(x, np.array([4, -1])),
    "Expand": lambda x: op.Expand(op.Unsqueeze(x, np.array([0])), np.array([2, 3, 4, 5])),
    "Tile": lambda x: op.Tile(x, np.array([1, 2, 2])),
    "Concat": lambda x: op.Concat(x, x, op.Neg(x), axis=1),
    "Slice": lambda x: op.Slice(x, np.array([3, 0]), np.array([-100, 4]), np.array([1, 2]), np.array([-2, 3])),
    "Gather": lambda x: op.Gather(x, _PLACES, axis=0),
    "GatherElements": lambda x: op.GatherElements(x, np.array([[[1, 0, 2, 2, 1]]]), axis=1),
    "GatherND": lambda x: op.GatherND(x, np.array([[2, 3], [0, -1]])),
    "Pad": lambda x: op.Pad(x, np.array([1, 0, 2, 0, 1, 1])),
    "Reflected": lambda x: op.Pad(x, np.array([1, 2, 2, 0, 1, 3]), mode="reflect"),
    "Where": lambda x: op.Where(op.Less(x, np.float32(0.5)), x, np.float32(2)),
    "Trilu": lambda x: op.Trilu(x, upper=0),
    "Clip": lambda x: op.Clip(x, np.float32(-1), np.float32(1)),
    "Add": lambda x: op.Add(x, np.arange(5, dtype=np.float32)),
    "DepthToSpace": lambda x: op.DepthToSpace(op.Reshape(x, np.array([1, 4, 3, 5])), blocksize=2),
    "Sign": lambda x: op.Cast(op.Sign(x), to=9),
}  # fmt: skip


@pytest.mark.parametrize("name", _MOVED)
def test_operators_that_move_and_choose(name: str) -> None:
    _check(lambda: _MOVED[name](tc.constant(_X)))


def test_math_functions_are_the_callers() -> None:
    """One kernel is compiled for each function and type, whatever the shape, and not for each constant."""
    for shape in ((3,), (2, 5), (1, 4, 4)):
        x = _random(f32, 7, shape)

        def body(x: Any = x) -> Any:
            known = tc.constant(x)
            return tc.compute(x.shape, lambda *at: tc.sin(known[at]) * 2 + tc.sin(known[at] + 1))

        before = _math.cache_info().misses
        (result,) = results_now(tc.trace("once", {}, body))
        assert _math.cache_info().misses - before <= 1
        np.testing.assert_array_equal(result, tc.trace("once", {}, body)())


def test_what_has_to_be_compiled() -> None:
    x, places = np.arange(6, dtype=np.float32), np.array([0, 9])

    def gathered() -> Any:
        known, at = tc.constant(x), tc.constant(places)
        return tc.compute(2, lambda i: known[at[i]])

    def divided() -> Any:
        at = tc.constant(places)
        return tc.compute(2, lambda i: 7 // at[i])

    def summed() -> Any:
        return op.ReduceSum(tc.constant(x), np.array([0]))

    def repeated() -> Any:
        y = tc.empty(f32[2, 6])
        known = tc.constant(x)
        for t in tc.steps(2):
            tc.compute(6, lambda i: known[i], out=y[t])
        return y

    for body in (gathered, divided, summed, repeated):
        assert evaluate(tc.trace("once", {}, body).ir, _no_math) is None


def test_elements_that_a_choice_leaves_out_may_be_out_of_bounds() -> None:
    x = np.arange(6, dtype=np.float32)

    def shifted() -> Any:
        known = tc.constant(x)
        return tc.compute(9, lambda i: known[i - 2] if i >= 2 and i < 8 else f32(-1))

    _check(shifted)
