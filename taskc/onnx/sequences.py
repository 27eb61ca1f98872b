"""Sequences: the states of a model for one sequence of calls, and how far they are filled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Ordered
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from taskc.arrays.arguments import ArgumentError
from taskc.onnx.model import Model, named, unknown
from taskc.operators.graph import Array

if TYPE_CHECKING:
    from taskc.onnx.states import States


class Sequence:
    """A model with states, called like a model without them; each call goes on where the last one ended.

    inputs  of all calls; `first` may be a model that the first call runs, which takes others than later calls
    length  the filled places of the states
    states  the states of the model's graph
    memory  of each state, by the name of its input; made at the first call
    given   the inputs that are given once, and held until `reset`
    """

    def __init__(self, model: Model, states: States, first: Model | None = None) -> None:
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
        self.states = states
        self._memory: dict[str, Array] = {}
        self.memory: Mapping[str, Array] = MappingProxyType(self._memory)
        # The last call's arrays, in the model's order, and the place of each input that it was given; no arrays after
        # a change of memory.
        self._last: list[Any] = []
        self._places: dict[str, int] = {}
        self._marks = np.zeros(states.capacity, np.uint8)

    def __repr__(self) -> str:
        return f"<sequence of {self._model.name!r}: {self.length} of {self.capacity} places>"

    @property
    def capacity(self) -> int:
        return self.states.capacity

    @property
    def model(self) -> Model:
        """The model whose inputs have the states' memory and the position among them."""
        return self._model

    def sequence(self) -> Sequence:
        """An empty sequence of the same model, with states of its own."""
        return Sequence(self._model, self.states, self._first)

    def reset(self) -> None:
        """Begin again, with empty states."""
        self.length = 0
        self.given = {}
        self._last = []

    def __call__(self, *args: Any, **feeds: Any) -> Any:
        """The output, or a tuple of all; inputs by position, by name, or as a dictionary by name."""
        returned = self.run(None, named(args, feeds, self.inputs))
        return returned[0] if len(returned) == 1 else tuple(returned)

    def run(self, output_names: Ordered[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """The outputs of these names, or all, for arrays by the names of inputs."""
        names = self._output_names if output_names is None else (*output_names,)
        if self.length and names == self._output_names and feeds.keys() == self._places.keys():
            outputs = self._next(feeds) if self._last else None
            if outputs is not None:
                return outputs
        of_inputs, of_outputs = (
            ("input", feeds, self._input_names),
            ("output", names, self._output_names),
        )
        for what, asked, known in (of_inputs, of_outputs):
            for name in asked:
                if name not in known:
                    raise ArgumentError(unknown(what, name, known))
        self._last = []
        if self._first is not None and not self.length:
            return self._begin(self._first, names, feeds)
        arrays = self.arrays(feeds)
        *outputs, length = self._model.run([*names, self.states.length.name], arrays)
        self.length = int(length[0])
        self.given = {n: arrays[n] for n in self.states.given if n in arrays}
        of_model = [value.name for value in self._model.inputs]
        self._last = [arrays[name] for name in of_model]
        self._places = {name: of_model.index(name) for name in feeds if name in of_model}
        return outputs

    def _next(self, feeds: Mapping[str, Any]) -> list[Any] | None:
        """All outputs of a call with the same inputs as the last one, without checks; None if it needs them."""
        arrays = self._last
        arrays[0] = self._marks[: self.length]
        for name, place in self._places.items():
            arrays[place] = feeds[name]
        outputs = self._model.fast(arrays)
        if outputs is not None:
            self.length = outputs.pop().item()
        return outputs

    def arrays(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The model's inputs for a call: these, what was given once, the memory of states, and the position."""
        if not self.length:
            self._make_memory(feeds)
        elif self._first is not None:  # it may take inputs that later calls don't
            feeds = _taken(self._model, feeds)
        position = {self.states.position.name: self._marks[: self.length]}
        return {**self.given, **feeds, **self._memory, **position}

    def _begin(self, first: Model, names: Ordered[str], feeds: Mapping[str, Any]) -> list[Any]:
        """The outputs of the first call, whose model computes the states."""
        states = self.states
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
            self._memory[name][(slice(None),) * axis + (slice(length),)] = rows
        self.length, self.given = length, begun
        return results[: len(names)]

    def _make_memory(self, feeds: Mapping[str, Any]) -> None:
        """Memory for these inputs: their batch, say, is that of the states."""
        sizes: dict[int | str | None, int] = {}
        for value in self.inputs:
            extents = zip(value.shape or (), np.shape(feeds.get(value.name, ())), strict=False)
            sizes |= {n: size for n, size in extents if isinstance(n, str) and n.isidentifier()}
        for name, value in self.states.memory.items():
            shape = [n if isinstance(n, int) else sizes.get(n) for n in value.shape or ()]
            if None in shape:
                raise ArgumentError(f"no input tells how large the state {value} is")
            self._reserve(name, shape)

    def _reserve(self, name: str, shape: Ordered[Any]) -> None:
        """Memory of this shape for a state."""
        if name not in self._memory or self._memory[name].shape != tuple(shape):
            dtype = self.states.memory[name].dtype
            self._memory[name] = np.zeros(shape, None if dtype is None else dtype.numpy)


def _taken(model: Model, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays that a model takes."""
    return {value.name: feeds[value.name] for value in model.inputs if value.name in feeds}
