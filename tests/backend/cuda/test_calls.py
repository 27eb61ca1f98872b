"""Calls of kernels on a device: what runs where, with which memory, and what a launch is told."""

from __future__ import annotations

import ctypes
import sys
import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import device, f32, i32, repeat, spatial
from taskc.backend.cuda import launch, target, tensor_maps
from taskc.backend.cuda.compiled import Argument, Compiled, Resources, TensorMap
from taskc.errors import NOWHERE, Location
from tests.backend.cuda.conftest import Start, array_at
from tests.backend.cuda.fake_driver import INVALID_VALUE, FakeDriver

LOCATION = Location("a.py", 9, 4, 9, 12)
OWN = spatial(4) * repeat(2)


def make_add() -> Any:
    n = tc.dim("n")

    @tc.kernel(workers=OWN.workers)
    def add(a: f32[n], b: f32[n], c: tc.out[f32[n]]):
        for start in tc.tiles(n, by=8):
            for i in OWN:
                if start + i < n:
                    c[start + i] = a[start + i] + b[start + i]

    return add


def make_count() -> Any:
    @tc.kernel(workers=4)
    def count(x: tc.inout[i32[4]], step: i32, old: tc.out[i32[4]]):
        for i in spatial(4):
            old[i] = x[i]
            x[i] = x[i] + step

    return count


