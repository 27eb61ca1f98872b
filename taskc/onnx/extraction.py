"""Cutting a part out of a model, between named tensors.

    x -> Conv -> a -> Relu -> b -> MaxPool -> y    with inputs=["a"], outputs=["b"] becomes    a -> Relu -> b

By default, outputs are the model's, and inputs are those of the model's inputs that the outputs need.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from taskc.onnx.importer import is_known
from taskc.operators.graph import Graph

if TYPE_CHECKING:  # the package onnx is imported where a model is read
    from taskc.onnx.serialized import ModelProto


def extract(
    model: str | os.PathLike[str] | bytes | ModelProto,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
) -> Graph:
    """The graph between the named tensors."""
    from taskc.onnx.partitions import cut
    from taskc.onnx.reader import load, read_proto

    proto, where, folder = load(model)
    return read_proto(cut(proto, where, inputs, outputs), where, folder, is_known)


def extract_model(
    model: str | os.PathLike[str] | bytes | ModelProto,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
) -> ModelProto:
    """The same part as a model to be saved; external data of the whole one is included in it."""
    from taskc.onnx.partitions import cut, tensors_of
    from taskc.onnx.reader import load
    from taskc.onnx.serialized import take_in

    proto, where, folder = load(model)
    part = cut(proto, where, inputs, outputs)
    for tensor in tensors_of(part.graph):
        take_in(tensor, where, folder)
    return part
