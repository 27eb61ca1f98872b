"""Programs that look as if two calls could be one, and must stay as they are: each says why."""

from __future__ import annotations

from collections.abc import Callable

import taskc as tc
from taskc import f32, i32, i64

Program = tc.ProgramDefinition

LOOKALIKES: dict[str, Callable[[], Program]] = {}


def lookalike(make: Callable[[], Program]) -> Callable[[], Program]:
    LOOKALIKES[make.__name__] = make
    return make


@tc.kernel(workers=4)
def doubled(x: f32[8, 12], y: tc.out[f32[8, 12]]):
    for row, col in tc.tiles((8, 12), by=(2, 4)):
        for i, j in tc.repeat(2, 1) * tc.spatial(1, 4):
            y[row + i, col + j] = x[row + i, col + j] * 2


@tc.kernel(workers=4)
def many(x: f32[8, 12], y: tc.out[f32[8]]):
    """Each element is read by all blocks."""
    for row in tc.tiles(8, by=1):
        total = tc.tile(f32, tc.repeat(1) * tc.replicate(4), 0)
        for r in range(8):
            for q in range(12):
                for i in total.mapping:
                    total[i] += x[r, q] * x[row, q]
        for i in total.mapping:
            y[row + i] = total[i]


@tc.kernel(workers=4)
def updated(x: f32[8, 12], y: tc.inout[f32[8, 12]]):
    for row, col in tc.tiles((8, 12), by=(2, 4)):
        for i, j in tc.repeat(2, 1) * tc.spatial(1, 4):
            y[row + i, col + j] += x[row + i, col + j]


@tc.kernel(workers=4)
def halves(x: f32[8, 12], y: tc.out[f32[4, 12]]):
    for row, col in tc.tiles((4, 12), by=(1, 4)):
        for i, j in tc.repeat(1, 1) * tc.spatial(1, 4):
            y[row + i, col + j] = x[row + i, col + j] + x[row + i + 4, col + j]


@tc.kernel(workers=4)
def both(x: f32[8, 12], y: tc.out[f32[8, 12]], z: tc.out[f32[8, 12]]):
    for row, col in tc.tiles((8, 12), by=(2, 4)):
        for i, j in tc.repeat(2, 1) * tc.spatial(1, 4):
            y[row + i, col + j] = x[row + i, col + j] + 1
            z[row + i, col + j] = x[row + i, col + j] - 1


@tc.kernel(workers=4)
def add_to(x: f32[8, 12], y: tc.inout[f32[8, 12]]):
    for row, col in tc.tiles((8, 12), by=(2, 4)):
        for i, j in tc.repeat(2, 1) * tc.spatial(1, 4):
            y[row + i, col + j] += x[row + i, col + j]


@tc.kernel(workers=4)
def tiled(x: f32[7, 10], y: tc.out[f32[7, 10]]):
    own = tc.repeat(4, 1) * tc.spatial(1, 4)
    for row, col in tc.tiles((7, 10), by=own.shape):
        held = tc.load(x[row : row + 4, col : col + 4])
        acc = tc.tile(f32, own)
        for i, j in own:
            acc[i, j] = held[i, j] * 2
        tc.store(y[row : row + 4, col : col + 4], acc)


@lookalike
def reversed_rows_of_a_kernel() -> Program:
    @tc.program
    def program(x: f32[8, 12], y: tc.out[f32[8, 12]]):
        t = doubled(x)
        tc.compute((8, 12), lambda i, j: t[7 - i, j], out=y)

    return program


@lookalike
def last_axis_becomes_the_first() -> Program:
    @tc.program
    def program(x: f32[8, 12], y: tc.out[f32[12, 8]]):
        t = doubled(x)
        tc.compute((12, 8), lambda i, j: t[j, i], out=y)

    return program


@lookalike
def neighbours_are_read_too() -> Program:
    @tc.program
    def program(x: f32[8, 12], y: tc.out[f32[8, 12]]):
        t = doubled(x)
        tc.compute((8, 12), lambda i, j: t[i, j] + t[i, j + 1] if j + 1 < 12 else t[i, j], out=y)

    return program


