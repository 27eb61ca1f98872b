"""Arguments whose parameters have a layout: packed before a call and unpacked after it, or the reverse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from taskc.arrays.packed import Laid, Packed, laid_memory, put_into, take
from taskc.ir import nodes as ir
from taskc.ir.mapping import Mapping
from taskc.ir.nodes import Tensor
from taskc.ir.types import TensorType


@contextmanager
def packed(
    parameters: Sequence[Tensor | ir.Variable], values: Sequence[Any]
) -> Iterator[Sequence[Any]]:
    """The values as compiled code takes them; what it wrote is in `values` at the end.

    A program's are put into their layouts once for all of its kernels, which find that nothing is left to do.
    """
    passed = []
    written: list[tuple[Any, Any, Mapping]] = []
    for parameter, value in zip(parameters, values, strict=True):
        has_layout = isinstance(parameter, Tensor) and parameter.layout is not None
        if not has_layout or isinstance(value, Laid):
            passed.append(value)
            continue
        assert isinstance(parameter, Tensor)
        assert parameter.layout is not None
        described = TensorType(parameter.dtype, value.shape, parameter.layout)
        memory = laid_memory(np.zeros, described)
        if parameter.role != "out":
            put_into(value, memory)
        if parameter.role != "in":
            written.append((value, memory, parameter.layout))
        passed.append(memory)
    yield passed
    for value, memory, layout in written:
        take(value, np.asarray(memory), layout)


@contextmanager
def unpacked(
    parameters: Sequence[Tensor | ir.Variable], values: Sequence[Any]
) -> Iterator[Sequence[Any]]:
    """The values with their elements in the usual order; what was written is in `values` at the end."""
    passed = [value.unpack() if isinstance(value, Packed) else value for value in values]
    yield passed
    for parameter, value, found in zip(parameters, values, passed, strict=True):
        if isinstance(value, Packed) and isinstance(parameter, Tensor) and parameter.role != "in":
            put_into(found, value)
