"""Networks of bytes without divisions: within a step of ONNX's reference, and no wider than bytes in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from taskc.onnx.importer import is_known
from taskc.onnx.passes.pipeline import rewritten
from taskc.onnx.passes.quantization_scales import quantization_scales
from taskc.onnx.reader import read
from taskc.onnx.session import compile
from taskc.programs.ir import calls_of
from taskc.runtime.driver import scheduled
from tests.onnx.models import model, node, tensor
from tests.onnx.passes.recognition import is_left_alone

Array = np.ndarray[Any, Any]


@dataclass
class Network:
    """Convolutions of bytes, and what is between them, by names of tensors."""

    dtype: Any = np.uint8
    seed: int = 0
    nodes: list[NodeProto] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)

    def constant(self, name: str, value: Any) -> str:
        self.constants[name] = np.asarray(value)
        return name

    def dequantized(self, name: str, scale: float, zero: int) -> str:
        pair = self.pair(name, scale, zero)
        self.nodes.append(node("DequantizeLinear", [name, *pair], [f"{name}_float"]))
        return f"{name}_float"

    def quantized(self, name: str, made: str, scale: float, zero: int) -> str:
        self.nodes.append(node("QuantizeLinear", [name, *self.pair(made, scale, zero)], [made]))
        return made

    def pair(self, name: str, scale: float, zero: int) -> list[str]:
        return [
            self.constant(f"{name}_scale", np.float32(scale)),
            self.constant(f"{name}_zero", self.dtype(zero)),
        ]

    def convolved(self, name: str, made: str, shape: tuple[int, ...], **attributes: Any) -> str:
        random = np.random.default_rng(len(self.nodes) + self.seed)
        scales = random.uniform(0.001, 0.01, shape[0]).astype(np.float32)
        self.constant(f"{made}_w", random.integers(-127, 128, shape).astype(np.int8))
        self.constant(f"{made}_t", scales)
        self.constant(f"{made}_q", np.zeros(shape[0], np.int8))
        self.constant(f"{made}_c", random.integers(-2000, 2000, shape[0]).astype(np.int32))
        self.constant(f"{made}_u", scales * np.float32(0.02))
        self.nodes += [
            node("DequantizeLinear", [f"{made}_{k}" for k in "wtq"], [f"{made}_v"], axis=0),
            node("DequantizeLinear", [f"{made}_{k}" for k in "cu"], [f"{made}_b"], axis=0),
            node("Conv", [name, f"{made}_v", f"{made}_b"], [made], **attributes),
        ]
        return made

    def made(self, shape: tuple[int, ...], output: str) -> Any:
        constants = [numpy_helper.from_array(it, name) for name, it in self.constants.items()]
        return model(self.nodes, [tensor("x", *shape)], [output], initializer=constants)

    def check(self, shape: tuple[int, ...], output: str) -> Any:
        """The compiled model, within a step of the reference at a few elements, and equal at all others."""
        made = self.made(shape, output)
        x = np.random.default_rng(self.seed).standard_normal(shape).astype(np.float32)
        compiled = compile(made)
        (found,) = compiled.run(None, {"x": x})
        (expected,) = ReferenceEvaluator(made).run(None, {"x": x})
        assert found.dtype == expected.dtype
        off = np.abs(found.astype(np.int64) - expected.astype(np.int64))
        assert off.max() <= 1
        assert (off > 0).mean() < 0.02
        assert len(np.unique(expected)) > 20
        return scheduled(compiled.program({"x": x}).program)[0]

    def operators(self, shape: tuple[int, ...], output: str) -> list[str]:
        """Those that the output depends on."""
        nodes = rewritten(read(self.made(shape, output), is_known)).nodes
        wanted, operators = {output}, list[str]()
        for item in reversed(nodes):
            if wanted.intersection(item.outputs):
                wanted.update(item.inputs)
                operators.append(item.operator)
        return operators


ENDS = [(np.uint8, 0), (np.uint8, 255), (np.uint8, 117), (np.int8, -128), (np.int8, 127)]


@pytest.mark.each_value
@pytest.mark.parametrize(("dtype", "zero"), ENDS)
@pytest.mark.parametrize(
    ("channels", "features", "attributes"),
    [
        (5, 17, {"pads": [1, 1, 1, 1]}),
        (16, 16, {"pads": [0, 1, 2, 1], "strides": [2, 1]}),
        (12, 12, {"pads": [1, 1, 1, 1], "group": 12}),
        (12, 18, {"group": 3, "dilations": [2, 2], "pads": [2, 2, 2, 2]}),
        (1, 1, {}),
    ],
    ids=["ragged", "strides", "depthwise", "groups", "one"],
)
def test_convolutions(
    dtype: Any, zero: int, channels: int, features: int, attributes: dict[str, Any]
) -> None:
    network = Network(dtype)
    network.quantized("x", "i", 0.02, zero)
    shape = features, channels // attributes.get("group", 1), 3, 3
    network.convolved(network.dequantized("i", 0.02, zero), "c", shape, **attributes)
    network.quantized("c", "y", 0.03, (zero + 60) % 100)
    network.check((2, channels, 9, 11), "y")


@pytest.mark.each_value
@pytest.mark.parametrize(("dtype", "zero"), ENDS)
@pytest.mark.parametrize("has_relu", [False, True])
def test_residuals_of_other_scales(dtype: Any, zero: int, has_relu: bool) -> None:
    network = Network(dtype)
    network.quantized("x", "i", 0.02, 20)
    network.convolved(network.dequantized("i", 0.02, 20), "c", (24, 24, 1, 1))
    network.quantized("c", "j", 0.01, 30)
    network.nodes.append(node("Add", [network.dequantized("j", 0.01, 30), "i_float"], ["a"]))
    if has_relu:
        network.nodes.append(node("Relu", ["a"], ["r"]))
    network.quantized("r" if has_relu else "a", "y", 0.025, zero)
    if zero != 127 and not (has_relu and zero == 255):
        network.check((1, 24, 8, 9), "y")
    is_clamped = zero == np.iinfo(dtype).min
    assert network.operators((1, 24, 8, 9), "y").count("Relu") == int(has_relu and not is_clamped)


@pytest.mark.parametrize("zeros", [(40, 40), (40, 41)])
def test_a_pool_of_bytes(zeros: tuple[int, int]) -> None:
    """Where it is dequantized and quantized by the same numbers, and nowhere else."""
    network = Network()
    network.quantized("x", "i", 0.02, zeros[0])
    pool = node("MaxPool", [network.dequantized("i", 0.02, zeros[0])], ["p"], kernel_shape=[3, 3],
                strides=[2, 2], pads=[1, 1, 1, 1])  # fmt: skip
    network.nodes.append(pool)
    network.quantized("p", "y", 0.02, zeros[1])
    network.check((1, 20, 15, 14), "y")
    operators = network.operators((1, 20, 15, 14), "y")
    assert ("DequantizeLinear" in operators) == (zeros[0] != zeros[1])


@pytest.mark.parametrize("scale", [1e-39, 1e-38, 3e38])
def test_scales_without_a_reciprocal_divide(scale: float) -> None:
    network = Network()
    network.nodes.append(node("Mul", ["x", network.constant("f", np.float32(scale))], ["m"]))
    network.quantized("m", "y", scale * 0.02, 100)
    for item in rewritten(read(network.made((1, 3, 4, 50), "y"), is_known)).nodes:
        assert "factor" not in item.attributes or scale == 3e38


@pytest.mark.parametrize("kind", [TensorProto.FLOAT8E4M3FN, TensorProto.INT4, TensorProto.UINT4])
@pytest.mark.parametrize("is_attribute", [False, True])
def test_other_types_than_integers_of_whole_bytes_divide(kind: int, is_attribute: bool) -> None:
    zero = TensorProto(name="z", data_type=kind, dims=[], raw_data=b"\0")
    typed = {"output_dtype": kind} if is_attribute else {}
    inputs = ["x", "s"] if is_attribute else ["x", "s", "z"]
    made = model(
        [node("QuantizeLinear", inputs, ["y"], **typed)], [tensor("x", 5)], ["y"],
        initializer=[zero, numpy_helper.from_array(np.float32(0.5), "s")],
    )  # fmt: skip
    assert is_left_alone(made, quantization_scales)


@pytest.mark.each_value
def test_what_two_convolutions_add_up_to_is_read_in_bytes() -> None:
    network = Network()
    network.quantized("x", "i", 0.02, 20)
    network.dequantized("i", 0.02, 20)
    for made in ("c", "d"):
        network.convolved("i_float", made, (32, 16, 3, 3), pads=[1, 1, 1, 1])
        network.quantized(made, f"{made}_bytes", 0.04, 90)
        network.dequantized(f"{made}_bytes", 0.04, 90)
    network.nodes.append(node("Add", ["c_bytes_float", "d_bytes_float"], ["a"]))
    network.quantized("a", "y", 0.05, 120)
    program = network.check((1, 16, 12, 12), "y")
    stored = {item for call in calls_of(program.calls) for item in call.arguments}
    between = stored.difference(program.parameters)
    images = [item for item in between if getattr(item, "shape", ())[-2:] == (12, 12)]
    assert images
    assert {item.dtype.nbytes for item in images} == {1}
