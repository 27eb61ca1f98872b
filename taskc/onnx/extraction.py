"""A part of a model: what lies between tensors that are named.

    x -> Conv -> a -> Relu -> b -> MaxPool -> y    with inputs=["a"], outputs=["b"] becomes    a -> Relu -> b

Where no outputs are named, they are the model's; where no inputs are, they are those of the model's that are needed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from taskc.onnx.importer import is_known
from taskc.operators.graph import Graph

if TYPE_CHECKING:  # the package onnx is imported where a model is read
    from taskc.onnx.protobuf import ModelProto


def extract(
    model: str | os.PathLike[str] | bytes | ModelProto,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
) -> Graph:
    """The graph between the named tensors."""
    from taskc.onnx.cut import cut
    from taskc.onnx.reader import load, read_proto

    proto, where, folder = load(model)
    return read_proto(cut(proto, where, inputs, outputs), where, folder, is_known)


def extract_model(
    model: str | os.PathLike[str] | bytes | ModelProto,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
) -> ModelProto:
    """The same as a model, to be saved: what the whole one has in other files is inside of it."""
    from taskc.onnx.cut import cut, tensors_of
    from taskc.onnx.reader import load
    from taskc.onnx.tensors import take_in

    proto, where, folder = load(model)
    part = cut(proto, where, inputs, outputs)
    for tensor in tensors_of(part.graph):
        take_in(tensor, where, folder)
    return part
