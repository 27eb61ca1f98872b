"""Launches: the shared memory, tensor maps and assertions of a kernel, and what the driver refuses."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import device, f32, spatial
from taskc.backend.cuda import launch, target
from taskc.backend.cuda.compiled import Argument, CompiledCubin, Resources, TensorMap
from taskc.errors import NOWHERE, Location
from tests.backend.cuda.conftest import Start, array_at
from tests.backend.cuda.fake_driver import INVALID_VALUE, FakeDriver
from tests.backend.cuda.host import COMPILER
from tests.backend.cuda.hosting import compiler_of
from tests.backend.cuda.test_calls import make_add, numbers

LOCATION = Location("a.py", 9, 4, 9, 12)


# --- what a launch is told -------------------------------------------------------------------


@pytest.fixture
def made(fake: FakeDriver, compiled: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is changed of compiled kernels, which then do nothing."""
    changed: dict[str, Any] = {}
    before = target.compiled

    def compile(*arguments: Any) -> CompiledCubin:
        found = replace(before(*arguments), **changed)
        fake.arguments_of[found.name] = len(found.arguments)
        fake.kernels[found.name] = lambda words: None
        return found

    monkeypatch.setattr(target, "compiled", compile)
    return changed


def test_more_shared_memory_is_asked_for(fake: FakeDriver, made: dict[str, Any]) -> None:
    made["shared"] = 100 << 10
    x = device.array(numbers())
    make_add()(x, x)
    (asked,) = [arguments for name, arguments in fake.calls if name == "cuFuncSetAttribute"]
    attributes = fake.CUfunction_attribute
    assert asked[1:] == (attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100 << 10)
    assert fake.launches[0]["shared"] == 100 << 10


def test_shared_memory_that_every_kernel_has_is_not_asked_for(
    fake: FakeDriver, made: dict[str, Any]
) -> None:
    made["shared"] = 48 << 10
    x = device.array(numbers())
    make_add()(x, x)
    assert "cuFuncSetAttribute" not in fake.names()


def test_more_shared_memory_than_there_is(fake: FakeDriver, made: dict[str, Any]) -> None:
    made |= {"shared": 227 << 10, "resources": Resources(shared=16)}
    x = device.array(numbers())
    with pytest.raises(device.DeviceError) as caught:
        make_add()(x, x)
    assert str(caught.value) == (
        "add() needs 232464 bytes of shared memory, and a block has at most 232448 on Fake GPU"
    )


def test_a_failed_assertion_is_raised_at_the_next_synchronization(
    fake: FakeDriver, made: dict[str, Any]
) -> None:
    made |= {
        "arguments": (*[Argument("tensor", k) for k in range(3)], Argument("status")),
        "asserts": (("first", NOWHERE), ("", LOCATION)),
    }
    add, x = make_add(), device.array(numbers())

    def fails(words: list[int]) -> None:
        array_at(words[3], (1,), np.uint32)[0] = 2

    add(x, x).numpy()
    fake.kernels["add"] = fails
    y = add(x, x)
    with pytest.raises(tc.CheckError) as caught:
        y.numpy()
    (finding,) = caught.value.findings
    assert (finding.message, finding.location) == ("the assertion does not hold", LOCATION)
    y.numpy()  # it is said once


def test_a_graph_s_assertions_are_looked_at_after_a_replay(
    fake: FakeDriver, made: dict[str, Any]
) -> None:
    made |= {
        "arguments": (*[Argument("tensor", k) for k in range(3)], Argument("status")),
        "asserts": (("too small", LOCATION),),
    }
    add, x = make_add(), device.array(numbers())
    fails: list[int] = []

    def kernel(words: list[int]) -> None:
        array_at(words[3], (1,), np.uint32)[0] = len(fails)

    add(x, x)
    fake.kernels["add"] = kernel
    graph = device.Graph(lambda: add(x, x))
    graph.replay()
    device.synchronize()
    fails.append(1)
    graph.replay()
    with pytest.raises(tc.CheckError, match="too small"):
        device.synchronize()


