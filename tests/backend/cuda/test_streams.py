"""Streams, events, and errors that come late."""

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
    fake.failing["cuMemAllocFromPoolAsync"] = ILLEGAL_ADDRESS
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
