"""Kernels of the fake driver that are emitted code, compiled for this machine's processor."""

from __future__ import annotations

import ctypes
from collections.abc import Container
from dataclasses import fields
from threading import Lock
from typing import Any

from taskc.backend.cuda.compiled import Argument, CompiledCubin, LaunchDescription
from taskc.backend.cuda.expressions import KernelSource
from taskc.ir import nodes as ir
from tests.backend.cuda.fake_driver import LAUNCH_FAILED, FakeDriver, Refused
from tests.backend.cuda.host import build

_MAP_BYTES = 128

naming = Lock()  # a program's kernels are compiled at the same time


def compiler_of(fake: FakeDriver) -> Any:
    """What takes the place of `taskc.backend.cuda.target.compiled`."""

    def compile(kernel: ir.Kernel, lower: Any, cache: Any, version: str) -> CompiledCubin:
        (runnable,) = build([lower(kernel)])
        source = runnable.source

        def launch(places: int, blocks: int, threads: int) -> None:
            given, count = ctypes.c_void_p(places), ctypes.c_longlong(blocks)
            code = runnable.function(given, count, threads, 0)
            if code and runnable.wrong() == b"a trap was met":
                fake.lost = LAUNCH_FAILED
                raise Refused(LAUNCH_FAILED)
            assert code == 0

        sizes = [_MAP_BYTES if one.kind == "map" else 8 for one in source.arguments]
        with naming:
            name = unused_name(source.name, fake.hosted)
            fake.hosted[name] = launch, sizes
            fake.clusters[name] = source.cluster
            fake.arguments_of = {**fake.arguments_of, name: len(sizes)}
            fake.roles[name] = [role_of(source, one, kernel) for one in source.arguments]
        described = {it.name: getattr(source, it.name) for it in fields(LaunchDescription)}
        return CompiledCubin(**{**described, "name": name, "cubin": b"cubin", "prints": False})

    return compile


def role_of(source: KernelSource, argument: Argument, kernel: ir.Kernel) -> str:
    """What a kernel does with the memory that an argument leads to; "" where it leads to none."""
    match argument.kind:
        case "tensor":
            return str(getattr(kernel.parameters[argument.number], "role", ""))
        case "map":
            parameter = source.maps[argument.number].parameter
            return str(getattr(kernel.parameters[parameter], "role", ""))
        case "arrivals":
            return "inout"
    return ""


def unused_name(name: str, used: Container[str]) -> str:
    """The fake driver knows functions by their names; a real one also by their modules."""
    while name in used:
        name += "_"
    return name
