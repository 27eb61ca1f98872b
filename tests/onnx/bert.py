"""A BERT of any size as an exporter writes it: the length of the text is open, and shapes are computed from it."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from .models import model, tensor

INPUTS = "input_ids", "attention_mask", "token_type_ids"


def bert(*, layers: int, hidden: int, heads: int, inner: int, longest: int) -> ModelProto:
    """Weights are random; there are 50 words."""
    made = Nodes()
    x = made.embedded(hidden, longest)
    mask = made.mask()
    for _ in range(layers):
        x = made.normalized(made.add("Add", made.attended(x, mask, hidden, heads), x), hidden)
        x = made.normalized(made.add("Add", made.mixed(x, hidden, inner), x), hidden)
    made.nodes[-1].output[0] = "last_hidden_state"
    return model(
        made.nodes,
        [tensor(name, "batch", "sequence", type=TensorProto.INT64) for name in INPUTS],
        ["last_hidden_state"],
        opset=17,
        initializer=made.constants,
    )


class Nodes:
    def __init__(self) -> None:
        self.random = np.random.default_rng(0)
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], **attributes))
        return name

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def integers(self, *numbers: int) -> str:
        return self.constant(numbers, np.int64)

    def normal(self, *shape: int) -> str:
        return self.constant(self.random.standard_normal(shape) / sqrt(shape[0]))

    def extent(self, x: str, axis: int) -> str:
        """An extent of a tensor, as a list of one."""
        found = self.add("Gather", self.add("Shape", x), self.constant(axis, np.int64), axis=0)
        return self.add("Unsqueeze", found, self.integers(0))

    def dense(self, x: str, inner: int, outer: int) -> str:
        return self.add("Add", self.add("MatMul", x, self.normal(inner, outer)), self.normal(outer))

    def normalized(self, x: str, hidden: int) -> str:
        scale = self.constant(np.ones(hidden))
        return self.add("LayerNormalization", x, scale, self.normal(hidden), axis=-1)

    def embedded(self, hidden: int, longest: int) -> str:
        length, zero, one = self.extent("input_ids", 1), self.integers(0), self.integers(1)
        places = self.add("Slice", self.constant([range(longest)], np.int64), zero, length, one)
        words = self.add("Gather", self.normal(50, hidden), "input_ids")
        kinds = self.add("Gather", self.normal(2, hidden), "token_type_ids")
        x = self.add("Add", words, kinds)
        x = self.add("Add", x, self.add("Gather", self.normal(longest, hidden), places))
        return self.normalized(x, hidden)

    def mask(self) -> str:
        """What is added to scores: 0 where a word is seen, or else nearly the least float."""
        mask = self.add("Unsqueeze", "attention_mask", self.integers(1, 2))
        mask = self.add("Sub", self.constant(1), self.add("Cast", mask, to=TensorProto.FLOAT))
        return self.add("Mul", mask, self.constant(-3e38))

    def by_heads(self, x: str, hidden: int, heads: int, order: list[int]) -> str:
        extents = self.integers(heads), self.integers(hidden // heads)
        shape = self.add("Concat", self.extent(x, 0), self.extent(x, 1), *extents, axis=0)
        return self.add("Transpose", self.add("Reshape", x, shape), perm=order)

    def attended(self, x: str, mask: str, hidden: int, heads: int) -> str:
        orders = [0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]
        q, k, v = (
            self.by_heads(self.dense(x, hidden, hidden), hidden, heads, order) for order in orders
        )
        scores = self.add("Div", self.add("MatMul", q, k), self.constant(sqrt(hidden // heads)))
        shares = self.add("Softmax", self.add("Add", scores, mask), axis=-1)
        mixed = self.add("Transpose", self.add("MatMul", shares, v), perm=[0, 2, 1, 3])
        rest = self.integers(-1), self.integers(hidden)
        shape = self.add("Concat", self.extent(mixed, 0), *rest, axis=0)
        return self.dense(self.add("Reshape", mixed, shape), hidden, hidden)

    def mixed(self, x: str, hidden: int, inner: int) -> str:
        """By GELU, in its parts."""
        h = self.dense(x, hidden, inner)
        error = self.add("Erf", self.add("Div", h, self.constant(sqrt(2))))
        half = self.add("Mul", h, self.add("Add", error, self.constant(1)))
        return self.dense(self.add("Mul", half, self.constant(0.5)), inner, hidden)
