"""What is asked of a mapping's arguments, and the error that names the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from taskc.ir.mapping_forms import Shape


class MappingError(ValueError):
    """A mapping that cannot be, or a question that it has no answer to."""


def checked_integer(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise MappingError(f"{what} must be an integer; got {value!r}")
    return int(value)


def checked_sizes(asker: str, sizes: Sequence[Any]) -> Shape:
    for size in sizes:
        if hasattr(type(size), "__index__") and not isinstance(size, (int, np.integer)):
            raise MappingError(
                f"{asker}({joined(sizes)}) is the same at all calls, and {size} is known only at one; "
                "go through it in tiles, as in `for start in tc.tiles(n, by=32)` or `range(0, n, 32)`"
            )
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
            raise MappingError(
                f"{asker}({joined(sizes)}) needs integers of at least 1; got {size!r}"
            )
    return tuple(int(size) for size in sizes)


def checked_order(asker: str, sizes: Shape, order: Sequence[Any]) -> Shape:
    dimensions = tuple(checked_integer(i, "a dimension") for i in order)
    if sorted(dimensions) != list(range(len(sizes))):
        raise MappingError(
            f"{asker}({joined(sizes)}) needs each dimension of 0..{len(sizes) - 1} once in its "
            f"order; got {dimensions}"
        )
    return dimensions


def checked_task(task: Sequence[Any], shape: Shape, where: str) -> Shape:
    coordinates = tuple(checked_integer(coordinate, "a coordinate") for coordinate in task)
    if len(coordinates) != len(shape) or not is_inside(coordinates, shape):
        raise MappingError(f"{where}{coordinates} is outside the shape {shape}")
    return coordinates


def is_inside(task: Shape, shape: Shape) -> bool:
    return all(0 <= i < extent for i, extent in zip(task, shape, strict=True))


def fits(shape: Shape, outer: Shape) -> bool:
    return all(a <= b for a, b in zip(shape, outer, strict=True))


def joined(values: Sequence[Any]) -> str:
    return ", ".join(map(str, values))
