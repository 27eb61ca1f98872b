"""What a graph's outputs are, of those of its program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from taskc.onnx.places import PROCESSOR, Place
from taskc.operators.results import Output, arrays_of


class Runnable(Protocol):
    """A program, the names of the graph's inputs that it takes, and what each of the graph's outputs is."""

    @property
    def program(self) -> Any: ...
    @property
    def inputs(self) -> tuple[str, ...]: ...
    @property
    def outputs(self) -> tuple[Output, ...]: ...


def entry_of(found: Runnable, names: Sequence[str]) -> Callable[[Sequence[Any]], list[Any]]:
    """A function that returns the graph's outputs on the processor, for arrays by position."""
    program, outputs = found.program, found.outputs
    order = [names.index(name) for name in found.inputs]
    if all(isinstance(output, np.ndarray) for output in outputs):
        return lambda arrays: arrays_of(outputs, ())
    if not all(isinstance(output, str) for output in outputs):
        return lambda arrays: arrays_of(
            outputs, _several(program(*[arrays[place] for place in order]))
        )
    is_one = len(outputs) == 1

    def run(arrays: Sequence[Any]) -> list[Any]:
        made = program(*[arrays[place] for place in order])
        return [made] if is_one else [*made]

    return run


def _several(returned: Any) -> tuple[Any, ...]:
    return returned if isinstance(returned, tuple) else (returned,)


def outputs_for(found: Runnable, arrays: Mapping[str, Any], place: Place = PROCESSOR) -> list[Any]:
    """The graph's outputs for arrays by the names of its inputs."""
    is_known = all(isinstance(output, np.ndarray) for output in found.outputs)
    given = [arrays[name] for name in found.inputs]
    returned: Any = () if is_known else place.call(found.program, given)
    return arrays_of(found.outputs, _several(returned))
