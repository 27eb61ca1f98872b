"""Models in fewer bits, as ONNX Runtime's own tool quantizes them, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper, save

from taskc.onnx.importer import is_known
from taskc.onnx.passes.products import quantized_products
from taskc.onnx.reader import read
from taskc.onnx.session import compile
from tests.onnx.models import model, node, tensor

pytestmark = pytest.mark.sweep
SHAPE = 1, 3, 12, 10


def network() -> ModelProto:
    """Convolutions, one of them in groups, a pooling, and two products."""
    random = np.random.default_rng(0)
    shapes = {
        "w0": (24, 3, 3, 3), "b0": (24,), "w1": (24, 1, 3, 3), "b1": (24,), "w2": (32, 24, 1, 1),
        "b2": (32,), "w3": (32, 20), "w4": (7, 20), "b4": (7,),
    }  # fmt: skip
    weights = [
        numpy_helper.from_array(0.3 * random.standard_normal(shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["c0"], pads=[1] * 4, strides=[2, 2]),
        node("Relu", ["c0"], ["r0"]),
        node("Conv", ["r0", "w1", "b1"], ["c1"], pads=[1] * 4, group=24),
        node("Add", ["c1", "r0"], ["a1"]),
        node("Conv", ["a1", "w2", "b2"], ["c2"]),
        node("GlobalAveragePool", ["c2"], ["g"]),
        node("Flatten", ["g"], ["f"]),
        node("MatMul", ["f", "w3"], ["m"]),
        node("Relu", ["m"], ["r"]),
        node("Gemm", ["r", "w4", "b4"], ["y"], transB=1),
    ]
    return model(nodes, [tensor("x", *SHAPE)], [tensor("y", 1, 7)], initializer=weights)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("signed", [False, True])
def test_what_the_tool_makes_runs_on_bytes(tmp_path: Path, signed: bool, per_channel: bool) -> None:
    runtime: Any = pytest.importorskip("onnxruntime")
    quantization: Any = pytest.importorskip("onnxruntime.quantization")
    noise = [np.random.default_rng(n).standard_normal(SHAPE).astype(np.float32) for n in range(4)]

    class Noise(quantization.CalibrationDataReader):  # type: ignore[misc, name-defined]
        feeds = iter([{"x": x} for x in noise])

        def get_next(self) -> Any:
            return next(self.feeds, None)

    given, made = tmp_path / "given.onnx", tmp_path / "made.onnx"
    save(network(), given)
    kinds = quantization.QuantType
    quantization.quantize_static(
        given, made, Noise(), quant_format=quantization.QuantFormat.QDQ, per_channel=per_channel,
        activation_type=kinds.QInt8 if signed else kinds.QUInt8, weight_type=kinds.QInt8,
    )  # fmt: skip
    operators = [it.operator for it in quantized_products(read(str(made), is_known)).nodes]
    assert operators.count("ConvInteger") == 3
    assert operators.count("MatMulInteger") == 2
    session = runtime.InferenceSession(str(made), providers=["CPUExecutionProvider"])
    quantum = max(
        float(numpy_helper.to_array(it)) for it in read_scales(made) if it.name.startswith("y")
    )
    compiled = compile(str(made))
    for x in noise:
        (expected,) = session.run(None, {"x": x})
        # Of results that went through five roundings, each off by one quantum at most.
        assert np.abs(compiled(x) - expected).max() <= 3.01 * quantum


def read_scales(path: Path) -> list[Any]:
    import onnx

    return [it for it in onnx.load(path).graph.initializer if it.name.endswith("_scale")]
