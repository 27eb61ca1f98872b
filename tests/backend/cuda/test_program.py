"""Programs on a device: one graph for each set of sizes, replayed on whatever arrays a call has."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pytest

import taskc as tc
from taskc import boolean, device, driver, f32, i64, repeat, spatial
from taskc.backend.cuda import program as programs
from taskc.ir.program import Branch, While, steps_of
from tests.backend.cuda.conftest import array_at
from tests.backend.cuda.fake_driver import ILLEGAL_ADDRESS, INVALID_VALUE, FakeDriver, Refused
from tests.backend.cuda.host import COMPILER
from tests.backend.cuda.test_whole_way import make_matmul
from tests.passes.programs import random_flow
from tests.test_whole_programs import arguments, composed
from tests.whole_grid import make_total

n = tc.dim("n")
OWN = spatial(4) * repeat(2)


@tc.kernel(workers=OWN.workers)
def plus(a: f32[n], b: f32[n], c: tc.out[f32[n]]):
    for start in tc.tiles(n, by=8):
        for i in OWN:
            if start + i < n:
                c[start + i] = a[start + i] + b[start + i]


@tc.kernel(workers=OWN.workers)
def turned(x: f32[n], y: tc.out[f32[n]]):
    for start in tc.tiles(n, by=8):
        for i in OWN:
            if start + i < n:
                y[start + i] = x[n - 1 - start - i] * 2


@pytest.fixture(autouse=True)
def nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are loaded anew, by the driver of each test."""
    monkeypatch.setattr(driver, "_entries", WeakKeyDictionary())


def make_chains() -> Any:
    """Two chains that nothing joins, and a kernel that needs both of them."""

    @tc.program(fuse=False)
    def chains(a: f32[n], b: f32[n], c: tc.out[f32[n]], d: tc.out[f32[n]], e: tc.out[f32[n]]):
        first, second, third = tc.empty(f32[n]), tc.empty(f32[n]), tc.empty(f32[n])
        other, more = tc.empty(f32[n]), tc.empty(f32[n])
        turned(a, out=first)
        turned(first, out=second)
        turned(second, out=third)
        turned(third, out=c)
        turned(b, out=other)
        turned(other, out=more)
        turned(more, out=d)
        plus(third, more, out=e)

    return chains


def numbers(size: int = 20, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-9, 9, size).astype(np.float32)


