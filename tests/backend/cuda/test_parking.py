"""What other libraries own or have seen: waited for, and kept until the device is done with it."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from taskc import device, f32
from tests.backend.cuda.fake_driver import INVALID_VALUE, FakeDriver
from tests.backend.cuda.test_array import Foreign
from tests.backend.cuda.test_calls import make_add, numbers
from tests.backend.cuda.test_streams import make_scale
from tests.torch_stand_in import stand_in

__all__ = ["stand_in"]  # a fixture

A = numbers()
THEIRS = 0x70  # a stream of another library's


class Jax(Foreign):
    """JAX's arrays: nobody can ask for its stream, and `__dlpack__` makes ours wait for it."""

    __module__ = "jaxlib.xla_extension"


@pytest.fixture
def torch(stand_in: Any) -> Any:
    stand_in.cuda.current_stream(0).cuda_stream = THEIRS
    yield stand_in
    stand_in.cuda.current_stream(0).cuda_stream = 0


@pytest.mark.parametrize("is_lazy", [False, True])
def test_each_call_waits_for_the_stream_that_tensors_are_written_in(
    fake: FakeDriver, compiled: Any, torch: Any, is_lazy: bool
) -> None:
    add, x, z = make_add(), torch.Tensor(device.array(A)), torch.Tensor(device.empty(20, f32))
    device.synchronize()
    fake.streams.is_lazy = is_lazy
    stream = device.Stream()
    for _ in range(4):
        fake.touch(THEIRS, x.data_ptr(), is_write=True)
        with stream:
            add(x, x, out=z)
        device.Stream.of(THEIRS).wait(stream)
    assert fake.order.races == []
    device.synchronize()


def test_tensors_stay_until_our_stream_is_done_with_them(
    fake: FakeDriver, compiled: Any, torch: Any
) -> None:
    """PyTorch is told of the stream: its allocator waits for that."""
    add, x = make_add(), torch.Tensor(device.array(A))
    told = []
    torch.Tensor.record_stream, before = (
        lambda self, stream: told.append(stream.cuda_stream),
        torch.Tensor.record_stream,
    )
    try:
        add(x, x)  # in its own stream
        assert told == []
        for _ in range(3):
            with device.Stream() as stream:
                add(x, x)
            assert told[-2:] == [stream.number] * 2
    finally:
        torch.Tensor.record_stream = before
    device.synchronize()


