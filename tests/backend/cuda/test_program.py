"""Programs on a device: one graph for each set of sizes, replayed on whatever arrays a call has."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import boolean, device, f32, i64, repeat, spatial
from taskc.backend.cuda import program as programs
from taskc.programs.ir import Branch, While, steps_of
from taskc.runtime import driver
from tests.backend.cuda.chains import (
    chained,
    check_chains,
    expected_of,
    make_chains,
    n,
    nodes_of,
    numbers,
    plus,
    turned,
)
from tests.backend.cuda.fake_driver import FakeDriver
from tests.backend.cuda.host import COMPILER
from tests.backend.cuda.test_whole_way import make_matmul
from tests.programs import random_flow
from tests.test_whole_programs import arguments, composed
from tests.whole_grid import make_total

# --- what is computed ------------------------------------------------------------------------


def test_a_call_is_one_launch(fake: FakeDriver, compiled: Any) -> None:
    chains = make_chains()
    check_chains(chains)
    assert fake.names().count("cuGraphLaunch") == 1
    assert fake.launches == []
    assert len(nodes_of(fake)) == 8


def test_shapes_by_turns(fake: FakeDriver, compiled: Any) -> None:
    chains = make_chains()
    for round in range(3):
        for size in (20, 3, 100):
            check_chains(chains, size, seed=round)
    assert fake.names().count("cuGraphInstantiate") == 3


@pytest.mark.parametrize("seed", range(8))
def test_random_programs(fake: FakeDriver, compiled: Any, seed: int) -> None:
    """The same as from the processor, to the last bit: at once, and with streams that do it late."""
    program = composed(seed)
    if seed % 2:  # calls one behind another, in memory of each other
        fake.attributes[fake.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT] = 1
    for round, size in enumerate((24, 3, 24, 24)):
        x, by, w = arguments(program, size, seed + round)
        there, expected = w.copy(), w.copy()
        made = program.call(x, by, expected)
        kept = device.array(there)
        x_there = device.array(x)
        fake.streams.is_lazy = round > 1
        found = program(x_there, by, kept)
        values = [one.numpy() for one in (*found, kept)]
        assert [v.tobytes() for v in values] == [v.tobytes() for v in (*made, expected)]
    assert fake.launches == []


def test_views_constants_and_loops(fake: FakeDriver, compiled: Any) -> None:
    table = np.arange(24, dtype=np.float32).reshape(6, 4)

    @tc.program
    def program(x: f32[6, 4], y: tc.out[f32[6, 4]]):
        offsets = tc.constant(table)
        for t in tc.steps(6):
            row, more = x[t], offsets[t]
            tc.compute((4,), lambda j: row[j] + more[j], name="step", out=y[t])

    for seed in range(3):
        x = numbers(24, seed).reshape(6, 4)
        np.testing.assert_array_equal(program(device.array(x)).numpy(), x + table)
    copies = [one for one, _ in fake.calls if one == "cuMemcpyHtoDAsync"]
    assert len(copies) == 3 + 1  # the constant once
    assert fake.names().count("cuGraphInstantiate") == 1


def test_arrays_of_the_cpu_are_copied_once(
    fake: FakeDriver, compiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKC_TARGET", "cuda")
    chains, a, b = make_chains(), numbers(), numbers(seed=1)
    for _ in range(2):
        fake.calls.clear()
        for one, expected in zip(chains(a, b), expected_of(a, b), strict=True):
            np.testing.assert_array_equal(one, expected)
        copied = [name for name in fake.names() if name.startswith("cuMemcpy")]
        assert copied == ["cuMemcpyHtoDAsync"] * 2 + ["cuMemcpyDtoHAsync"] * 3


def test_each_device_has_graphs_of_its_own(fake: FakeDriver, compiled: Any) -> None:
    fake.devices = 2
    chains = make_chains()
    for ordinal in (0, 1, 0, 1):
        a, b = numbers(seed=ordinal), numbers(seed=ordinal + 1)
        found = chains(device.array(a, device=ordinal), device.array(b, device=ordinal))
        for one, expected in zip(found, expected_of(a, b), strict=True):
            assert one.device == ordinal
            np.testing.assert_array_equal(one.numpy(), expected)
    assert fake.names().count("cuGraphInstantiate") == 2


def test_nothing_is_launched_for_empty_arrays(fake: FakeDriver, compiled: Any) -> None:
    chains = make_chains()
    check_chains(chains, 0)
    assert nodes_of(fake) == {}
    check_chains(chains, 5)


def test_what_waits_for_a_call_of_no_blocks_waits_for_what_that_waits_for(
    fake: FakeDriver, compiled: Any
) -> None:
    m = tc.dim("m")

    @tc.kernel(workers=4)
    def stamped(x: tc.inout[f32[n]], z: f32[m], y: tc.out[f32[m]]):
        for start in tc.tiles(m, by=4):
            for i in spatial(4):
                if start + i < m:
                    assert n > 0
                    y[start + i] = x[0] + z[start + i]

    @tc.program(fuse=False)
    def program(x: f32[n], z: f32[m], y: tc.out[f32[n]], w: tc.out[f32[m]]):
        t = tc.empty(f32[n])
        turned(x, out=t)
        stamped(t, z, out=w)
        turned(t, out=y)

    x, z = numbers(), device.empty(0, f32)
    for _ in range(8):
        y, _ = program(device.array(x), z)
        np.testing.assert_array_equal(y.numpy(), x * 4)
    assert len(nodes_of(fake)) == 2


@pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
def test_constants_arguments_and_temporaries_with_layouts(emitted: FakeDriver) -> None:
    panels = repeat(1, 2) * repeat(8, 4)
    laid = f32[7, 8].laid(panels)  # with room for 8 rows
    weights = np.arange(56, dtype=np.float32).reshape(7, 8)

    @tc.kernel(workers=8)
    def less(a: laid, b: laid, y: tc.out[laid]):
        for row, col in tc.tiles((7, 8), by=(1, 8)):
            for j in spatial(8):
                y[row, col + j] = a[row, col + j] - b[row, col + j]

    @tc.program(fuse=False)
    def program(a: laid, y: tc.out[laid]):
        first, second, third = tc.empty(laid), tc.empty(laid), tc.empty(laid)
        less(a, tc.constant(weights), out=first)
        less(first, a, out=second)
        less(a, second, out=third)
        less(third, first, out=y)

    for seed in range(4):
        x = numbers(56, seed).reshape(7, 8)
        there = device.array(tc.pack(x, laid))
        found = program(there, out=device.array(tc.empty(laid)))
        np.testing.assert_array_equal(found.unpack(), x + weights - (x - weights))
    assert emitted.names().count("cuGraphInstantiate") == 1


@pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
def test_tensor_maps_are_made_for_other_arrays(emitted: FakeDriver) -> None:
    matmul = make_matmul(20, 40, 40)

    @tc.program(fuse=False)
    def program(a: f32[20, 40], b: f32[40, 40], c: tc.out[f32[20, 40]]):
        t = tc.empty(f32[20, 40])
        matmul(a, b, out=t)
        matmul(t, b, out=c)

    for seed in range(3):
        a, b = numbers(800, seed).reshape(20, 40), numbers(1600, seed + 1).reshape(40, 40)
        there = device.array(a), device.array(b)
        np.testing.assert_array_equal(program(*there).numpy(), a @ b @ b)
    assert emitted.names().count("cuGraphInstantiate") == 1


# --- streams, threads, memory ----------------------------------------------------------------


def test_streams_beside_each_other(fake: FakeDriver, compiled: Any) -> None:
    """More of them than graphs: some take over what was in another stream."""
    chains = make_chains()
    streams = [device.Stream() for _ in range(6)]
    given = [numbers(seed=seed) for seed in range(6)]
    there = [device.array(one) for one in given]
    chains(there[0], there[0])
    fake.streams.is_lazy = True
    found = []
    for _ in range(3):
        for stream, one in zip(streams, there, strict=True):
            with stream:
                found.append((stream, chains(one, one)))
    for (stream, made), values in zip(found, given * 3, strict=True):
        with stream:
            for array, expected in zip(made, expected_of(values, values), strict=True):
                np.testing.assert_array_equal(array.numpy(), expected)
    assert fake.names().count("cuGraphInstantiate") == programs._MOST_GRAPHS


@pytest.mark.parametrize("is_lazy", [False, True])
def test_threads(fake: FakeDriver, compiled: Any, is_lazy: bool) -> None:
    """In streams of their own, and all in one."""
    chains = make_chains()
    shared, failures = device.Stream(), []
    check_chains(chains)
    fake.streams.is_lazy = is_lazy

    def work(number: int) -> None:
        try:
            own = device.Stream()
            for turn in range(4):
                with own if number % 2 else shared:
                    check_chains(chains, 20 if turn % 2 else 12, seed=10 * number + turn)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_threads_that_change_one_graph(
    fake: FakeDriver, compiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One comes while another one is about to change nodes."""
    chains, failures = make_chains(), []
    check_chains(chains)

    def slowly(self: FakeDriver, *arguments: Any) -> None:
        change(self, *arguments)
        time.sleep(0.002)

    change = FakeDriver._cuGraphExecKernelNodeSetParams
    monkeypatch.setattr(FakeDriver, "_cuGraphExecKernelNodeSetParams", slowly)

    def work(number: int) -> None:
        try:
            for turn in range(3):
                check_chains(chains, seed=10 * number + turn)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_memory_is_given_back_behind_all_streams(
    fake: FakeDriver, compiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph that was made in one stream is last run in another one, which is late."""
    monkeypatch.setattr(programs, "_MOST_GRAPHS", 1)
    monkeypatch.setattr(programs, "_MOST_PLANS", 1)
    chains, one, other = make_chains(), device.Stream(), device.Stream()
    a, b = (numbers(seed=seed) for seed in (0, 1))
    there = device.array(a), device.array(b)
    with one:
        chains(*there)
    one.synchronize()
    fake.streams.is_lazy = True
    with other:
        made = [chains(*there) for _ in range(10)]
    with one:
        check_chains(chains, 4)  # the plan before goes
        gc.collect()
    one.synchronize()
    with other:
        for found, expected in zip(made[-1], expected_of(a, b), strict=True):
            np.testing.assert_array_equal(found.numpy(), expected)


def test_memory_lives_as_long_as_a_replay(
    fake: FakeDriver, compiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan, the arguments and the program are gone before anything has run."""
    monkeypatch.setattr(programs, "_MOST_PLANS", 2)
    chains, stream = make_chains(), device.Stream()
    sizes = [(4 * seed + 4, seed) for seed in range(5)]
    inputs = {size: (numbers(size, seed), numbers(size, seed + 1)) for size, seed in sizes}
    there = {size: [*map(device.array, pair)] for size, pair in inputs.items()}
    fake.streams.is_lazy = True
    with stream:
        found = {size: chains(*there[size]) for size, _ in sizes}
        driver._entries.pop(chains)
        del chains
        there.clear()
        gc.collect()
        for size, made in found.items():
            for one, expected in zip(made, expected_of(*inputs[size]), strict=True):
                np.testing.assert_array_equal(one.numpy(), expected)


def test_the_plan_that_was_used_longest_ago_goes(
    fake: FakeDriver, compiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "_MOST_PLANS", 2)
    chains = make_chains()
    for size in (4, 8, 4, 12):
        check_chains(chains, size)
    gc.collect()
    assert (len(fake.graphs.executables), len(fake.graphs.graphs)) == (2, 2)
    fake.calls.clear()
    check_chains(chains, 4)
    assert "cuGraphInstantiate" not in fake.names()
    check_chains(chains, 8)
    assert "cuGraphInstantiate" in fake.names()


# --- where there is no graph -----------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 2, 4])
def test_flags_decide_call_by_call(fake: FakeDriver, compiled: Any, seed: int) -> None:
    program = random_flow.program(seed)
    body = random_flow.statements(seed)
    for turn in range(2):
        x = random_flow.given(turn)
        found = program(device.array(x))
        for one, expected in zip(found, random_flow.expected(body, x), strict=True):
            np.testing.assert_array_equal(one.numpy(), expected)
    has_flags = any(isinstance(step, Branch | While) for step in steps_of(program.ir.calls))
    assert (not fake.launches, "cuGraphLaunch" in fake.names()) == (not has_flags, not has_flags)


def test_a_branch_by_an_argument(fake: FakeDriver, compiled: Any) -> None:
    @tc.program(fuse=False)
    def program(x: f32[20], flag: boolean[1], y: tc.out[f32[20]]):
        t = tc.empty(f32[20])
        turned(x, out=t)
        with tc.branch(flag):
            plus(t, t, out=y)
        with tc.otherwise():
            turned(t, out=y)

    x = numbers()
    for flag in (True, False, True):
        y = program(device.array(x), device.array(np.array([flag])))
        np.testing.assert_array_equal(y.numpy(), x[::-1] * 4 if flag else x * 4)


def test_within_a_capture_of_ours(fake: FakeDriver, compiled: Any) -> None:
    """The captured calls have an arena of their own, for as long as the graph is there."""
    chains = make_chains()
    a, b = device.array(numbers()), device.array(numbers(seed=1))
    graph = device.Graph(lambda: chains(a, b))
    assert fake.names().count("cuGraphLaunch") == 1  # before it captured
    a.set(numbers(seed=5))
    chains(b, a)
    gc.collect()
    fake.launches.clear()
    graph.replay()
    assert fake.launches == []
    for one, expected in zip(
        graph.result, expected_of(numbers(seed=5), numbers(seed=1)), strict=True
    ):
        np.testing.assert_array_equal(one.numpy(), expected)


def test_within_a_capture_of_another_library(fake: FakeDriver, compiled: Any) -> None:
    chains, number = make_chains(), 0x5550
    arrays = chained(range(5))
    with device.Stream.of(number):
        chains(**arrays)
        fake.cuStreamBeginCapture(number, None)
        fake.calls.clear()
        chains(**arrays)
        captured = fake.names()
        _, graph = fake.cuStreamEndCapture(number)
    assert captured.count("cuLaunchKernelEx") == 8
    assert "cuGraphLaunch" not in captured
    assert int(graph) in fake.graphs.graphs


@pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
def test_blocks_that_wait_for_each_other(emitted: FakeDriver) -> None:
    total = make_total(3, 4)

    @tc.program(fuse=False)
    def program(x: i64[3, 4], y: tc.out[i64[1]], z: tc.out[i64[1]]):
        parts, more = tc.empty(i64[3]), tc.empty(i64[3])
        tc.compute((3,), lambda i: x[i, 0] * 0, out=parts)
        tc.compute((3,), lambda i: x[i, 0] * 0, out=more)
        total(x, parts, out=y)
        total(x, more, out=z)

    x = np.arange(12).reshape(3, 4)
    for _ in range(2):
        y, z = program(device.array(x))
        assert (y.numpy().tolist(), z.numpy().tolist()) == ([66], [66])
    assert "cuGraphLaunch" not in emitted.names()


def test_blocks_that_a_scalar_counts(fake: FakeDriver, compiled: Any) -> None:
    @tc.kernel(workers=4)
    def upto(x: f32[n], count: i64, y: tc.inout[f32[n]]):
        for start in tc.tiles(count, by=4):
            for i in spatial(4):
                assert 0 <= start <= n - 4
                y[start + i] = x[start + i]

    @tc.program(fuse=False)
    def program(x: f32[n], count: i64, y: tc.inout[f32[n]]):
        upto(x, count, y)

    x, y = numbers(12), device.array(np.zeros(12, np.float32))
    for count in (0, 4, 8):
        program(device.array(x), count, y)
        np.testing.assert_array_equal(y.numpy(), np.where(np.arange(12) < count, x, 0))
    assert "cuGraphLaunch" not in fake.names()


# --- assertions ------------------------------------------------------------------------------


@pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
def test_assertions_of_a_replay_are_told_at_a_synchronization(emitted: FakeDriver) -> None:
    @tc.kernel(workers=4)
    def checked(x: f32[4], y: tc.out[f32[4]]):
        for i in spatial(4):
            assert x[i] < 100.0, "too large"
            y[i] = x[i] * 2

    @tc.program(fuse=False)
    def program(x: f32[4], y: tc.out[f32[4]]):
        t = tc.empty(f32[4])
        checked(x, out=t)
        checked(t, out=y)

    for value, fails in ((1, False), (60, True), (2, False), (200, True)):
        y = program(device.array(np.full(4, value, np.float32)))
        if fails:
            with pytest.raises(tc.CheckError, match="too large"):
                y.numpy()
        else:
            assert (y.numpy() == value * 4).all()
    assert emitted.names().count("cuGraphInstantiate") == 1
