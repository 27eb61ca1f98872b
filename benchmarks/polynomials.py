"""Where the numbers in taskc/backend/cpu/math/tables.jsonl come from: prints that file.

    python benchmarks/polynomials.py > taskc/backend/cpu/math/tables.jsonl

Each polynomial has the least squares of relative errors at Chebyshev's points, which is close to the
least maximum. Its coefficients are rounded to the type one after another, from the lowest power on,
and those that are left are fitted again, so that they make up for what was rounded away.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass

import mpmath as mp

Real = mp.mpf
Function = Callable[[Real], Real]
mp.mp.dps = 60
NAMES = {24: "f32", 53: "f64"}  # by the bits of the significand


@dataclass(frozen=True)
class Polynomial:
    """sum(c[k] * x**k) is `function` on the interval, up to an error that counts times `weight`."""

    name: str
    comment: str
    function: Function
    weight: Function
    intervals: dict[int, tuple[Real, Real]]  # by the bits of the significand
    counts: dict[int, int]  # of coefficients


def rounded(x: Real, bits: int) -> Real:
    if x == 0:
        return x
    with mp.workprec(bits):
        return +x


def fit(polynomial: Polynomial, bits: int) -> tuple[list[Real], Real]:
    """The rounded coefficients, and the largest weighted error."""
    low, high = polynomial.intervals[bits]
    count = polynomial.counts[bits]
    points = 8 * count + 1
    # No point is 0 itself, where many of the functions are a limit.
    grid = [
        (low + high) / 2 - (high - low) / 2 * mp.cos(mp.pi * (i + Real("0.49")) / points)
        for i in range(points)
    ]
    values = [polynomial.function(x) for x in grid]
    weights = [polynomial.weight(x) for x in grid]
    left = [w * value for w, value in zip(weights, values, strict=True)]
    columns = [[w * x**k for w, x in zip(weights, grid, strict=True)] for k in range(count)]
    products = [[mp.fdot(a, b) for a in columns] for b in columns]
    known: list[Real] = []
    for k in range(count):
        targets = [mp.fdot(column, left) for column in columns[k:]]
        matrix = mp.matrix([row[k:] for row in products[k:]])
        known.append(rounded(mp.lu_solve(matrix, mp.matrix(targets))[0], bits))
        left = [value - known[k] * x for value, x in zip(left, columns[k], strict=True)]
    return known, max(map(abs, left))


def parts(x: Real, bits: int, count: int) -> list[Real]:
    """Numbers whose sum is x, each the rest rounded."""
    found: list[Real] = []
    for _ in range(count):
        found.append(rounded(x - sum(found), bits))
    return found


def words_of_two_over_pi(count: int) -> list[int]:
    """Its binary digits after the point, 64 a word."""
    with mp.workprec(64 * count + 64):
        digits = int(mp.floor(mp.ldexp(2 / mp.pi, 64 * count)))
    return [digits >> 64 * (count - 1 - i) & 2**64 - 1 for i in range(count)]


def listing(name: str, comment: str, rows: dict[int, list[Real]]) -> str:
    """A line of tables.jsonl: the numbers of a table for each type."""
    numbers = {NAMES[bits]: [float(number) for number in row] for bits, row in rows.items()}
    return json.dumps({"name": name, "of": comment, **numbers})


LN2, PI = mp.log(2), mp.pi


def tail(t: Real, center: Real) -> Real:
    x = center * (1 + t) / (1 - t)
    return mp.ncdf(-x) * mp.exp(x * x / 2) * (x + center)


def both(low: Real, high: Real) -> dict[int, tuple[Real, Real]]:
    return {24: (low, high), 53: (low, high)}


def atanh_series(z: Real) -> Real:
    """log((1 + s) / (1 - s)) / s in z = s * s."""
    s = mp.sqrt(z)
    return 2 * mp.atanh(s) / s


# Ranges are a little larger than what is left after a reduction in rounded arithmetic.
HALF_LN2 = LN2 / 2 * Real("1.001")
LARGEST_S2 = ((mp.sqrt(2) - 1) / (mp.sqrt(2) + 1)) ** 2 * Real("1.001")
QUARTER_PI2 = (PI / 4 * Real("1.01")) ** 2
# Among those that need few coefficients, the best after rounding.
CENTERS = {24: Real("2.3125"), 53: Real("2.875")}
# Where x * Phi(-x) is below half of the smallest subnormal number.
ENDS = {24: Real("14.5"), 53: Real("38.75")}

# Pieces of x * Phi(-x) that a table in registers holds: how many, how wide, how many coefficients.
PIECES, PIECE_WIDTH, PIECE_COUNT = 32, Real(13) / 64, 8


POLYNOMIALS = (
    Polynomial(
        "EXP",
        "exp(r) = 1 + r * (1 + r * p(r)), |r| <= log(2) / 2",
        lambda r: (mp.exp(r) - 1 - r) / r**2,
        lambda r: r**2 / mp.exp(r),
        both(-HALF_LN2, HALF_LN2),
        {24: 5, 53: 11},
    ),
    Polynomial(
        "EXP2",
        "exp2(r) = 1 + r * p(r), |r| <= 1/2",
        lambda r: (mp.power(2, r) - 1) / r,
        lambda r: r / mp.power(2, r),
        both(-Real("0.5005"), Real("0.5005")),
        {24: 6, 53: 12},
    ),
    Polynomial(
        "LOG",
        "log((1 + s) / (1 - s)) = 2 s + s z p(z), z = s * s, from sqrt(1/2) to sqrt(2)",
        lambda z: (atanh_series(z) - 2) / z,
        lambda z: z / atanh_series(z),
        both(Real(0), LARGEST_S2),
        {24: 3, 53: 7},
    ),
    Polynomial(
        "LOG_EXTENDED",
        "the same, 2 s + 2/3 s z + s z**2 p(z), to about 2**-70",
        lambda z: (atanh_series(z) - 2 - 2 * z / 3) / z**2,
        lambda z: z**2 / atanh_series(z),
        {53: (Real(0), LARGEST_S2)},
        {53: 9},
    ),
    Polynomial(
        "SIN",
        "sin(r) = r + r z p(z), z = r * r, |r| <= pi / 4",
        lambda z: (mp.sin(mp.sqrt(z)) / mp.sqrt(z) - 1) / z,
        lambda z: z * mp.sqrt(z) / mp.sin(mp.sqrt(z)),
        both(Real(0), QUARTER_PI2),
        {24: 3, 53: 7},
    ),
    Polynomial(
        "COS",
        "cos(r) = 1 - z / 2 + z**2 p(z)",
        lambda z: (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2,
        lambda z: z**2 / mp.cos(mp.sqrt(z)),
        both(Real(0), QUARTER_PI2),
        {24: 3, 53: 7},
    ),
    Polynomial(
        "TAN",
        "tan(r) = r + r z p(z)",
        lambda z: (mp.tan(mp.sqrt(z)) / mp.sqrt(z) - 1) / z,
        lambda z: z * mp.sqrt(z) / mp.tan(mp.sqrt(z)),
        both(Real(0), QUARTER_PI2),
        {24: 7, 53: 15},
    ),
    Polynomial(
        "ASIN",
        "asin(x) = x + x z p(z), z = x * x, |x| <= 1/2",
        lambda z: (mp.asin(mp.sqrt(z)) / mp.sqrt(z) - 1) / z,
        lambda z: z * mp.sqrt(z) / mp.asin(mp.sqrt(z)),
        both(Real(0), Real("0.25")),
        {24: 5, 53: 12},
    ),
    Polynomial(
        "ATAN",
        "atan(x) = x + x z p(z), |x| <= 1",
        lambda z: (mp.atan(mp.sqrt(z)) / mp.sqrt(z) - 1) / z,
        lambda z: z * mp.sqrt(z) / mp.atan(mp.sqrt(z)),
        both(Real(0), Real(1)),
        {24: 9, 53: 20},
    ),
    Polynomial(
        "ERF",
        "erf(x) = x + x p(z), z = x * x, |x| <= 1",
        lambda z: mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1,
        lambda z: mp.sqrt(z) / mp.erf(mp.sqrt(z)),
        both(Real(0), Real(1)),
        {24: 7, 53: 13},
    ),
    *(
        Polynomial(
            "TAIL",
            "Phi(-x) = exp(-x * x / 2) / (x + c) * p((x - c) / (x + c)), c the center, x from 0 to the end",
            lambda t, bits=bits: tail(t, CENTERS[bits]),
            lambda t, bits=bits: 1 / tail(t, CENTERS[bits]),
            {bits: (Real(-1), (ENDS[bits] - CENTERS[bits]) / (ENDS[bits] + CENTERS[bits]))},
            {bits: count},
        )
        for bits, count in ((24, 11), (53, 25))
    ),
)

CONSTANTS = (
    ("LN2", "log(2), in parts", LN2, 2),
    ("LOG2_E", "1 / log(2), in parts", 1 / LN2, 2),
    ("TWO_THIRDS", "2/3, in parts", Real(2) / 3, 2),
    ("HALF_PI", "pi / 2, in parts", PI / 2, 3),
    ("TWO_OVER_PI", "2 / pi", 2 / PI, 1),
)


def lost(x: Real) -> Real:
    """x - gelu(x) for positive x."""
    return x * mp.ncdf(-x)


def piece(number: int) -> tuple[list[Real], Real]:
    """The coefficients of `lost` around a center, and their largest relative error."""
    center = number * PIECE_WIDTH
    first = rounded(lost(center), 24)
    rest = Polynomial(
        "LOST",
        "",
        lambda t: (lost(center + t) - first) / t,
        lambda t: t / lost(center + t),
        {24: (-PIECE_WIDTH / 2 if number else Real(0), PIECE_WIDTH / 2)},
        {24: PIECE_COUNT - 1},
    )
    known, error = fit(rest, 24)
    return [first, *known], error


def pieces() -> str:
    found = [piece(number) for number in range(PIECES)]
    error = max(error for _, error in found)
    print(f"LOST f32: 2**{float(mp.log(error, 2)):.1f}", file=sys.stderr)
    rows = zip(*[numbers for numbers, _ in found], strict=True)
    table = {
        "name": "LOST",
        "of": "x Phi(-x) = sum(c[k][n] * t**k), t = x - n * width, |t| <= width / 2, for f32",
        "width": float(PIECE_WIDTH),
        "rows": [[float(number) for number in row] for row in rows],
    }
    return json.dumps(table)


def tables() -> str:
    """The text of tables.jsonl."""
    by_name: dict[str, dict[int, list[Real]]] = {}
    comments: dict[str, str] = {}
    for polynomial in POLYNOMIALS:
        for bits in polynomial.counts:
            known, error = fit(polynomial, bits)
            by_name.setdefault(polynomial.name, {})[bits] = known
            comments[polynomial.name] = polynomial.comment
            print(
                f"{polynomial.name} {NAMES[bits]}: 2**{float(mp.log(error, 2)):.1f}",
                file=sys.stderr,
            )
    lines = [listing(name, comments[name], rows) for name, rows in by_name.items()]
    for name, comment, number, count in CONSTANTS:
        rows = {bits: parts(number, bits, count) for bits in NAMES}
        lines.append(listing(name, comment, rows))
    lines.append(listing("TAIL_CENTER", "of TAIL", {bits: [c] for bits, c in CENTERS.items()}))
    lines.append(listing("TAIL_END", "of TAIL", {bits: [end] for bits, end in ENDS.items()}))
    lines.append(pieces())
    words = {
        "name": "TWO_OVER_PI_WORDS",
        "of": "2 / pi in binary, 64 digits a word; the first word is before the point",
        "words": [f"{word:016X}" for word in (0, *words_of_two_over_pi(20))],
    }
    return "\n".join([*lines, json.dumps(words)])


if __name__ == "__main__":
    print(tables())
