"""An exported model of text whose length is fixed, with that length left open.

Exporters that are given one example write its length into the model: into the shapes of Reshapes, and into positions
and masks that they have computed. Here these are computed from the input again, so that there is a model that any
runtime takes at any length.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper, shape_inference

LENGTH = "sequence"
_LONGEST = 1024  # of masks that are made; those of positions have as many as their table has rows


def with_open_length(model: ModelProto) -> ModelProto:
    """The model as it is, if its first input's second extent is open; else with all inputs' of that extent open."""
    length = model.graph.input[0].type.tensor_type.shape.dim[1]
    return _Opening(model, length.dim_value).model if length.HasField("dim_value") else model


class _Opening:
    def __init__(self, model: ModelProto, length: int) -> None:
        self.model, self.graph, self.length = model, model.graph, length
        inferred = shape_inference.infer_shapes(model).graph
        self.shapes = {
            value.name: [extent.dim_value for extent in value.type.tensor_type.shape.dim]
            for value in [*inferred.value_info, *inferred.output, *inferred.input]
        }
        self.arrays = {it.name: it for it in self.graph.initializer}
        self.made: list[NodeProto] = []
        self.dropped: set[str] = set()
        first = self.graph.input[0].name
        self.extent = self._node(
            "Slice", self._node("Shape", first), *self._integers([1], [2], [0])
        )
        for node in self.graph.node:
            self._open(node)
        for value in [*self.graph.input, *self.graph.output]:
            for extent in value.type.tensor_type.shape.dim:
                if extent.dim_value == length:
                    extent.dim_param = LENGTH
        del self.graph.value_info[:]
        kept = [it for it in self.graph.initializer if it.name not in self.dropped]
        nodes = [*self.made, *self.graph.node]
        del self.graph.initializer[:], self.graph.node[:]
        self.graph.initializer.extend(kept)
        self.graph.node.extend(nodes)

    def _open(self, node: NodeProto) -> None:
        """Exchanges what a node is given of the length."""
        for position, name in enumerate(node.input):
            it = self.arrays.get(name)
            if it is None or it.data_type not in (7, 9):  # integers and truth values
                continue
            array: Any = numpy_helper.to_array(it)
            if node.op_type == "Reshape" and position == 1:
                if self.length in array:
                    node.input[1] = self._shape(array, self.shapes[node.output[0]])
            elif node.op_type == "GatherND" and position == 1 and self.length in array.shape:
                self._reshape(node, array)
            elif self.length in array.shape:
                node.input[position] = self._computed(node, array)
                self.dropped.add(name)

    def _shape(self, wanted: Any, found: list[int]) -> str:
        """The shape of a Reshape: what isn't the length is known."""
        (axis,) = np.flatnonzero(wanted == self.length)
        extents = [*found]
        extents[axis] = -1
        return self._integers(extents)[0]

    def _reshape(self, node: NodeProto, places: Any) -> None:
        """A GatherND that takes all elements of one row is a Reshape."""
        expected = np.stack([np.zeros(self.length, int), np.arange(self.length)], axis=-1)
        assert np.array_equal(places.reshape(-1, 2), expected), node.name
        node.op_type, node.input[1] = "Reshape", self._integers([1] * (places.ndim - 2) + [-1])[0]
        del node.attribute[:]

    def _computed(self, node: NodeProto, array: Any) -> str:
        """Positions, and masks that are true everywhere or below the diagonal."""
        if array.dtype == np.int64:
            assert np.array_equal(array.reshape(-1), np.arange(self.length)), node.name
            rows = self.arrays[node.input[0]].dims[0]
            whole = np.arange(rows).reshape(*array.shape[:-1], rows)
            return self._part(whole, [array.ndim - 1])
        if array.all():
            return self._constant(np.ones([1] * array.ndim, bool))
        assert np.array_equal(array, np.tril(array)), node.name
        whole = np.tril(np.ones((*array.shape[:-2], _LONGEST, _LONGEST), bool))
        return self._part(whole, [array.ndim - 2, array.ndim - 1])

    def _part(self, whole: Any, axes: list[int]) -> str:
        """As many of its first elements along some axes as the text has words."""
        found = self._constant(whole)
        for axis in axes:
            start, by_axis = self._integers([0], [axis])
            found = self._node("Slice", found, start, self.extent, by_axis)
        return found

    def _node(self, operator: str, *inputs: str) -> str:
        name = f"open_{len(self.made)}"
        self.made.append(helper.make_node(operator, inputs, [name]))
        return name

    def _integers(self, *lists: list[int]) -> list[str]:
        return [self._constant(np.array(numbers, np.int64)) for numbers in lists]

    def _constant(self, array: Any) -> str:
        name = f"open_constant_{len(self.graph.initializer)}"
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
        return name
