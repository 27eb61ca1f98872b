"""The fake driver refuses what a driver refuses, so that whoever launches wrongly is found without a GPU."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from tests.backend.cuda.conftest import Start
from tests.backend.cuda.fake_driver import (
    CLUSTER_SIZE,
    ILLEGAL_ADDRESS,
    INVALID_VALUE,
    SUCCESS,
    TOO_LARGE,
    FakeDriver,
)

DYNAMIC = "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"


def launched(
    fake: FakeDriver,
    *,
    blocks: int = 1,
    threads: int = 32,
    shared: int = 0,
    asked: int = 0,
    cluster: int = 1,
    together: bool = False,
) -> Any:
    """The status of a launch, of a function that had so much shared memory allowed."""
    fake.cuCtxSetCurrent(1)
    _, module = fake.cuModuleLoadData(b"cubin")
    _, function = fake.cuModuleGetFunction(module, b"k")
    fake.arguments_of = {"k": 0}
    fake.clusters["k"] = cluster
    if asked:
        attribute = getattr(fake.CUfunction_attribute, DYNAMIC)
        status = fake.cuFuncSetAttribute(function, attribute, asked)[0]
        if status != SUCCESS:
            return status
    config = fake.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = blocks, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
    config.sharedMemBytes, config.numAttrs = shared, int(together)
    if together:
        attribute = fake.CUlaunchAttribute()
        attribute.id = fake.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        attribute.value.cooperative = 1
        config.attrs = [attribute]
    places = (ctypes.c_void_p * 1)()
    return fake.cuLaunchKernelEx(config, function, ctypes.addressof(places), 0)[0]


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({}, SUCCESS),
        ({"blocks": 0}, INVALID_VALUE),
        ({"blocks": 1 << 31}, INVALID_VALUE),
        ({"threads": 1056}, INVALID_VALUE),
        ({"blocks": 6, "cluster": 2}, SUCCESS),
        ({"blocks": 7, "cluster": 2}, INVALID_VALUE),
        ({"blocks": 16, "cluster": 16}, CLUSTER_SIZE),
        ({"shared": 48 << 10}, SUCCESS),
        ({"shared": (48 << 10) + 16}, INVALID_VALUE),
        ({"shared": 64 << 10, "asked": 64 << 10}, SUCCESS),
        ({"shared": 65 << 10, "asked": 64 << 10}, INVALID_VALUE),
        ({"asked": (227 << 10) + 1}, INVALID_VALUE),
        ({"blocks": 264, "together": True}, SUCCESS),
        ({"blocks": 265, "together": True}, TOO_LARGE),
        ({"blocks": 6, "cluster": 2, "together": True}, TOO_LARGE),
    ],
)
def test_launches(fake: FakeDriver, options: dict[str, Any], status: Any) -> None:
    assert launched(fake, **options) == status
    assert len(fake.launches) == (status == SUCCESS)


@pytest.mark.parametrize(
    ("capability", "most"), [((8, 0), 163), ((8, 6), 99), ((8, 9), 99), ((9, 0), 227)]
)
def test_shared_memory_of_each_generation(
    start: Start, capability: tuple[int, int], most: int
) -> None:
    fake = start(capability=capability)
    assert launched(fake, asked=most << 10, shared=most << 10) == SUCCESS
    assert launched(fake, asked=(most << 10) + 16) == INVALID_VALUE


def test_clusters_are_hopper_s(start: Start) -> None:
    assert launched(start(capability=(8, 9)), blocks=2, cluster=2) == CLUSTER_SIZE


def test_a_failed_kernel_takes_its_context_with_it(fake: FakeDriver) -> None:
    assert launched(fake) == SUCCESS
    fake.failing["cuCtxSynchronize"] = ILLEGAL_ADDRESS
    assert fake.cuCtxSynchronize()[0] == ILLEGAL_ADDRESS
    del fake.failing["cuCtxSynchronize"]
    assert fake.cuMemAlloc(16)[0] == ILLEGAL_ADDRESS
    assert fake.cuCtxSynchronize()[0] == ILLEGAL_ADDRESS
    assert fake.cuDeviceGetCount() == (SUCCESS, 1)


def test_a_refused_call_does_not(fake: FakeDriver) -> None:
    assert launched(fake, blocks=0) == INVALID_VALUE
    assert launched(fake) == SUCCESS