def expected_of(a: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
    return [a * 16, b[::-1] * 8, a[::-1] * 8 + b * 4]


def check_chains(chains: Any, size: int = 20, seed: int = 0) -> None:
    a, b = numbers(size, seed), numbers(size, seed + 1)
    found = chains(device.array(a), device.array(b))
    for one, expected in zip(found, expected_of(a, b), strict=True):
        np.testing.assert_array_equal(one.numpy(), expected)


def check_often(chains: Any) -> None:
    for seed in range(40):
        check_chains(chains, seed=seed)


def nodes_of(fake: FakeDriver) -> dict[int, Any]:
    (executable,) = fake.graphs.executables.values()
    return executable.nodes


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


# --- what a replay changes -------------------------------------------------------------------


def test_a_warm_call_with_the_same_arrays_is_one_call_of_the_driver(
    fake: FakeDriver, compiled: Any
) -> None:
    chains = make_chains()
    a, b, *out = [device.array(numbers(seed=seed)) for seed in range(5)]
    for turn in range(3):
        fake.calls.clear()
        chains(a, b, c=out[0], d=out[1], e=out[2])
        if turn:
            assert fake.names() == ["cuGraphLaunch"]
    a.set(numbers(seed=9))
    chains(a, b, c=out[0], d=out[1], e=out[2])
    np.testing.assert_array_equal(out[0].numpy(), numbers(seed=9) * 16)


def test_one_output_goes_straight_to_the_graph(fake: FakeDriver, compiled: Any) -> None:
    """Not through the checks of the driver."""

    @tc.program(fuse=False)
    def program(x: f32[n], y: tc.out[f32[n]]):
        t = tc.empty(f32[n])
        turned(x, out=t)
        turned(t, out=y)

    x, y = device.array(numbers()), device.empty(20, f32)
    program(x, out=y)
    assert program.direct is not None
    program.call = None  # type: ignore[method-assign, assignment]
    for seed in range(3):
        x = device.array(numbers(seed=seed))
        np.testing.assert_array_equal(program(x).numpy(), numbers(seed=seed) * 4)
        np.testing.assert_array_equal(program(x, out=y).numpy(), numbers(seed=seed) * 4)


def test_only_the_nodes_of_other_arrays_are_changed(fake: FakeDriver, compiled: Any) -> None:
    chains = make_chains()
    a, b, *out = [device.array(numbers(seed=seed)) for seed in range(5)]
    keywords = dict(zip("cde", out, strict=True))
    chains(a, b, **keywords)
    for given, changed in (({}, 0), ({"b": 7}, 1), ({"c": 3, "e": 4}, 2), ({"a": 5, "b": 6}, 2)):
        there = {name: device.array(numbers(seed=seed)) for name, seed in given.items()}
        arrays = {"a": a, "b": b, **keywords} | there
        chains(**arrays)  # whatever has changed back from the call before
        a, b = arrays["a"], arrays["b"]
        keywords = {name: arrays[name] for name in "cde"}
        fake.calls.clear()
        fresh = {name: device.array(numbers(seed=seed)) for name, seed in given.items()}
        fake.calls.clear()
        chains(**({"a": a, "b": b, **keywords} | fresh))
        assert fake.names() == ["cuGraphExecKernelNodeSetParams"] * changed + ["cuGraphLaunch"]
        chains(a, b, **keywords)


def test_scalars_are_changed_bit_by_bit(fake: FakeDriver, compiled: Any) -> None:
    @tc.kernel(workers=4)
    def times(x: f32[4], by: f32, y: tc.out[f32[4]]):
        for i in spatial(4):
            y[i] = x[i] * by

    @tc.program(fuse=False)
    def program(x: f32[4], by: f32, y: tc.out[f32[4]]):
        t = tc.empty(f32[4])
        times(x, by, out=t)
        times(t, 1.5, out=y)

    x, y = device.array(np.ones(4, np.float32)), device.empty(4, f32)
    for by in (2.0, 0.0, -0.0, 3.0, float("nan")):
        assert program(x, by, out=y).numpy().tobytes() == np.full(4, by * 1.5, "f").tobytes()
    fake.calls.clear()
    program(x, 3.0, out=y)
    program(x, 3.0, out=y)
    changed = "cuGraphExecKernelNodeSetParams"
    assert fake.names() == [changed, "cuGraphLaunch", "cuGraphLaunch"]


def test_what_is_changed_later_is_not_seen_by_a_replay_under_way(
    fake: FakeDriver, compiled: Any
) -> None:
    chains, b = make_chains(), device.array(numbers(seed=1))
    given = [numbers(seed=seed) for seed in range(5)]
    there = [device.array(one) for one in given]
    chains(there[0], b)
    fake.streams.is_lazy = True
    found = [chains(one, b)[0] for one in there]
    for one, expected in zip(found, given, strict=True):
        np.testing.assert_array_equal(one.numpy(), expected * 16)


# --- what waits for what ---------------------------------------------------------------------


def behind(nodes: dict[int, Any], node: int) -> set[int]:
    """The nodes that one waits for, and those that they wait for."""
    found: set[int] = set()
    for other in nodes[node].after:
        found |= {other, *behind(nodes, other)}
    return found


def test_chains_have_no_path_between_them(fake: FakeDriver, compiled: Any) -> None:
    check_chains(make_chains())
    nodes = nodes_of(fake)
    *chained, last = nodes
    one, other = chained[:4], chained[4:]
    # In the order in which calls that may run beside each other stand.
    kinds: dict[int, set[int]] = {node: {node, *behind(nodes, node)} for node in nodes}
    starts = [node for node in nodes if not nodes[node].after]
    assert len(starts) == 2
    families = [{node for node in nodes if start in kinds[node]} for start in starts]
    assert sorted(map(len, families)) == [4, 5]
    (joined,) = families[0] & families[1]
    assert nodes[joined].noted["name"] == "plus"
    assert len({*one, *other, last}) == 8


def test_each_dependency_is_needed_and_a_missing_one_shows(fake: FakeDriver, compiled: Any) -> None:
    chains = make_chains()
    check_chains(chains)
    nodes = nodes_of(fake)
    edges = [(node, other) for node in nodes for other in nodes[node].after]
    assert len(edges) >= 7
    for node, other in edges:
        nodes[node].after.remove(other)
        assert other not in behind(nodes, node)
        with pytest.raises(AssertionError, match="Arrays are not equal"):
            check_often(chains)
        nodes[node].after.append(other)
        check_chains(chains)


def test_temporaries_lie_in_one_arena(fake: FakeDriver, compiled: Any) -> None:
    """Of a chain of eight two at a time; who writes where another has been waits for its readers."""

    @tc.program(fuse=False)
    def long(x: f32[n], y: tc.out[f32[n]]):
        for _ in range(8):
            made = tc.empty(f32[n])
            turned(x, out=made)
            x = made
        turned(x, out=y)

    x, y = device.array(numbers(16)), device.empty(16, f32)
    fake.calls.clear()
    long(x, out=y)
    (size, _), *others = [given for name, given in fake.calls if name == "cuMemAllocAsync"]
    assert (size, others) == (2 * 64, [])
    for _ in range(20):
        long(x, out=y)
        np.testing.assert_array_equal(y.numpy(), numbers(16)[::-1] * 2**9)
    assert fake.names().count("cuMemAllocAsync") == 1


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
                found.append((stream, chains(one, one), expected_of(one_of(one), one_of(one))))
    for stream, made, expected in found:
        with stream:
            for one, values in zip(made, expected, strict=True):
                np.testing.assert_array_equal(one.numpy(), values)
    assert fake.names().count("cuGraphInstantiate") == programs._MOST_GRAPHS


def one_of(array: Any) -> np.ndarray:
    return array_at(array.pointer, array.shape, array.dtype).copy()


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


# --- what goes wrong -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["cuGraphCreate", "cuGraphAddKernelNode", "cuGraphInstantiate", "cuMemAllocAsync"]
)
def test_a_graph_that_can_not_be_made(fake: FakeDriver, compiled: Any, name: str) -> None:
    chains = make_chains()
    a, b, *out = [device.array(numbers(seed=seed)) for seed in range(5)]
    fake.failing[name] = INVALID_VALUE
    with pytest.raises(device.DeviceError, match=f"{name} failed"):
        chains(a, b, c=out[0], d=out[1], e=out[2])
    del fake.failing[name]
    gc.collect()
    assert (fake.graphs.graphs, fake.graphs.executables) == ({}, {})
    check_chains(chains)


