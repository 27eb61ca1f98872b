"""Later calls with tensors of the same kind look at nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import device, f32
from tests.backend.cuda.fake_driver import FakeDriver
from tests.backend.cuda.test_calls import make_add, numbers
from tests.torch_stand_in import stand_in

__all__ = ["stand_in"]  # a fixture

A, B = numbers(), numbers(20, 1)


def test_later_calls_with_tensors_look_at_nothing(
    fake: FakeDriver, compiled: Any, stand_in: Any
) -> None:
    add, current, tensor = make_add(), stand_in.cuda.current_stream(0), stand_in.Tensor
    current.cuda_stream = 0x70
    x, y, z = (tensor(it) for it in (device.array(A), device.array(B), device.empty(20, f32)))
    assert add(x, y, out=z) is z
    assert add(x, y, out=z) is z
    seen = x.exports
    device.synchronize()
    current.cuda_stream = 0x90
    assert add(x, y, out=z) is z
    assert x.exports == seen
    assert z._version == 3
    device.synchronize()
    np.testing.assert_array_equal(z.memory.numpy(), A + B)
    assert [one["stream"] for one in fake.launches] == [0x70, 0x70, 0x90]
    x.said["is_neg"] = True  # as torch._neg_view makes one
    for _ in range(2):
        with pytest.raises(tc.ArgumentError, match="it is a lazily negated view"):
            add(x, z)


def test_tensors_on_a_device_make_tensors_there(
    fake: FakeDriver, compiled: Any, stand_in: Any
) -> None:
    add, tensor = make_add(), stand_in.Tensor
    x, ours = tensor(device.array(A)), device.array(B)
    for number in range(4):
        for args in ((x, x), (x, ours), (ours, x)):
            seen = x.exports
            made = add(*args)
            assert number < 2 or x.exports == seen
            assert type(made) is tensor
            assert made.is_cuda
            expected = [A if one is x else B for one in args]
            device.synchronize()
            np.testing.assert_array_equal(made.memory.numpy(), expected[0] + expected[1])
        assert type(add(ours, ours)) is device.Array


def test_what_is_made_belongs_to_the_stream_that_writes_it(
    fake: FakeDriver, compiled: Any, stand_in: Any
) -> None:
    """PyTorch gives memory back in the order of the stream it was allocated in."""
    add, x = make_add(), stand_in.Tensor(device.array(A))
    stream = device.Stream()
    for _ in range(3):
        assert add(x, x).stream == stand_in.cuda.current_stream(0).cuda_stream
        with stream:
            assert add(x, x).stream == stream.number


def test_a_parameter_is_taken_where_no_gradient_is_recorded(
    fake: FakeDriver, compiled: Any, stand_in: Any
) -> None:
    add, x = make_add(), stand_in.nn.Parameter(device.array(A))
    with stand_in.no_grad():
        for _ in range(3):
            made = add(x, x)
            device.synchronize()
            np.testing.assert_array_equal(made.memory.numpy(), A + A)
    for _ in range(2):
        with pytest.raises(tc.ArgumentError, match="'a' can't be read: it requires a gradient"):
            add(x, x)


def test_tensors_in_two_places(fake: FakeDriver, compiled: Any, stand_in: Any) -> None:
    add, tensor = make_add(), stand_in.Tensor
    on_gpu, on_cpu = tensor(device.array(A)), tensor(B)
    for args in ((on_gpu, on_cpu), (on_cpu, on_gpu), (on_gpu, tensor(B, device="meta"))):
        with pytest.raises(tc.ArgumentError) as caught:
            add(*args)
        name = "ab"[args[0] is on_gpu]
        lies = f"'{name}' lies in the CPU's memory, and other arguments on CUDA device 0"
        assert (lies if args[1].device.type != "meta" else "it is a meta tensor") in str(
            caught.value
        )
