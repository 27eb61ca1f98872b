"""Variants of a model in fewer bits: f16, and int8 with QuantizeLinear and DequantizeLinear around its products.

    python benchmarks/model_variants.py MODEL.onnx FOLDER

writes FOLDER/MODEL.f16.onnx and FOLDER/MODEL.int8.onnx. For f16 all tensors of f32 are of f16, inputs and outputs too,
and what is beyond its range is its largest number. int8 is by ONNX Runtime's own tool, with scales for each channel of
the weights, on seeded noise: right for timing and for comparing two runtimes, and no measure of what a model is worth
then.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from models import feeds_of
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, numpy_helper

import taskc as tc

_F32, _F16 = TensorProto.FLOAT, TensorProto.FLOAT16
_LARGEST = np.finfo(np.float16).max
_SAMPLES = 2  # of noise, that ranges are taken from


def in_f16(model: ModelProto) -> ModelProto:
    """A copy of the model whose tensors of f32 are of f16."""
    made = ModelProto()
    made.CopyFrom(model)
    for graph in _graphs(made.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.tensor_type.elem_type == _F32:
                value.type.tensor_type.elem_type = _F16
        for tensor in graph.initializer:
            _shorten(tensor)
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.type == AttributeProto.TENSOR:
                    _shorten(attribute.t)
                if node.op_type == "Cast" and attribute.name == "to" and attribute.i == _F32:
                    attribute.i = _F16
    return made


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                yield from _graphs(inner)


def _shorten(tensor: TensorProto) -> None:
    if tensor.data_type == _F32:
        array = np.clip(numpy_helper.to_array(tensor), -_LARGEST, _LARGEST)
        tensor.CopyFrom(numpy_helper.from_array(array.astype(np.float16), tensor.name))


class _Noise:
    """The interface of ONNX Runtime's tool: inputs one after the other, then None."""

    def __init__(self, path: Path) -> None:
        model = tc.compile(str(path))
        self._feeds = iter([feeds_of(model, {}, seed) for seed in range(_SAMPLES)])

    def get_next(self) -> dict[str, Any] | None:
        return next(self._feeds, None)


def quantize(path: Path, made: Path) -> None:
    """Writes the model with its products between QuantizeLinear and DequantizeLinear."""
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    CalibrationDataReader.register(_Noise)
    with TemporaryDirectory() as folder:
        inferred = Path(folder) / "inferred.onnx"
        quant_pre_process(path, inferred, skip_symbolic_shape=True)
        quantize_static(
            inferred, made, _Noise(path), quant_format=QuantFormat.QDQ, per_channel=True,
            activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    short = in_f16(onnx.load(options.model))
    onnx.save(short, options.folder / f"{options.model.stem}.f16.onnx")
    quantize(options.model, options.folder / f"{options.model.stem}.int8.onnx")


if __name__ == "__main__":
    main()
