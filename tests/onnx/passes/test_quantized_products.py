"""Products of dequantized bytes multiply the bytes, and what only looks like one stays what it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from taskc.onnx.importer import is_known
from taskc.onnx.passes.products import quantized_products
from taskc.onnx.reader import read
from taskc.onnx.session import compile
from taskc.programs.ir import calls_of
from taskc.runtime.driver import scheduled
from tests.onnx.models import OPSET, model, node, tensor

Array = np.ndarray[Any, Any]


def numbers(dtype: Any, *shape: int, seed: int = 0) -> Array:
    ends = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(ends.min, ends.max + 1, shape).astype(dtype)


@dataclass
class Network:
    """What tools write around a product: x is quantized, dequantized, multiplied, and quantized again."""

    constants: dict[str, Array]
    of_x: dict[str, Any] = field(default_factory=dict)
    of_w: dict[str, Any] = field(default_factory=dict)
    operator: str = "MatMul"
    attributes: dict[str, Any] = field(default_factory=dict)
    bias: bool = False
    shape: tuple[int, ...] = (2, 5, 70)
    opset: int = OPSET
    inputs: dict[str, tuple[Array, int]] = field(default_factory=dict)
    multiplied: tuple[str, str] = ("a", "b")

    def nodes(self) -> list[NodeProto]:
        return [
            node("QuantizeLinear", ["x", "s", "p"], ["i"], **self.of_x),
            node("DequantizeLinear", ["i", "s", "p"], ["a"], **self.of_x),
            node("DequantizeLinear", ["w", "t", "q"], ["b"], **self.of_w),
            *([node("DequantizeLinear", ["c", "u"], ["d"])] if self.bias else []),
            node(self.operator, [*self.multiplied, *(["d"] if self.bias else [])], ["m"], **self.attributes),
            node("Relu", ["m"], ["r"]),
            node("QuantizeLinear", ["r", "v", "z"], ["y"]),
        ]  # fmt: skip

    def check(self) -> list[str]:
        """The operators that run; what comes out is the reference's, to one quantum."""
        named = [name for name in self.constants if name not in self.inputs]
        made = model(
            self.nodes(),
            [tensor("x", *self.shape)]
            + [tensor(name, *array.shape, type=kind) for name, (array, kind) in self.inputs.items()],
            ["y", "m"],
            initializer=[numpy_helper.from_array(self.constants[name], name) for name in named],
            opset=self.opset,
        )  # fmt: skip
        x = np.random.default_rng(3).standard_normal(self.shape).astype(np.float32)
        feeds = {"x": x, **{name: array for name, (array, _) in self.inputs.items()}}
        y, m = compile(made).run(None, feeds)
        expected, sums = ReferenceEvaluator(made).run(None, feeds)
        sums = sums.astype(np.float32)
        assert np.abs(m.astype(np.float32) - sums).max() <= 1e-4 * np.abs(sums).max()
        assert np.abs(y.astype(np.int64) - expected.astype(np.int64)).max() <= 1
        assert len(np.unique(expected)) > 5
        return [it.operator for it in quantized_products(read(made, is_known)).nodes]


def matmul(**changed: Any) -> Network:
    constants: dict[str, Array] = {
        "s": np.float32(0.02), "p": np.uint8(130), "w": numbers(np.int8, 70, 24), "q": np.int8(0),
        "t": np.float32(0.01), "v": np.float32(0.5), "z": np.uint8(3),
    }  # fmt: skip
    more = changed.pop("constants", {})
    return Network({name: np.asarray(it) for name, it in (constants | more).items()}, **changed)


def scales(count: int) -> Array:
    return np.linspace(0.005, 0.02, count, dtype=np.float32)


PER_COLUMN = {"t": scales(24), "q": np.zeros(24, np.int8)}


@pytest.mark.parametrize(
    "network",
    [
        matmul(),
        matmul(constants={"p": np.int8(-128)}),
        matmul(constants=PER_COLUMN, of_w={"axis": 1}),
        matmul(constants=PER_COLUMN, of_w={"axis": -1}),
        matmul(constants={"w": numbers(np.uint8, 70, 24), "q": np.uint8(110)}),
        matmul(constants={"s": np.array([0.02], np.float32), "p": np.array([130], np.uint8)}),
        matmul(shape=(70,)),
        matmul(opset=19),
    ],
    ids=["per tensor", "i8", "per column", "from the end", "u8 weights", "of one element", "a vector", "opset 19"],
)  # fmt: skip
def test_a_matmul_of_bytes(network: Network) -> None:
    found = network.check()
    assert "MatMulInteger" in found
    assert "MatMul" not in found


