"""Every operator and conversion, emitted, compiled for this machine, and held to `taskc.ir.arithmetic`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import erfc, exp, inf, nan, sqrt

import numpy as np
import pytest

import taskc as tc
from taskc.ir import arithmetic, nodes as ir
from taskc.ir.arithmetic import BINARY_OPERATORS, COMPARISONS, MATH_FUNCTIONS, UNARY_OPERATORS
from taskc.ir.types import DTYPES, DType, bf16, boolean, f16, f32, f64, i32
from taskc.passes.pipeline import lower
from tests.backend.cuda import host

pytestmark = pytest.mark.skipif(
    host.COMPILER is None, reason="there is no g++ to compile for the host"
)

COUNT = 1024
COMPUTED = (f16, bf16, f32, f64)
SCALARS = [dtype for dtype in DTYPES.values() if not dtype.is_sub_byte]
TYPES = [dtype for dtype in SCALARS if not dtype.is_float or dtype in COMPUTED]
WORKER = ir.Variable("worker", i32)
# What f32 loses beside f64, in units of the last place: CUDA's own functions are within 2 or so.
CLOSE = {f16: 2e-3, bf16: 1.6e-2, f32: 2e-6, f64: 4e-15}


def samples(dtype: DType, seed: int) -> np.ndarray:
    """Corners, and random bits."""
    random = np.random.default_rng(seed)
    if dtype is boolean:
        return random.integers(0, 2, COUNT).astype(np.bool_)
    bits = random.integers(0, 256, COUNT * dtype.nbytes, dtype=np.uint8).tobytes()
    values = np.frombuffer(bits, dtype.numpy).copy()
    if dtype.is_float:
        corners = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            0.5,
            2.5,
            3.5,
            -2.5,
            np.inf,
            -np.inf,
            np.nan,
            7.25,
            448.0,
            1e-3,
        ]
        corners += [dtype.smallest_normal, dtype.smallest_normal / 2, float(dtype.maximum), 1 / 3]
        values[COUNT // 2 :] = (random.normal(size=COUNT - COUNT // 2) * 100).astype(dtype.numpy)
    else:
        corners = [
            0,
            1,
            2,
            3,
            7,
            8,
            int(dtype.maximum),
            int(dtype.minimum),
            dtype.bits,
            dtype.bits - 1,
        ]
        corners += [int(dtype.maximum) - 1, int(dtype.minimum) // 2]
        values[COUNT // 2 :] = random.integers(
            0 if dtype.kind == "uint" else -9, 9, COUNT - COUNT // 2
        )
    some = random.integers(0, COUNT, 24 * len(corners))
    with np.errstate(all="ignore"):
        values[some] = np.array(corners).astype(dtype.numpy)[
            random.integers(0, len(corners), some.size)
        ]
    return values


def gelu(x: float) -> float:
    return nan if x == -inf else 0.5 * x * erfc(-x * sqrt(0.5))


def sigmoid(x: float) -> float:
    return 0.0 if x < -700 else 1 / (1 + exp(-x))


def at_worker(tensor: ir.Tensor) -> ir.Read:
    return ir.Read(tensor, (WORKER,))


def binary_cases(dtype: DType) -> Iterator[tuple[str, ir.Expression, np.ndarray]]:
    a, b = (at_worker(tensor) for tensor in INPUTS[dtype][:2])
    x, y = (samples(dtype, seed) for seed in (1, 2))
    for operator, row in BINARY_OPERATORS.items():
        if dtype.kind in row.kinds:
            yield operator, ir.Binary(operator, a, b), arithmetic.binary(operator, x, y, dtype)
    if not dtype.is_integer:
        return
    for value in (1, 2, 3, 8, 10, 0, -1, -4, -3, int(dtype.maximum), int(dtype.minimum)):
        if dtype.minimum <= value <= dtype.maximum:
            for operator in ("//", "%", "+", "-", "*", "<<", ">>", "min", "<", "&", "^"):
                number = ir.Constant(value, dtype)
                expected = arithmetic.binary(operator, x, np.full_like(x, value), dtype)
                yield f"{operator} {value}", ir.Binary(operator, a, number), expected


def unary_cases(dtype: DType) -> Iterator[tuple[str, ir.Expression, np.ndarray]]:
    a, b, c = (at_worker(tensor) for tensor in INPUTS[dtype])
    x, y, z = (samples(dtype, seed) for seed in (1, 2, 3))
    for operator, row in UNARY_OPERATORS.items():
        if dtype.kind in row.kinds:
            yield operator, ir.Unary(operator, a), arithmetic.unary(operator, x, dtype)
    if dtype is not boolean:
        yield "fma", ir.Fused(a, b, c), arithmetic.fma(x, y, z, dtype)
        chosen = np.where(arithmetic.binary("<", x, y, dtype), z, x)
        yield "select", ir.Select(ir.Binary("<", a, b), c, a), chosen


def casts(dtype: DType) -> Iterator[tuple[str, ir.Expression, np.ndarray]]:
    a = at_worker(INPUTS[dtype][0])
    x = samples(dtype, 1)
    for target in SCALARS:
        if target is not dtype:
            yield f"to {target}", ir.Cast(a, target), arithmetic.convert(x, dtype, target)


INPUTS = {
    dtype: [ir.Tensor(name, dtype, (COUNT,), ir.GLOBAL) for name in ("a", "b", "c")]
    for dtype in SCALARS
}
CASES = {
    dtype: [
        *(binary_cases(dtype) if dtype in TYPES else ()),
        *(unary_cases(dtype) if dtype in TYPES else ()),
        *casts(dtype),
    ]
    for dtype in SCALARS
}


def kernel(dtype: DType, target: str) -> ir.Kernel:
    outputs, body = [], []
    for number, (_, expression, _) in enumerate(CASES[dtype]):
        out = ir.Tensor(f"out_{number}", expression.dtype, (COUNT,), ir.GLOBAL, role="out")
        outputs.append(out)
        body.append(ir.Store(out, (WORKER,), expression))
    return ir.Kernel(
        f"of_{dtype}", (*INPUTS[dtype], *outputs), (), COUNT, ir.Sequence(tuple(body)),
        stage="lean", target=target, worker=WORKER, blocks=ir.constant(1),
    )  # fmt: skip


@pytest.fixture(scope="module")
def runnables() -> dict[DType, host.Runnable]:
    return dict(zip(SCALARS, host.build([kernel(d, "sm_80") for d in SCALARS]), strict=True))


@pytest.mark.parametrize("dtype", SCALARS, ids=str)
def test_operators(dtype: DType, runnables: dict[DType, host.Runnable]) -> None:
    cases = CASES[dtype]
    results = [np.zeros(COUNT, expression.dtype.numpy) for _, expression, _ in cases]
    runnables[dtype].run([*(samples(dtype, seed) for seed in (1, 2, 3)), *results])
    wrong = []
    for (name, expression, expected), result in zip(cases, results, strict=True):
        differs = unequal(result, expected, expression.dtype, name in MATH_FUNCTIONS)
        if differs.any():
            at = int(np.argmax(differs))
            x, y, z = (samples(dtype, seed)[at] for seed in (1, 2, 3))
            wrong.append(f"{name}: {result[at]!r} and not {expected[at]!r} for {x!r}, {y!r}, {z!r}")
    assert not wrong, "\n".join(wrong)


# Of the exact result: relative, down to which magnitude, and the function.
NEAR = {
    ("gelu", f16): (2.0**-13.4, 2.0**-14, gelu),
    ("gelu", bf16): (2.0**-10.8, 2.0**-122, gelu),
    ("sigmoid", f16): (2.0**-17, 2.0**-122, sigmoid),
    ("sigmoid", bf16): (2.0**-17, 2.0**-122, sigmoid),
}


def test_functions_that_are_rounded_to_16_bits() -> None:
    """Of every number of the type, they are off by their own error and one rounding."""
    n = 1 << 16

    def of(name: str, dtype: DType) -> ir.Kernel:
        function = getattr(tc, name)

        @tc.kernel(workers=32)
        def rounded(x: f32[n], y: tc.out[dtype[n]], z: tc.out[dtype[n]]) -> None:
            for start in tc.tiles(n, by=4096):
                for i in tc.spatial(32).repeat(128):
                    y[start + i] = (2 * function(x[start + i])).to(dtype)
                    z[start + i] = function(x[start + i].to(dtype))

        return lower(replace(rounded.ir, target="sm_80"))

    for key, runnable in zip(NEAR, host.build([of(*key) for key in NEAR]), strict=True):
        (relative, least, function), dtype = NEAR[key], key[1]
        x = np.arange(n).astype(np.uint16).view(dtype.numpy).astype(np.float32)
        y, z = (np.zeros(n, dtype.numpy) for _ in range(2))
        assert runnable.run([x, y, z]) == 0
        for found, factor in ((y, 2), (z, 1)):
            exact = np.array([factor * function(value) for value in x.tolist()])
            np.testing.assert_array_equal(np.isnan(found), np.isnan(exact))
            is_number = np.abs(exact) < 0.99 * float(dtype.maximum)
            exact, off = exact[is_number], found[is_number].astype(np.float64) - exact[is_number]
            step = 2.0 ** np.floor(np.log2(np.maximum(np.abs(exact), dtype.smallest_normal)))
            rounding = step * 2.0 ** -(dtype.mantissa_bits + 1)
            own = relative * np.maximum(np.abs(exact), factor * least)
            may_be_zero = (np.abs(exact) < factor * least) & (dtype is bf16)
            assert ((np.abs(off) <= own + rounding) | may_be_zero & (off == -exact)).all()


def unequal(result: np.ndarray, expected: np.ndarray, dtype: DType, is_close: bool) -> np.ndarray:
    bits = np.dtype(f"u{result.itemsize}")
    differs = result.view(bits) != expected.view(bits)
    if dtype.is_float:
        with np.errstate(all="ignore"):
            a, b = result.astype(np.float64), expected.astype(np.float64)
            differs &= ~(np.isnan(a) & np.isnan(b))
            if is_close:
                near = np.isclose(a, b, rtol=CLOSE[dtype], atol=dtype.smallest_normal)
                huge = np.abs(b) > 0.99 * float(dtype.maximum)  # the last before infinity
                differs &= ~(near | huge)
    return np.asarray(differs)


assert set(COMPARISONS) <= set(BINARY_OPERATORS)
