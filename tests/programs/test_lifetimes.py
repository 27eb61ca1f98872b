"""Which memory temporaries need, and which of them lie where another one ends."""

from __future__ import annotations

import taskc as tc
from taskc import f16, f32, i64
from taskc.ir.mapping import repeat
from taskc.ir.nodes import Kernel, Tensor
from taskc.programs.arena import blocks_of, is_read_in_place
from taskc.programs.schedule import schedule
from taskc.runtime.machine import machine

n = tc.dim("n")


@tc.kernel(workers=4)
def shifted(x: f32[16], y: tc.out[f32[16]]):
    for i in tc.spatial(4).repeat(4):
        y[i] = x[i] + 1


@tc.kernel(workers=4)
def turned(x: f32[16], y: tc.out[f32[16]]):
    for i in tc.spatial(4).repeat(4):
        y[i] = x[15 - i]


def memory(program: tc.ProgramDefinition) -> list[tuple[list[str], int, int]]:
    """The blocks of the program as it is written, with nothing fused."""
    made = schedule(program.ir, machine())
    return [
        ([it.name for it in block.tensors], block.first, block.last) for block in blocks_of(made)
    ]


def test_a_view_is_memory_of_what_it_looks_at() -> None:
    @tc.program
    def program(x: f32[16], y: tc.out[f32[16]]):
        both = tc.compute((2, 16), lambda i, j: x[j])
        turned(x, out=both[1])
        last = turned(x)
        unused = tc.empty(f32[4])  # noqa: F841
        turned(both.reshape(32)[16:32], out=y)
        turned(x, out=last)

    assert memory(program) == [(["both"], 0, 3), (["last"], 2, 4)]


def test_an_output_lies_where_its_input_ends() -> None:
    @tc.program
    def program(x: f32[16], y: tc.out[f32[16]]):
        first = turned(x)
        second = shifted(first)
        third = shifted(second)
        fourth = turned(third)
        fifth = shifted(fourth)
        turned(fourth, out=fifth)
        shifted(fifth, out=y)

    assert memory(program) == [
        (["first", "second", "third"], 0, 3),
        (["fourth"], 3, 5),
        (["fifth"], 4, 6),
    ]


def test_a_computation_takes_the_place_of_one_of_its_inputs() -> None:
    @tc.program
    def program(x: f32[n], y: tc.out[f32[n]]):
        a = tc.compute((n,), lambda i: x[i] * 2)
        b = tc.compute((n,), lambda i: x[i] * 3)
        c = tc.compute((n,), lambda i: a[i] + b[i])
        d = tc.compute((n,), lambda i: c[n - 1 - i] + c[i])
        tc.compute((n,), lambda i: d[i] + d[0], out=y)

    (first, second, third) = [len(tensors) for tensors, _, _ in memory(program)]
    assert (first, second, third) == (2, 1, 1)


def test_memory_is_not_taken_from_what_is_also_looked_at() -> None:
    @tc.kernel(workers=4)
    def added(x: f32[16], z: f32[16], y: tc.out[f32[16]]):
        for i in tc.spatial(4).repeat(4):
            y[i] = x[i] + z[15 - i]

    @tc.program
    def program(x: f32[16], y: tc.out[f32[16]]):
        a = turned(x)
        b = added(a, a)
        c = tc.compute((2, 16), lambda i, j: b[j])
        d = shifted(c[1])
        turned(d, out=y)

    assert [tensors for tensors, _, _ in memory(program)] == [["a"], ["b"], ["c"], ["d"]]


def pair(kernel: tc.KernelDefinition) -> bool:
    made = kernel.ir
    given, output = made.parameters[0], made.parameters[-1]
    assert isinstance(made, Kernel)
    assert isinstance(given, Tensor)
    assert isinstance(output, Tensor)
    return is_read_in_place(made, given, output)


def test_what_is_read_in_place() -> None:
    assert pair(shifted)
    assert not pair(turned)

    @tc.kernel(workers=4)
    def masked(x: f32[n], y: tc.out[f32[n]]):
        for start in tc.tiles(n, by=16):
            for i in tc.spatial(4).repeat(4):
                if start + i < n:
                    y[start + i] = x[start + i] * x[start + i] if x[start + i] > 0 else 0.0

    @tc.kernel(workers=4)
    def narrowed(x: f32[16], y: tc.out[f16[16]]):
        for i in tc.spatial(4).repeat(4):
            y[i] = x[i].to(f16)

    @tc.kernel(workers=4)
    def transposed(x: f32[4, 4], y: tc.out[f32[4, 4]]):
        for i, j in tc.spatial(4, 1).repeat(1, 4):
            y[i, j] = x[j, i]

    @tc.kernel(workers=4)
    def packed(x: f32[4, 4], y: tc.out[f32[4, 4].laid(repeat(1, 2) * repeat(4, 2))]):
        for i, j in tc.spatial(4, 1).repeat(1, 4):
            y[i, j] = x[i, j]

    @tc.kernel(workers=4)
    def summed(x: f32[16], y: tc.out[f32[16]]):
        for i in tc.spatial(4).repeat(4):
            y[i] = x[i] + x[0]

    @tc.kernel(workers=4)
    def conditional(x: f32[16], y: tc.out[f32[16]]):
        for i in tc.spatial(4).repeat(4):
            if x[0] > 0:
                y[i] = x[i]
            else:
                y[i] = 0.0

    @tc.kernel(workers=4)
    def placed(x: i64[16], y: tc.out[i64[16]]):
        for i in tc.spatial(4).repeat(4):
            y[x[i]] = x[i]

    @tc.kernel(workers=4)
    def again(x: f32[16], y: tc.out[f32[16]], z: tc.inout[f32[16]]):
        for i in tc.spatial(4).repeat(4):
            y[i] = x[i]
        for i in tc.spatial(4).repeat(4):
            z[i] = x[i]

    assert pair(masked)
    for kernel in (narrowed, transposed, packed, summed, conditional, placed, again):
        assert not pair(kernel), kernel.name
