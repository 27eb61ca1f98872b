"""Streams, events, graphs, and errors that come late."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import device, f32, repeat, spatial
from tests.backend.cuda.conftest import Start
from tests.backend.cuda.fake_driver import ILLEGAL_ADDRESS, INVALID_VALUE, FakeDriver


def make_scale(n: int) -> Any:
    own = spatial(4) * repeat(2)

    @tc.kernel(workers=own.workers)
    def scale(x: f32[n], y: tc.out[f32[n]]):
        for start in tc.tiles(n, by=8):
            for i in own:
                if start + i < n:
                    y[start + i] = 2 * x[start + i]

    return scale


def test_the_current_stream(fake: FakeDriver) -> None:
    assert device.current_stream().number == 0
    with device.Stream() as outer:
        assert device.current_stream() is outer
        with device.Stream() as inner, outer, inner:
            assert device.current_stream() is inner
        assert device.current_stream() is outer
    assert device.current_stream().number == 0


def test_each_thread_has_a_current_stream(fake: FakeDriver) -> None:
    stream, inside, leave = device.Stream(), threading.Event(), threading.Event()
    seen: list[Any] = []

    def other() -> None:
        seen.append(device.current_stream().number)
        with stream:
            inside.set()
            leave.wait(10)
            seen.append(device.current_stream())

    thread = threading.Thread(target=other)
    with stream:
        thread.start()
        assert inside.wait(10)
    assert device.current_stream().number == 0
    leave.set()
    thread.join()
    assert seen == [0, stream]


def test_the_current_stream_of_each_device(start: Start) -> None:
    start(devices=2)
    with device.Stream(0) as first, device.Stream(1) as second:
        assert device.current_stream(0) is first
        assert device.current_stream(1) is second


def test_streams_of_others(fake: FakeDriver) -> None:
    by_protocol = SimpleNamespace(__cuda_stream__=lambda: (0, 0x55))
    assert device.Stream.of(by_protocol).number == 0x55
    assert device.Stream.of(SimpleNamespace(cuda_stream=0x56)).number == 0x56
    assert device.Stream.of(SimpleNamespace(ptr=0x57)).number == 0x57
    assert device.Stream.of(0x55) is device.Stream.of(by_protocol)
    assert device.Stream.of(1) is device.Stream.of(0) is device.current_stream()
    ours = device.Stream()
    assert device.Stream.of(ours) is ours
    assert ours.__cuda_stream__() == (0, ours.number)


def test_a_stream_is_destroyed(fake: FakeDriver) -> None:
    stream = device.Stream()
    number = stream.number
    del stream
    assert ("cuStreamDestroy", (number,)) in fake.calls
    assert number not in device.context().streams


def test_events(fake: FakeDriver) -> None:
    stream, other = device.Stream(), device.Stream()
    start, end = stream.record(), stream.record()
    assert end.since(start) == 1.5
    end.synchronize()
    other.wait(end)
    other.wait(stream)
    other.wait(other)
    waits = [arguments[0] for name, arguments in fake.calls if name == "cuStreamWaitEvent"]
    assert waits == [other.number] * 2


def test_a_call_goes_into_the_current_stream(fake: FakeDriver, compiled: Any) -> None:
    scale, x = make_scale(20), device.array(np.arange(20, dtype=np.float32))
    scale(x)
    with device.Stream() as stream:
        scale(x)
        scale(x, out=device.empty(20, f32))
    assert [one["stream"] for one in fake.launches] == [0, stream.number, stream.number]


def test_a_late_error_names_the_kernels_that_may_have_failed(
    fake: FakeDriver, compiled: Any
) -> None:
    scale, x = make_scale(20), device.array(np.arange(20, dtype=np.float32))
    y = scale(x)
    fake.failing["cuMemcpyDtoHAsync"] = ILLEGAL_ADDRESS
    with pytest.raises(device.DeviceError) as caught:
        y.numpy()
    assert str(caught.value) == (
        "cuMemcpyDtoHAsync failed: CUDA_ERROR_ILLEGAL_ADDRESS, in CUDA's words; it happened in"
        " scale(), launched since the last synchronization"
    )


def test_an_error_of_the_call_itself_names_no_kernel(fake: FakeDriver, compiled: Any) -> None:
    scale, x = make_scale(20), device.array(np.arange(20, dtype=np.float32))
    scale(x)
    fake.failing["cuEventCreate"] = INVALID_VALUE
    with pytest.raises(device.DeviceError) as caught:
        device.Event()
    assert "scale" not in str(caught.value)


@pytest.mark.parametrize("how", ["stream", "device"])
def test_what_has_ended_is_not_blamed(fake: FakeDriver, compiled: Any, how: str) -> None:
    scale, x = make_scale(20), device.array(np.arange(20, dtype=np.float32))
    scale(x)
    if how == "stream":
        device.current_stream().synchronize()
    else:
        device.synchronize()
    fake.failing["cuMemAllocAsync"] = ILLEGAL_ADDRESS
    with pytest.raises(device.DeviceError) as caught:
        device.empty(3, f32)
    assert "scale" not in str(caught.value)


def test_a_launch_that_fails_names_its_kernel(fake: FakeDriver, compiled: Any) -> None:
    scale, x = make_scale(20), device.array(np.arange(20, dtype=np.float32))
    fake.failing["cuLaunchKernelEx"] = INVALID_VALUE
    with pytest.raises(device.DeviceError) as caught:
        scale(x)
    assert str(caught.value) == (
        "launching scale(): cuLaunchKernelEx failed: CUDA_ERROR_INVALID_VALUE, in CUDA's words"
    )


# --- graphs ----------------------------------------------------------------------------------


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
    assert "cuMemAllocAsync" not in fake.names()[captured + 1 : ended]
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