@lookalike
def a_diagonal_is_read() -> Program:
    @tc.program
    def program(x: f32[8, 12], y: tc.out[f32[8]]):
        t = doubled(x)
        tc.compute((8,), lambda i: t[i, i], out=y)

    return program


@lookalike
def an_element_goes_to_several() -> Program:
    @tc.program
    def program(x: f32[8, 12], b: f32[8], y: tc.out[f32[12, 8]]):
        t = many(x)
        tc.compute((12, 8), lambda i, j: t[j] + b[j], out=y)

    return program


@lookalike
def fewer_elements_than_are_stored() -> Program:
    @tc.program
    def program(x: f32[8, 12], y: tc.out[f32[8, 8]]):
        t = doubled(x)
        tc.compute((8, 8), lambda i, j: t[i, j] + 1, out=y)

    return program


@lookalike
def a_part_of_what_is_stored() -> Program:
    @tc.program
    def program(x: f32[8, 12], y: tc.out[f32[4, 12]]):
        t = doubled(x)
        part = t[2:6]
        tc.compute((4, 12), lambda i, j: part[i, j] + 1, out=y)

    return program


@lookalike
def two_parts_of_what_is_stored() -> Program:
    @tc.program
    def program(x: f32[8, 12], y: tc.out[f32[4, 12]]):
        t = doubled(x)
        low, high = t[0:4], t[4:8]
        tc.compute((4, 12), lambda i, j: low[i, j] + high[i, j], out=y)

    return program


@lookalike
def the_same_memory_in_two_shapes() -> Program:
    @tc.program
    def program(x: f32[8, 12], y: tc.out[f32[8, 12]]):
        t = doubled(x)
        seen = t.reshape(12, 8)
        tc.compute((8, 12), lambda i, j: t[i, j] + (seen[i, j] if j < 8 else 0), out=y)

    return program


@lookalike
def an_inout_is_read() -> Program:
    @tc.program
    def program(x: f32[8, 12], z: tc.inout[f32[8, 12]], y: tc.out[f32[8, 12]]):
        updated(x, z)
        tc.compute((8, 12), lambda i, j: z[i, j] * 2, out=y)

    return program


@lookalike
def an_inout_is_updated_before_it_is_read() -> Program:
    """What is read is not what the first call stored."""

    @tc.program
    def program(x: f32[8, 12], y: tc.out[f32[8, 12]]):
        t = doubled(x)
        updated(x, t)
        tc.compute((8, 12), lambda i, j: t[i, j] * 2, out=y)

    return program


@lookalike
def an_input_changes_before_the_kernel_reads() -> Program:
    """The computation's input is another when the kernel that reads the result is called."""

    @tc.program
    def program(x: f32[8, 12], z: tc.inout[f32[8, 12]], y: tc.out[f32[8, 12]]):
        t = tc.compute((8, 12), lambda i, j: z[i, j] + 1)
        updated(x, z)
        doubled(t, out=y)

    return program


@lookalike
def the_kernel_itself_changes_the_input() -> Program:
    @tc.program
    def program(z: tc.inout[f32[8, 12]]):
        t = tc.compute((8, 12), lambda i, j: z[i, 11 - j] + 1)
        updated(t, z)

    return program


@lookalike
def the_reader_needs_the_kernels_other_result() -> Program:
    """Which other blocks store."""

    @tc.program
    def program(x: f32[8, 12], z: tc.out[f32[8, 12]], y: tc.out[f32[8, 12]]):
        t, _ = both(x, out=(tc.empty(f32[8, 12]), z))
        tc.compute((8, 12), lambda i, j: t[i, j] + z[7 - i, j], out=y)

    return program


@lookalike
def a_value_of_before_the_last_part() -> Program:
    """What is read is what there is before the last call that stores to it."""

    @tc.program
    def program(x: f32[8, 12], z: tc.inout[f32[8, 12]], y: tc.out[f32[8, 12]]):
        updated(x, z)
        tc.compute((8, 12), lambda i, j: z[i, j] + 1, out=y)
        updated(x, z)

    return program


