"""Products with weights of 2, 4 or 8 bits in words, on processors: of rows of floats, or rounded to bytes.

Where rows are rounded, each `group` of neighbours along k has a scale on both sides, and is added up as integers:

    c[i, j] = sum over groups g of factors[i, g] * scales[g, j] * (dot(i, g, j) - zeros[g, j] * totals[i, g])

    dot(i, g, j)     the sum of the products of rounded activations and codes
    totals[i, g]     the sum of the rounded activations

`tc.dot_bytes` multiplies the four bytes of two words.

    word t of a group of activations    byte b is element b * group // 4 + t, so that neighbours come from neighbours
    word q of a group of weights        a byte has 8 // bits codes; part p is for the activations' word p * deep + q,
                                        where `deep` is how many words of weights a group has

Words, scales and zero points lie in panels of columns, in the order in which they are read. That doesn't depend on the
number of rows, nor on whether these are rounded: a model has its weights once.

Rows that stay floats take the same words, whose codes become floats in registers.
"""

from __future__ import annotations

from itertools import pairwise
from math import ceil
from typing import Any

import numpy as np

import taskc as tc
from taskc import DType, Machine, Mapping, TensorType, f32, i8, i32, repeat, spatial, u8
from taskc.kernels.epilogue import Epilogue
from taskc.kernels.signatures import Extent, Function, Value, Values, require_numbers

_VECTORS = 4  # of a panel
_PACKERS = 16  # workers, each of a column
_TALL = 128  # rows of a block, which share a panel while it is in a core's own cache
_ROUNDING = (
    1.5 * 2**23
)  # added to a float below 2**22, rounds it, with its bits in the lowest of the sum


def multiplies_words(bits: int, machine: Machine) -> bool:
    """Whether a processor multiplies words faster than floats: with VNNI, or with AVX2 if codes are short."""
    has_pairs = machine.is_processor and machine.lanes >= 8 and bits < 8
    return has_pairs or bool(machine.instructions(u8, i8, i32))


