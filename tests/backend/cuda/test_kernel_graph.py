"""Graphs of programs: what their nodes are passed, what they wait for, and what can go wrong."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import device, f32, spatial
from tests.backend.cuda.chains import (
    chained,
    check_chains,
    check_often,
    expected_of,
    make_chains,
    n,
    nodes_of,
    numbers,
    turned,
)
from tests.backend.cuda.fake_driver import ILLEGAL_ADDRESS, INVALID_VALUE, FakeDriver, Refused

# --- what a replay changes -------------------------------------------------------------------


def test_a_warm_call_with_the_same_arrays_is_one_call_of_the_driver(
    fake: FakeDriver, compiled: Any
) -> None:
    chains, arrays = make_chains(), chained(range(5))
    chains(**arrays)
    for _ in range(2):
        fake.calls.clear()
        chains(**arrays)
        assert fake.names() == ["cuGraphLaunch"]
    arrays["a"].set(numbers(seed=9))
    chains(**arrays)
    np.testing.assert_array_equal(arrays["c"].numpy(), numbers(seed=9) * 16)


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


@pytest.mark.parametrize(
    ("others", "count"), [("", 0), ("b", 1), ("ce", 2), ("ab", 2), ("d", 1), ("abcde", 5)]
)
def test_only_the_nodes_of_other_arrays_are_changed(
    fake: FakeDriver, compiled: Any, others: str, count: int
) -> None:
    chains, arrays = make_chains(), chained(range(5))
    chains(**arrays)
    changed = {name: one for name, one in chained(range(5, 10)).items() if name in others}
    fake.calls.clear()
    made = chains(**(arrays | changed))
    assert fake.names() == ["cuGraphExecKernelNodeSetParams"] * count + ["cuGraphLaunch"]
    given = [numbers(seed="abcde".index(name) + 5 * (name in others)) for name in "ab"]
    for one, values in zip(made, expected_of(*given), strict=True):
        np.testing.assert_array_equal(one.numpy(), values)


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
    first, second = (node for node in nodes if not nodes[node].after)
    ours, theirs = (
        {node for node in nodes if start in behind(nodes, node)} for start in (first, second)
    )
    assert (len(ours), len(theirs)) in ((4, 3), (3, 4))
    (joined,) = ours & theirs
    assert nodes[joined].noted["name"] == "plus"


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
    (size, _, _), *others = [
        given for name, given in fake.calls if name == "cuMemAllocFromPoolAsync"
    ]
    assert (size, others) == (2 * 64, [])
    for _ in range(20):
        long(x, out=y)
        np.testing.assert_array_equal(y.numpy(), numbers(16)[::-1] * 2**9)
    assert fake.names().count("cuMemAllocFromPoolAsync") == 1


# --- what goes wrong -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["cuGraphCreate", "cuGraphAddKernelNode", "cuGraphInstantiate", "cuMemAllocFromPoolAsync"],
)
def test_a_graph_that_can_not_be_made(fake: FakeDriver, compiled: Any, name: str) -> None:
    chains, arrays = make_chains(), chained(range(5))
    fake.failing[name] = INVALID_VALUE
    with pytest.raises(device.DeviceError, match=f"{name} failed"):
        chains(**arrays)
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


def test_an_error_names_the_kernels_of_the_replay(fake: FakeDriver, compiled: Any) -> None:
    chains = make_chains()
    made = chains(device.array(numbers()), device.array(numbers()))
    fake.failing["cuMemcpyDtoHAsync"] = ILLEGAL_ADDRESS
    with pytest.raises(device.DeviceError, match=r"it happened in turned\(\) or plus\(\)"):
        made[0].numpy()
