"""The CPU as a target of the driver."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numpy as np

from taskc.backend.cache import Cache, key_of
from taskc.backend.cpu.compile import Compiled, Loaded, compile_kernel, refuse
from taskc.backend.cpu.processor import Processor, host
from taskc.ir import nodes as ir
from taskc.ir.nodes import Tensor
from taskc.ir.printer import to_text

Lower = Callable[[ir.Kernel], ir.Kernel]


def load(kernel: ir.Kernel, lower: Lower, cache: Cache | None, version: str) -> Loaded:
    """A kernel at the stage its author wrote it at, compiled for this processor or found compiled.

    lower    takes it to stage lean
    version  of everything that compiles
    """
    refuse(kernel)
    processor = host()
    if cache is None:
        return Loaded(kernel, compile_kernel(lower(kernel), processor))
    key = key_of(to_text(kernel), _fingerprint(processor), version)
    compiled = _unpacked(cache.get(key))
    if compiled is None:
        compiled = compile_kernel(lower(kernel), processor)
        cache.put(key, _packed(compiled))
    return Loaded(kernel, compiled)


def _fingerprint(processor: Processor) -> str:
    return f"{processor.target} {processor.triple} {processor.features} {llvmlite.__version__}"


def _packed(compiled: Compiled) -> bytes:
    return compiled.description().encode() + b"\n" + compiled.code


def _unpacked(content: bytes | None) -> Compiled | None:
    if content is None:
        return None
    description, _, code = content.partition(b"\n")
    return Compiled(code=code, **json.loads(description))


def run(loaded: Loaded, values: tuple[Any, ...], dimensions: dict[ir.Variable, int]) -> None:
    """Arguments with a layout are put into it, and results taken out of it again."""
    passed = []
    packed: list[tuple[Any, Any, Any]] = []
    for parameter, value in zip(loaded.kernel.parameters, values, strict=True):
        if not isinstance(parameter, Tensor) or parameter.layout is None:
            passed.append(value)
            continue
        places = _places(parameter, value.shape)
        memory = np.zeros(int(places.max(initial=-1)) + 1, value.dtype)
        if parameter.role != "out":
            memory[places] = value.reshape(-1)
        if parameter.role != "in":
            packed.append((value, memory, places))
        passed.append(memory)
    loaded.run(passed, dimensions)
    for value, memory, places in packed:
        value.reshape(-1)[:] = memory[places]


def _places(tensor: Tensor, shape: tuple[int, ...]) -> Any:
    """Where each element lies, row-major: whole layouts follow one another along the first extent."""
    layout = tensor.layout
    assert layout is not None
    tasks = np.indices(shape).reshape(len(shape), -1).T
    outer = tasks // np.asarray(layout.shape)
    inner = tasks - outer * np.asarray(layout.shape)
    repeats = -(-np.asarray(shape) // np.asarray(layout.shape))
    number = np.zeros(len(tasks), np.int64)
    for dimension, count in enumerate(repeats):
        number = number * count + outer[:, dimension]
    return number * layout.slots + layout.find(0, inner)


@cache
def sources_version(version: str, *folders: Path) -> str:
    """The version, and when each source was last changed: a development tree compiles anew."""
    parts = [version]
    for folder in folders:
        for path in sorted(folder.rglob("*.py")) + sorted(folder.rglob("*.ll")):
            status = path.stat()
            parts.append(f"{path.name} {status.st_mtime_ns} {status.st_size}")
    return key_of(*parts)