@lookalike
def an_output_that_is_written_in_parts() -> Program:
    """Each half is stored by a call of its own."""

    @tc.program
    def program(x: f32[8, 12], y: tc.out[f32[8, 12]]):
        t = doubled(x)
        halves(x, out=t[0:4])
        halves(x, out=t[4:8])
        tc.compute((8, 12), lambda i, j: t[i, j] + 1, out=y)

    return program


@lookalike
def a_temporary_that_is_written_twice() -> Program:
    """The first reader wants what the first call wrote."""

    @tc.program
    def program(x: f32[8, 12], y: tc.out[f32[8, 12]], z: tc.out[f32[8, 12]]):
        t = tc.empty(f32[8, 12])
        tc.compute((8, 12), lambda i, j: x[i, j] + 1, out=t)
        tc.compute((8, 12), lambda i, j: t[i, j] * 2, out=y)
        tc.compute((8, 12), lambda i, j: x[i, j] + 2, out=t)
        tc.compute((8, 12), lambda i, j: t[i, j] * 3, out=z)

    return program


@lookalike
def an_operand_that_all_blocks_read() -> Program:
    @tc.program
    def program(x: f32[8, 12], y: tc.out[f32[8]]):
        t = tc.compute((8, 12), lambda i, j: tc.exp(tc.tanh(tc.exp(tc.tanh(tc.exp(x[i, j]))))))
        many(t, out=y)

    return program


@lookalike
def a_row_that_is_repeated() -> Program:
    @tc.program
    def program(x: f32[12], y: tc.out[f32[64, 12]]):
        t = tc.compute((12,), lambda i: tc.exp(tc.tanh(tc.exp(x[i]))))
        tc.compute((64, 12), lambda i, j: t[j] * 2, out=y)

    return program


@lookalike
def a_table_that_is_gathered_from() -> Program:
    """Its exponentials again for each of many readers would take longer than a call more."""
    return gathered_from_a_table(640)


def gathered_from_a_table(readers: int) -> Program:
    @tc.program
    def program(x: f32[12], ids: i32[readers], y: tc.out[f32[readers]]):
        t = tc.compute((12,), lambda i: tc.exp(tc.tanh(tc.exp(x[i]))))
        tc.compute((readers,), lambda i: t[min(max(ids[i], 0), 11).to(i64)], out=y)

    return program


@lookalike
def two_readers_of_which_one_is_a_kernel() -> Program:
    @tc.program
    def program(x: f32[8, 12], y: tc.out[f32[8, 12]], z: tc.out[f32[8, 12]]):
        t = tc.compute((8, 12), lambda i, j: tc.exp(x[i, j]))
        doubled(t, out=y)
        tc.compute((8, 12), lambda i, j: t[i, 11 - j], out=z)

    return program


@lookalike
def a_result_that_is_wanted_itself() -> Program:
    @tc.program
    def program(x: f32[8, 12], t: tc.out[f32[8, 12]], y: tc.out[f32[8, 12]]):
        tc.compute((8, 12), lambda i, j: x[i, j] + 1, out=t)
        doubled(t, out=y)

    return program


@lookalike
def what_stays_apart() -> Program:
    @tc.program(fuse=False)
    def program(x: f32[8, 12], y: tc.out[f32[8, 12]]):
        s = tc.compute((8, 12), lambda i, j: x[i, j] + 1)
        t = tc.compute((8, 12), lambda i, j: s[i, j] * 2)
        u = doubled(t)
        tc.compute((8, 12), lambda i, j: u[i, j] + 1, out=y)

    return program


@lookalike
def sizes_that_need_not_agree() -> Program:
    """Which column of one shape an element of the other is in takes more than constants to tell."""
    m, n = tc.dim("m", example=8), tc.dim("n", example=12)

    @tc.kernel(workers=4)
    def copied(x: f32[m, n], y: tc.out[f32[m, n]]):
        for row, col in tc.tiles((m, n), by=(1, 4)):
            for i, j in tc.repeat(1, 1) * tc.spatial(1, 4):
                if col + j < n:
                    y[row + i, col + j] = x[row + i, col + j]

    @tc.program
    def program(x: f32[m, n], b: f32[m], y: tc.out[f32[n, m]]):
        t = copied(x)
        seen = t.reshape(n, m)
        tc.compute((n, m), lambda i, j: seen[i, j] + b[j], out=y)

    return program
