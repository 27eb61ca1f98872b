"""Graphs: calls that are captured once, and replayed on what their inputs hold then."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from taskc import device
from tests.backend.cuda.fake_driver import ILLEGAL_ADDRESS, FakeDriver
from tests.backend.cuda.test_streams import make_scale


def test_a_graph_runs_again_on_what_its_inputs_hold_now(fake: FakeDriver, compiled: Any) -> None:
    scale = make_scale(20)
    x = device.array(np.arange(20, dtype=np.float32))
    graph = device.Graph(lambda: scale(scale(x)))
    x.set(np.ones(20, np.float32))
    before = len(fake.launches)
    graph.replay()
    assert len(fake.launches) == before  # one launch of the graph, none of a kernel
    assert graph.result.numpy().tolist() == [4.0] * 20
    x.set(np.full(20, 2, np.float32))
    graph.replay()
    assert graph.result.numpy().tolist() == [8.0] * 20


def test_a_graph_keeps_the_memory_between_its_calls(fake: FakeDriver, compiled: Any) -> None:
    scale = make_scale(20)
    x = device.array(np.ones(20, np.float32))
    graph = device.Graph(lambda: scale(scale(scale(x))))
    kept = set(fake.memory)
    graph.replay()
    assert graph.result.numpy().tolist() == [8.0] * 20
    # Allocations in a captured stream would be part of the graph.
    captured = fake.names().index("cuStreamBeginCapture")
    ended = fake.names().index("cuStreamEndCapture")
    assert fake.names()[captured + 1 : ended].count("cuMemAlloc") == 3
    assert "cuMemAllocFromPoolAsync" not in fake.names()[captured + 1 : ended]
    del graph
    assert len(kept - set(fake.memory)) == 3
    assert "cuGraphExecDestroy" in fake.names()


def test_arrays_of_other_streams_and_libraries_are_captured(
    fake: FakeDriver, compiled: Any
) -> None:
    """Nothing outside can be waited for; what is there has been waited for before."""
    scale = make_scale(20)
    with device.Stream():
        x = device.array(np.ones(20, np.float32))
    streams: list[Any] = []

    class Foreign:
        def __dlpack_device__(self) -> tuple[int, int]:
            return x.__dlpack_device__()

        def __dlpack__(self, *, stream: Any, **keywords: Any) -> Any:
            streams.append(stream)
            return x.__dlpack__(stream=stream, **keywords)

    graph = device.Graph(lambda: scale(scale(Foreign()).copy()))
    assert streams == [1, -1]
    other = device.Stream()
    graph.replay(other)
    fake.calls.clear()
    assert graph.result.numpy().tolist() == [4.0] * 20
    recorded = [arguments[1] for name, arguments in fake.calls if name == "cuEventRecord"]
    assert other.number in recorded  # the result is read behind the replay


def test_a_graph_s_replay_is_blamed_by_its_kernels_names(fake: FakeDriver, compiled: Any) -> None:
    scale, x = make_scale(20), device.array(np.ones(20, np.float32))
    graph = device.Graph(lambda: scale(x))
    device.synchronize()
    graph.replay()
    fake.failing["cuStreamSynchronize"] = ILLEGAL_ADDRESS
    with pytest.raises(device.DeviceError, match=r"it happened in scale\(\)"):
        device.current_stream().synchronize()


def test_a_capture_that_fails_is_ended(fake: FakeDriver) -> None:
    calls: list[int] = []

    def fails() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        device.Graph(fails)
    assert fake.names()[-3:] == ["cuStreamEndCapture", "cuGraphDestroy", "cuStreamDestroy"]
