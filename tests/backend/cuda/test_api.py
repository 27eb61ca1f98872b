"""Starting the driver: each thing that may be missing is one sentence, at the first use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from taskc import device
from taskc.backend.cuda import api
from tests.backend.cuda.conftest import Start
from tests.backend.cuda.fake_driver import ILLEGAL_ADDRESS, NO_DEVICE, FakeDriver

ROOT = Path(__file__).parents[3]


def first_use() -> str:
    with pytest.raises(device.DeviceError) as caught:
        device.empty(4, np.float32)
    return str(caught.value)


def test_a_driver_is_there(fake: FakeDriver) -> None:
    context = device.context()
    assert (context.name, context.capability, context.processors) == ("Fake GPU", (9, 0), 132)
    assert (context.target, context.shared_bytes) == ("sm_90a", 227 << 10)


def test_nothing_of_cuda_is_imported_before_the_first_use() -> None:
    program = (
        "import sys, taskc as tc; from taskc import device\n"
        "print('cuda' in sys.modules, 'llvmlite' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == ["False", "False"]


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has a GPU")
def test_without_a_driver_the_real_cuda_python_says_so() -> None:
    text = first_use()
    assert text.startswith("there is no NVIDIA driver on this machine (")
    assert "libcuda" in text
    assert text.endswith("), so nothing can run on a GPU")


def test_without_cuda_python(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    start()
    monkeypatch.undo()
    monkeypatch.setattr(api, "_started", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    assert first_use().startswith(
        "kernels are launched through cuda-python, which can't be imported: "
    )


def test_a_driver_that_cannot_be_started(start: Start) -> None:
    start().failing["cuInit"] = NO_DEVICE
    expected = "the NVIDIA driver can't be started: CUDA_ERROR_NO_DEVICE, in CUDA's words"
    assert first_use() == expected


def test_a_driver_that_is_too_old(start: Start) -> None:
    start(version=12080)
    assert first_use() == (
        "the NVIDIA driver supports CUDA 12.8, and taskc needs a driver for CUDA 13.0 or later;"
        " install version 580 or later of the driver"
    )


def test_no_device(start: Start) -> None:
    start(devices=0)
    expected = "there is an NVIDIA driver on this machine, but no GPU that it can use"
    assert first_use() == expected


def test_a_device_that_is_not_there(start: Start) -> None:
    start(devices=2)
    with pytest.raises(device.DeviceError, match="there is no CUDA device 2; there are 2"):
        device.empty(4, np.float32, device=2)


def test_a_device_for_which_there_is_no_target(start: Start) -> None:
    start(capability=(10, 0))
    with pytest.raises(device.DeviceError) as caught:
        _ = device.context().target
    assert str(caught.value) == (
        "CUDA device 0, Fake GPU, has compute capability 10.0, and taskc compiles for 8.0, 8.6,"
        " 8.7, 8.9, 9.0 and 12.0"
    )


def test_a_failed_start_is_tried_again(start: Start) -> None:
    fake = start(devices=0)
    first_use()
    fake.devices = 1
    assert device.empty(4, np.float32).shape == (4,)


def test_a_failing_call_is_named(fake: FakeDriver) -> None:
    device.context()
    fake.failing["cuMemAllocFromPoolAsync"] = ILLEGAL_ADDRESS
    assert first_use() == (
        "cuMemAllocFromPoolAsync failed: CUDA_ERROR_ILLEGAL_ADDRESS, in CUDA's words"
    )


def test_a_function_that_the_driver_lacks(fake: FakeDriver) -> None:
    with pytest.raises(device.DeviceError) as caught:
        api.api().cuGraphExecUpdate()
    assert str(caught.value) == (
        'cuGraphExecUpdate: Function "cuGraphExecUpdate" not found; install version 580 or later of the driver'
    )


def test_the_child_of_a_fork_says_that_it_has_no_device(fake: FakeDriver) -> None:
    device.context()
    api._forget_in_child()
    try:
        assert first_use().startswith("CUDA was in use when this process was forked")
    finally:
        api._forked = False


def test_the_caller_s_context_is_current_again(start: Start) -> None:
    fake = start(devices=2)
    fake._contexts = [0x99]
    x = device.array(np.arange(4.0), device=1)
    assert x.numpy().tolist() == [0, 1, 2, 3]
    assert fake._contexts == [0x99]
    pushed = [int(arguments[0]) for name, arguments in fake.calls if name == "cuCtxPushCurrent"]
    assert set(pushed) == {0xC1}


def test_a_thread_that_has_no_context_gets_the_device_s(fake: FakeDriver) -> None:
    device.array(np.arange(4.0))
    assert fake._contexts == [0xC0]
    assert not [name for name, _ in fake.calls if name == "cuCtxPushCurrent"]
