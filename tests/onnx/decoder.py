"""A decoder of any size as exporters of transformers write it: each call takes the cache and returns the longer one."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from taskc.operators.files import MICROSOFT

from .bert import Nodes
from .models import model, node, tensor

Array = np.ndarray[Any, Any]

LEAST = float(np.finfo(np.float32).min)


def decoder(
    *, layers: int = 2, hidden: int = 32, heads: int = 4, groups: int = 2, inner: int = 48
) -> ModelProto:
    """Weights are random; there are 50 words. The mask is as long as the cache and the new words."""
    nodes = _Decoder(hidden, heads, groups)
    x = nodes.add("Gather", nodes.normal(50, hidden), "input_ids")
    rotation, mask = nodes.rotation(), nodes.mask()
    outputs, pasts = ["logits"], []
    for layer in range(layers):
        for part in ("key", "value"):
            pasts.append(f"past_key_values.{layer}.{part}")
            outputs.append(f"present.{layer}.{part}")
        x = nodes.add("Add", x, nodes.attended(nodes.scaled(x), layer, rotation, mask))
        x = nodes.add("Add", x, nodes.gated(nodes.scaled(x), inner))
    nodes.add("MatMul", nodes.scaled(x), nodes.normal(hidden, 50))
    nodes.nodes[-1].output[0] = "logits"
    integers = {"type": TensorProto.INT64}
    return model(
        nodes.nodes,
        [
            tensor("input_ids", "batch_size", "sequence_length", **integers),
            tensor("attention_mask", "batch_size", "total_sequence_length", **integers),
            tensor("position_ids", "batch_size", "sequence_length", **integers),
            *[
                tensor(past, "batch_size", groups, "past_sequence_length", hidden // heads)
                for past in pasts
            ],
        ],
        [tensor("logits", "batch_size", "sequence_length", 50), *outputs[1:]],
        opset=17,
        initializer=nodes.constants,
    )


def first_feeds(proto: ModelProto, ids: Array) -> dict[str, Array]:
    """The inputs for a prompt, with empty caches."""
    count = len(ids)
    feeds = {
        "input_ids": ids[None],
        "attention_mask": np.ones((1, count), np.int64),
        "position_ids": np.arange(count)[None],
    }
    for value in proto.graph.input[3:]:
        _, groups, _, width = [size.dim_value for size in value.type.tensor_type.shape.dim]
        feeds[value.name] = np.zeros((1, groups, 0, width), np.float32)
    return feeds


def next_feeds(outputs: list[Array], feeds: dict[str, Array]) -> dict[str, Array]:
    """The inputs for one more token, the likeliest one."""
    logits, *presents = outputs
    total = feeds["attention_mask"].shape[1]
    caches = zip([*feeds][3:], presents, strict=True)
    return {
        "input_ids": logits[:, -1:].argmax(-1),
        "attention_mask": np.ones((1, total + 1), np.int64),
        "position_ids": np.full((1, 1), total),
        **dict(caches),
    }


def greedy(proto: ModelProto, prompt: Any, count: int) -> list[int]:
    """The likeliest tokens after a prompt, one after another, by the package onnx."""
    evaluator, feeds, tokens = ReferenceEvaluator(proto), first_feeds(proto, np.array(prompt)), []
    for _ in range(count):
        outputs: Any = evaluator.run(None, feeds)
        feeds = next_feeds(outputs, feeds)
        tokens.append(int(feeds["input_ids"][0, 0]))
    return tokens


def grouped_decoder(random: np.random.Generator) -> ModelProto:
    """A layer of a decoder with its cache, as ONNX Runtime GenAI's builder writes it: lengths come from the mask."""
    width, packed = 32, random.integers(0, 256, (64, 2, 8)).astype(np.uint8)
    constants = {
        "table": random.standard_normal((9, width)).astype(np.float32),
        "norm": np.ones(width, np.float32),
        "w": packed,
        "scales": (random.random((64, 2)) * 0.05).astype(np.float32),
        "cos": np.cos(np.arange(64)[:, None] * np.ones(8)).astype(np.float32),
        "sin": np.sin(np.arange(64)[:, None] * np.ones(8)).astype(np.float32),
        "axes": np.array([1]),
        "one": np.array([1]),
        "place": np.array(1),
    }
    bits = {"N": 64, "K": width, "bits": 4, "block_size": 16}
    heads = {"num_heads": 2, "kv_num_heads": 1, "do_rotary": 1}
    nodes = [
        node("ReduceSum", ["mask", "axes"], ["sums"], keepdims=0),
        node("Sub", ["sums", "one"], ["ends"]),
        node("Cast", ["ends"], ["lengths"], to=6),
        node("Shape", ["mask"], ["shape"]),
        node("Gather", ["shape", "place"], ["length"]),
        node("Cast", ["length"], ["total"], to=6),
        node("Gather", ["table", "ids"], ["x"]),
        node("SimplifiedLayerNormalization", ["x", "norm"], ["n"]),
        node("MatMulNBits", ["n", "w", "scales"], ["qkv"], domain=MICROSOFT, **bits),
        node(
            "GroupQueryAttention",
            ["qkv", "", "", "past_k", "past_v", "lengths", "total", "cos", "sin"],
            ["a", "present_k", "present_v"],
            domain=MICROSOFT,
            **heads,
        ),
        node("SkipSimplifiedLayerNormalization", ["x", "a", "norm"], ["y"], domain=MICROSOFT),
    ]
    return model(
        nodes,
        [
            tensor("ids", "batch", "length", type=7),
            tensor("mask", "batch", "total", type=7),
            *[tensor(f"past_{name}", "batch", 1, "past", 16) for name in "kv"],
        ],
        ["y", "present_k", "present_v"],
        domains=(MICROSOFT,),
        initializer=[numpy_helper.from_array(array, name) for name, array in constants.items()],
    )


