"""Sequences: the states of a model for one sequence of calls, and how far they are filled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Ordered
from dataclasses import replace
from typing import Any

import numpy as np

from taskc.arrays.arguments import ArgumentError
from taskc.backend.limits import Limits
from taskc.onnx.model import PROCESSOR, Model, named
from taskc.onnx.stages import Traced
from taskc.onnx.states import States, states_of
from taskc.operators.graph import Array, Value


class Sequence:
    """A model with states, called like a model without them; each call goes on where the last one ended.

    length  the filled places of the states
    memory  of each state, by the name of its input; made at the first call
    """

    def __init__(self, model: Model, states: States, inputs: Ordered[Value]) -> None:
        self.inputs = tuple(inputs)
        self.outputs = model.outputs[:-1]
        self.length = 0
        self._model = model
        self._states = states
        self.memory: dict[str, Array] = {}
        self._marks = np.zeros(states.capacity, np.uint8)

    def __repr__(self) -> str:
        return f"<sequence of {self._model.name!r}: {self.length} of {self.capacity} places>"

    @property
    def capacity(self) -> int:
        return self._states.capacity

    @property
    def model(self) -> Model:
        """The model whose inputs have the states' memory and the position among them."""
        return self._model

    def sequence(self) -> Sequence:
        """An empty sequence of the same model, with states of its own."""
        return Sequence(self._model, self._states, self.inputs)

    def reset(self) -> None:
        """Begin again, with empty states."""
        self.length = 0

    def __call__(self, *args: Any, **feeds: Any) -> Any:
        """The output, or a tuple of all; inputs by position, by name, or as a dictionary by name."""
        returned = self.run(None, named(args, feeds, self.inputs))
        return returned[0] if len(returned) == 1 else tuple(returned)

    def run(self, output_names: Ordered[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """The outputs of these names, or all, for arrays by the names of inputs."""
        names = [value.name for value in self.outputs] if output_names is None else output_names
        if not self.length:
            self._make_memory(feeds)
        position = {self._states.position.name: self._marks[: self.length]}
        *outputs, length = self._model.run(
            [*names, self._states.length.name], {**feeds, **self.memory, **position}
        )
        self.length = int(length[0])
        return outputs

    def _make_memory(self, feeds: Mapping[str, Any]) -> None:
        """Memory for these inputs: their batch, say, is that of the states."""
        sizes: dict[int | str | None, int] = {}
        for value in self.inputs:
            sizes.update(zip(value.shape or (), np.shape(feeds.get(value.name, ())), strict=False))
        for name, value in self._states.memory.items():
            shape = [n if isinstance(n, int) else sizes.get(n) for n in value.shape or ()]
            if None in shape or value.dtype is None:
                raise ArgumentError(f"no input tells how large the state {value} is")
            if name not in self.memory or self.memory[name].shape != tuple(shape):
                self.memory[name] = np.zeros(shape, value.dtype.numpy)


def sequence_of(
    traced: Traced, patterns: Mapping[str, str], capacity: int | None, limits: Limits
) -> Sequence:
    """The first sequence of a model whose states patterns name."""
    graph = traced.rewritten
    states = states_of(graph, patterns, capacity)
    own = [value for value in graph.inputs if value.name not in states.memory]
    inputs, outputs = states.of_inputs(graph), states.of_outputs(graph)
    source = Traced(
        replace(graph, inputs=(states.position, *graph.inputs)), PROCESSOR, traced.graph, states
    )
    return Sequence(Model(graph.name, inputs, outputs, source, limits=limits), states, own)
