"""The fake driver refuses what a driver refuses, so that whoever launches wrongly is found without a GPU."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from tests.backend.cuda.conftest import Start
from tests.backend.cuda.fake_driver import (
    CLUSTER_SIZE,
    ILLEGAL_ADDRESS,
    INVALID_VALUE,
    NOT_IN_CAPTURE,
    SUCCESS,
    TOO_LARGE,
    FakeDriver,
)

DYNAMIC = "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"


def launched(
    fake: FakeDriver,
    *,
    blocks: int = 1,
    threads: int = 32,
    shared: int = 0,
    asked: int = 0,
    cluster: int = 1,
    together: bool = False,
) -> Any:
    """The status of a launch, of a function that had so much shared memory allowed."""
    fake.cuCtxSetCurrent(1)
    _, module = fake.cuModuleLoadData(b"cubin")
    _, function = fake.cuModuleGetFunction(module, b"k")
    fake.arguments_of = {"k": 0}
    fake.clusters["k"] = cluster
    if asked:
        attribute = getattr(fake.CUfunction_attribute, DYNAMIC)
        status = fake.cuFuncSetAttribute(function, attribute, asked)[0]
        if status != SUCCESS:
            return status
    config = fake.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = blocks, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
    config.sharedMemBytes, config.numAttrs = shared, int(together)
    if together:
        attribute = fake.CUlaunchAttribute()
        attribute.id = fake.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        attribute.value.cooperative = 1
        config.attrs = [attribute]
    places = (ctypes.c_void_p * 1)()
    return fake.cuLaunchKernelEx(config, function, ctypes.addressof(places), 0)[0]


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({}, SUCCESS),
        ({"blocks": 0}, INVALID_VALUE),
        ({"blocks": 1 << 31}, INVALID_VALUE),
        ({"threads": 1056}, INVALID_VALUE),
        ({"blocks": 6, "cluster": 2}, SUCCESS),
        ({"blocks": 7, "cluster": 2}, INVALID_VALUE),
        ({"blocks": 16, "cluster": 16}, CLUSTER_SIZE),
        ({"shared": 48 << 10}, SUCCESS),
        ({"shared": (48 << 10) + 16}, INVALID_VALUE),
        ({"shared": 64 << 10, "asked": 64 << 10}, SUCCESS),
        ({"shared": 65 << 10, "asked": 64 << 10}, INVALID_VALUE),
        ({"asked": (227 << 10) + 1}, INVALID_VALUE),
        ({"blocks": 264, "together": True}, SUCCESS),
        ({"blocks": 265, "together": True}, TOO_LARGE),
        ({"blocks": 6, "cluster": 2, "together": True}, TOO_LARGE),
    ],
)
def test_launches(fake: FakeDriver, options: dict[str, Any], status: Any) -> None:
    assert launched(fake, **options) == status
    assert len(fake.launches) == (status == SUCCESS)


@pytest.mark.parametrize(
    ("capability", "most"), [((8, 0), 163), ((8, 6), 99), ((8, 9), 99), ((9, 0), 227)]
)
def test_shared_memory_of_each_generation(
    start: Start, capability: tuple[int, int], most: int
) -> None:
    fake = start(capability=capability)
    assert launched(fake, asked=most << 10, shared=most << 10) == SUCCESS
    assert launched(fake, asked=(most << 10) + 16) == INVALID_VALUE


def test_clusters_are_hopper_s(start: Start) -> None:
    assert launched(start(capability=(8, 9)), blocks=2, cluster=2) == CLUSTER_SIZE


def make_graph(fake: FakeDriver, edges: list[list[int]]) -> tuple[Any, list[Any]]:
    """A graph of kernels that note their argument, each behind others, and its nodes."""
    fake.cuCtxSetCurrent(1)
    fake.arguments_of = {"k": 1}
    _, graph = fake.cuGraphCreate(0)
    nodes: list[Any] = []
    for number, others in enumerate(edges):
        given = [nodes[other] for other in others]
        status, *made = fake.cuGraphAddKernelNode(graph, given, len(given), node(fake, number))
        assert status == SUCCESS
        nodes += made
    return graph, nodes


def node(fake: FakeDriver, word: int, blocks: int = 1) -> Any:
    """What a node is told; the memory of its argument is gone behind that."""
    _, module = fake.cuModuleLoadData(b"cubin")
    _, function = fake.cuModuleGetFunction(module, b"k")
    made = fake.CUDA_KERNEL_NODE_PARAMS()
    made.func = function
    made.gridDimX, made.gridDimY, made.gridDimZ = blocks, 1, 1
    made.blockDimX, made.blockDimY, made.blockDimZ = 32, 1, 1
    KEPT.append((ctypes.c_uint64 * 1)(word))
    KEPT.append((ctypes.c_void_p * 1)(ctypes.addressof(KEPT[-1])))
    made.kernelParams = ctypes.addressof(KEPT[-1])
    return made


KEPT: list[Any] = []


def test_nodes_run_in_any_order_that_their_dependencies_allow(fake: FakeDriver) -> None:
    ran: list[int] = []
    fake.kernels["k"] = lambda words: ran.append(words[0])
    graph, _ = make_graph(fake, [[], [], [0], [1], [2, 3]])
    _, executable = fake.cuGraphInstantiate(graph, 0)
    orders = set()
    for _ in range(60):
        ran.clear()
        assert fake.cuGraphLaunch(executable, 0) == (SUCCESS,)
        orders.add(tuple(ran))
        assert ran.index(0) < ran.index(2) < ran.index(4) > ran.index(3) > ran.index(1)
    assert len(orders) == 6  # all that there are


def test_a_node_has_the_arguments_that_it_was_given_last(fake: FakeDriver) -> None:
    ran: list[int] = []
    fake.kernels["k"] = lambda words: ran.append(words[0])
    graph, nodes = make_graph(fake, [[], [0]])
    (_, executable), (_, other) = (fake.cuGraphInstantiate(graph, 0) for _ in range(2))
    fake.streams.is_lazy = True
    fake.cuGraphLaunch(executable, 0)
    assert fake.cuGraphExecKernelNodeSetParams(executable, nodes[1], node(fake, 7)) == (SUCCESS,)
    fake.cuGraphLaunch(executable, 0)
    fake.cuGraphLaunch(other, 0)
    assert ran == []
    fake.cuStreamSynchronize(0)
    assert ran == [0, 1, 0, 7, 0, 1]


def test_an_executable_runs_once_at_a_time_in_all_streams(fake: FakeDriver) -> None:
    ran: list[int] = []
    fake.kernels["k"] = lambda words: ran.append(words[0])
    graph, _ = make_graph(fake, [[], [0], [1]])
    _, executable = fake.cuGraphInstantiate(graph, 0)
    fake.streams.is_lazy = True
    for stream in (0x10, 0x20, 0x10, 0x30):
        fake.cuGraphLaunch(executable, stream)
    fake.cuCtxSynchronize()
    assert ran == [0, 1, 2] * 4


@pytest.mark.parametrize(
    "misuse",
    [
        lambda fake, graph, nodes, made: fake.cuGraphAddKernelNode(graph, nodes, 1, made),
        lambda fake, graph, nodes, made: fake.cuGraphAddKernelNode(graph, nodes[:1] * 2, 2, made),
        lambda fake, graph, nodes, made: fake.cuGraphAddKernelNode(graph, [graph], 1, made),
        lambda fake, graph, nodes, made: fake.cuGraphAddKernelNode(nodes[0], [], 0, made),
        lambda fake, graph, nodes, made: fake.cuGraphAddKernelNode(graph, [], 0, node(fake, 0, 0)),
        lambda fake, graph, nodes, made: fake.cuGraphInstantiate(nodes[0], 0),
        lambda fake, graph, nodes, made: fake.cuGraphLaunch(graph, 0),
        lambda fake, graph, nodes, made: fake.cuGraphExecKernelNodeSetParams(graph, nodes[0], made),
        lambda fake, graph, nodes, made: fake.cuGraphDestroy(nodes[0]),
        lambda fake, graph, nodes, made: fake.cuGraphExecDestroy(graph),
    ],
)
def test_misuse_of_graphs_is_refused(fake: FakeDriver, misuse: Any) -> None:
    graph, nodes = make_graph(fake, [[], [0]])
    assert misuse(fake, graph, nodes, node(fake, 1))[0] == INVALID_VALUE


def test_a_node_of_a_graph_that_is_gone_can_not_be_changed(fake: FakeDriver) -> None:
    graph, nodes = make_graph(fake, [[]])
    _, executable = fake.cuGraphInstantiate(graph, 0)
    fake.cuGraphDestroy(graph)
    status = fake.cuGraphExecKernelNodeSetParams(executable, nodes[0], node(fake, 1))[0]
    assert status == INVALID_VALUE
    assert fake.cuGraphLaunch(executable, 0) == (SUCCESS,)


def test_no_graph_is_launched_into_a_stream_that_is_captured(fake: FakeDriver) -> None:
    graph, _ = make_graph(fake, [[]])
    _, executable = fake.cuGraphInstantiate(graph, 0)
    fake.cuStreamBeginCapture(0x10, None)
    assert fake.cuGraphLaunch(executable, 0x10)[0] == NOT_IN_CAPTURE


def test_streams_run_when_they_are_waited_for(fake: FakeDriver) -> None:
    """Each in its order, behind what they wait for, and freed memory is no longer what it was."""
    ran: list[str] = []
    streams = fake.streams
    streams.is_lazy = True
    first = streams.put(1, [lambda: ran.append("a"), lambda: ran.append("b")])
    streams.put(2, [lambda: ran.append("c")], [first])
    streams.put(3, [lambda: ran.append("d")])
    streams.drain(2)
    assert [one for one in ran if one != "d"] == ["a", "b", "c"]
    streams.drain()
    assert sorted(ran) == ["a", "b", "c", "d"]
    fake.cuCtxSetCurrent(1)
    _, pointer = fake.cuMemAllocFromPoolAsync(4, 0xB0, 1)
    fake.cuMemFreeAsync(int(pointer), 1)
    assert fake.freed == []
    fake.cuStreamSynchronize(1)
    assert fake.freed == [int(pointer)]
    assert ctypes.string_at(int(pointer), 4) == b"\xa5" * 4


def test_a_failed_kernel_takes_its_context_with_it(fake: FakeDriver) -> None:
    assert launched(fake) == SUCCESS
    fake.failing["cuCtxSynchronize"] = ILLEGAL_ADDRESS
    assert fake.cuCtxSynchronize()[0] == ILLEGAL_ADDRESS
    del fake.failing["cuCtxSynchronize"]
    assert fake.cuMemAlloc(16)[0] == ILLEGAL_ADDRESS
    assert fake.cuCtxSynchronize()[0] == ILLEGAL_ADDRESS
    assert fake.cuDeviceGetCount() == (SUCCESS, 1)


def test_a_refused_call_does_not(fake: FakeDriver) -> None:
    assert launched(fake, blocks=0) == INVALID_VALUE
    assert launched(fake) == SUCCESS
