"""cuda-python takes what it is given here: without a driver each call comes as far as looking for one."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
from cuda.bindings import driver

from tests.backend.cuda.fake_driver import FakeDriver

_BUFFER = ctypes.create_string_buffer(64)
_ADDRESS = ctypes.addressof(_BUFFER)

NODE = driver.CUDA_KERNEL_NODE_PARAMS()
NODE.func = driver.CUfunction(1)
NODE.gridDimX = NODE.gridDimY = NODE.gridDimZ = 1
NODE.blockDimX = NODE.blockDimY = NODE.blockDimZ = 1
NODE.sharedMemBytes = 1 << 16
NODE.kernelParams = _ADDRESS

CALLS: list[tuple[str, tuple[Any, ...]]] = [
    ("cuInit", (0,)),
    ("cuDriverGetVersion", ()),
    ("cuDeviceGetCount", ()),
    ("cuDeviceGet", (0,)),
    ("cuDeviceGetName", (256, driver.CUdevice(0))),
    ("cuDeviceTotalMem", (driver.CUdevice(0),)),
    (
        "cuDeviceGetAttribute",
        (driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, driver.CUdevice(0)),
    ),
    ("cuMemPoolCreate", (driver.CUmemPoolProps(),)),
    (
        "cuMemPoolSetAttribute",
        (
            driver.CUmemoryPool(1),
            driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
            driver.cuuint64_t((1 << 64) - 1),
        ),
    ),
    ("cuDevicePrimaryCtxRetain", (driver.CUdevice(0),)),
    ("cuCtxGetCurrent", ()),
    ("cuCtxSetCurrent", (driver.CUcontext(1),)),
    ("cuCtxPushCurrent", (driver.CUcontext(1),)),
    ("cuCtxPopCurrent", ()),
    ("cuCtxSynchronize", ()),
    (
        "cuPointerGetAttribute",
        (driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, _ADDRESS),
    ),
    ("cuMemAlloc", (64,)),
    ("cuMemAllocFromPoolAsync", (64, driver.CUmemoryPool(1), 0)),
    (
        "cuThreadExchangeStreamCaptureMode",
        (driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED,),
    ),
    ("cuCtxRecordEvent", (driver.CUcontext(1), driver.CUevent(1))),
    ("cuEventQuery", (driver.CUevent(1),)),
    ("cuStreamGetCaptureInfo", (1 << 8,)),
    ("cuUserObjectCreate", (_ADDRESS, driver.CUhostFn(_ADDRESS), 1, 1)),
    ("cuGraphRetainUserObject", (driver.CUgraph(1), driver.CUuserObject(1), 1, 1)),
    ("cuMemFree", (_ADDRESS,)),
    ("cuMemFreeAsync", (_ADDRESS, 0)),
    ("cuMemHostAlloc", (4, driver.CU_MEMHOSTALLOC_PORTABLE | driver.CU_MEMHOSTALLOC_DEVICEMAP)),
    ("cuMemHostGetDevicePointer", (_ADDRESS, 0)),
    ("cuMemcpyHtoDAsync", (_ADDRESS, _ADDRESS, 4, 0)),
    ("cuMemcpyDtoHAsync", (_ADDRESS, _ADDRESS, 4, 0)),
    ("cuMemcpyDtoDAsync", (_ADDRESS, _ADDRESS, 4, 0)),
    ("cuMemsetD32Async", (_ADDRESS, 0, 1, 0)),
    ("cuOccupancyMaxActiveBlocksPerMultiprocessor", (driver.CUfunction(1), 128, 0)),
    ("cuOccupancyMaxActiveClusters", (driver.CUfunction(1), driver.CUlaunchConfig())),
    ("cuMemcpy2DAsync", (driver.CUDA_MEMCPY2D(), 0)),
    ("cuModuleLoadData", (b"cubin",)),
    ("cuModuleGetFunction", (driver.CUmodule(1), b"name")),
    (
        "cuFuncSetAttribute",
        (
            driver.CUfunction(1),
            driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
            1 << 16,
        ),
    ),
    ("cuLaunchKernelEx", (driver.CUlaunchConfig(), driver.CUfunction(1), _ADDRESS, 0)),
    ("cuGetProcAddress", (b"cuTensorMapEncodeTiled", 12000, 0)),
    ("cuGetProcAddress", (b"cuTensorMapEncodeIm2col", 12000, 0)),
    ("cuStreamCreate", (driver.CUstream_flags.CU_STREAM_NON_BLOCKING,)),
    ("cuStreamDestroy", (1 << 8,)),
    ("cuStreamSynchronize", (0,)),
    ("cuStreamWaitEvent", (0, driver.CUevent(1), 0)),
    ("cuEventCreate", (driver.CUevent_flags.CU_EVENT_DISABLE_TIMING,)),
    ("cuEventRecord", (driver.CUevent(1), 0)),
    ("cuEventSynchronize", (driver.CUevent(1),)),
    ("cuEventElapsedTime", (driver.CUevent(1), driver.CUevent(1))),
    ("cuEventDestroy", (driver.CUevent(1),)),
    ("cuStreamBeginCapture", (1 << 8, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)),
    ("cuStreamEndCapture", (1 << 8,)),
    ("cuStreamIsCapturing", (1 << 8,)),
    ("cuGraphCreate", (0,)),
    ("cuGraphAddKernelNode", (driver.CUgraph(1), [], 0, NODE)),
    ("cuGraphAddKernelNode", (driver.CUgraph(1), [driver.CUgraphNode(1)], 1, NODE)),
    ("cuGraphInstantiate", (driver.CUgraph(1), 0)),
    (
        "cuGraphExecKernelNodeSetParams",
        (driver.CUgraphExec(1), driver.CUgraphNode(1), NODE),
    ),
    ("cuGraphLaunch", (driver.CUgraphExec(1), 0)),
    ("cuGraphDestroy", (driver.CUgraph(1),)),
    ("cuGraphExecDestroy", (driver.CUgraphExec(1),)),
    ("cuGetErrorName", (driver.CUresult.CUDA_ERROR_INVALID_VALUE,)),
    ("cuGetErrorString", (driver.CUresult.CUDA_ERROR_INVALID_VALUE,)),
]


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="these calls would be made")
@pytest.mark.parametrize(("name", "arguments"), CALLS, ids=[name for name, _ in CALLS])
def test_the_call_is_one_that_cuda_python_takes(name: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(RuntimeError, match=r"libcuda\.so\.1|not found"):
        getattr(driver, name)(*arguments)


def test_every_call_is_in_the_list() -> None:
    """What the fake driver can do is what is called."""
    known = {name.lstrip("_") for name in dir(FakeDriver) if name.lstrip("_").startswith("cu")}
    assert known == {name for name, _ in CALLS}