@pytest.mark.parametrize("is_repeated", [False, True])
def test_arguments_that_can_not_be_changed(
    fake: FakeDriver, compiled: Any, monkeypatch: pytest.MonkeyPatch, is_repeated: bool
) -> None:
    """Nobody knows then which arguments the nodes have: neither the new ones nor the ones before."""
    chains = make_chains()
    first = chained(range(5))
    chains(**first)
    left = [2]

    def fails(self: FakeDriver, *arguments: Any) -> None:
        left[0] -= 1
        if not left[0]:
            raise Refused(INVALID_VALUE)
        change(self, *arguments)

    change = FakeDriver._cuGraphExecKernelNodeSetParams
    monkeypatch.setattr(FakeDriver, "_cuGraphExecKernelNodeSetParams", fails)
    second = chained(range(5, 10))
    with pytest.raises(device.DeviceError, match=r"launching (turned|plus)\(\): cuGraphExec"):
        chains(**second)
    given, seed = (second, 5) if is_repeated else (first, 0)
    made = chains(**given)
    expected = expected_of(numbers(seed=seed), numbers(seed=seed + 1))
    for one, values in zip(made, expected, strict=True):
        np.testing.assert_array_equal(one.numpy(), values)


def chained(seeds: range) -> dict[str, Any]:
    """All arguments of the chains."""
    return {
        name: device.array(numbers(seed=seed)) for name, seed in zip("abcde", seeds, strict=True)
    }


def test_an_error_names_the_kernels_of_the_replay(fake: FakeDriver, compiled: Any) -> None:
    chains = make_chains()
    made = chains(device.array(numbers()), device.array(numbers()))
    fake.failing["cuMemcpyDtoHAsync"] = ILLEGAL_ADDRESS
    with pytest.raises(device.DeviceError, match=r"it happened in turned\(\) or plus\(\)"):
        made[0].numpy()


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


def make_kept(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Counts the arenas that are there."""
    made: list[Any] = []
    before = programs.PreparedPlan._places

    def places(self: Any, stream: Any) -> Any:
        found = before(self, stream)
        made.append(found.arena.pointer)
        return found

    monkeypatch.setattr(programs.PreparedPlan, "_places", places)
    return lambda: len(made)


def test_within_a_capture_of_ours(
    fake: FakeDriver, compiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The captured calls have an arena of their own, for as long as the graph is there."""
    chains, arenas = make_chains(), make_kept(monkeypatch)
    a, b = device.array(numbers()), device.array(numbers(seed=1))
    graph = device.Graph(lambda: chains(a, b))
    assert fake.names().count("cuGraphLaunch") == 1  # before it captured
    assert arenas() == 2
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
    a, b, *out = [device.array(numbers(seed=seed)) for seed in range(5)]
    keywords = dict(zip("cde", out, strict=True))
    with device.Stream.of(number):
        chains(a, b, **keywords)
        fake.cuStreamBeginCapture(number, None)
        fake.calls.clear()
        chains(a, b, **keywords)
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
