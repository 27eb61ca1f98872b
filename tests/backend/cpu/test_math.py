"""Errors of the mathematical functions; exhaustive_math.py tries every f32."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path

import numpy as np
import pytest

from taskc.backend.cpu.instructions import SCALAR
from taskc.backend.cpu.math import notation as tables
from taskc.backend.cpu.processor import host
from taskc.ir import arithmetic
from taskc.ir.arithmetic import MATH_FUNCTIONS
from taskc.ir.types import DType, bf16, f16, f32, f64
from tests.backend.cpu.math_kernel import Array, evaluate
from tests.backend.cpu.math_reference import double_error, in_double, single_errors

TWO_OPERANDS = {"pow": 4, "atan2": 2}  # and the ulps that they may be off
ONE_OPERAND = sorted(MATH_FUNCTIONS - TWO_OPERANDS.keys())
WIDEST = host().lanes  # wider ones have instructions that this processor lacks
WIDTHS = (SCALAR, *(width for width in (2, 4, 8, 16) if width <= WIDEST))
SPECIAL = (
    0.0,
    -0.0,
    np.inf,
    -np.inf,
    np.nan,
    1.0,
    -1.0,
    0.5,
    -0.5,
    2.0,
    -2.0,
    3.0,
    -3.0,
    1e30,
    -1e30,
)
# Where results begin to be subnormal, 0, 1 or infinite, in f32 and in f64, and where pieces of functions end.
THRESHOLDS = (
    *(88.72284, -87.33655, -103.27893, -103.97208, 127.99999, -126.0, -149.0, -149.5, -150.0),
    *(9.0109, 18.7, 3.9192059, 5.9215871, -13.0, -14.1, -14.3, -14.5, 16.0, 65536.0, 2.0**30),
    *(6.3476562, 6.398),
    *(709.782712893384, -708.396418532264, -744.4400719213812, -745.1332191019412, -745.2),
    *(89.415985, 710.4758600739439, 2.0**-25, 2.0**-54, 2.0**28, 2.0**57, 20.0, 40.0),
    *(1023.9999999999999, -1022.0, -1074.0, -1075.0, 19.0, 37.0, -38.4, -38.5, -38.6, -38.8),
)


def around(numbers: tuple[float, ...], dtype: DType) -> Array:
    """Numbers and their neighbours, of both signs, with the ends of the type's range."""
    limits = np.finfo(dtype.numpy)
    ends = (limits.max, limits.tiny, limits.smallest_subnormal)
    x = np.array([*numbers, *ends], dtype.numpy)
    with np.errstate(all="ignore"):
        x = np.concatenate([np.nextafter(x, -np.inf), x, np.nextafter(x, np.inf)])
    return np.concatenate([x, -x]).astype(dtype.numpy)


