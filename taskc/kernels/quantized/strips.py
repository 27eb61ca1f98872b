"""Products of few rows with weights of 4 bits on GPUs: they stay packed until they are in registers.

A strip is 64 columns of a warp. Rows of b go through shared memory as they lie, eight weights in a word, by
asynchronous copies several steps ahead. Behind the wait each worker takes its words apart into the registers that the
matrix instruction reads. A word's eight weights are for eight fragments of the same worker:

    fragment s of the strip, column c    ->    column 8 c + s of the strip

A weight u of 0 to 15 becomes the float 8 + u / 2, which has u in its highest bits of the mantissa: two of them are one
shift and one `lop3`. What was added, and the zero point, is taken off the sums of a group, which are scaled there:

    sum_q a[q] (u[q] - zero) scale = scale (2 sum_q a[q] (8 + u[q] / 2) - (16 + zero) sum_q a[q])

The last sum is a product by ones. Where strips are few, parts of k have blocks of their own (split-k).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import taskc as tc
from taskc import Machine, f32, repeat, replicate, spatial, u16, u32
from taskc.ir.target import WarpInstruction
from taskc.kernels.matmul.split_k import adding_up
from taskc.kernels.quantized.plan import COLUMNS, Strips, instruction
from taskc.kernels.quantized.problem import Problem

Function = Callable[..., Any]


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
    def blocks(a: Any, b: Any, scales: Any, zeros: Any, further: Any, c: Any) -> Any:
        for rw, word in tc.tiles((m, n // 8), by=(tall, wide // 8)):
            acc = summed(a, b, scales, zeros, rw, word, 0)
            for i, j in own:
                if rw + i < m:
                    at = rw + i, 8 * word + column(j)
                    c[at] = epilogue(acc[i, j], further, at[1], at)

    if plan.parts == 1:
        return problem.kernel(own.workers, blocks)
    left, right = problem.dtype[m, k], problem.right[k, n]
    scale = problem.scales[problem.groups, n]
    zero = (problem.right[problem.groups, n],) if problem.zeros else ()
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

    def steps(a: Any, b: Any, scales: Any, zeros: Any, further: Any, c: Any) -> None:
        added(partial(a, b, scales, *zeros), *further, out=c)

    return problem.program(steps)


@tc.function
def column(j: Any) -> Any:
    """The column of a block's part of c that the j-th of its fragments' columns is."""
    return j // COLUMNS * COLUMNS + j % 8 * 8 + j % COLUMNS // 8


def _summed(problem: Problem, plan: Strips, row: WarpInstruction) -> Function:
    """The sums of a block over `length` steps of k, from a given one."""
    group, dtype, depth = problem.group, problem.dtype, plan.depth
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

    @tc.function
    def zero(zeros: Any, at: Any) -> Any:
        return zeros[0][at].to(f32) if problem.zeros else f32(problem.zero)

    @tc.function
    def summed(a: Any, b: Any, scales: Any, zeros: Any, rw: Any, word: Any, first: Any) -> Any:
        acc = tc.tile(f32, own, 0)
        ones = tc.tile(dtype, spatial(1, plan.warps) * row.right_fragment, 1)
        for p in tc.pipeline(length, by=depth, stages=plan.stages):
            left = tc.load(a[rw : rw + tall, first + p : first + p + depth])
            packed = tc.load((depth, wide // 8), lambda q, w: words(b, first + p + q, word + w))
            sums, totals = tc.tile(f32, own, 0), tc.tile(f32, rows, 0)
            for q in tc.static(range(0, depth, 16)):
                right = tc.tile(dtype, held)
                unpacked(packed, right, q)
                tc.mma(sums, left[0:tall, q : q + 16], right)
                tc.mma(totals, left[0:tall, q : q + 16], ones)
            factors, moves = tc.tile(f32, columns), tc.tile(f32, columns)
            for j in columns:
                at = (first + p) // group, 8 * word + j
                scale = scales[at].to(f32)
                factors[j] = 2 * scale
                moves[j] = (-moved - zero(zeros, at)) * scale
            for i, j in own:
                at, every = column(j), totals[i, j // COLUMNS * 8 + j % 8]
                acc[i, j] = tc.fma(factors[at], sums[i, j], tc.fma(moves[at], every, acc[i, j]))
        return acc

    return summed


@tc.function
def half(b: Any, q: Any, j: Any) -> Any:
    return b[q, j].to(u32) & 15


@tc.function
def byte(b: Any, q: Any, j: Any) -> Any:
    return half(b, q, j) | half(b, q, j + 1) << 4


@tc.function
def words(b: Any, q: Any, w: Any) -> Any:
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
    def lower(first: Any, second: Any) -> Any:
        return tc.cuda.ptx(
            u32, "prmt.b32 %0, %1, %2, 0x5410;", first, second,
            meaning=lambda x, y: x & 0xFFFF | y << 16,
        )  # fmt: skip

    @tc.function
    def upper(first: Any, second: Any) -> Any:
        return tc.cuda.ptx(
            u32, "prmt.b32 %0, %1, %2, 0x7632;", first, second,
            meaning=lambda x, y: x >> 16 | y & 0xFFFF0000,
        )  # fmt: skip

    @tc.function
    def floats(shifted: Any) -> Any:
        return tc.cuda.ptx(
            u32, "lop3.b32 %0, %1, %2, %3, 0x6a;", shifted, u32(mask), u32(number),
            meaning=lambda x, mask, number: x & mask ^ number,
        )  # fmt: skip

    @tc.function
    def unpacked(packed: Any, right: Any, start: Any) -> Any:
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
