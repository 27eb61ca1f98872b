"""CUDA devices as a target of the driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from taskc.backend.cache import Cache
from taskc.backend.cuda.api import DeviceError
from taskc.backend.cuda.array import Array
from taskc.backend.cuda.calls import DeviceStream, direct, run
from taskc.backend.cuda.compile import compiled
from taskc.backend.cuda.context import context
from taskc.backend.cuda.launch import DeviceKernel
from taskc.backend.cuda.program import DeviceProgram
from taskc.ir import nodes as ir
from taskc.ir.target import TARGETS

__all__ = ["DeviceProgram", "DeviceStream", "device_of", "direct", "load", "machine_of", "run"]


def load(
    kernel: ir.Kernel,
    lower: Callable[[ir.Kernel], ir.Kernel],
    cache: Cache,
    version: str,
    device: int,
    failed: Callable[[int], None],
) -> DeviceKernel:
    """A kernel as its author wrote it, loaded on a device: compiled for it, or from the cache.

    lower    lowers it to stage lean
    version  version of the whole compiler
    failed   raises the error of a failed assertion, given its number
    """
    owner = context(device)
    if kernel.stage != "parsed" and not _runs(owner.target, kernel.target):
        raise DeviceError(
            f"{kernel.name}() is written for {kernel.target}, and CUDA device {device}, {owner.name},"
            f" runs code for {owner.target}"
        )
    lowered_for = replace(kernel, target=owner.target)
    return DeviceKernel(kernel, compiled(lowered_for, lower, cache, version), owner, failed)


def _runs(device: str, written_for: str) -> bool:
    """Whether a device runs a kernel; one written for a target without a device of its own runs on any."""
    return not TARGETS[written_for].capabilities or TARGETS[device].runs(TARGETS[written_for])


def device_of(values: Sequence[Any]) -> int:
    """The number of the device of a call's arrays; NumPy arrays go to the first one."""
    return next((value.device for value in values if isinstance(value, Array)), 0)


def machine_of(values: Sequence[Any]) -> str:
    """The target of that device."""
    return context(device_of(values)).target
