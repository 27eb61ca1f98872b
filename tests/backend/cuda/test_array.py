"""Arrays of a device, and of other libraries on it."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import taskc as tc
from taskc import device
from tests.backend.cuda.conftest import Start
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


def test_types_of_the_language(fake: FakeDriver) -> None:
    assert device.empty((2, 3), tc.bf16).dtype == ml_dtypes.bfloat16
    assert repr(device.empty((2, 3), tc.f32)) == "<float32[2, 3] on CUDA device 0>"
    assert device.empty(5, tc.f32).shape == (5,)
    assert len(device.empty((7, 2), tc.f32)) == 7


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


def test_torch_s_current_stream_is_ours(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    current = SimpleNamespace(cuda_stream=0x77)
    cuda = SimpleNamespace(current_stream=lambda number: current, is_initialized=lambda: True)
    torch = SimpleNamespace(cuda=cuda)
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