def test_two_libraries_are_waited_for(
    fake: FakeDriver, compiled: Any, torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class ndarray:  # noqa: N801 (its name)
        __module__ = "cupy"

        def __init__(self, memory: device.Array) -> None:
            self.memory = memory
            self.shape, self.dtype, self.strides = memory.shape, memory.dtype, memory.strides
            self.device = SimpleNamespace(id=0)
            self.data = SimpleNamespace(ptr=memory.pointer)
            self.__dlpack_device__ = memory.__dlpack_device__

        def __dlpack__(self, *, stream: Any = None, **keywords: Any) -> Any:
            device.Stream.of(stream).wait(device.Stream.of(0x90))
            return self.memory.__dlpack__(stream=-1, **keywords)

    cuda = SimpleNamespace(get_current_stream=lambda number: SimpleNamespace(ptr=0x90))
    monkeypatch.setitem(__import__("sys").modules, "cupy", SimpleNamespace(cuda=cuda))
    add, x, y = make_add(), torch.Tensor(device.array(A)), ndarray(device.array(A))
    type(y).__dlpack_device__ = lambda self: (2, 0)
    device.synchronize()
    fake.streams.is_lazy = True
    for _ in range(4):
        fake.touch(0x90, y.data.ptr, is_write=True)
        made = add(x, y)
        device.Stream.of(0x90).wait(device.Stream.of(THEIRS))
        gone = weakref.ref(y)
        assert fake.order.races == []
    del y
    gc.collect()
    assert gone() is not None  # the kernel may not have read it
    device.synchronize()
    gc.collect()
    assert gone() is None
    np.testing.assert_array_equal(made.memory.numpy(), A + A)


def test_temporaries_of_jax_are_kept_until_a_kernel_has_read_them(
    fake: FakeDriver, compiled: Any
) -> None:
    scale, there = make_scale(20), device.array(A)
    scale(there)
    device.synchronize()
    fake.streams.is_lazy = True
    kept = []
    for stream in (device.current_stream(), device.Stream()):
        temporary = Jax(there)
        kept.append(weakref.ref(temporary))
        with stream:
            y = scale(temporary)
        del temporary
        gc.collect()
        assert kept[-1]() is not None
    device.synchronize()
    gc.collect()
    assert [one() for one in kept] == [None, None]
    np.testing.assert_array_equal(y.numpy(), 2 * A)


def test_the_array_interface_names_its_stream(fake: FakeDriver, compiled: Any) -> None:
    scale, there = make_scale(20), device.array(A)
    theirs = SimpleNamespace(
        __cuda_array_interface__={**there.__cuda_array_interface__, "stream": 0x55}
    )
    device.synchronize()
    fake.streams.is_lazy = True
    for _ in range(3):
        fake.touch(0x55, there.pointer, is_write=True)
        with device.Stream():
            scale(theirs)
        assert fake.order.races == []
        device.synchronize()


def test_exported_memory_is_freed_by_an_event(fake: FakeDriver) -> None:
    """Nobody waits for the device: not even whoever lets go of it."""
    x = device.array(A)
    pointer, capsule = x.pointer, x.__dlpack__(stream=-1)
    fake.streams.is_lazy = True
    fake.streams.put(0x70, [lambda: None])  # what another library has in a stream of its own
    del x, capsule
    device.empty(3, f32)
    assert fake.freed == []
    fake.streams.drain(0x70)
    device.empty(3, f32)
    device.synchronize()
    assert pointer in fake.freed


def test_memory_is_there_for_other_streams(fake: FakeDriver, compiled: Any) -> None:
    """What was allocated in the order of one stream, and is used in another."""
    scale, x = make_scale(20), device.array(A)
    y = device.empty(20, f32)
    with device.Stream() as stream:
        scale(x, out=y)
    assert fake.order.races == []
    device.current_stream().wait(stream)
    np.testing.assert_array_equal(y.numpy(), 2 * A)


# --- captures of other libraries -------------------------------------------------------------


def begin(fake: FakeDriver) -> None:
    """As PyTorch begins one: any thread's careless call would break it."""
    fake.cuStreamBeginCapture(THEIRS, fake.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)


def test_a_foreign_graph_keeps_what_its_launches_use(
    fake: FakeDriver, compiled: Any, torch: Any
) -> None:
    scale, x = make_scale(20), device.array(A)
    scale(x)
    device.synchronize()
    fake.freed.clear()
    begin(fake)
    (captured,) = fake._capturing.values()
    with device.Stream.of(THEIRS):
        y = scale(scale(x))  # what is in between is nobody's
        pointer = y.pointer
    memory = set(fake.memory)
    del y
    gc.collect()
    assert fake.freed == []
    _, graph = fake.cuStreamEndCapture(THEIRS)
    _, executable = fake.cuGraphInstantiate(graph, 0)
    device.empty(1, f32)
    assert memory <= set(fake.memory)
    fake.cuGraphLaunch(executable, THEIRS)
    device.synchronize()
    fake.graph_is_gone(captured.users)
    device.synchronize()
    device.synchronize()
    assert pointer not in fake.memory


def test_nothing_is_freed_while_another_library_captures(fake: FakeDriver, torch: Any) -> None:
    x, y, z = device.array(A), device.array(A), device.array(A)
    x.__dlpack__(stream=-1)
    z.memory.used(device.Stream.of(THEIRS))
    pointers = {x.pointer, y.pointer, z.pointer}
    begin(fake)
    fake.calls.clear()
    del x, z
    gc.collect()
    assert not {"cuEventRecord", "cuCtxRecordEvent", "cuMemFreeAsync"} & set(fake.names())
    del y  # its own stream is not captured
    gc.collect()
    fake.cuStreamEndCapture(THEIRS)
    device.empty(1, f32)
    assert pointers <= set(fake.freed)


def test_a_program_s_temporaries_belong_to_a_foreign_graph(
    fake: FakeDriver, compiled: Any, torch: Any
) -> None:
    from tests.backend.cuda.chains import make_chains

    chains, x = make_chains(), device.array(A)
    chains(x, x)
    device.synchronize()
    begin(fake)
    with device.Stream.of(THEIRS):
        made = chains(x, x)
    _, graph = fake.cuStreamEndCapture(THEIRS)
    _, executable = fake.cuGraphInstantiate(graph, 0)
    before = [one.numpy() for one in made]
    fake.cuGraphLaunch(executable, THEIRS)
    device.synchronize()
    assert any((one.numpy() != old).any() for one, old in zip(made, before, strict=True))


def test_what_is_parked_waits_for_captures_that_nobody_was_told_of(fake: FakeDriver) -> None:
    """A stream that is captured, which is the current one of no library; and a capture that begins later."""
    gc.collect()
    used, exported = device.array(A), device.array(A)
    pointer = used.pointer
    used.memory.used(device.Stream.of(0x99))
    capsule = exported.__dlpack__(stream=-1)
    relaxed = fake.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    fake.cuStreamBeginCapture(0x99, relaxed)
    fake.calls.clear()
    del used
    gc.collect()
    device.empty(1, f32)
    assert "cuEventRecord" not in fake.names()
    fake.cuStreamEndCapture(0x99)
    device.empty(1, f32)
    assert pointer in fake.freed
    fake.streams.is_lazy = True
    fake.streams.put(0x70, [lambda: None])
    del exported, capsule
    fake.calls.clear()
    with device.context().parking.capture():
        device.empty(1, f32)
        assert "cuEventQuery" not in fake.names()
    device.synchronize()


def test_a_stream_that_is_gone_keeps_no_memory(fake: FakeDriver) -> None:
    """Another library has destroyed it: the memory goes back once all that the device has is over."""
    x = device.array(A)
    x.memory.used(device.Stream.of(0x99))
    pointer = x.pointer
    fake.failing["cuStreamIsCapturing"] = INVALID_VALUE
    del x
    gc.collect()
    assert pointer in fake.freed
    del fake.failing["cuStreamIsCapturing"]
