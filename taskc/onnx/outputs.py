"""What a graph's outputs are, of those of its program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from taskc.onnx.graph import Array
from taskc.onnx.places import PROCESSOR, Place, on_host


@dataclass(frozen=True, slots=True)
class CountedOutput:
    """An output of a program whose next one says how many elements along an axis are the graph's."""

    name: str
    axis: int


# The name of a program's output, or the array that it always is.
Output: TypeAlias = str | CountedOutput | Array


class Runnable(Protocol):
    """A program, the names of the graph's inputs that it takes, and what each of the graph's outputs is."""

    @property
    def program(self) -> Any: ...
    @property
    def inputs(self) -> tuple[str, ...]: ...
    @property
    def outputs(self) -> tuple[Output, ...]: ...


def outputs_for(found: Runnable, arrays: Mapping[str, Any], place: Place = PROCESSOR) -> list[Any]:
    """The graph's outputs for arrays by the names of its inputs."""
    is_known = all(isinstance(output, np.ndarray) for output in found.outputs)
    given = [arrays[name] for name in found.inputs]
    returned: Any = () if is_known else place.call(found.program, given)
    return arrays_of(found.outputs, returned if isinstance(returned, tuple) else (returned,))


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
