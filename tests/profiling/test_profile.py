"""Profiles: what they count, beside what is counted by hand, and where they say that calls come from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f32, i32, spatial
from taskc.errors import CompileError
from taskc.profiling.profile import Profile, Work, profile
from taskc.programs.arena import blocks_of
from taskc.programs.planning import plan
from taskc.runtime.driver import scheduled
from taskc.runtime.machine import machine

n = tc.dim("n", example=6)


@tc.kernel(workers=4)
def turned(x: f32[4], y: tc.out[f32[4]]):
    s = tc.shared(f32[4])
    for i in spatial(4):
        s[i] = x[i]
    for i in spatial(4):
        y[i] = s[3 - i]


@tc.kernel(workers=4)
def bumped(x: tc.inout[f32[4]], by: f32):
    for i in spatial(4):
        x[i] += by


def of(definition: Any) -> Profile:
    return profile(definition, definition.example(), 3)


def test_bytes_are_those_of_each_part_once() -> None:
    table = np.ones((64, 4), np.float32)

    @tc.program(fuse=False)
    def program(x: f32[8, 4], y: tc.out[f32[64, 4]]):
        row = turned(x[3])
        fixed = tc.constant(table)
        tc.compute((64, 4), lambda i, j: fixed[i, j] * row[j], out=y)

    found = of(program)
    first, second = found.calls
    assert (first.work.bytes, second.work.bytes) == (2 * 16, 2 * 1024 + 16)
    assert (first.work.operations, second.work.operations) == (0, 256)
    assert first.work.moved == 2 * 16
    assert found.total.bytes == 2 * 16 + 2 * 1024 + 16
    memory = found.memory
    assert (memory.weights, memory.inputs, memory.outputs) == (1024, 128, 1024)
    assert (memory.activations, memory.alive) == (64, 16)
    assert memory.workspace >= 16 * machine().threads
    assert all(call.work.predicted > 0 for call in found.calls)


def test_of_a_table_the_rows_that_are_read_count() -> None:
    table = np.ones((1000, 16), np.float32)

    @tc.program
    def program(at: i32[6], y: tc.out[f32[6, 16]]):
        fixed = tc.constant(table)
        tc.compute((6, 16), lambda i, j: fixed[at[i], j], out=y)

    found = of(program)
    assert 2 * 6 * 16 * 4 < found.total.bytes <= 6 * 4 + 2 * 6 * 16 * 4
    assert found.memory.weights == 1000 * 16 * 4


def test_what_is_modified_is_moved_both_ways() -> None:
    found = of(bumped)
    assert found.name == "bumped"
    (call,) = found.calls
    assert (call.kernel, call.times, call.work.bytes, call.work.moved) == ("bumped", 1, 32, 32)
    assert (found.memory.inputs, found.memory.outputs, found.memory.rooms) == (16, 16, ())


@pytest.mark.parametrize("size", [0, 1, 5])
def test_a_call_in_a_loop_counts_in_all_turns(size: int) -> None:
    @tc.program(fuse=False)
    def program(x: f32[n, 4], y: tc.out[f32[4]]):
        last = tc.empty(f32[4])
        tc.compute((4,), lambda i: f32(0), out=last)
        for t in tc.steps(x.shape[0]):
            turned(turned(x[t]), out=last)
        tc.compute((4,), lambda i: last[i] * 2, out=y)

    found = profile(program, [np.ones((size, 4), np.float32)], 3)
    assert [call.times for call in found.calls] == [1, size, size, 1]
    assert [number for number, _ in found.sequence] == [0, *[1, 2] * size, 3]
    assert found.calls[1].work.bytes == size * 32
    assert sum(seconds for _, seconds in found.sequence) == pytest.approx(found.total.seconds)
    last, *others = sorted(found.memory.rooms, key=lambda room: room.start)
    assert (last.tensors, last.bytes, last.start) == (("last",), 16, 0.0)
    assert last.end == pytest.approx(found.total.seconds)
    assert len(others) == (size > 0)  # what no call touches needs no memory
    inside = sum(call.work.seconds for call in found.calls[1:3])
    for between in others:  # as long as the loop
        assert between.start == found.sequence[0][1]
        assert between.end == pytest.approx(between.start + inside)


def test_rooms_are_where_the_plan_has_temporaries() -> None:
    @tc.program(fuse=False)
    def program(x: f32[512], y: tc.out[f32[512]]):
        a = tc.compute((512,), lambda i: x[511 - i])
        b = tc.compute((512,), lambda i: a[511 - i])
        c = tc.compute((512,), lambda i: b[511 - i] + a[i])
        tc.compute((512,), lambda i: c[511 - i], out=y)

    found = of(program)
    made, _ = scheduled(program)
    planned = plan(made, blocks_of(made), {})
    assert (found.memory.activations, found.memory.alive) == (planned.arena, planned.alive)
    for room in found.memory.rooms:
        assert room.start <= room.end
        assert room.offset + room.bytes <= planned.arena
    at_once = [(a, b) for a in found.memory.rooms for b in found.memory.rooms if a is not b]
    for a, b in at_once:
        if a.start < b.end and b.start < a.end:
            assert a.offset + a.bytes <= b.offset or b.offset + b.bytes <= a.offset


def test_a_fused_call_comes_from_all_its_lines() -> None:
    @tc.program
    def inner(x: f32[64], y: tc.out[f32[64]]):
        tc.compute((64,), lambda i: tc.exp(x[i]), out=y)

    @tc.program
    def program(x: f32[64], y: tc.out[f32[64]]):
        a = inner(x)
        tc.compute((64,), lambda i: a[i] + 1, out=y)

    found = of(program)
    (call,) = found.calls
    first = inner.ir.loc.line + 1
    outer = program.ir.loc.line
    lines = (first, outer + 1, outer + 2)
    assert call.origins == tuple(f"test_profile.py:{line}" for line in lines)


def test_a_program_without_calls() -> None:
    @tc.program
    def program(x: f32[4]):
        pass

    found = of(program)
    assert (found.calls, found.sequence, found.seconds) == ((), (), 0.0)
    assert found.total == Work()
    assert found.memory.inputs == 16


def test_no_elements() -> None:
    @tc.program
    def program(x: f32[n], y: tc.out[f32[n]]):
        tc.compute((x.shape[0],), lambda i: x[i] + 1, out=y)

    found = profile(program, [np.ones(0, np.float32)], 3)
    assert (found.total.bytes, found.total.moved, found.total.operations) == (0, 0, 0)
    assert found.total.share == 0.0


def test_kernels_of_a_gpu_are_refused() -> None:
    @tc.cuda.kernel(workers=32)
    def warps(x: tc.inout[f32[32]]):
        x[tc.worker()] = 1.0

    with pytest.raises(CompileError, match="'warps' is for a GPU"):
        of(warps)


def test_a_failing_assertion_is_told() -> None:
    @tc.kernel(workers=4)
    def small(x: f32[4], y: tc.out[f32[4]]):
        for i in spatial(4):
            assert x[i] < 1, "too large"
            y[i] = x[i]

    with pytest.raises(tc.CheckError, match="too large"):
        profile(small, [np.full(4, 2, np.float32)], 3)
