"""Arrays of a device for other libraries, and theirs here: DLPack and the array interface."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import device
from taskc.arrays import dlpack
from taskc.backend.cuda.array import _exported
from tests.backend.cuda.fake_driver import FakeDriver
from tests.backend.cuda.test_array import TYPES, Foreign


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_dlpack_both_ways_without_a_copy(fake: FakeDriver, dtype: Any, is_old: bool) -> None:
    x = device.array(np.ones((2, 3)).astype(dtype))
    fake.calls.clear()
    y = device.from_dlpack(Foreign(x, is_old=is_old))
    assert (y.pointer, y.shape, y.strides, y.dtype) == (x.pointer, x.shape, x.strides, x.dtype)
    assert not y.is_read_only
    assert not {"cuMemcpyDtoDAsync", "cuMemAllocFromPoolAsync"} & set(fake.names())


def test_an_exported_array_lives_as_long_as_its_capsule(fake: FakeDriver) -> None:
    x = device.array(np.arange(3.0))
    pointer = x.pointer
    y = device.from_dlpack(x)
    del x
    gc.collect()
    assert fake.freed == []
    assert y.numpy().tolist() == [0, 1, 2]
    fake.calls.clear()
    del y
    gc.collect()
    assert fake.freed == [pointer]
    assert not _exported
    # Nobody knows what the other library did with it: all has to have ended.
    assert [name for name, _ in fake.calls if name in ("cuCtxRecordEvent", "cuMemFreeAsync")] == [
        "cuCtxRecordEvent", "cuMemFreeAsync",
    ]  # fmt: skip
    assert "cuCtxSynchronize" not in [name for name, _ in fake.calls]  # nobody waits for that


def test_a_capsule_that_was_taken_is_freed_by_its_deleter(fake: FakeDriver) -> None:
    import ctypes

    x = device.array(np.arange(3.0))
    capsule = x.__dlpack__(stream=-1)
    (address,) = _exported
    rename = ctypes.pythonapi.PyCapsule_SetName
    rename.argtypes = ctypes.py_object, ctypes.c_char_p
    taken = b"used_dltensor"
    rename(capsule, taken)
    del capsule, x
    gc.collect()
    assert fake.freed == []
    deleter = ctypes.c_void_p.from_address(address + ctypes.sizeof(dlpack.DLTensor) + 8).value
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(deleter)(address)
    gc.collect()
    assert len(fake.freed) == 1


def test_the_consumer_s_stream_waits_for_ours(fake: FakeDriver) -> None:
    ours, theirs = device.Stream(), device.Stream()
    with ours:
        x = device.array(np.arange(3.0))

    def waited(stream: int | None) -> list[Any]:
        fake.calls.clear()
        x.__dlpack__(stream=stream)
        return [arguments[0] for name, arguments in fake.calls if name == "cuStreamWaitEvent"]

    assert waited(theirs.number) == [theirs.number]
    assert waited(ours.number) == []
    assert waited(-1) == []
    assert waited(1) == waited(None) == [0]  # the legacy default stream
    with pytest.raises(BufferError, match="the legacy default stream is 1"):
        x.__dlpack__(stream=0)


def test_the_producer_is_told_our_stream(fake: FakeDriver) -> None:
    foreign = Foreign(device.array(np.arange(3.0)))
    device.from_dlpack(foreign)
    stream = device.Stream()
    with stream:
        device.from_dlpack(foreign)
    assert foreign.streams == [1, stream.number]


def test_dlpack_for_another_device_is_refused(fake: FakeDriver) -> None:
    x = device.array(np.arange(3.0))
    with pytest.raises(BufferError, match="for its own device only"):
        x.__dlpack__(dl_device=(1, 0))
    with pytest.raises(BufferError, match="doesn't lie on a CUDA device"):
        device.from_dlpack(np.arange(3.0))


def test_a_read_only_array_stays_so(fake: FakeDriver) -> None:
    x = device.array(np.arange(3.0))
    x.is_read_only = True
    assert device.from_dlpack(x).is_read_only
    with pytest.raises(BufferError, match="read-only"):
        x.__dlpack__()
    with pytest.raises(ValueError, match="isn't read-only"):
        x.set(np.zeros(3))


def test_the_array_interface_both_ways(fake: FakeDriver) -> None:
    stream = device.Stream()
    with stream:
        x = device.array(np.arange(6.0).reshape(2, 3))
    given = x.__cuda_array_interface__
    assert given == {
        "shape": (2, 3), "typestr": "<f8", "data": (x.pointer, False), "strides": None,
        "version": 3, "stream": stream.number,
    }  # fmt: skip
    fake.calls.clear()
    y = device.asarray(SimpleNamespace(__cuda_array_interface__=given))
    assert (y.pointer, y.shape, y.dtype) == (x.pointer, x.shape, x.dtype)
    # Our stream, the legacy default one, waits for the one that it was written in.
    (record,) = [arguments for name, arguments in fake.calls if name == "cuEventRecord"]
    (wait,) = [arguments for name, arguments in fake.calls if name == "cuStreamWaitEvent"]
    assert (record[1], wait[0]) == (stream.number, 0)


def test_the_array_interface_says_1_for_the_legacy_stream(fake: FakeDriver) -> None:
    assert device.empty(3, np.float32).__cuda_array_interface__["stream"] == 1


@pytest.mark.parametrize("dtype", [tc.bf16, tc.f8e4m3, tc.f8e5m2], ids=str)
def test_the_array_interface_has_no_small_floats(fake: FakeDriver, dtype: Any) -> None:
    assert not hasattr(device.empty(3, dtype), "__cuda_array_interface__")
