"""Calls of kernels on a device: what runs where, with which memory."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import device, f32, i32, repeat, spatial
from tests.backend.cuda.conftest import Start
from tests.backend.cuda.fake_driver import FakeDriver

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
