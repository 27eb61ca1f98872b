"""Arguments whose parameters have a layout: into it before a call, out of it after."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from taskc.ir import nodes as ir
from taskc.ir.nodes import Tensor


@contextmanager
def packed(
    parameters: Sequence[Tensor | ir.Variable], values: Sequence[Any]
) -> Iterator[Sequence[Any]]:
    """The values as compiled code takes them; what it wrote is in `values` at the end."""
    passed = []
    written: list[tuple[Any, Any, Any]] = []
    for parameter, value in zip(parameters, values, strict=True):
        if not isinstance(parameter, Tensor) or parameter.layout is None:
            passed.append(value)
            continue
        places = places_of(parameter, value.shape)
        memory = np.zeros(int(places.max(initial=-1)) + 1, value.dtype)
        if parameter.role != "out":
            memory[places] = value.reshape(-1)
        if parameter.role != "in":
            written.append((value, memory, places))
        passed.append(memory)
    yield passed
    for value, memory, places in written:
        value.reshape(-1)[:] = memory[places]


def places_of(tensor: Tensor, shape: tuple[int, ...]) -> Any:
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
