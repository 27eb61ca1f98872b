"""Sequences: the states of a model for one sequence of calls, and how far they are filled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Ordered
from dataclasses import replace
from typing import Any

import numpy as np

from taskc.arrays.arguments import ArgumentError
from taskc.backend.limits import Limits
from taskc.onnx.model import PROCESSOR, Model, named, unknown
from taskc.onnx.stages import Traced
from taskc.onnx.states import States, states_of
from taskc.operators.graph import Array


class Sequence:
    """A model with states, called like a model without them; each call goes on where the last one ended.

    inputs  of all calls; `first` may be a model that the first call runs, which takes others than later calls
    length  the filled places of the states
    memory  of each state, by the name of its input; made at the first call
    given   the inputs that are given once, and held until `reset`
    """

    def __init__(self, model: Model, states: States, first: Model | None) -> None:
        own = [value for value in model.inputs[1:] if value.name not in states.memory]
        if first is not None:
            own = [value for value in own if value.name not in states.given]
        of_first = {value.name: value for value in (first.inputs if first is not None else ())}
        self.inputs = tuple((of_first | {value.name: value for value in own}).values())
        self.outputs = model.outputs[:-1]
        self._input_names = tuple([value.name for value in self.inputs])
        self._output_names = tuple([value.name for value in self.outputs])
        self.given: dict[str, Any] = {}
        self._first = first
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
        return Sequence(self._model, self._states, self._first)

    def reset(self) -> None:
        """Begin again, with empty states."""
        self.length = 0
        self.given = {}

    def __call__(self, *args: Any, **feeds: Any) -> Any:
        """The output, or a tuple of all; inputs by position, by name, or as a dictionary by name."""
        returned = self.run(None, named(args, feeds, self.inputs))
        return returned[0] if len(returned) == 1 else tuple(returned)

    def run(self, output_names: Ordered[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """The outputs of these names, or all, for arrays by the names of inputs."""
        names = self._output_names if output_names is None else output_names
        of_inputs, of_outputs = (
            ("input", feeds, self._input_names),
            ("output", names, self._output_names),
        )
        for what, asked, known in (of_inputs, of_outputs):
            for name in asked:
                if name not in known:
                    raise ArgumentError(unknown(what, name, known))
        if self._first is not None and not self.length:
            return self._begin(self._first, names, feeds)
        given = {**self.given, **{n: feeds[n] for n in self._states.given if n in feeds}}
        if not self.length:
            self._make_memory(feeds)
        elif self._first is not None:  # it may take inputs that later calls don't
            feeds = _taken(self._model, feeds)
        position = {self._states.position.name: self._marks[: self.length]}
        *outputs, length = self._model.run(
            [*names, self._states.length.name], {**feeds, **given, **self.memory, **position}
        )
        self.length, self.given = int(length[0]), given
        return outputs

    def _begin(self, first: Model, names: Ordered[str], feeds: Mapping[str, Any]) -> list[Any]:
        """The outputs of the first call, whose model computes the states."""
        states = self._states
        results = first.run([*names, *states.begun_by], _taken(first, feeds))
        begun = dict(zip(states.begun_by.values(), results[len(names) :], strict=True))
        filled = {array.shape[states.axes[n]] for n, array in begun.items() if n in states.axes}
        length = max(filled)
        if len(filled) > 1:
            raise ArgumentError("not all states get as many places by the first call")
        if length > states.capacity:
            raise ArgumentError(
                f"the states have room for {states.capacity} places, their capacity,"
                f" and the first call fills {length}"
            )
        for name, axis in states.axes.items():
            rows = begun.pop(name)
            self._reserve(name, (*rows.shape[:axis], states.capacity, *rows.shape[axis + 1 :]))
            self.memory[name][(slice(None),) * axis + (slice(length),)] = rows
        self.length, self.given = length, begun
        return results[: len(names)]

    def _make_memory(self, feeds: Mapping[str, Any]) -> None:
        """Memory for these inputs: their batch, say, is that of the states."""
        sizes: dict[int | str | None, int] = {}
        for value in self.inputs:
            extents = zip(value.shape or (), np.shape(feeds.get(value.name, ())), strict=False)
            sizes |= {n: size for n, size in extents if isinstance(n, str) and n.isidentifier()}
        for name, value in self._states.memory.items():
            shape = [n if isinstance(n, int) else sizes.get(n) for n in value.shape or ()]
            if None in shape:
                raise ArgumentError(f"no input tells how large the state {value} is")
            self._reserve(name, shape)

    def _reserve(self, name: str, shape: Ordered[Any]) -> None:
        """Memory of this shape for a state."""
        if name not in self.memory or self.memory[name].shape != tuple(shape):
            dtype = self._states.memory[name].dtype
            self.memory[name] = np.zeros(shape, None if dtype is None else dtype.numpy)


def _taken(model: Model, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays that a model takes."""
    return {value.name: feeds[value.name] for value in model.inputs if value.name in feeds}


def sequence_of(
    traced: Traced,
    first: Traced | None,
    patterns: Mapping[str, str],
    capacity: int | None,
    limits: Limits,
    wait: bool,
) -> Sequence:
    """The first sequence of a model whose states patterns name; `first` is the model of its first call."""
    graph = traced.rewritten
    states = states_of(graph, patterns, capacity, None if first is None else first.rewritten)
    inputs, outputs = states.of_inputs(graph), states.of_outputs(graph)
    source = Traced(
        replace(graph, inputs=(states.position, *graph.inputs)), PROCESSOR, traced.graph, states
    )
    model = Model(graph.name, inputs, outputs, source, limits=limits, wait=wait)
    if first is None:
        return Sequence(model, states, None)
    read = first.graph
    begins = Model(read.name, read.inputs, read.returned, first, limits=limits, wait=wait)
    return Sequence(model, states, begins)
