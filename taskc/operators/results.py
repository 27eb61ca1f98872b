"""What is returned of a program for each result of operators: a program's output, a part of one, or a known array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from taskc.operators.graph import Array


@dataclass(frozen=True, slots=True)
class CountedOutput:
    """An output of a program whose next one says how many elements along an axis are the graph's."""

    name: str
    axis: int


# The name of a program's output, or the array that it always is.
Output: TypeAlias = str | CountedOutput | Array


def arrays_of(outputs: Sequence[Output], returned: Sequence[Any]) -> list[Any]:
    """A graph's outputs, of those of its program; one that is known is a copy, which its owner may change."""
    parts, made = iter(returned), []
    for output in outputs:
        match output:
            case str():
                made.append(next(parts))
            case CountedOutput():
                most, (count,) = on_host(next(parts)), on_host(next(parts))
                made.append(most[(slice(None),) * output.axis + (slice(count),)].copy())
            case _:
                made.append(output.copy())
    return made


def on_host(array: Any) -> Array:
    """The array in the CPU's memory."""
    return array if isinstance(array, np.ndarray) else array.numpy()
