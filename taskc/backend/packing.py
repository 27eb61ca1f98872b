"""Arguments whose parameters have a layout: into it before a call, out of it after."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from taskc.ir import nodes as ir
from taskc.ir.nodes import Tensor
from taskc.packed import Packed, aligned_zeros, places_of, slots_of


@contextmanager
def packed(
    parameters: Sequence[Tensor | ir.Variable], values: Sequence[Any]
) -> Iterator[Sequence[Any]]:
    """The values as compiled code takes them; what it wrote is in `values` at the end."""
    passed = []
    written: list[tuple[Any, Any, Any]] = []
    for parameter, value in zip(parameters, values, strict=True):
        has_layout = isinstance(parameter, Tensor) and parameter.layout is not None
        if not has_layout or isinstance(value, Packed):
            passed.append(value)
            continue
        assert isinstance(parameter, Tensor)
        assert parameter.layout is not None
        places = places_of(value.shape, parameter.layout)
        memory = aligned_zeros(slots_of(value.shape, parameter.layout), value.dtype)
        if parameter.role != "out":
            memory[places] = value.reshape(-1)
        if parameter.role != "in":
            written.append((value, memory, places))
        passed.append(memory)
    yield passed
    for value, memory, places in written:
        value.reshape(-1)[:] = memory[places]