def test_tensor_maps_are_made_once_for_each_tensor(fake: FakeDriver, made: dict[str, Any]) -> None:
    @tc.kernel(workers=4)
    def move(x: f32[6, 64], y: tc.out[f32[6, 64]]):
        for row, col in tc.tiles((6, 64), by=(1, 4)):
            for i in spatial(4):
                y[row, col + i] = x[row, col + i]

    made |= {
        "arguments": (Argument("map", 0), Argument("tensor", 1), Argument("map", 1)),
        "maps": (TensorMap(0, "f32", (2, 32), 128), TensorMap(1, "f32", (6, 64))),
    }
    x = device.array(np.zeros((6, 64), np.float32))
    y = move(x)
    move(x, out=y)
    move(x, out=y)
    first, second = fake.maps[:2]
    assert first == {
        "aligned": True, "type": "CU_TENSOR_MAP_DATA_TYPE_UINT32", "pointer": x.pointer,
        "extents": [64, 6], "strides": [256], "box": [32, 2], "steps": [1, 1],
        "swizzle": "CU_TENSOR_MAP_SWIZZLE_128B",
    }  # fmt: skip
    assert second["swizzle"] == "CU_TENSOR_MAP_SWIZZLE_NONE"
    assert second["pointer"] == y.pointer
    assert len(fake.maps) == 2  # the form and the tensors were the same
    move(device.array(np.zeros((6, 64), np.float32)), out=y)
    assert len(fake.maps) == 3


def test_tensor_maps_stay_for_as_long_as_their_launch(
    fake: FakeDriver, made: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where too many are remembered between the first map of a launch and its last."""

    class Overwritten(launch.Encoded):
        """Whoever reads it behind its end finds something else."""

        def __del__(self) -> None:
            ctypes.memset(self.address, 0xA5, launch.BYTES)

    monkeypatch.setattr(launch, "Encoded", Overwritten)
    monkeypatch.setattr(launch, "_REMEMBERED", 3)
    made |= {
        "arguments": (Argument("map", 0), Argument("map", 1), Argument("tensor", 2)),
        "maps": (TensorMap(0, "f32", (8,)), TensorMap(1, "f32", (8,))),
    }
    add, kept = make_add(), []
    for _ in range(8):
        a, b, c = device.array(numbers()), device.array(numbers()), device.empty(20, f32)
        add(a, b, out=c)
        kept += [a, b, c]
        assert fake.launches[-1]["words"] == [a.pointer, b.pointer, c.pointer]


def test_a_tensor_map_that_the_driver_refuses(fake: FakeDriver, made: dict[str, Any]) -> None:
    made |= {
        "arguments": (Argument("map", 0), Argument("tensor", 1), Argument("tensor", 2)),
        "maps": (TensorMap(0, "f32", (300,)),),
    }
    fake.failing["cuTensorMapEncodeTiled"] = INVALID_VALUE
    x = device.array(numbers())
    with pytest.raises(device.DeviceError) as caught:
        make_add()(x, x)
    assert str(caught.value) == (
        "cuTensorMapEncodeTiled failed: CUDA_ERROR_INVALID_VALUE, in CUDA's words; the tensor has"
        " the shape (20,) with elements of 4 bytes, and the box (300,)"
    )


def test_a_kernel_for_a_newer_device_is_refused(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(capability=(8, 0))

    @tc.cuda.kernel(workers=32, target="sm_90a")
    def fill(y: tc.out[f32[32]]):
        for i in spatial(32):
            y[i] = 1.0

    with pytest.raises(device.DeviceError) as caught:
        fill(out=device.empty(32, f32))
    assert str(caught.value) == (
        "fill() is written for sm_90a, and CUDA device 0, Fake GPU, runs code for sm_80"
    )


@pytest.mark.parametrize("processors", [1, 114, 144])
def test_a_persistent_grid_has_as_many_blocks_as_the_device_has_processors(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, processors: int
) -> None:
    """And its blocks take tiles that are as far apart: none is left out, none is computed twice."""
    if COMPILER is None:
        pytest.skip("there is no C++ compiler")
    fake = start(processors=processors)
    monkeypatch.setattr(target, "compiled", compiler_of(fake))
    monkeypatch.setenv("TASKC_CACHE", str(tmp_path))
    n = tc.dim("n")

    @tc.kernel(workers=32)
    def more(x: f32[n], y: tc.inout[f32[n]]):
        for start in tc.tiles(n, by=32, persistent=True):
            for i in spatial(32):
                if start + i < n:
                    y[start + i] = y[start + i] + x[start + i]

    for size, tiles in ((4170, 131), (330, 11)):
        x = device.array(np.arange(size, dtype=np.float32))
        y = device.array(np.ones(size, np.float32))
        more(x, y)
        np.testing.assert_array_equal(y.numpy(), 1 + np.arange(size))
        assert fake.launches[-1]["grid"][0] == min(processors, tiles)