def sample(dtype: DType, count: int) -> Array:
    """All exponents, then the usual magnitudes, then multiples of pi / 2 and what is around 1."""
    random = np.random.default_rng(7)
    bits = random.integers(0, 2**dtype.bits, count // 2, np.uint64, endpoint=False)
    if dtype is f32:
        step = 2**32 // (count // 2)
        bits = np.arange(0, 2**32, step, dtype=np.uint64) + random.integers(0, step)
    anything = bits.astype(f"u{dtype.bits // 8}").view(dtype.numpy)
    usual = random.normal(size=count // 4) * np.exp(random.uniform(-4, 4, count // 4))
    turns = random.integers(1, 2**20, count // 8) * (np.pi / 2)
    near_one = 1 + random.normal(size=count // 8) * 2.0 ** random.integers(-52, 0, count // 8)
    rest = np.concatenate([usual, turns, near_one]).astype(dtype.numpy)
    return np.concatenate([around((*SPECIAL, *THRESHOLDS), dtype), anything, rest])


@pytest.mark.parametrize("name", ONE_OPERAND)
def test_f32(name: str) -> None:
    x = sample(f32, 200_000)
    errors = single_errors(evaluate(name, f32, WIDEST, x), in_double(name, x))
    worst = int(np.argmax(errors))
    assert errors[worst] <= 2, f"{errors[worst]} ulps at {x[worst]!r}"


@pytest.mark.parametrize("name", ONE_OPERAND)
def test_f64(name: str) -> None:
    x = sample(f64, 2500)
    got = evaluate(name, f64, 8, x)
    check_doubles(name, got, 2, x)


def check_doubles(name: str, got: Array, bound: float, *operands: Array) -> None:
    """Finite operands by mpmath; where NumPy says NaN or infinity, that."""
    wanted = in_double(name, *operands)
    for result, about, *values in zip(
        got.tolist(), wanted.tolist(), *(x.tolist() for x in operands), strict=True
    ):
        has_zero = name == "atan2" and 0 in values  # mpmath knows no -0
        if not np.all(np.isfinite(values)) or not np.isfinite(about) or about == 0 or has_zero:
            difference = 0 if same(result, about) else None
            # A tiny result is 0 for NumPy when it isn't quite.
            if difference is None and np.all(np.isfinite(values)) and not np.isnan(about):
                difference = double_error(name, result, *values)
            assert difference is not None, (name, values, result, about)
        else:
            difference = double_error(name, result, *values)
        assert difference <= bound, f"{name}{values} is {result!r}: {difference} ulps"


def same(a: float, b: float) -> bool:
    return (a != a and b != b) or (a == b and np.signbit(a) == np.signbit(b))


@pytest.mark.each_value(2)
@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.parametrize("name", sorted(MATH_FUNCTIONS))
def test_every_width_has_the_same_bits(name: str, dtype: DType) -> None:
    x = sample(dtype, 800)
    operands = (x, np.roll(x, 5)) if name in TWO_OPERANDS else (x,)
    results = [evaluate(name, dtype, lanes, *operands) for lanes in WIDTHS]
    for lanes, result in zip(WIDTHS[1:], results[1:], strict=True):
        assert np.array_equal(result, results[0], equal_nan=True), lanes
        assert np.array_equal(
            np.signbit(result[~np.isnan(result)]), np.signbit(results[0][~np.isnan(result)])
        )


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
@pytest.mark.parametrize("name", ONE_OPERAND)
def test_every_16_bit_number(name: str, dtype: DType) -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    x = bits.view(dtype.numpy)
    got = evaluate(name, dtype, WIDEST, x)
    wanted = arithmetic.unary(name, x, dtype)
    numbers, expected = (np.asarray(each, np.float32) for each in (got, wanted))
    assert np.array_equal(np.isnan(numbers), np.isnan(expected))
    real = ~np.isnan(expected)
    assert np.array_equal(np.signbit(numbers[real]), np.signbit(expected[real]))
    # Neighbours have neighbouring bits, and the largest number is beside infinity.
    distance = np.abs(got.view(np.uint16).astype(int) - wanted.view(np.uint16).astype(int))
    assert distance[real].max() <= 1
    assert np.count_nonzero(distance[real]) < 100


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.parametrize(("name", "ulps"), TWO_OPERANDS.items())
def test_two_special_numbers(name: str, ulps: int, dtype: DType) -> None:
    numbers = np.array([*SPECIAL, *THRESHOLDS, *around((), dtype)], dtype.numpy)
    x, y = (grid.ravel() for grid in np.meshgrid(numbers, numbers))
    got = evaluate(name, dtype, 8, x, y)
    if dtype is f32:
        assert single_errors(got, in_double(name, x, y)).max() <= ulps
    else:
        check_doubles(name, got, ulps, x, y)


def powers(dtype: DType, count: int) -> tuple[Array, Array]:
    """Operands whose results cover the type's range, then bases around 1 with large exponents."""
    random = np.random.default_rng(3)
    x = np.exp2(random.uniform(*((-149, 128) if dtype is f32 else (-1074, 1024)), count))
    x[::3] = 1 + random.normal(size=len(x[::3])) * 2.0 ** random.integers(-50, -1, len(x[::3]))
    x = np.abs(x).astype(dtype.numpy)
    with np.errstate(all="ignore"):
        reach = np.where(
            x == 1, 1, random.uniform(-1.02, 1.02, count) / np.log2(x.astype(np.float64))
        )
    y = (reach * (140 if dtype is f32 else 1060)).astype(dtype.numpy)
    y[1::3] = random.integers(-20, 20, len(y[1::3]))
    x[1::6] *= -1
    finite = np.isfinite(x) & np.isfinite(y)
    return x[finite], y[finite]


def test_pow_f32() -> None:
    x, y = powers(f32, 200_000)
    errors = single_errors(evaluate("pow", f32, WIDEST, x, y), in_double("pow", x, y))
    worst = int(np.argmax(errors))
    assert errors[worst] <= 4, f"{errors[worst]} ulps at {x[worst]!r}, {y[worst]!r}"


def test_pow_f64() -> None:
    x, y = powers(f64, 2000)
    check_doubles("pow", evaluate("pow", f64, 8, x, y), 4, x, y)


def points(dtype: DType, count: int) -> tuple[Array, Array]:
    """Of every quadrant, most of them with sizes that differ little, beside the diagonals."""
    random = np.random.default_rng(4)
    y, x = (random.normal(size=count) * 2.0 ** random.integers(-20, 20, count) for _ in range(2))
    y[::3] = x[::3] * (1 + random.normal(size=len(x[::3])) * 2.0 ** random.integers(-50, 3))
    return y.astype(dtype.numpy), x.astype(dtype.numpy)


def test_atan2_f32() -> None:
    y, x = points(f32, 200_000)
    errors = single_errors(evaluate("atan2", f32, WIDEST, y, x), in_double("atan2", y, x))
    worst = int(np.argmax(errors))
    assert errors[worst] <= 2, f"{errors[worst]} ulps at {y[worst]!r}, {x[worst]!r}"


def test_atan2_f64() -> None:
    y, x = points(f64, 2000)
    check_doubles("atan2", evaluate("atan2", f64, 8, y, x), 2, y, x)


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
@pytest.mark.parametrize("name", TWO_OPERANDS)
def test_two_operands_of_16_bits(name: str, dtype: DType) -> None:
    random = np.random.default_rng(5)
    x, y = (random.normal(size=2**14).astype(dtype.numpy) for _ in range(2))
    got = evaluate(name, dtype, WIDEST, x, y)
    wanted = arithmetic.binary(name, x, y, dtype)
    is_nan = np.isnan(np.asarray(wanted, np.float32))
    assert np.array_equal(np.isnan(np.asarray(got, np.float32)), is_nan)
    distance = np.abs(got.view(np.uint16).astype(int) - wanted.view(np.uint16).astype(int))
    assert distance[~is_nan].max() <= 1


def test_the_tables_are_those_that_were_computed() -> None:
    script = Path(__file__).parents[3] / "benchmarks" / "polynomials.py"
    printed = run_path(str(script))["tables"]()
    assert Path(tables.__file__).with_name("tables.jsonl").read_text() == f"{printed}\n"