def numbers(n: int = 20, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


def test_arrays_on_a_device_run_there(fake: FakeDriver, compiled: Any) -> None:
    add = make_add()
    for n in (20, 3, 20):
        a, b = numbers(n), numbers(n, 1)
        c = add(device.array(a), device.array(b))
        assert isinstance(c, device.Array)
        np.testing.assert_array_equal(c.numpy(), a + b)
    assert [one["grid"] for one in fake.launches] == [(3, 1, 1), (1, 1, 1), (3, 1, 1)]
    assert fake.launches[0]["block"] == (4, 1, 1)
    assert compiled["add"].arch == "sm_90a"


def test_one_kernel_runs_where_its_arrays_are(fake: FakeDriver, compiled: Any) -> None:
    add, a, b = make_add(), numbers(), numbers(20, 1)
    x, y = device.array(a), device.array(b)
    expected = a + b
    for _ in range(3):
        on_cpu, there = add(a, b), add(x, y)
        assert isinstance(on_cpu, np.ndarray)
        np.testing.assert_array_equal(on_cpu, expected)
        np.testing.assert_array_equal(there.numpy(), expected)
    assert len(fake.launches) == 3


def test_outputs_are_written_in_place(fake: FakeDriver, compiled: Any) -> None:
    add, a, b = make_add(), numbers(), numbers(20, 1)
    x, y = device.array(a), device.array(b)
    for keyword in ("out", "c", "out"):
        z = device.empty(20, f32)
        assert add(x, y, **{keyword: z}) is z
        np.testing.assert_array_equal(z.numpy(), a + b)


def test_scalars_and_inouts(fake: FakeDriver, compiled: Any) -> None:
    count, x = make_count(), device.array(np.arange(4, dtype=np.int32))
    for step in (5, -7):
        before = x.numpy()
        old = count(x, step)
        assert old.numpy().tolist() == before.tolist()
        assert x.numpy().tolist() == (before + step).tolist()


def test_nothing_is_launched_for_empty_arrays(fake: FakeDriver, compiled: Any) -> None:
    x = device.empty(0, f32)
    assert make_add()(x, x).shape == (0,)
    assert fake.launches == []


def test_numpy_arrays_are_copied_where_the_target_is_asked_for(
    fake: FakeDriver, compiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKC_TARGET", "cuda")
    a, b = numbers(), numbers(20, 1)
    c = make_add()(a, b)
    assert isinstance(c, np.ndarray)
    np.testing.assert_array_equal(c, a + b)
    x = np.arange(4, dtype=np.int32)
    old = make_count()(x, 3)
    assert (old.tolist(), x.tolist()) == ([0, 1, 2, 3], [3, 4, 5, 6])
    assert len(fake.launches) == 2


def test_a_program_runs_where_its_arrays_are(fake: FakeDriver, compiled: Any) -> None:
    n = tc.dim("n")
    add = make_add()

    @tc.program
    def twice(a: f32[n], b: f32[n], c: tc.out[f32[n]]):
        t = tc.empty(f32[n])
        add(a, b, out=t)
        add(t, b, out=c)

    a, b = numbers(), numbers(20, 1)
    c = twice(device.array(a), device.array(b))
    np.testing.assert_array_equal(c.numpy(), a + b + b)
    assert len(fake.launches) == 2


# --- what doesn't fit ------------------------------------------------------------------------


def refused(*args: Any, **keywords: Any) -> str:
    with pytest.raises(tc.ArgumentError) as caught:
        make_add()(*args, **keywords)
    return str(caught.value)


def test_mixed_memory_is_refused(fake: FakeDriver, compiled: Any) -> None:
    a, x = numbers(), device.array(numbers())
    said = (
        "lies in the CPU's memory, and other arguments on CUDA device 0; taskc.device.array()"
        " makes a copy there"
    )
    assert refused(a, x) == f"add(): argument 'a' {said}"
    assert refused(x, a) == f"add(): argument 'b' {said}"
    assert refused(x, x, out=a) == f"add(): output 'c' {said}"
    assert refused(x, [1.0]) == (
        "add(): argument 'b' must be f32[n], as an array on CUDA device 0, not a list"
    )
    assert fake.launches == []


def test_arrays_on_two_devices_are_refused(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    start(devices=2)
    x, y = device.array(numbers()), device.array(numbers(), device=1)
    expected = "add(): argument 'b' lies on CUDA device 1, and other arguments on CUDA device 0"
    assert refused(x, y) == expected


def test_types_and_shapes_are_checked(fake: FakeDriver, compiled: Any) -> None:
    x = device.array(numbers())
    assert refused(x, device.array(np.arange(20.0))) == (
        "add(): argument 'b' must be f32[n], not f64[20]"
    )
    assert refused(x, device.array(numbers(4))) == (
        "add(): argument 'b' must be f32[n] with n = 20 (from 'a'), not f32[4]"
    )


def view(array: device.Array, shape: Any, strides: Any, offset: int = 0) -> Any:
    """A part of an array, as another library would pass it."""
    return SimpleNamespace(
        array=array,
        __cuda_array_interface__={
            "shape": shape, "typestr": array.dtype.str, "data": (array.pointer + offset, False),
            "strides": strides, "version": 3,
        },
    )  # fmt: skip


def test_overlapping_outputs_are_refused_also_later(fake: FakeDriver, compiled: Any) -> None:
    add, x, y = make_add(), device.array(numbers()), device.array(numbers())
    add(x, y, out=device.empty(20, f32))
    for _ in range(2):  # the first of a form, and one that goes straight to a launch
        with pytest.raises(tc.ArgumentError, match="output 'c' is written, and it overlaps 'b'"):
            add(x, y, out=y)
    large = device.array(numbers(44))
    with pytest.raises(tc.ArgumentError, match="overlaps 'a' in memory"):
        add(view(large, (20,), None), y, out=view(large, (20,), None, 64))
    add(view(large, (20,), None), y, out=view(large, (20,), None, 80))


def test_a_misplaced_input_is_copied_on_the_device_with_a_warning(
    fake: FakeDriver, compiled: Any
) -> None:
    add, whole = make_add(), numbers(41)
    x, y = device.array(whole), device.array(numbers())
    for strides, offset, expected, said in (
        ((8,), 0, whole[:40:2], "input 'a' isn't contiguous"),
        (None, 4, whole[1:21], "input 'a' isn't at a multiple of 16 bytes"),
    ):
        for _ in range(2):
            with pytest.warns(tc.CopyWarning, match=said) as caught:
                z = add(view(x, (20,), strides, offset), y)
            assert "taskc.device.array, used once, saves that" in str(caught[0].message)
            np.testing.assert_array_equal(z.numpy(), expected + y.numpy())
    with pytest.raises(tc.ArgumentError, match="must be contiguous and row-major"):
        add(y, y, out=view(x, (20,), (8,)))
    with pytest.raises(tc.ArgumentError, match="it must start at a multiple of 16 bytes"):
        add(y, y, out=view(x, (20,), None, 4))


def test_checking_copies_nothing(fake: FakeDriver, compiled: Any) -> None:
    add, x, y, z = make_add(), *[device.array(numbers()) for _ in range(3)]
    fake.calls.clear()
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            add(x, y, out=z)
    names = fake.names()
    assert names.count("cuLaunchKernelEx") == 2
    assert not [name for name in names if "Mem" in name]


def test_what_torch_refuses_to_export_is_said(fake: FakeDriver, compiled: Any) -> None:
    class Stubborn:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

        def __dlpack__(self, **options: Any) -> Any:
            raise RuntimeError("it requires a gradient")

    expected = "add(): argument 'a' can't be read where it lies: it requires a gradient"
    assert refused(Stubborn(), device.array(numbers())) == expected


# --- calls that look at nothing twice --------------------------------------------------------


class Tensor:
    """As much of torch's as a call looks at."""

    __module__ = "torch"

    def __init__(self, array: device.Array) -> None:
        self.array = array
        self.shape, self.dtype, self.requires_grad = array.shape, str(array.dtype), False
        self.exports, self.is_negated = 0, False

    def is_neg(self) -> bool:
        return self.is_negated

    def stride(self) -> tuple[int, ...]:
        return tuple([step // self.array.dtype.itemsize for step in self.array.strides])

    def get_device(self) -> int:
        return self.array.device

    def data_ptr(self) -> int:
        return self.array.pointer

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        self.exports += 1
        return self.array.__dlpack__(**options)


def test_later_calls_with_tensors_look_at_nothing(
    fake: FakeDriver, compiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    current = SimpleNamespace(cuda_stream=0x70)
    torch = SimpleNamespace(cuda=SimpleNamespace(current_stream=lambda number: current))
    monkeypatch.setitem(sys.modules, "torch", torch)
    add, a, b = make_add(), numbers(), numbers(20, 1)
    x, y, z = Tensor(device.array(a)), Tensor(device.array(b)), Tensor(device.empty(20, f32))
    assert add(x, y, out=z) is z
    assert add(x, y, out=z) is z
    seen = x.exports
    current.cuda_stream = 0x90
    assert add(x, y, out=z) is z
    assert x.exports == seen
    result = add(x, z)  # a new form
    seen = x.exports
    again = add(x, z)
    assert x.exports == seen
    np.testing.assert_array_equal(z.array.numpy(), a + b)
    np.testing.assert_array_equal(result.numpy(), a + (a + b))
    np.testing.assert_array_equal(again.numpy(), result.numpy())
    assert [one["stream"] for one in fake.launches][:3] == [0x70, 0x70, 0x90]
    x.is_negated = True  # as torch._neg_view makes one
    with pytest.raises(tc.ArgumentError, match="it is a lazily negated view"):
        add(x, z)


# --- what a launch is told -------------------------------------------------------------------


@pytest.fixture
def made(fake: FakeDriver, compiled: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is changed of compiled kernels, which then do nothing."""
    changed: dict[str, Any] = {}
    before = target.compiled

    def compile(*arguments: Any) -> Compiled:
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

    class Overwritten(tensor_maps.Encoded):
        """Whoever reads it behind its end finds something else."""

        def __del__(self) -> None:
            ctypes.memset(self.address, 0xA5, tensor_maps.BYTES)

    monkeypatch.setattr(tensor_maps, "Encoded", Overwritten)
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
