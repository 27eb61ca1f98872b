"""The algorithms for quantized weights: `panels` on processors; `strips` of few rows and `tiles` on GPUs."""

from __future__ import annotations

from math import ceil, gcd
from typing import Any

import taskc as tc
from taskc import Machine, TensorType, f32, repeat, replicate, spatial, u16, u32
from taskc.ir.target import WarpInstruction
from taskc.kernels.matmul.gpu import adding_up
from taskc.kernels.quantized.plan import COLUMNS, Panels, Strips, Tiles, instruction
from taskc.kernels.quantized.problem import Problem
from taskc.kernels.signatures import Function, Value, Values

# --- Products with quantized weights on processors: weights become floats in registers, once for a tile of rows
#     own = repeat(rows, vectors) * spatial(1, lanes)
#
# says that each of `lanes` workers holds `rows` x `vectors` sums. Weights lie so that a byte has those of one column
# that follow each other along k, and neighbouring bytes are those of neighbouring columns: to unpack them is a load
# of bytes, a shift and a mask of all lanes. A block copies a part of a, and goes with it through all of its panels;
# where it has several tiles of rows, it keeps the floats of a panel's part for them.


def packed_type(problem: Problem, plan: Panels) -> TensorType:
    """Panels of columns, zeros behind the last one and below the last group."""
    together = 8 // gcd(problem.right.bits, 8)
    rows = max(1, ceil(problem.k / plan.depth)) * plan.depth
    panels = max(1, ceil(problem.n / plan.wide))
    layout = repeat(1, panels) * repeat(rows // together, plan.wide) * repeat(together, 1)
    return problem.right[rows, panels * plan.wide].laid(layout)


def panels(problem: Problem, plan: Panels) -> tc.KernelDefinition:
    m, n, k, epilogue = problem.m, problem.n, problem.k, problem.of_sums.function
    rows, wide, tall, depth, own = plan.rows, plan.wide, plan.tall, plan.depth, plan.own
    add = _add_widened(problem, plan) if plan.widens else _add(problem, plan)

    @tc.function
    def finish(sums: Value, further: Values, c: Value, row: Value, col: Value) -> None:
        for p in range(plan.panels):
            for r in range(0, tall, rows):
                for i, j in own:
                    at = row + r + i, col + p * wide + j
                    if at[0] < m and at[1] < n:
                        c[at] = epilogue(sums[p, r + i, j], further, at[1], at)

    @tc.function
    def blocks(a: Value, b: Value, scales: Value, zeros: Values, further: Values, c: Value) -> None:
        for row, col in tc.tiles((m, n), by=(tall, plan.panels * wide), order=(1, 0)):
            sums = tc.shared(f32[plan.panels, tall, wide])
            for p in range(plan.panels):
                for r in range(0, tall, rows):
                    for i, j in own:
                        sums[p, r + i, j] = 0
            for first in range(0, k, depth):
                part = tc.load((tall, depth), lambda i, q: a[row + i, first + q].to(f32), fill=0)
                for p in range(plan.panels):
                    if col + p * wide < n:
                        add(sums, part, b, scales, zeros, p, first, col + p * wide)
            finish(sums, further, c, row, col)

    return problem.kernel(plan.lanes, blocks, packed_type(problem, plan))


@tc.function
def _weight(
    problem: Problem, b: Value, scales: Value, zeros: Values, group: Value, q: Value, j: Value
) -> Any:
    """A weight of a group; behind the last column and group, one of the last."""
    return problem.weight(
        b, scales, zeros, (q, j), (min(group, problem.groups - 1), min(j, problem.n - 1))
    )


def _add(problem: Problem, plan: Panels) -> Function:
    """Add the products of a part of a to a panel's sums; weights become floats on their way."""
    own, depth, group = plan.own, plan.depth, problem.group

    @tc.function
    def add(
        sums: Value, part: Value, b: Value, scales: Value, zeros: Values, p: Value, first: Value, col: Value,
    ) -> None:  # fmt: skip
        acc = tc.tile(f32, own)
        for i, j in own:
            acc[i, j] = sums[p, i, j]
        for g in range(0, depth, group):
            for q in range(group):
                for i, j in own:
                    w = _weight(
                        problem, b, scales, zeros, (first + g) // group, first + g + q, col + j
                    )
                    acc[i, j] += part[i, g + q] * w
        for i, j in own:
            sums[p, i, j] = acc[i, j]

    return add


def _add_widened(problem: Problem, plan: Panels) -> Function:
    """The same for several tiles, of floats that are kept."""
    own, rows, depth, wide = plan.own, plan.rows, plan.depth, plan.wide
    line = repeat(1, plan.vectors) * spatial(1, plan.lanes)
    group = problem.group

    @tc.function
    def add(
        sums: Value, part: Value, b: Value, scales: Value, zeros: Values, p: Value, first: Value, col: Value,
    ) -> None:  # fmt: skip
        widened = tc.shared(f32[depth, wide])
        for g in range(0, depth, group):
            for q in range(group):
                for _, j in line:
                    widened[g + q, j] = _weight(
                        problem, b, scales, zeros, (first + g) // group, first + g + q, col + j
                    )
        for r in range(0, plan.tall, rows):
            acc = tc.tile(f32, own)
            for i, j in own:
                acc[i, j] = sums[p, r + i, j]
            for q in range(depth):
                for i, j in own:
                    acc[i, j] += part[r + i, q] * widened[q, j]
            for i, j in own:
                sums[p, r + i, j] = acc[i, j]

    return add


# --- Products of few rows with weights of 4 bits on GPUs: they stay packed until they are in registers
# A strip is 64 columns of a warp. Rows of b go through shared memory as they lie, eight weights in a word, by
# asynchronous copies several steps ahead, and so do scales. Behind the wait each worker takes its words apart into
# the registers that the matrix instruction reads. A word's eight weights are for eight fragments of the same worker:
#
#     fragment s of the strip, column c    ->    column 8 c + s of the strip
#
# A weight u of 0 to 15 becomes the float 8 + u / 2, which has u in its highest bits of the mantissa: two of them are
# one shift and one `lop3`. What was added, and the zero point, is taken off the sums of a group, which are scaled
# there:
#
#     sum_q a[q] (u[q] - zero) scale = scale (2 sum_q a[q] (8 + u[q] / 2) - (16 + zero) sum_q a[q])
#
# The last sum is a product by ones. Where strips are few, parts of k have blocks of their own (split-k).


def strips(
    problem: Problem, plan: Strips, machine: Machine
) -> tc.KernelDefinition | tc.ProgramDefinition:
    m, n, k = problem.m, problem.n, problem.k
    row = instruction(problem, machine)
    assert row is not None
    own = spatial(1, plan.warps) * repeat(plan.tall, COLUMNS // 8) * row.accumulator_fragment
    tall, wide = own.shape
    length, epilogue = k // plan.parts, problem.of_sums.function
    summed = _summed(problem, plan, row)

    @tc.function
    def blocks(a: Value, b: Value, scales: Value, zeros: Values, further: Values, c: Value) -> None:
        for rw, word in tc.tiles((m, n // 8), by=(tall, wide // 8)):
            acc = summed(a, b, scales, zeros, rw, word, 0)
            for i, j in own:
                if rw + i < m:
                    at = rw + i, 8 * word + column(j)
                    c[at] = epilogue(acc[i, j], further, at[1], at)

    if plan.parts == 1:
        return problem.kernel(own.workers, blocks)
    left, right, scale, zero = problem.types
    all_sums = f32[plan.parts, m, n]

    @tc.kernel(workers=own.workers)
    def partial(
        a: tc.typed[left],
        b: tc.typed[right],
        scales: tc.typed[scale],
        zeros: tc.typed[zero],
        sums: tc.out[all_sums],
    ) -> None:
        for part, rw, word in tc.tiles((plan.parts, m, n // 8), by=(1, tall, wide // 8)):
            acc = summed(a, b, scales, zeros, rw, word, part * length)
            for i, j in own:
                if rw + i < m:
                    sums[part, rw + i, 8 * word + column(j)] = acc[i, j]

    added = adding_up(problem.of_sums, m, plan.parts, machine)

    def steps(a: Value, b: Value, scales: Value, zeros: Values, further: Values, c: Value) -> None:
        added(partial(a, b, scales, *zeros), *further, out=c)

    return problem.program(steps)


@tc.function
def column(j: Value) -> Value:
    """The column of a block's part of c that the j-th of its fragments' columns is."""
    return j // COLUMNS * COLUMNS + j % 8 * 8 + j % COLUMNS // 8


def _summed(problem: Problem, plan: Strips, row: WarpInstruction) -> Function:
    """The sums of a block over `length` steps of k, from a given one."""
    dtype, depth = problem.dtype, plan.depth
    fragment, length = row.accumulator_fragment, problem.k // plan.parts
    own = spatial(1, plan.warps) * repeat(plan.tall, COLUMNS // 8) * fragment
    rows = spatial(1, plan.warps) * repeat(plan.tall, 1) * fragment
    held = spatial(1, plan.warps) * repeat(1, COLUMNS // 8) * row.right_fragment
    tall, wide = own.shape
    # A worker's columns of c lie beside each other.
    columns = spatial(plan.warps) * replicate(8) * spatial(4) * repeat(16)
    unpacked = _unpacked(problem, plan)
    # A signed weight, its highest bit turned over, is what is stored for 8 more.
    moved = 16 + 8 * problem.right.is_signed

    zero = tc.function(
        lambda zeros, at: zeros[0][at].to(f32) if problem.zeros else f32(problem.zero)
    )

    @tc.function
    def summed(
        a: Value, b: Value, scales: Value, zeros: Values, rw: Value, word: Value, first: Value
    ) -> Any:
        acc = tc.tile(f32, own, 0)
        ones = tc.tile(dtype, spatial(1, plan.warps) * row.right_fragment, 1)
        for p in tc.pipeline(length, by=depth, stages=plan.stages):
            left = tc.load(a[rw : rw + tall, first + p : first + p + depth])
            packed = tc.load((depth, wide // 8), lambda q, w: words(b, first + p + q, word + w))
            group = (first + p) // problem.group
            scale = tc.load(scales[group : group + 1, 8 * word : 8 * word + wide])
            sums, totals = tc.tile(f32, own, 0), tc.tile(f32, rows, 0)
            for q in tc.static(range(0, depth, 16)):
                right = tc.tile(dtype, held)
                unpacked(packed, right, q)
                tc.mma(sums, left[0:tall, q : q + 16], right)
                tc.mma(totals, left[0:tall, q : q + 16], ones)
            factors, moves = tc.tile(f32, columns), tc.tile(f32, columns)
            for j in columns:
                factors[j] = 2 * scale[0, j].to(f32)
                moves[j] = (-moved - zero(zeros, (group, 8 * word + j))) * scale[0, j].to(f32)
            for i, j in own:
                at, every = column(j), totals[i, j // COLUMNS * 8 + j % 8]
                acc[i, j] = tc.fma(factors[at], sums[i, j], tc.fma(moves[at], every, acc[i, j]))
        return acc

    return summed


@tc.function
def half(b: Value, q: Value, j: Value) -> Any:
    return b[q, j].to(u32) & 15


@tc.function
def byte(b: Value, q: Value, j: Value) -> Any:
    return half(b, q, j) | half(b, q, j + 1) << 4


@tc.function
def words(b: Value, q: Value, w: Value) -> Any:
    """The word of eight weights of a row: `gather_words` reads it as one."""
    return (
        byte(b, q, 8 * w)
        | byte(b, q, 8 * w + 2) << 8
        | byte(b, q, 8 * w + 4) << 16
        | byte(b, q, 8 * w + 6) << 24
    )


def _unpacked(problem: Problem, plan: Strips) -> Function:
    """16 rows of words as the right operand of the instruction."""
    # Two rows that follow each other are two halves of a register.
    pairs = spatial(1, plan.warps) * repeat(2, 1) * spatial(4, 8, order=(1, 0))
    dtype = problem.dtype
    top = dtype.mantissa_bits - 4
    eight = 2 ** (dtype.exponent_bits - 1) + 2 << dtype.mantissa_bits
    mask, number = (
        0x10001 * half for half in (15 << top, eight ^ 8 * problem.right.is_signed << top)
    )

    @tc.function
    def lower(first: Value, second: Value) -> Any:
        return tc.cuda.ptx(
            u32, "prmt.b32 %0, %1, %2, 0x5410;", first, second,
            meaning=lambda x, y: x & 0xFFFF | y << 16,
        )  # fmt: skip

    @tc.function
    def upper(first: Value, second: Value) -> Any:
        return tc.cuda.ptx(
            u32, "prmt.b32 %0, %1, %2, 0x7632;", first, second,
            meaning=lambda x, y: x >> 16 | y & 0xFFFF0000,
        )  # fmt: skip

    @tc.function
    def floats(shifted: Value) -> Any:
        return tc.cuda.ptx(
            u32, "lop3.b32 %0, %1, %2, %3, 0x6a;", shifted, u32(mask), u32(number),
            meaning=lambda x, mask, number: x & mask ^ number,
        )  # fmt: skip

    @tc.function
    def unpacked(packed: Value, right: Value, start: Value) -> None:
        for q, w in pairs:
            first, second = packed[start + 2 * q, w], packed[start + 2 * q + 1, w]
            low, high = lower(first, second), upper(first, second)
            for s in tc.static(range(8)):
                both = low if s < 4 else high
                by = top - s % 4 * 4
                pair = floats(both << by if by > 0 else both >> -by)
                at = w // 8 * COLUMNS + s * 8 + w % 8
                right[2 * q, at] = (pair & 0xFFFF).to(u16).bitcast(dtype)
                right[2 * q + 1, at] = (pair >> 16).to(u16).bitcast(dtype)

    return unpacked


# --- Products with quantized weights on GPUs: weights become floats on their way to shared memory
# A block is many warps around a shared memory, through which both operands go a few steps of k at a time. A worker
# takes neighbouring weights of a row as one word; the matrix instruction sees floats of a's type.


def tiles(problem: Problem, plan: Tiles) -> tc.KernelDefinition:
    m, n, k, group = problem.m, problem.n, problem.k, problem.group
    own, depth = plan.own, plan.depth
    tall, wide = own.shape
    has_bits = problem.right.bits == 8 and not problem.right.is_float and not problem.zeros
    weight = _weight_by_bits(problem) if has_bits else problem.weight
    epilogue = problem.of_sums.function

    @tc.function
    def blocks(a: Value, b: Value, scales: Value, zeros: Values, further: Values, c: Value) -> None:
        for row, col in tc.tiles((m, n), by=(tall, wide)):
            acc = tc.tile(f32, own, 0)
            for p in tc.pipeline(k, by=depth, stages=plan.stages):
                left = tc.load(a[row : row + tall, p : p + depth])
                right = tc.load(
                    (depth, wide),
                    lambda q, j: weight(
                        b, scales, zeros, (p + q, col + j), ((p + q) // group, col + j)
                    ).to(problem.dtype),
                    fill=0,
                )
                tc.mma(acc, left, right)
            for i, j in own:
                if row + i < m and col + j < n:
                    at = row + i, col + j
                    c[at] = epilogue(acc[i, j], further, col + j, at)

    return problem.kernel(own.workers, blocks)


def _weight_by_bits(problem: Problem) -> Function:
    """A weight of 8 bits as `Problem.weight` has it: by its bits and a sum, since converters are few and adders many.

    The bits are the lowest of a float's mantissa, which makes it 2**23 more.
    """
    highest = 128 * problem.right.is_signed
    more = 2.0**23 + highest + problem.zero

    number = tc.function(lambda value: (value & 255 ^ highest | 0x4B000000).bitcast(f32) - more)
    return tc.function(
        lambda b, scales, zeros, place, at: number(b[place].to(u32)) * scales[at].to(f32)
    )
