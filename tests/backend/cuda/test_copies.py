"""Copies of scattered memory."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from taskc import device
from tests.backend.cuda.conftest import array_at
from tests.backend.cuda.fake_driver import FakeDriver


def test_a_copy_of_what_is_scattered(fake: FakeDriver) -> None:
    values = np.arange(24.0).reshape(4, 6)[::-1, ::2]
    np.testing.assert_array_equal(device.array(values).numpy(), values)


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