@pytest.mark.parametrize("turned", [0, 1])
def test_a_gemm_of_bytes(turned: int) -> None:
    w = numbers(np.int8, 24, 70) if turned else numbers(np.int8, 70, 24)
    t = scales(24)
    constants = {
        "w": w,
        "t": t,
        "q": np.zeros(24, np.int8),
        "c": numbers(np.int16, 24).astype(np.int32),
        "u": t * 0.02,
    }
    network = matmul(
        constants=constants, of_w={"axis": 1 - turned}, operator="Gemm", shape=(5, 70),
        attributes={"transB": turned}, bias=True,
    )  # fmt: skip
    network.constants["u"] = np.float32(2e-4)
    assert "Gemm" not in network.check()


@pytest.mark.each_value
@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("zero", [0, 100])
def test_a_convolution_of_bytes(zero: int, group: int) -> None:
    constants = {
        "w": numbers(np.int8, 24, 6 // group, 3, 3), "t": scales(24), "q": np.zeros(24, np.int8),
        "p": np.uint8(zero), "c": numbers(np.int16, 24).astype(np.int32), "u": np.float32(2e-4),
    }  # fmt: skip
    network = matmul(
        constants=constants, of_w={"axis": 0}, operator="Conv", shape=(2, 6, 9, 7), bias=True,
        attributes={"pads": [1, 1, 1, 1], "group": group, "strides": [1, 2]},
    )  # fmt: skip
    assert "Conv" not in network.check()


KINDS: dict[str, dict[str, Any]] = {
    "u8 by u8": {"w": numbers(np.uint8, 17, 3, 3, 3), "q": np.full(17, 128, np.uint8)},
    "u8 by u8, another zero": {
        "w": numbers(np.uint8, 17, 3, 3, 3),
        "q": np.full(17, 100, np.uint8),
    },
    "i8 by i8": {"p": np.int8(-100), "z": np.int8(3)},
    "a scale of 0": {"t": scales(17) * (np.arange(17) % 4 > 0).astype(np.float32)},
}


@pytest.mark.parametrize("kind", KINDS)
def test_types_of_convolutions(kind: str) -> None:
    constants = {
        "w": numbers(np.int8, 17, 3, 3, 3), "t": scales(17), "q": np.zeros(17, np.int8),
        "p": np.uint8(100), **KINDS[kind],
    }  # fmt: skip
    network = matmul(
        constants=constants, of_w={"axis": 0}, operator="Conv", shape=(1, 3, 5, 6),
        attributes={"pads": [2, 1, 0, 1]},
    )  # fmt: skip
    assert "Conv" not in network.check()


def other_types(name: str) -> Callable[[], Network]:
    return lambda: matmul(
        constants={"p": np.uint16(130), "w": numbers(np.int8, 70, 24)}
        if name == "x"
        else {"w": numbers(np.int16, 70, 24) // 256, "q": np.int16(0)}
    )


LOOKALIKES: dict[str, Callable[[], Network]] = {
    "a scale for each row of the weights": lambda: matmul(
        constants={"t": scales(70), "q": np.zeros(70, np.int8)}, of_w={"axis": 0}
    ),
    "scales of blocks": lambda: matmul(
        constants={"t": np.tile(scales(24), (7, 1)), "q": np.zeros((7, 24), np.int8)},
        of_w={"axis": 0, "block_size": 10},
    ),
    "scales along an axis of x": lambda: matmul(
        constants={"s": scales(70), "p": np.full(70, 130, np.uint8)}, of_x={"axis": 2}
    ),
    "weights that are given": lambda: matmul(
        inputs={"w": (numbers(np.int8, 70, 24), TensorProto.INT8)}
    ),
    "a scale that is given": lambda: matmul(
        inputs={"t": (np.array(0.01, np.float32), TensorProto.FLOAT)}
    ),
    "16 bits of x": other_types("x"),
    "16 bits of the weights": other_types("w"),
    "weights that aren't quantized": lambda: matmul(
        constants={"e": numbers(np.int8, 70, 24).astype(np.float32)},
        multiplied=("a", "e"),
    ),
    "x before it is quantized": lambda: matmul(multiplied=("x", "b")),
    "several matrices": lambda: matmul(constants={"w": numbers(np.int8, 2, 70, 24)}),
    "more products than a sum holds": lambda: matmul(
        constants={"w": numbers(np.int8, 40_000, 4)}, shape=(4, 40_000)
    ),
    "a scaled product": lambda: matmul(
        operator="Gemm", shape=(5, 70), attributes={"alpha": 0.5}
    ),
    "a scaled bias": lambda: matmul(
        operator="Gemm", shape=(5, 70), attributes={"beta": 2.0}, bias=True,
        constants={"c": numbers(np.int16, 24).astype(np.int32), "u": np.float32(2e-4)},
    ),
    "x that is turned": lambda: matmul(operator="Gemm", shape=(70, 5), attributes={"transA": 1}),
    "a scale for each channel": lambda: matmul(
        operator="Conv", shape=(2, 6, 9, 7), of_w={"axis": 1},
        constants={"w": numbers(np.int8, 24, 6, 3, 3), "t": scales(6), "q": np.zeros(6, np.int8)},
    ),
    "another operator": lambda: matmul(operator="Add", constants={"w": numbers(np.int8, 1, 70)}),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOKALIKES)
def test_lookalikes_stay_as_they_are(name: str) -> None:
    network = LOOKALIKES[name]()
    found = network.check()
    assert network.operator in found
    assert not {"MatMulInteger", "ConvInteger"} & {*found}


@pytest.mark.each_value
@pytest.mark.parametrize("channels", [16, 20])
@pytest.mark.parametrize("zero", [0, 100])
def test_images_stay_in_blocks_between_convolutions(channels: int, zero: int) -> None:
    """Quantized, multiplied, added up with what is dequantized from elsewhere, and multiplied again."""
    constants: dict[str, Any] = {"s": np.float32(0.02), "p": np.uint8(zero)}
    constants |= {"t": scales(channels), "q": np.zeros(channels, np.int8)}
    nodes = [node("QuantizeLinear", ["x", "s", "p"], ["i0"])]
    for n, group in enumerate((1, channels, 1)):
        width = 3 if n == 0 else channels
        constants[f"w{n}"] = numbers(np.int8, channels, width // group, 3, 3, seed=n)
        constants[f"b{n}"] = scales(channels)
        nodes += [
            node("DequantizeLinear", [f"i{n}", "s", "p"], [f"a{n}"]),
            node("DequantizeLinear", [f"w{n}", "t", "q"], [f"d{n}"], axis=0),
            node("Conv", [f"a{n}", f"d{n}", f"b{n}"], [f"c{n}"], pads=[1] * 4, group=group),
            node("Tanh", [f"c{n}"], [f"h{n}"]),
            *([node("Add", ["h1", "a1"], ["sum"])] if n == 1 else []),
            node("QuantizeLinear", ["sum" if n == 1 else f"h{n}", "s", "p"], [f"i{n + 1}"]),
        ]
    made = model(
        nodes,
        [tensor("x", 2, 3, 9, 7)],
        ["i3"],
        initializer=[numpy_helper.from_array(np.asarray(it), name) for name, it in constants.items()],
    )  # fmt: skip
    x = np.random.default_rng(3).standard_normal((2, 3, 9, 7)).astype(np.float32)
    compiled = compile(made)
    (found,) = compiled.run(None, {"x": x})
    (expected,) = ReferenceEvaluator(made).run(None, {"x": x})
    off = np.abs(found.astype(np.int64) - expected.astype(np.int64))
    assert (off > 1).mean() < 0.01  # a quantum in the middle may be several in the end
    program = scheduled(compiled.program({"x": x}).program)[0]
    names = [call.callee.name for call in calls_of(program.calls)]
    # Only the last kernel writes rows, of results.
    assert not any("rows" in name or "in_blocks" in name for name in names[:-1]), names
