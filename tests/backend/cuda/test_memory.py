"""Memory of a device is given back in the order of its streams."""

from __future__ import annotations

import gc

import numpy as np

from taskc import device
from tests.backend.cuda.conftest import Start
from tests.backend.cuda.fake_driver import FakeDriver


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
        "cuStreamIsCapturing", "cuEventCreate", "cuEventRecord", "cuStreamWaitEvent", "cuEventDestroy",
        "cuMemFreeAsync",
    ]  # fmt: skip
    (record,) = [arguments for name, arguments in fake.calls if name == "cuEventRecord"]
    assert record[1] == y.number


def test_memory_of_a_device_without_pools(start: Start) -> None:
    fake = start(has_pools=False)
    x = device.array(np.arange(3.0))
    assert x.numpy().tolist() == [0, 1, 2]
    del x
    assert {"cuMemAlloc", "cuMemFree"} <= set(fake.names())
    assert not {"cuMemAllocFromPoolAsync", "cuMemFreeAsync"} & set(fake.names())
