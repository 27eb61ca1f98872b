"""The outputs of a graph: a program's output, the counted part of one, or a known array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from taskc.operators.graph import Array


@dataclass(frozen=True, slots=True)
class CountedOutput:
    """An output of a program, followed by one that holds the number of valid elements along an axis."""

    name: str
    axis: int


# The name of a program's output, or an array that doesn't depend on inputs.
Output: TypeAlias = str | CountedOutput | Array


def arrays_of(outputs: Sequence[Output], returned: Sequence[Any]) -> list[Any]:
    """A graph's outputs, from those of its program; a known one is copied, as its owner may change it."""
    parts, arrays = iter(returned), []
    for output in outputs:
        match output:
            case str():
                arrays.append(next(parts))
            case CountedOutput():
                most, (count,) = on_host(next(parts)), on_host(next(parts))
                arrays.append(most[(slice(None),) * output.axis + (slice(count),)].copy())
            case _:
                arrays.append(output.copy())
    return arrays


def on_host(array: Any) -> Array:
    """The array in CPU memory."""
    return array if isinstance(array, np.ndarray) else array.numpy()
