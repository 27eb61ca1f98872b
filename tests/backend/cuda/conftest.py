"""A fake driver in place of NVIDIA's, and kernels that run on it, in the simulator."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from math import prod
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pytest

from taskc.arrays.packed import places_of, slots_of
from taskc.backend import sim
from taskc.backend.cuda import api, target
from taskc.backend.cuda.compiled import Argument, CompiledCubin, form_of
from taskc.ir import nodes as ir
from taskc.ir.extents import extent_value
from taskc.runtime import driver as taskc_driver, targets
from tests.backend.cuda.fake_driver import FakeDriver
from tests.backend.cuda.hosting import compiler_of, naming, unused_name

Start = Callable[..., FakeDriver]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """`start(devices=2)` puts a fake driver in place of the driver."""
    started: list[FakeDriver] = []

    def make(**options: Any) -> FakeDriver:
        fake = FakeDriver(**options)
        started.append(fake)
        monkeypatch.setattr(api, "_started", None)
        monkeypatch.setattr(api, "load_driver", lambda: fake)
        return fake

    monkeypatch.setattr(targets, "_backends", {})
    monkeypatch.setattr(taskc_driver, "_entries", WeakKeyDictionary())  # kernels are loaded anew
    yield make
    for fake in started:
        fake.check_freed()


@pytest.fixture
def fake(start: Start) -> FakeDriver:
    return start()


@pytest.fixture
def compiled(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> dict[str, CompiledCubin]:
    """Kernels are "compiled" to calls of the simulator; what has been compiled, by name."""
    made: dict[str, CompiledCubin] = {}

    def compile(kernel: ir.Kernel, lower: Any, cache: Any, version: str) -> CompiledCubin:
        lean = lower(kernel)
        arguments = tuple(
            [
                Argument("tensor", k) if isinstance(item, ir.Tensor) else Argument("scalar", k, item.dtype.name)
                for k, item in enumerate(lean.parameters)
            ]
            + [Argument("dimension", k) for k in range(len(lean.dimensions))]
        )  # fmt: skip
        blocks = form_of(lean.blocks or ir.constant(1), lean)
        with naming:
            name = unused_name(lean.name, fake.kernels)
            fake.kernels[name] = lambda words: run(lean, words)
            fake.arguments_of = {**fake.arguments_of, name: len(arguments)}
            fake.roles[name] = [getattr(item, "role", "") for item in lean.parameters]
        made[name] = CompiledCubin(
            name=name, arch=kernel.target, cubin=b"cubin", arguments=arguments,
            threads=lean.workers, shared=0, blocks=blocks,
        )  # fmt: skip
        return made[name]

    monkeypatch.setattr(target, "compiled", compile)
    monkeypatch.setenv("TASKC_CACHE", str(tmp_path))
    return made


@pytest.fixture
def emitted(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """A device whose kernels are emitted code, compiled for the host."""
    monkeypatch.setattr(target, "compiled", compiler_of(fake))
    return fake


def run(lean: ir.Kernel, words: list[int]) -> None:
    """A launch, in the simulator, on the memory that the words lead to."""
    total = len(lean.parameters)
    sizes = dict(zip(lean.dimensions, words[total:], strict=True))
    values = []
    for parameter, word in zip(lean.parameters, words, strict=False):
        if isinstance(parameter, ir.Tensor):
            shape = tuple([extent_value(extent, sizes) for extent in parameter.argument_shape])
            values.append(logical(parameter, word, shape))
        else:
            bits = np.array([word], np.uint64).view(parameter.dtype.numpy)
            values.append(bits[0])
    report = sim.run(lean, values, dimensions=sizes)
    assert not [finding for finding in report.findings if finding.severity == "error"]


def logical(parameter: ir.Tensor, word: int, shape: tuple[int, ...]) -> np.ndarray:
    """A parameter as the simulator takes it: what has a layout is only read, and may be a copy."""
    if parameter.layout is None:
        return array_at(word, shape, parameter.dtype.numpy)
    assert parameter.role == "in"
    memory = array_at(word, (slots_of(shape, parameter.layout),), parameter.dtype.numpy)
    return memory[places_of(shape, parameter.layout)].reshape(shape)


def array_at(pointer: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """The memory of the fake device as NumPy sees it."""
    kind = np.dtype(dtype)
    size = max(1, prod(shape) * kind.itemsize)
    memory = (ctypes.c_char * size).from_address(pointer)
    return np.frombuffer(memory, kind, prod(shape)).reshape(shape)
