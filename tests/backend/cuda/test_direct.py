"""Later calls with tensors of the same kind look at nothing."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import device, f32
from tests.backend.cuda.fake_driver import FakeDriver
from tests.backend.cuda.test_calls import make_add, numbers


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
