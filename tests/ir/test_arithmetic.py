"""Operators against Python's integers, exact rationals and mpmath."""

import math
import operator
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from taskc.ir.arithmetic import (
    BINARY_OPERATORS,
    COMPARISONS,
    MATH_FUNCTIONS,
    UNARY_OPERATORS,
    binary,
    convert,
    divides_by_zero,
    unary,
)
from taskc.ir.types import (
    DTYPES,
    DType,
    bf16,
    boolean,
    f8e4m3,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    tf32,
    u8,
    u32,
    u64,
)
from tests.ir.exact import assert_same, every_value, random_floats, rounded, wide

PYTHON = {"+": operator.add, "-": operator.sub, "*": operator.mul}


PYTHON |= {"//": operator.floordiv, "%": operator.mod, "min": min, "max": max}


PYTHON |= {"&": operator.and_, "|": operator.or_, "^": operator.xor}


PYTHON |= {"==": operator.eq, "!=": operator.ne, "<": operator.lt}


PYTHON |= {"<=": operator.le, ">": operator.gt, ">=": operator.ge}


def wrapped(value: int, dtype: DType) -> int:
    return (value - dtype.minimum) % 2**dtype.bits + dtype.minimum


def integer_pairs(dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    if dtype.bits == 8:
        values = every_value(dtype)
        return np.repeat(values, 256), np.tile(values, 256)
    random = np.random.default_rng(0)
    values = random.integers(dtype.minimum, dtype.maximum, (2, 400), dtype.numpy, endpoint=True)
    values[:, 200:] >>= random.integers(0, dtype.bits, (2, 200)).astype(values.dtype)
    edges = [dtype.minimum, dtype.minimum + 1, 0, 1, dtype.maximum - 1, dtype.maximum]
    edges = np.array(edges + [-1] * dtype.is_signed, dtype.numpy)
    a = np.concatenate([values[0], np.repeat(edges, len(edges))])
    return a, np.concatenate([values[1], np.tile(edges, len(edges))])


@pytest.mark.parametrize("dtype", [i8, u8, i16, i32, u32, i64, u64], ids=str)
def test_integer_operators_are_pythons_modulo_2_to_the_bits(dtype):
    a, b = integer_pairs(dtype)
    pairs = list(zip(a.tolist(), b.tolist(), strict=True))
    for op, python in PYTHON.items():
        result = binary(op, a, b, dtype)
        if op in COMPARISONS:
            assert result.dtype == np.bool_
            assert result.tolist() == [python(x, y) for x, y in pairs]
            continue
        assert result.dtype == dtype.numpy
        divides = op in ("//", "%")
        expected = [wrapped(python(x, y), dtype) if y or not divides else 0 for x, y in pairs]
        assert result.tolist() == expected
        reported = divides_by_zero(op, b, dtype)
        assert reported.tolist() == [divides and not y for _, y in pairs]


@pytest.mark.parametrize("dtype", [i8, u8, i32, u64, i64], ids=str)
def test_shifts_by_all_bits_and_more(dtype):
    a, _ = integer_pairs(dtype)
    for count in [0, 1, dtype.bits - 1, dtype.bits, dtype.bits + 1, dtype.maximum, dtype.minimum]:
        distance = count if 0 <= count < dtype.bits else 200
        left = [wrapped(x << distance, dtype) for x in a.tolist()]
        assert binary("<<", a, count, dtype).tolist() == left
        assert binary(">>", a, count, dtype).tolist() == [x >> distance for x in a.tolist()]


@pytest.mark.parametrize("dtype", [i8, u8, i32, i64, u64], ids=str)
def test_unary_operators_on_integers(dtype):
    a, _ = integer_pairs(dtype)
    for op, python in {"-": operator.neg, "abs": abs, "~": operator.inv}.items():
        expected = [wrapped(python(x), dtype) for x in a.tolist()]
        assert unary(op, a, dtype).tolist() == expected


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_half_precision_rounds_once(dtype):
    random = np.random.default_rng(1)
    values = every_value(dtype)
    a, b = random.choice(values, (2, 12_000))
    # Exponents close together, and results among the subnormals, where two roundings would show.
    small = np.array([2**-133 if dtype is bf16 else 2**-24], np.float64)
    low = random.integers(1, 2**9, (2, 3_000)) * 1.0
    a = np.concatenate([a, convert(low[0] * small, f64, dtype), convert(low[0], f64, dtype)])
    scale = 2.0 ** random.integers(-9, 2, 3_000)
    b = np.concatenate(
        [b, convert(low[1] * scale, f64, dtype), convert(low[1] * small, f64, dtype)]
    )
    finite = np.isfinite(wide(a)) & np.isfinite(wide(b))
    a, b = a[finite], b[finite]
    pairs = list(zip(wide(a).tolist(), wide(b).tolist(), strict=True))
    exact = {**PYTHON, "/": operator.truediv}
    for op in "+-*/":
        expected = []
        for x, y in pairs:
            ieee = x / y if op == "/" and y else (math.nan if op == "/" else exact[op](x, y))
            value = exact[op](Fraction(x), Fraction(y)) if y or op != "/" else Fraction(0)
            expected.append(rounded(value, dtype) if value else ieee)
        result = binary(op, a, b, dtype)
        assert result.dtype == dtype.numpy
        kept = (b != 0) if op == "/" else np.ones(len(a), bool)
        assert_same(result[kept], np.array(expected)[kept])


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_square_roots_of_every_half(dtype):
    x = every_value(dtype)
    x = x[wide(x) >= 0]
    with np.errstate(all="ignore"):
        # A root of at most 12 bits is exact in f64, and no other lies within 2**-26 of a midpoint.
        assert_same(unary("sqrt", x, dtype), convert(np.sqrt(wide(x)), f64, dtype))


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_square_roots_and_quotients_of_wide_floats(dtype):
    x, y = random_floats(2_000, dtype, 2), random_floats(2_000, dtype, 3)
    finite = np.isfinite(x) & np.isfinite(y) & (y != 0) & (x != 0)
    x, y = np.abs(x[finite]), y[finite]
    pairs = zip(x.tolist(), y.tolist(), strict=True)
    assert_same(
        binary("/", x, y, dtype), [rounded(Fraction(a) / Fraction(b), dtype) for a, b in pairs]
    )
    with mpmath.workprec(400):
        roots = [mpmath.sqrt(mpmath.mpf(v)) for v in x.tolist()]
        exact = [Fraction(int(root.man)) * Fraction(2) ** int(root.exp) for root in roots]
    assert_same(unary("sqrt", x, dtype), [rounded(root, dtype) for root in exact])


@pytest.mark.parametrize("dtype", [f16, bf16, f32, f64], ids=str)
def test_float_division_with_floor_is_pythons(dtype):
    random = np.random.default_rng(4)
    a, b = (convert(v, f64, dtype) for v in random.integers(-40, 40, (2, 2_000)) / 4)
    a, b = a[b != 0], b[b != 0]
    pairs = list(zip(wide(a).tolist(), wide(b).tolist(), strict=True))
    assert_same(binary("//", a, b, dtype), [x // y for x, y in pairs])
    assert_same(binary("%", a, b, dtype), [x % y for x, y in pairs])
    assert not divides_by_zero("//", b * 0, dtype).any()


@pytest.mark.parametrize("dtype", [f16, bf16, f32, f64], ids=str)
def test_minimum_and_maximum_order_the_zeros_and_propagate_nan(dtype):
    values = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan]
    a, b = (v.reshape(-1) for v in np.meshgrid(values, values))

    def expected(pick, x, y):
        return (
            math.nan if x != x or y != y else pick((x, y), key=lambda v: (v, math.copysign(1, v)))
        )

    for op, pick in {"min": min, "max": max}.items():
        result = binary(op, convert(a, f64, dtype), convert(b, f64, dtype), dtype)
        assert_same(
            result, [expected(pick, x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
        )
    assert_same(
        binary("min", 0.0, np.zeros((2, 2), dtype.numpy) * dtype.numpy.type(-1), dtype),
        [[-0.0] * 2] * 2,
    )


@pytest.mark.parametrize("dtype", [f16, bf16, f32, f64], ids=str)
def test_comparisons_and_rounding_of_floats(dtype):
    values = [0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.75, 3.25, np.inf, -np.inf, np.nan]
    a, b = (v.reshape(-1) for v in np.meshgrid(values, values))
    for op in COMPARISONS:
        result = binary(op, convert(a, f64, dtype), convert(b, f64, dtype), dtype)
        assert result.tolist() == [
            PYTHON[op](x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)
        ]
    x = np.array(values)
    stored = convert(x, f64, dtype)
    for op, reference in {
        "floor": np.floor,
        "ceil": np.ceil,
        "trunc": np.trunc,
        "round": np.rint,
    }.items():
        assert_same(unary(op, stored, dtype), reference(x))
    assert_same(unary("-", stored, dtype), -x)
    assert_same(unary("abs", stored, dtype), np.abs(x))
    assert unary("isnan", stored, dtype).tolist() == np.isnan(x).tolist()


def test_bools():
    a, b = [False, False, True, True], [False, True, False, True]
    pairs = list(zip(a, b, strict=True))
    expected = {"and": [x and y for x, y in pairs], "or": [x or y for x, y in pairs]}
    for op in ("&", "|", "^", "min", "max", *COMPARISONS):
        expected[op] = [PYTHON[op](x, y) for x, y in pairs]
    for op, result in expected.items():
        assert binary(op, a, b, boolean).tolist() == result
    assert unary("not", a, boolean).tolist() == [True, True, False, False]


REFERENCE = {
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
    "exp2": lambda x: mpmath.mpf(2) ** x,
    "fast_exp2": lambda x: mpmath.mpf(2) ** x,
    "log2": lambda x: mpmath.log(x, 2),
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "gelu": lambda x: x * mpmath.ncdf(x),
    **{name: getattr(mpmath, name) for name in ("exp", "expm1", "log", "log1p", "erf")},
    **{name: getattr(mpmath, name) for name in ("sin", "cos", "tan", "asin", "acos", "atan")},
    **{name: getattr(mpmath, name) for name in ("sinh", "cosh", "tanh", "asinh", "acosh", "atanh")},
}


@pytest.mark.parametrize("dtype", [f16, bf16, f32, f64], ids=str)
@pytest.mark.parametrize("name", sorted(REFERENCE))
def test_math_functions(name, dtype):
    random = np.random.default_rng(5)
    x = random.standard_normal(150) * 2.0 ** random.integers(-8, 4, 150)
    if name in ("log", "log2", "log1p", "rsqrt", "acosh"):
        x = np.abs(x) + (name == "acosh")
    if name in ("asin", "acos", "atanh"):
        x = x / 2**5
    stored = convert(x, f64, dtype)
    with mpmath.workdps(40):
        exact = [float(REFERENCE[name](mpmath.mpf(v))) for v in wide(stored).tolist()]
    result = unary(name, stored, dtype)
    assert result.dtype == dtype.numpy
    expected = convert(np.array(exact), f64, dtype).astype(np.float64)
    # f64 itself may be a few units off; below it that almost never crosses a midpoint.
    tolerance = 1e-15 if dtype is f64 else 2.0**-dtype.mantissa_bits
    if name == "gelu":
        tolerance *= 16  # far to the left the rounding of x / sqrt(2) is multiplied by x**2
    np.testing.assert_allclose(wide(result), expected, rtol=tolerance, atol=1e-300)


def test_math_functions_at_their_limits():
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e30, -1e30], np.float32)
    assert_same(unary("sigmoid", x, f32), [1, 0, np.nan, 0.5, 0.5, 1, 0])
    assert_same(unary("exp", x, f32), [np.inf, 0, np.nan, 1, 1, np.inf, 0])
    assert_same(unary("rsqrt", x, f32)[3:6], np.array([np.inf, -np.inf, 1e-15], np.float32))
    assert_same(
        binary("pow", np.float32([2, 0, -8]), np.float32([0.5, 0, 1 / 3]), f32),
        np.float32([2**0.5, 1, np.nan]),
    )
    zeros = np.float32([0.0, -0.0, 0.0, -0.0]), np.float32([0.0, 0.0, -0.0, -0.0])
    assert_same(binary("atan2", *zeros, f32), np.float32([0.0, -0.0, np.pi, -np.pi]))


@pytest.mark.parametrize("dtype", [d for d in DTYPES.values() if not d.is_sub_byte], ids=str)
def test_every_operator_runs_silently_or_is_rejected(dtype):
    one = np.ones((), dtype.numpy)
    for op, entry in BINARY_OPERATORS.items():
        if dtype.kind in entry.kinds and dtype not in (tf32, f8e4m3, DTYPES["f8e5m2"]):
            for b in (one, one * one - one if dtype is not boolean else ~one):
                result = binary(op, one, b, dtype)
                assert type(result) is np.ndarray
                assert result.dtype == (np.bool_ if op in COMPARISONS else dtype.numpy)
        else:
            with pytest.raises(TypeError, match=f"is not defined on {dtype}"):
                binary(op, one, one, dtype)
    for op, entry in UNARY_OPERATORS.items():
        if dtype.kind in entry.kinds and dtype not in (tf32, f8e4m3, DTYPES["f8e5m2"]):
            assert unary(op, one, dtype).dtype == (np.bool_ if op == "isnan" else dtype.numpy)
        else:
            with pytest.raises(TypeError, match=f"is not defined on {dtype}"):
                unary(op, one, dtype)


def test_tables_and_misuse():
    assert BINARY_OPERATORS.keys() >= COMPARISONS
    assert BINARY_OPERATORS.keys() | UNARY_OPERATORS.keys() >= MATH_FUNCTIONS
    with pytest.raises(TypeError, match="'/' is not defined on i32; use '//'"):
        binary("/", 1, 2, i32)
    with pytest.raises(ValueError, match="no operator 'hypot' with 2 operands"):
        binary("hypot", 1.0, 2.0, f32)