def pack_words(
    n: int, groups: int, bits: int, group: int, packed: TensorType
) -> tc.KernelDefinition:
    """Puts codes, row by row and the first in a byte's lowest bits, into words; zeros behind the last column."""
    parts, deep, (_, columns) = 8 // bits, group * bits // 32, packed.shape
    mask = (1 << bits) - 1

    @tc.kernel(workers=_PACKERS)
    def pack_words(
        b: tc.typed[u8[n, groups * group // parts]], words: tc.typed[tc.out[packed]]
    ) -> None:
        for g, col in tc.tiles((groups, columns), by=(1, _PACKERS)):
            for q in range(deep):
                for j in spatial(_PACKERS):
                    if col + j < columns:
                        word = i32(0)
                        if col + j < n:
                            for byte in tc.static(range(4)):
                                for part in tc.static(range(parts)):
                                    at = (g * 4 + byte) * (group // 4) + part * deep + q
                                    code = (
                                        b[col + j, at // parts].to(i32)
                                        >> (at % parts * bits).to(i32)
                                        & mask
                                    )
                                    word |= code << 8 * byte + bits * part
                        words[g * deep + q, col + j] = word

    return pack_words


def rounded_rows(
    m: Extent, k: int, *, dtype: DType = f32, group: int = 32, machine: Machine | None = None
) -> tc.KernelDefinition:
    """A kernel: the words, factors and totals of a[m, k]. The largest of a group becomes 127 or -127."""
    lanes = (machine or tc.machine()).lanes
    groups, words = ceil(k / group), group // 4
    # The bits of _ROUNDING itself, which each of a group's sums has.
    excess = int(np.float32(_ROUNDING).view(np.int32)) * group
    excess = (excess + 2**31) % 2**32 - 2**31
    line = spatial(1, lanes)

    @tc.function
    def element(a: Value, row: Value, q: Value) -> Any:
        return a[row, q].to(f32) if q < k else f32(0)

    @tc.function
    def bits(a: Value, row: Value, q: Value, inverse: Value) -> Any:
        scaled = element(a, row, q) * inverse
        return (scaled + _ROUNDING).bitcast(i32)

    @tc.kernel(workers=lanes)
    def rounded_rows(
        a: tc.typed[dtype[m, k]],
        words_of_a: tc.typed[tc.out[i32[m, groups * words]]],
        factors: tc.typed[tc.out[f32[m, groups]]],
        totals: tc.typed[tc.out[i32[m, groups]]],
    ) -> None:
        for row in tc.tiles(m, by=1):
            inverse = tc.shared(f32[groups])
            for g in range(groups):
                sizes, sums = tc.tile(i32, line, 0), tc.tile(i32, line, 0)
                for e in range(0, group, lanes):
                    for i, j in line:
                        if e + j < group:
                            size = element(a, row, g * group + e + j).bitcast(i32) & 0x7FFFFFFF
                            sizes[i, j] = max(sizes[i, j], size)
                largest = tc.reduce(sizes, 1, "max")
                for i in largest.mapping:
                    factor = largest[i].bitcast(f32) * (1 / 127)
                    factors[row, g] = factor
                    inverse[g] = 1 / factor if factor > 0 else 0
                for e in range(0, group, lanes):
                    for i, j in line:
                        if e + j < group:
                            sums[i, j] += bits(a, row, g * group + e + j, inverse[g])
                total = tc.reduce(sums, 1, "+")
                for i in total.mapping:
                    totals[row, g] = total[i] - excess
            for first in range(0, groups * words, lanes):
                for _, j in line:
                    if first + j < groups * words:
                        g = (first + j) // words
                        at = g * group + (first + j) % words
                        word = i32(0)
                        for b in tc.static(range(4)):
                            byte = bits(a, row, at + b * words, inverse[g]) & 255
                            word |= byte << 8 * b
                        words_of_a[row, first + j] = word

    return rounded_rows


def words_matmul(
    m: Extent,
    n: int,
    k: int,
    *,
    dtype: DType | None = f32,
    bits: int = 4,
    group: int = 32,
    scales: DType = f32,
    zeros: bool = False,
    result: DType = f32,
    bias: bool = False,
    experts: tuple[int, Extent, Extent] | None = None,
    machine: Machine | None = None,
) -> tc.KernelDefinition:
    """A kernel: c[m, n] = a[m, k] @ w[k, n] + bias[n]. `kernel.pack` takes b, scales[groups, n] and points[groups, n].

    b        codes[n, k] of whole groups, row by row, as bytes whose lowest bits have the first ones
    dtype    a's type; None: instead of a come its words, factors and totals, as `rounded_rows` makes them
    scales   the type of the scales
    zeros    zero points, u8, are an operand; else each is half of the range
    experts  how many weights b has, and how many products a (1 or as many as c) and c have:
             c[s, m, n] = a[s, m, k] @ w[places[s], k, n]; b, scales and points have `columns_of_experts` in place of n
    """
    require_numbers("words_matmul", n=n, k=k, group=group)
    machine = machine or tc.machine()
    lanes, most = machine.lanes, machine.registers // 2
    groups, deep = ceil(k / group), group * bits // 32
    wide = _VECTORS * lanes
    count = experts[0] if experts else 1
    products = experts[1:] if experts else ()
    own, slots = products[:1], products[1:]
    of_a, of_c = (*own, m, k), (*slots, m, n)
    made = Epilogue(
        bias=bias, scale=False, residual=False, activation=None, total=f32,
        made=result[of_c], features=n,
    )  # fmt: skip
    epilogue, offset = made.function, made.operands[0]
    columns = n if experts is None else columns_of_experts(n, count, machine)
    panels = max(1, ceil(columns / wide))

    def packed(dtype: DType, rows: int) -> TensorType:
        layout = repeat(1, panels) * repeat(rows, wide)
        return dtype[rows, panels * wide].laid(layout)

    rounded_types = i32[m, groups * group // 4], f32[m, groups], i32[m, groups]
    left_types = rounded_types if dtype is None else (dtype[of_a],)
    place_types = (i32[slots],) if slots else ()
    zero_types = (packed(u8, groups),) if zeros else ()
    zero = _zero_point(bits) if not zeros else _given_zero
    of_rows = (
        _of_bytes(m, deep, bits, zero)
        if dtype is None
        else _of_floats(own, m, k, deep, bits, lanes, zero)
    )

    @tc.function
    def column(places: Any, slot: Any, col: Any) -> Any:
        """The column of b for one of c."""
        if not slots:
            return col
        else:
            return min(max(places[0][slot[0]], 0), count - 1) * (columns // count) + col

    # Tiles have few rows of all vectors, or more rows of half of them.
    rows = most * 2 // _VECTORS if not isinstance(m, int) or m > most // _VECTORS else max(1, m)
    rest = (1, 2, 4) if not isinstance(m, int) else (m % rows,)
    heights = sorted({rows, *(height for height in rest if height < rows)} - {0})
    tall = max(rows, _TALL // rows * rows)

    @tc.function
    def tile(
        own: Mapping, left: Values, b: Value, scales: Value, points: Values, sums: Value, slot: Values, row: Value,
        col: Value,
    ) -> None:  # fmt: skip
        """The sums of so many rows of a panel."""
        for p in range(0, wide, own.shape[1]):
            acc = tc.tile(f32, own, 0)
            for g in range(groups):
                part = of_rows(own, left, b, points, g, slot, row, col + p)
                for i, j in own:
                    acc[i, j] += part[i, j] * scales[g, col + p + j].to(f32)
            for i, j in own:
                sums[i, p + j] = acc[i, j]

    types = packed(i32, groups * deep), packed(scales, groups)
    packs: dict[str, Any] = {
        "b": pack_words(columns, groups, bits, group, types[0]),
        "scales": (groups, columns),
        **({"points": (groups, columns)} if zeros else {}),
    }
    by = (*(1 for _ in slots), tall, wide)
    order = (1, 0) if not slots else (0, 2, 1)

    @tc.kernel(workers=lanes, packs=packs)
    def words_matmul(
        left: tc.typed[left_types],
        b: tc.typed[types[0]],
        scales: tc.typed[types[1]],
        points: tc.typed[zero_types],
        places: tc.typed[place_types],
        offsets: tc.typed[offset],
        c: tc.typed[tc.out[result[of_c]]],
    ) -> None:
        for *slot, row, col in tc.tiles(of_c, by=by, order=order):
            for r in range(row, row + tall, rows):
                if r < m:
                    sums = tc.shared(f32[rows, wide])
                    for less, height in tc.static(list(pairwise((0, *heights)))):
                        if less < m - r and (m - r <= height or height == rows):
                            vectors = _VECTORS if height * _VECTORS <= most else _VECTORS // 2
                            held = repeat(height, vectors) * spatial(1, lanes)
                            first = column(places, slot, col)
                            tile(held, left, b, scales, points, sums, slot, r, first)
                    for i, j in repeat(rows, _VECTORS) * spatial(1, lanes):
                        if r + i < m and col + j < n:
                            at = (*slot, r + i, col + j)
                            c[at] = epilogue(sums[i, j], offsets, col + j, at)

    return words_matmul


def columns_of_experts(n: int, count: int, machine: Machine | None = None) -> int:
    """The columns of all experts, of which each has whole panels."""
    wide = _VECTORS * (machine or tc.machine()).lanes
    return count * max(1, ceil(n / wide)) * wide


# --- The sums of a group, for so many rows and columns: a function of (own, left, b, points, group, slot, row, column)


@tc.function
def _given_zero(points: Values, g: Value, j: Value) -> Any:
    return points[0][g, j].to(i32)


def _zero_point(bits: int) -> Function:
    """Half of the range, where there are no zero points."""
    return tc.function(lambda points, g, j: 1 << bits - 1)


def _of_bytes(m: Extent, deep: int, bits: int, zero: Function) -> Function:
    """Of rounded activations, whose bytes are multiplied by those of four codes at a time."""
    parts = 8 // bits
    masks = ((1 << bits) - 1) * 0x01010101
    masks -= (masks >> 31) << 32

    @tc.function
    def of_bytes(
        own: Mapping, left: Values, b: Value, points: Values, g: Value, slot: Values, row: Value, col: Value,
    ) -> Any:  # fmt: skip
        words, factors, totals = left
        sums, floats = tc.tile(i32, own), tc.tile(f32, own)
        for i, j in own:
            sums[i, j] = -zero(points, g, col + j) * totals[min(row + i, m - 1), g]
        for q in range(deep):
            for part in tc.static(range(parts)):
                for i, j in own:
                    codes = b[g * deep + q, col + j] >> bits * part & masks
                    word = words[min(row + i, m - 1), (g * parts + part) * deep + q]
                    sums[i, j] += tc.dot_bytes(word, codes)
        for i, j in own:
            floats[i, j] = sums[i, j].to(f32) * factors[min(row + i, m - 1), g]
        return floats

    return of_bytes


def _of_floats(
    products: tuple[Extent, ...], m: Extent, k: int, deep: int, bits: int, lanes: int, zero: Function
) -> Function:  # fmt: skip
    """Of activations as they are, of one or more products: weights become floats in registers."""
    parts, mask = 8 // bits, (1 << bits) - 1

    @tc.function
    def of_floats(
        own: Mapping, left: Values, b: Value, points: Values, g: Value, slot: Values, row: Value, col: Value,
    ) -> Any:  # fmt: skip
        (a,) = left
        of_slot = tuple(min(one, count - 1) for one, count in zip(slot, products, strict=True))
        sums = tc.tile(f32, own, 0)
        above = tc.tile(f32, repeat(1, own.shape[1] // lanes) * spatial(1, lanes))
        for i, j in above.mapping:
            above[i, j] = zero(points, g, col + j).to(f32) + 2**23
        for q in range(deep):
            for byte in tc.static(range(4)):
                for part in tc.static(range(parts)):
                    for i, j in own:
                        code = b[g * deep + q, col + j] >> 8 * byte + bits * part & mask
                        # The float 2**23 + code, less 2**23 + zero.
                        moved = (code | 0x4B000000).bitcast(f32) - above[0, j]
                        at = (g * 4 + byte) * parts * deep + part * deep + q
                        place = (*of_slot, min(row + i, m - 1), at)
                        value = a[place].to(f32) if at < k else f32(0)
                        sums[i, j] += value * moved
        return sums

    return of_floats
