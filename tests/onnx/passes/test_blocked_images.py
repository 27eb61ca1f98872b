"""Images stay in blocks of channels between convolutions, and results are what they were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from taskc import f32
from taskc.onnx.importer import import_graph, is_known
from taskc.onnx.passes.convolutions import blocked_images
from taskc.onnx.reader import read
from taskc.onnx.session import compile
from taskc.programs.ir import Program, kernels_of
from taskc.runtime.driver import scheduled
from tests.onnx.models import model, node, tensor

SIDE = 9


class Network:
    """A model with filters that are constants; each method appends a node and returns what it makes."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, np.ndarray[Any, Any]] = {}

    def constant(self, *shape: int) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = self.random.standard_normal(shape).astype(np.float32)
        return name

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(node(operator, [*inputs], [name], **attributes))
        return name

    def conv(self, x: str, channels: int, features: int, size: int = 3, group: int = 1) -> str:
        w = self.constant(features, channels // group, size, size)
        b = self.constant(features)
        return self.add("Conv", x, w, b, group=group, pads=[size // 2] * 4)

    def model(self, channels: int, outputs: Sequence[str]) -> ModelProto:
        weights = [numpy_helper.from_array(array, name) for name, array in self.constants.items()]
        x = tensor("x", 2, channels, SIDE, SIDE)
        return model(self.nodes, [x], [*outputs], initializer=weights)


def check(made: ModelProto) -> None:
    """Outputs are the reference's."""
    shape = [extent.dim_value for extent in made.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(7).standard_normal(shape).astype(np.float32)
    expected = ReferenceEvaluator(made).run(None, {"x": x})
    for found, wanted in zip(compile(made).run(None, {"x": x}), expected, strict=True):
        assert found.shape == wanted.shape
        assert np.abs(found - wanted).max() < 1e-5 * max(1, np.abs(wanted).max())


def program_of(made: ModelProto) -> Program:
    graph = blocked_images(read(made, is_known))
    return scheduled(import_graph(graph, {"x": f32[tuple(graph.inputs[0].shape or ())]}).program)[0]


def kernels(made: ModelProto) -> list[str]:
    """The names of the kernels of a model's program."""
    return [kernel.name for kernel in kernels_of(program_of(made)).values()]


def residual_block(channels: int) -> ModelProto:
    net = Network()
    a = net.add("Relu", net.conv("x", 3, channels))
    b = net.add("Relu", net.conv(a, channels, channels, group=channels))
    c = net.add("Add", net.conv(b, channels, channels, 1), a)
    d = net.conv(net.add("Relu", c), channels, 5)
    return net.model(3, [d])


@pytest.mark.parametrize("channels", [16, 24])
def test_a_residual_block_has_one_kernel_a_convolution(channels: int) -> None:
    made = residual_block(channels)
    check(made)
    found = kernels(made)
    assert len(found) == 4, found
    assert not any("rows" in name or "in_blocks" in name for name in found), found


# What fills up a block must stay zeros for the convolution behind: of 0 these make one half, and minus infinity.
@pytest.mark.each_value
@pytest.mark.parametrize("operator", ["Sigmoid", "Log"])
@pytest.mark.parametrize("channels", [16, 20])
def test_elements_are_computed_in_blocks(operator: str, channels: int) -> None:
    net = Network()
    a = net.conv("x", 3, channels, 1)
    b = net.add("Mul", a, net.add(operator, net.add("Abs", a)))
    made = net.model(3, [net.conv(net.add("Add", b, net.constant(1)), channels, 4)])
    check(made)
    assert len(kernels(made)) == 2


@pytest.mark.parametrize("channels", [16, 20])
def test_what_is_broadcast_to_blocks(channels: int) -> None:
    net = Network()
    a = net.conv("x", 3, channels, 1)
    made = a
    for shape in [(), (1, 1, 1), (9,), (channels, 1, 1), (1, channels, 9, 9), (2, 1, 1, 9)]:
        made = net.add("Mul", made, net.constant(*shape))
    five = net.add("Mul", a, net.constant(1, 1, channels, 1, 1))
    check(net.model(3, [five, net.conv(made, channels, 4)]))


def test_channels_that_are_scaled_by_what_is_pooled() -> None:
    net = Network()
    a = net.conv("x", 3, 20)
    s = net.add("Sigmoid", net.conv(net.add("GlobalAveragePool", a), 20, 20, 1))
    b = net.add("Mul", net.conv(a, 20, 20, 1), s)
    check(net.model(3, [net.conv(b, 20, 4), net.add("GlobalMaxPool", a)]))


@pytest.mark.parametrize("channels", [16, 20])
def test_poolings_in_blocks(channels: int) -> None:
    net = Network()
    a = net.conv("x", 3, channels)
    b = net.add("MaxPool", a, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)
    c = net.add(
        "AveragePool",
        b,
        kernel_shape=[2, 2],
        pads=[1, 0, 0, 1],
        count_include_pad=1,
        dilations=[2, 1],
    )
    d = net.add("AveragePool", a, kernel_shape=[2, 3], auto_pad="SAME_UPPER")
    check(net.model(3, [net.conv(c, channels, 4), net.conv(d, channels, 4)]))


def test_the_places_of_the_largest() -> None:
    net = Network()
    a = net.conv("x", 3, 16)
    net.nodes.append(node("MaxPool", [a], ["y", "places"], kernel_shape=[2, 2]))
    made = net.model(3, [a, "y", "places", net.conv(a, 16, 2)])
    x = net.random.standard_normal((2, 3, SIDE, SIDE)).astype(np.float32)
    images, largest, places, _ = compile(made).run(None, {"x": x})
    np.testing.assert_array_equal(images.reshape(-1)[places], largest)


def test_others_read_rows() -> None:
    """An output, a transposition, and a comparison, of images that another convolution reads as blocks."""
    net = Network()
    a = net.conv("x", 3, 20)
    t = net.add("Transpose", a, perm=[0, 2, 3, 1])
    w = net.add("Where", net.add("Greater", a, net.constant(1)), a, net.constant(1))
    check(net.model(3, [a, t, net.conv(a, 20, 4), net.conv(w, 20, 4)]))


def test_only_what_is_read_as_images_is_in_blocks() -> None:
    net = Network()
    a = net.conv("x", 3, 16)
    b = net.add("Relu", a)
    c = net.conv(b, 16, 16)
    d = net.conv(net.add("Transpose", net.conv(c, 16, 16), perm=[0, 1, 3, 2]), 16, 16)
    graph = blocked_images(read(net.model(3, [d]), is_known))
    found = [it.attributes.get("results") for it in graph.nodes if it.operator == "Conv"]
    assert found == ["NCHWc", "NCHWc", None, None]


def test_images_of_other_axes_and_of_unknown_extents() -> None:
    for extents in ((SIDE,), ("h", "w")):
        net = Network()
        axes = len(extents)
        first = net.add("Conv", "x", net.constant(16, 3, *[3] * axes))
        second = net.add("Conv", net.add("Relu", first), net.constant(4, 16, *[1] * axes))
        weights = [numpy_helper.from_array(array, name) for name, array in net.constants.items()]
        made = model(net.nodes, [tensor("x", 2, 3, *extents)], [second], initializer=weights)
        x = net.random.standard_normal([2, 3, *[n if isinstance(n, int) else 8 for n in extents]])
        feeds = {"x": x.astype(np.float32)}
        (expected,) = ReferenceEvaluator(made).run(None, feeds)
        (found,) = compile(made).run(None, feeds)
        assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("channels", [16, 20])
def test_what_moves_elements_between_convolutions(channels: int) -> None:
    net = Network()
    net.constants["twice"] = np.array([1, 1, 2, 2], np.float32)
    net.constants["edges"] = np.array([0, 0, 1, 0, 0, 0, 2, 1], np.int64)
    a = net.add("Relu", net.conv("x", 3, 2 * channels))
    net.nodes.append(node("Split", [a], ["first", "second"], axis=1, num_outputs=2))
    b = net.add("Concat", net.conv("second", channels, channels), "first", axis=1)
    c = net.add("Pad", net.add("Resize", b, "", "twice", mode="nearest"), "edges")
    made = net.model(3, [net.conv(c, 2 * channels, 4), "first"])
    check(made)
    graph = blocked_images(read(made, is_known))
    made_by = {name: it.operator for it in graph.nodes for name in it.outputs}
    blocks = [made_by[it.inputs[0]] for it in graph.nodes if it.operator == "Blocks"]
    assert sorted(blocks) == ["Concat", "Pad", "Resize", "Split", "Split"]
    found = [it.attributes.get("results") for it in graph.nodes if it.operator == "Conv"]
    assert found == ["NCHWc", "NCHWc", None]


@pytest.mark.each_value
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("channels", [16, 20])
def test_images_are_resized_in_blocks(channels: int, mode: str) -> None:
    net = Network()
    net.constants["twice"] = np.array([1, 1, 2, 3], np.float32)
    a = net.conv("x", 3, channels)
    how = "asymmetric" if mode == "nearest" else "half_pixel"
    b = net.add("Resize", a, "", "twice", mode=mode, coordinate_transformation_mode=how)
    made = net.model(3, [net.conv(net.add("Concat", b, b, axis=1), 2 * channels, 4)])
    check(made)
    images = [it for it in program_of(made).temporaries if len(it.shape) == 4 and it.dtype is f32]
    assert images
    assert not [it for it in images if it.layout is None]


def test_images_that_each_tap_would_look_up_are_resized_once() -> None:
    net = Network()
    net.constants["twice"] = np.array([1, 1, 2, 2], np.float32)
    a = net.add("Resize", net.conv("x", 3, 32), "", "twice", mode="nearest")
    b = net.conv(a, 32, 32, group=32)
    made = net.model(3, [net.conv(b, 32, 4, 1)])
    check(made)
    assert [name for name in kernels(made) if "nearest" in name] == ["nearest"]


@pytest.mark.each_value
@pytest.mark.parametrize(("size", "stride"), [(2, 2), (3, 2), (2, 1)])
@pytest.mark.parametrize("channels", [16, 20])
def test_transposed_convolutions_in_blocks(channels: int, size: int, stride: int) -> None:
    net = Network()
    a = net.add("Relu", net.conv("x", 3, channels))
    w, b = net.constant(channels, channels, size, size), net.constant(channels)
    y = net.add("ConvTranspose", a, w, b, strides=[stride] * 2)
    made = net.model(3, [net.conv(net.add("Relu", y), channels, 4)])
    check(made)
    graph = blocked_images(read(made, is_known))
    laid = [it.attributes.get("results") for it in graph.nodes if it.operator.startswith("Conv")]
    assert laid == ["NCHWc", "NCHWc", None]
    assert len(kernels(made)) == 3


def test_what_moves_elements_for_others_makes_rows() -> None:
    net = Network()
    joined = net.add("Concat", net.conv("x", 3, 16), "x", axis=1)
    graph = read(net.model(3, [net.add("Transpose", joined, perm=[0, 2, 3, 1])]), is_known)
    assert [it.operator for it in blocked_images(graph).nodes] == ["Conv", "Concat", "Transpose"]