class _Decoder(Nodes):
    def __init__(self, hidden: int, heads: int, groups: int) -> None:
        super().__init__()
        self.hidden, self.heads, self.groups = hidden, heads, groups
        self.width = hidden // heads

    def slice(self, x: str, start: int, stop: int) -> str:
        return self.add("Slice", x, *map(self.integers, (start, stop, -1)))

    def scaled(self, x: str) -> str:
        """Divided by the root of the mean square."""
        mean = self.add("ReduceMean", self.add("Pow", x, self.constant(2)), axes=[-1])
        root = self.add("Sqrt", self.add("Add", mean, self.constant(1e-6)))
        one = self.add("Div", self.constant(1), root)
        return self.add("Mul", self.constant(np.ones(self.hidden)), self.add("Mul", x, one))

    def rotation(self) -> tuple[str, str]:
        """The cosines and sines of positions."""
        places = self.add("Unsqueeze", "position_ids", self.integers(2))
        rates = 1 / 10000 ** (np.arange(0, self.width, 2) / self.width)
        angles = self.add(
            "Mul", self.add("Cast", places, to=TensorProto.FLOAT), self.constant(rates)
        )
        both = self.add("Unsqueeze", self.add("Concat", angles, angles, axis=-1), self.integers(1))
        return self.add("Cos", both), self.add("Sin", both)

    def mask(self) -> str:
        """0 where a token is seen, which is none behind the own position, or else the least float."""
        past = self.add("Gather", self.add("Shape", "past_key_values.0.key"), self.number(2))
        new = self.add("Gather", self.add("Shape", "input_ids"), self.number(1))
        total = self.add("Add", past, new)
        columns = self.add("Range", self.number(0), total, self.number(1))
        rows = self.add("Range", past, total, self.number(1))
        is_later = self.add("Greater", columns, self.add("Unsqueeze", rows, self.integers(1)))
        causal = self.add("Where", is_later, self.constant(LEAST), self.constant(0))
        shown = self.add("Unsqueeze", "attention_mask", self.integers(1, 2))
        is_hidden = self.add("Equal", shown, self.number(0))
        return self.add("Where", is_hidden, self.constant(LEAST), causal)

    def number(self, value: int) -> str:
        return self.constant(value, np.int64)

    def split(self, x: str, heads: int) -> str:
        """A projection by heads [batch, heads, tokens, width]."""
        y = self.add("MatMul", x, self.normal(self.hidden, heads * self.width))
        shape = [self.extent(x, 0), self.extent(x, 1), *map(self.integers, (heads, self.width))]
        y = self.add("Reshape", y, self.add("Concat", *shape, axis=0))
        return self.add("Transpose", y, perm=[0, 2, 1, 3])

    def rotated(self, x: str, rotation: tuple[str, str]) -> str:
        half = self.width // 2
        low, high = self.slice(x, 0, half), self.slice(x, half, self.width)
        turned = self.add("Concat", self.add("Neg", high), low, axis=-1)
        cosines, sines = rotation
        return self.add("Add", self.add("Mul", x, cosines), self.add("Mul", turned, sines))

    def for_all_heads(self, x: str) -> str:
        """The heads of groups, each repeated for the queries that share it."""
        count = self.heads // self.groups
        wide = self.add("Unsqueeze", x, self.integers(2))
        batch, length = self.extent(x, 0), self.extent(x, 2)
        groups, times, heads, width = map(
            self.integers, (self.groups, count, self.heads, self.width)
        )
        shape = self.add("Concat", batch, groups, times, length, width, axis=0)
        repeated = self.add("Expand", wide, shape)
        return self.add(
            "Reshape", repeated, self.add("Concat", batch, heads, length, width, axis=0)
        )

    def extended(self, layer: int, part: str, new: str) -> str:
        """The cache with new rows, which is an output."""
        self.add("Concat", f"past_key_values.{layer}.{part}", new, axis=2)
        self.nodes[-1].output[0] = f"present.{layer}.{part}"
        return f"present.{layer}.{part}"

    def attended(self, x: str, layer: int, rotation: tuple[str, str], mask: str) -> str:
        q = self.rotated(self.split(x, self.heads), rotation)
        k = self.extended(layer, "key", self.rotated(self.split(x, self.groups), rotation))
        v = self.extended(layer, "value", self.split(x, self.groups))
        k, v = self.for_all_heads(k), self.for_all_heads(v)
        scores = self.add("MatMul", q, self.add("Transpose", k, perm=[0, 1, 3, 2]))
        scores = self.add("Mul", scores, self.constant(self.width**-0.5))
        shares = self.add("Softmax", self.add("Add", scores, mask), axis=-1)
        y = self.add("Transpose", self.add("MatMul", shares, v), perm=[0, 2, 1, 3])
        shape = [self.extent(x, 0), self.extent(x, 1), self.integers(self.hidden)]
        y = self.add("Reshape", y, self.add("Concat", *shape, axis=0))
        return self.add("MatMul", y, self.normal(self.hidden, self.hidden))

    def gated(self, x: str, inner: int) -> str:
        gate, up = (self.add("MatMul", x, self.normal(self.hidden, inner)) for _ in range(2))
        gate = self.add("Mul", gate, self.add("Sigmoid", gate))
        return self.add("MatMul", self.add("Mul", gate, up), self.normal(inner, self.hidden))
