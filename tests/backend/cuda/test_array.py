"""Arrays of a device: whose memory it is, and how it goes from library to library."""

from __future__ import annotations

import gc
import sys
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import taskc as tc
from taskc import device, dlpack
from taskc.backend.cuda.export import _exported
from tests.backend.cuda.conftest import Start, array_at
from tests.backend.cuda.fake_driver import FakeDriver

TYPES = ("float32", "float64", "int8", "uint64", "bool", "float16", ml_dtypes.bfloat16)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3, 4)], ids=str)
def test_there_and_back(fake: FakeDriver, dtype: Any, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    x = device.array(values)
    assert (x.shape, x.dtype, x.ndim, x.size) == (shape, values.dtype, len(shape), values.size)
    assert x.nbytes == values.nbytes
    back = x.numpy()
    assert back.dtype == values.dtype
    np.testing.assert_array_equal(back, values)


def test_a_copy_of_what_is_scattered(fake: FakeDriver) -> None:
    values = np.arange(24.0).reshape(4, 6)[::-1, ::2]
    np.testing.assert_array_equal(device.array(values).numpy(), values)


def test_types_of_the_language(fake: FakeDriver) -> None:
    assert device.empty((2, 3), tc.bf16).dtype == ml_dtypes.bfloat16
    assert repr(device.empty((2, 3), tc.f32)) == "<float32[2, 3] on CUDA device 0>"
    assert device.empty(5, tc.f32).shape == (5,)
    assert len(device.empty((7, 2), tc.f32)) == 7


def test_memory_is_given_back_in_the_order_of_its_stream(fake: FakeDriver) -> None:
    stream = device.Stream()
    with stream:
        x = device.empty(4, np.float32)
    pointer = x.pointer
    del x
    gc.collect()
    assert fake.freed == [pointer]
    (freed,) = [arguments for name, arguments in fake.calls if name == "cuMemFreeAsync"]
    assert freed == (pointer, stream.number)


def test_memory_waits_for_other_streams_that_use_it(fake: FakeDriver) -> None:
    x, y = device.empty(4, np.float32), device.Stream()
    x.memory.used(y)
    fake.calls.clear()
    del x
    assert fake.names() == [
        "cuEventCreate", "cuEventRecord", "cuStreamWaitEvent", "cuEventDestroy", "cuMemFreeAsync",
    ]  # fmt: skip
    (record,) = [arguments for name, arguments in fake.calls if name == "cuEventRecord"]
    assert record[1] == y.number


def test_memory_of_a_device_without_pools(start: Start) -> None:
    fake = start(has_pools=False)
    x = device.array(np.arange(3.0))
    assert x.numpy().tolist() == [0, 1, 2]
    del x
    assert {"cuMemAlloc", "cuMemFree"} <= set(fake.names())
    assert not {"cuMemAllocAsync", "cuMemFreeAsync"} & set(fake.names())


def test_setting(fake: FakeDriver) -> None:
    x = device.empty((2, 3), np.int32)
    x.set(np.arange(6, dtype=np.int32).reshape(2, 3))
    assert x.numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    x.set(device.array(np.full((2, 3), 7, np.int32)))
    assert x.numpy().tolist() == [[7] * 3] * 2
    with pytest.raises(ValueError, match="an array of int32 and the shape"):
        x.set(np.zeros((3, 2), np.int32))


def test_numpy_cannot_reach_it(fake: FakeDriver) -> None:
    with pytest.raises(TypeError, match=r"lies on a GPU.*\.numpy\(\) copies it"):
        np.asarray(device.empty(3, np.float32))


# --- other libraries -------------------------------------------------------------------------


class Foreign:
    """Another library's array: it exports one of ours, and notes for which stream."""

    def __init__(self, array: device.Array, **changed: Any) -> None:
        self.array = array
        self.streams: list[Any] = []
        self.changed = changed

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, *, stream: Any = None, **keywords: Any) -> Any:
        self.streams.append(stream)
        if self.changed.get("is_old") and keywords:
            raise TypeError("unexpected keyword")
        return self.array.__dlpack__(stream=-1, **keywords)


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_dlpack_both_ways_without_a_copy(fake: FakeDriver, dtype: Any, is_old: bool) -> None:
    x = device.array(np.ones((2, 3)).astype(dtype))
    fake.calls.clear()
    y = device.from_dlpack(Foreign(x, is_old=is_old))
    assert (y.pointer, y.shape, y.strides, y.dtype) == (x.pointer, x.shape, x.strides, x.dtype)
    assert not y.is_read_only
    assert not {"cuMemcpyDtoDAsync", "cuMemAllocAsync"} & set(fake.names())


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
    assert [name for name, _ in fake.calls if name in ("cuCtxSynchronize", "cuMemFreeAsync")] == [
        "cuCtxSynchronize", "cuMemFreeAsync",
    ]  # fmt: skip


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


def test_strided_memory_of_others_is_copied_plane_by_plane(fake: FakeDriver) -> None:
    base = device.array(np.arange(120.0).reshape(2, 3, 4, 5))
    there = array_at(base.pointer, base.shape, base.dtype)
    for view in (
        there.transpose(0, 2, 1, 3), there.T, there[:, ::2, 1:, ::-1], there[1, :, 2, :3],
        np.broadcast_to(there[0, 0, 0], (4, 5)), there[:, :, :, 2:3], there[::-1, 1:2],
    ):  # fmt: skip
        foreign = SimpleNamespace(
            __cuda_array_interface__={
                "shape": view.shape, "typestr": "<f8", "data": (view.ctypes.data, False),
                "strides": view.strides, "version": 3,
            }
        )  # fmt: skip
        x = device.asarray(foreign)
        assert x.is_contiguous == view.flags.c_contiguous
        np.testing.assert_array_equal(x.numpy(), view)


def test_torch_s_current_stream_is_ours(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    current = SimpleNamespace(cuda_stream=0x77)
    torch = SimpleNamespace(cuda=SimpleNamespace(current_stream=lambda number: current))
    monkeypatch.setitem(sys.modules, "torch", torch)

    class Tensor(Foreign):
        __module__ = "torch"

    tensor = Tensor(device.array(np.arange(3.0)))
    assert device.from_dlpack(tensor).memory.stream.number == 0x77
    with device.Stream() as stream:  # what the user says comes first
        assert device.from_dlpack(tensor).memory.stream is stream
    assert tensor.streams == [0x77, stream.number]


def test_an_array_on_another_device(start: Start) -> None:
    fake = start(devices=2)
    x = device.array(np.arange(3.0), device=1)
    assert x.__dlpack_device__() == (2, 1)
    assert device.from_dlpack(x).device == 1
    with pytest.raises(device.DeviceError, match="lies on CUDA device 1, and not on 0"):
        device.asarray(x, device=0)
    fake.device_of[x.pointer] = 1
    only = SimpleNamespace(__cuda_array_interface__=x.__cuda_array_interface__)
    assert device.asarray(only).device == 1


def test_another_shape_of_the_same_memory(fake: FakeDriver) -> None:
    given = device.empty((2, 6), np.float32)
    seen = given.reshape((3, 4))
    assert (seen.pointer, seen.shape, seen.memory) == (given.pointer, (3, 4), given.memory)
    with pytest.raises(ValueError, match=r"the shape \(2, 6\) can't be seen as \(5, 2\)"):
        given.reshape((5, 2))
